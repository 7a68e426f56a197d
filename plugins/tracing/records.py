"""What is kept of a request until it is exported: a small immutable record, made on the loop.

It holds no live object of the proxy: a request that waits in the queue must keep neither its connection nor its bodies.
"""

from __future__ import annotations

from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.requests import Address, Request
    from headrace.quota_callbacks.verdicts import Reason

LONGEST_TEXT: Final = 256
"""Characters kept of what a client or an error says; a client id may have 32,767, and the queue is to stay small."""

MOST_SPANS: Final = 3
"""Of one record: the request, the broker's part, the mute."""


class TraceRecord(NamedTuple):
    """A completed request. A tuple and not a frozen dataclass: it is made on the loop, in half the time.

    Seconds are of the proxy's monotonic clock; `completed_ns` is the wall time of `completed_s`. The pair is taken anew
    for every record, so that spans do not drift from the wall clock however long the process lives.
    """

    trace_id: int
    completed_ns: int
    completed_s: float
    received_s: float
    forwarded_s: float | None
    reply_s: float | None
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    request_bytes: int
    response_bytes: int
    acks: int | None
    throttle_ms: int
    throttled_s: float | None
    hold_ms: int
    observed_ms: int
    broker_throttle_ms: int
    reason: Reason | None
    refused_code: int
    error: str | None
    topic: str | None
    """The one topic that the request is about, where that is known."""
    connection_id: int
    node_id: int | None
    user: str
    peer: Address
    upstream: Address | None

    @property
    def span_count(self) -> int:
        """How many spans it will become."""
        return 1 + (self.forwarded_s is not None) + (self.throttle_ms > 0)


def record_of(request: Request, trace_id: int) -> TraceRecord:
    """Take what a trace needs from a request that has just been completed."""
    connection, reason, error, body = request.connection, request.reason, request.error, request.body
    completed_s = request.completed_s
    return TraceRecord(
        trace_id,
        time_ns(),
        request.received_s if completed_s is None else completed_s,
        request.received_s,
        request.forwarded_s,
        request.reply_s,
        request.api_key,
        request.api_version,
        request.correlation_id,
        request.client_id[:LONGEST_TEXT],
        request.request_bytes,
        request.response_bytes,
        request.acks,
        request.throttle_ms,
        request.throttled_s,
        request.hold_ms,
        request.observed_ms,
        request.broker_throttle_ms,
        None if reason is None else _bounded(reason),
        request.refused_code,
        None if error is None else error[:LONGEST_TEXT],
        None if body is None else only_topic(body),
        connection.connection_id,
        connection.node_id,
        connection.user[:LONGEST_TEXT],
        connection.peer,
        connection.upstream,
    )


def _bounded(reason: Reason) -> Reason:
    """An entity is spelled with its client id, and that may be long."""
    return reason if len(reason.entity) <= LONGEST_TEXT else replace(reason, entity=reason.entity[:LONGEST_TEXT])


def only_topic(body: Mapping[str, Any]) -> str | None:
    """The topic of a decoded request that names exactly one; ``None`` for none, several, or one by its id alone."""
    topics = body.get("topics") or body.get("topic_data") or body.get("topic_names")
    if not topics or len(topics) != 1:
        return None
    topic = topics[0]
    name = topic if isinstance(topic, str) else topic.get("name")
    return name or None
