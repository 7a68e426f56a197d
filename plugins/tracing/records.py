"""The small immutable record of a request that is kept until it is exported; created on the event loop.

It has immutable values only, so that a queued record keeps neither a connection nor a request body in memory.
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
"""Characters kept of each text, to bound the queue's memory; a client id may have 32,767."""

MOST_SPANS: Final = 3
"""Spans of one record: the request, the broker's part, the mute."""


class TraceRecord(NamedTuple):
    """A completed request. A named tuple, since creating a frozen dataclass takes the event loop twice as long.

    Times in seconds are of the proxy's monotonic clock; `completed_ns` is the wall time of `completed_s`. Both are read
    for every record, so that spans do not drift from the wall clock.
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
    """The request's topic if it is known and the only one."""
    connection_id: int
    node_id: int | None
    user: str
    peer: Address
    upstream: Address | None

    @property
    def span_count(self) -> int:
        """The number of spans of its trace."""
        return 1 + (self.forwarded_s is not None) + (self.throttle_ms > 0)


def record_of(request: Request, trace_id: int, now_s: float = 0.0) -> TraceRecord:
    """Return the record of ``request``. ``now_s`` is the present time of the proxy's monotonic clock, from which the
    wall time of the completion is computed; 0 if the request was completed just now."""
    connection, reason, error, body = request.connection, request.reason, request.error, request.body
    completed_s = request.completed_s
    late_s = 0.0 if completed_s is None else max(0.0, now_s - completed_s)
    return TraceRecord(
        trace_id,
        time_ns() - round(late_s * 1e9),
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
    """Return ``reason`` with its entity cut to `LONGEST_TEXT`, since an entity contains a client id."""
    return reason if len(reason.entity) <= LONGEST_TEXT else replace(reason, entity=reason.entity[:LONGEST_TEXT])


def only_topic(body: Mapping[str, Any]) -> str | None:
    """Return the name of a decoded request's only topic; ``None`` for no topic, several, or one given by id only."""
    topics = body.get("topics") or body.get("topic_data") or body.get("topic_names")
    if not topics or len(topics) != 1:
        return None
    topic = topics[0]
    name = topic if isinstance(topic, str) else topic.get("name")
    return name[:LONGEST_TEXT] if name else None
