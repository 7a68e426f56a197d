"""Sums of completed requests, for plugins that need no call for each of them.

The hook `headrace.quota_callbacks.hookspecs.requests_completed` is called with them. The native data plane keeps them
in its threads; the Python relays add to them what they relay.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Connection

LATENCY_BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""The upper bounds of `RequestSums.latencies`, in seconds."""


class RequestSums:
    """The sums of the requests of one connection, user, client id and API that were completed in one second."""

    __slots__ = (
        "api_key",
        "broker_s",
        "client_id",
        "connection",
        "latencies",
        "new_producer_ids",
        "request_bytes",
        "requests",
        "response_bytes",
        "second",
        "thread_ns",
        "user",
    )

    def __init__(self, connection: Connection, user: str, client_id: str, api_key: int, second: int) -> None:
        self.connection = connection
        """The connection that the requests arrived on."""
        self.user = user
        """The connection's user when they were completed."""
        self.client_id = client_id
        """The client id of the requests (`Request.client_id`)."""
        self.api_key = api_key
        """The API's number."""
        self.second = second
        """The wall clock's second in which they were completed, since 1970, UTC."""
        self.requests = 0
        """Number of requests."""
        self.request_bytes = 0
        """Sum of `Request.request_bytes`."""
        self.response_bytes = 0
        """Sum of `Request.response_bytes`."""
        self.thread_ns = 0
        """Sum of the thread time that ``request_percentage`` charged, or would have charged if it applied to the
        sender, in nanoseconds: the estimate of the broker's time, and the proxy's own time where it is measured
        (`Connection.measure_thread_time`)."""
        self.broker_s = 0.0
        """Sum of the times between forwarding and the first byte of the reply, in seconds."""
        self.latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)
        """Number of requests by that time: up to each of `LATENCY_BOUNDS_S`, and above the last one. Without requests
        that were not forwarded, or have no reply."""
        self.new_producer_ids = 0
        """Sum of `Request.new_producer_ids`."""

    def add_latency(self, seconds: float) -> None:
        """Count the time between forwarding and reply of one request."""
        self.broker_s += seconds
        self.latencies[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
