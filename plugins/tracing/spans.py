"""Converts a record to the SDK's spans, by the messaging conventions. Called only by the export thread.

A trace consists of:

- the request, kind SERVER, from its first byte to the last byte of its reply. The messaging conventions describe
  producers and consumers and define no span for an intermediary; the proxy *handles a remote request while the client
  waits*, which is the tracing API's definition of SERVER.
- the broker's part, kind CLIENT, from forwarding the request to the first byte of the reply. Here the proxy acts as a
  Kafka client, and the conventions require CLIENT for ``send``, ``receive`` and ``settle`` if the span's context is not
  written into the messages; the proxy never changes messages.
- the mute, kind INTERNAL, from the verdict for the throttle time. The client's channel is muted after the reply has
  been sent (KIP-219), so this span usually ends after its parent.

Span names are ``{operation} {destination}``. The operation is Kafka's name of the API. The destination is the topic; it
is missing if the request is about several topics or its topics were not read.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from headrace.plugins.otel_sdk import own_resource, own_version
from headrace.plugins.tracing import attributes as names
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from headrace.plugins.tracing.records import TraceRecord

SCOPE: Final = "headrace.tracing"
MUTE: Final = "mute"

OPERATION_TYPES: Final = {
    ApiKey.PRODUCE.value: "send",
    ApiKey.FETCH.value: "receive",
    ApiKey.SHARE_FETCH.value: "receive",
    ApiKey.OFFSET_COMMIT.value: "settle",
    ApiKey.TXN_OFFSET_COMMIT.value: "settle",
    ApiKey.SHARE_ACKNOWLEDGE.value: "settle",
}
"""``messaging.operation.type`` by API key; the other APIs match no operation that the conventions define."""

ERROR_NAMES: Final = {
    each.value: each.name
    for each in (
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    )
}
"""The error codes that the proxy itself replies with."""

Attributes = dict[str, "str | int | float"]


class _ChosenTraceId(RandomIdGenerator):
    """A generator of the trace id of the record, by which the event loop has sampled the request."""

    def __init__(self) -> None:
        self.trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Ended(SpanProcessor):
    """A collector of the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class SpanBuilder:
    """A builder of the spans of one record at a time, with the resource and the limits that the SDK's variables set."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        """The Kafka cluster's id; ``None`` until it is known."""
        self._ids = _ChosenTraceId()
        self._ended = _Ended()
        provider = TracerProvider(
            sampler=ALWAYS_ON, resource=own_resource(), id_generator=self._ids, shutdown_on_exit=False
        )
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SCOPE, own_version(), schema_url=names.SCHEMA_URL)

    def spans(self, record: TraceRecord) -> list[ReadableSpan]:
        """Return the spans of one trace, children first."""
        self._ids.trace_id = record.trace_id
        self._ended.spans = []
        shared = self._shared(record)
        request = self._tracer.start_span(
            _span_name(record),
            context=Context(),
            kind=SpanKind.SERVER,
            attributes=shared | _request_attributes(record),
            start_time=_wall_ns(record, record.received_s),
        )
        _set_failure(request, record)
        inside = set_span_in_context(request, Context())
        if record.forwarded_s is not None:
            self._broker_part(record, record.forwarded_s, shared, inside)
        if record.throttle_ms > 0:
            self._mute(record, inside)
        request.end(record.completed_ns)
        return self._ended.spans

    def _shared(self, record: TraceRecord) -> Attributes:
        """Return the attributes of both the request's and the broker's span."""
        shared: Attributes = {names.MESSAGING_SYSTEM: "kafka", names.MESSAGING_OPERATION_NAME: _operation(record)}
        operation_type = OPERATION_TYPES.get(record.api_key)
        if operation_type is not None:
            shared[names.MESSAGING_OPERATION_TYPE] = operation_type
        if record.client_id:
            shared[names.MESSAGING_CLIENT_ID] = record.client_id
        if record.topic is not None:
            shared[names.MESSAGING_DESTINATION_NAME] = record.topic
        if self.cluster_id is not None:
            shared[names.MESSAGING_KAFKA_CLUSTER_ID] = self.cluster_id
        if record.upstream is not None:
            shared[names.SERVER_ADDRESS] = record.upstream.host
            shared[names.SERVER_PORT] = record.upstream.port
        return shared

    def _broker_part(self, record: TraceRecord, forwarded_s: float, shared: Attributes, inside: Context) -> None:
        own: Attributes = {}
        if record.upstream is not None and _is_ip(record.upstream.host):
            own[names.NETWORK_PEER_ADDRESS] = record.upstream.host
            own[names.NETWORK_PEER_PORT] = record.upstream.port
        span = self._tracer.start_span(
            _span_name(record),
            context=inside,
            kind=SpanKind.CLIENT,
            attributes=shared | own,
            start_time=_wall_ns(record, forwarded_s),
        )
        if record.error is not None and record.reply_s is None:
            _set_failure(span, record)
        span.end(record.completed_ns if record.reply_s is None else _wall_ns(record, record.reply_s))

    def _mute(self, record: TraceRecord, inside: Context) -> None:
        begin_ns = _wall_ns(record, record.received_s if record.throttled_s is None else record.throttled_s)
        span = self._tracer.start_span(MUTE, context=inside, attributes=_quota_attributes(record), start_time=begin_ns)
        span.end(begin_ns + record.throttle_ms * 1_000_000)


def _operation(record: TraceRecord) -> str:
    return API_NAMES.get(record.api_key) or f"api_key_{record.api_key}"


def _span_name(record: TraceRecord) -> str:
    operation = _operation(record)
    return operation if record.topic is None else f"{operation} {record.topic}"


def _wall_ns(record: TraceRecord, at_s: float) -> int:
    return record.completed_ns - round((record.completed_s - at_s) * 1e9)


def _request_attributes(record: TraceRecord) -> Attributes:
    own: Attributes = {
        names.CLIENT_ADDRESS: record.peer.host,
        names.CLIENT_PORT: record.peer.port,
        names.USER_NAME: _text(record.user),
        names.API_KEY: record.api_key,
        names.API_VERSION: record.api_version,
        names.CORRELATION_ID: record.correlation_id,
        names.CONNECTION_ID: record.connection_id,
        names.REQUEST_BYTES: record.request_bytes,
        names.RESPONSE_BYTES: record.response_bytes,
        names.VERDICT: _verdict(record),
    }
    if record.node_id is not None:
        own[names.NODE_ID] = record.node_id
    if record.acks is not None:
        own[names.ACKS] = record.acks
    if record.broker_throttle_ms:
        own[names.BROKER_THROTTLE_MS] = record.broker_throttle_ms
    if record.refused_code:
        own[names.REFUSED_CODE] = record.refused_code
    return own | _quota_attributes(record)


def _verdict(record: TraceRecord) -> str:
    if record.refused_code:
        return "refuse"
    if record.throttle_ms:
        return "hold" if record.hold_ms else "throttle"
    return "observe" if record.observed_ms else "forward"


def _quota_attributes(record: TraceRecord) -> Attributes:
    own: Attributes = {}
    if record.throttle_ms:
        own[names.THROTTLE_MS] = record.throttle_ms
    if record.observed_ms:
        own[names.OBSERVED_MS] = record.observed_ms
    if record.reason is not None:
        own[names.QUOTA_KEY] = record.reason.quota
        own[names.QUOTA_ENTITY] = _text(record.reason.entity)
        own[names.QUOTA_OBSERVED] = float(record.reason.observed)
        own[names.QUOTA_LIMIT] = float(record.reason.limit)
    return own


def _set_failure(span: Span, record: TraceRecord) -> None:
    """Set the status and ``error.type`` as the conventions' page *recording errors* requires.

    A request that the proxy refused with an error code is a failure, too.
    """
    if record.error is not None:
        span.set_attribute(names.ERROR_TYPE, _fault(record.error))
        span.set_status(StatusCode.ERROR, _text(record.error))
    elif record.refused_code:
        span.set_attribute(names.ERROR_TYPE, ERROR_NAMES.get(record.refused_code) or str(record.refused_code))
        reason = record.reason
        span.set_status(StatusCode.ERROR, None if reason is None else _text(f"{reason.quota} of {reason.entity}"))


def _fault(error: str) -> str:
    """Return the ``error.type`` of a reason for closing, which begins with the side at fault.

    The conventions require a small set of values for ``error.type``.
    """
    for side in ("client", "upstream", "proxy"):
        if error.startswith((f"{side}:", f"the {side} ")):
            return f"{side}_fault"
    return "_OTHER"


def _text(text: str) -> str:
    """Return ``text`` without characters that UTF-8 cannot encode: one such string would make the whole export fail."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@lru_cache(maxsize=1024)
def _is_ip(host: str) -> bool:
    """Return whether ``host`` is an IP address, as ``network.peer.address`` must be, and not a host name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
