"""A receiver of OTLP traces and metrics over HTTP, for tests: a real server on a port of its own, and what came
as plain values.

It can be set to answer with an error, or to hang. Made by the fixture `otlp_receiver` of tests/plugins/conftest.py, or
by hand: ``with OtlpReceiver() as receiver: ...``.
"""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

DEADLINE_S: Final = 20.0
"""For every wait here. Nothing takes long, but a machine may be busy."""

_KINDS: Final = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
_STATUSES: Final = {0: "UNSET", 1: "OK", 2: "ERROR"}
_DECODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A span as it came over the wire."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty for the root."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: str
    description: str
    resource: dict[str, Any]
    scope: str
    schema_url: str

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPoint:
    """One point of a gauge as it came over the wire."""

    name: str
    unit: str
    value: float
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One POST."""

    path: str
    headers: dict[str, str]
    """By lower-case name."""
    spans: tuple[ReceivedSpan, ...] = ()
    points: tuple[ReceivedPoint, ...] = ()


@dataclass(slots=True)
class ReceivedTrace:
    """The spans of one trace id."""

    spans: list[ReceivedSpan] = field(default_factory=list)

    @property
    def request(self) -> ReceivedSpan:
        """The root."""
        (root,) = [span for span in self.spans if not span.parent_id]
        return root

    @property
    def broker(self) -> ReceivedSpan | None:
        """The broker's part."""
        return self._child(lambda span: span.kind == "CLIENT")

    @property
    def mute(self) -> ReceivedSpan | None:
        """The wait that a quota asked for."""
        return self._child(lambda span: span.name == "mute")

    def _child(self, wanted: Callable[[ReceivedSpan], bool]) -> ReceivedSpan | None:
        children = [span for span in self.spans if span.parent_id and wanted(span)]
        assert len(children) <= 1, children
        return children[0] if children else None


class OtlpReceiver:
    """Listens on 127.0.0.1 from `__enter__` to `__exit__`; `__exit__` also lets go of what hangs."""

    def __init__(self) -> None:
        self.exports: list[Export] = []
        self._changed = threading.Condition()
        self._answers: deque[tuple[int, dict[str, str]]] = deque()
        self._may_go = threading.Event()
        self._may_go.set()
        self._hanging = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join(DEADLINE_S)
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_port}"

    # --- behaviour ---

    def answer(self, status: int, *, times: int = 1, headers: dict[str, str] | None = None) -> None:
        """Answer the next ``times`` exports with ``status``; they are not kept."""
        self._answers.extend([(status, headers or {})] * times)

    def hang(self) -> None:
        """From now on, keep every export waiting until `release`."""
        self._may_go.clear()

    def release(self) -> None:
        """Go on with what hangs."""
        self._may_go.set()

    # --- what came ---

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans so far."""
        with self._changed:
            return [span for export in self.exports for span in export.spans]

    def wait_for_traces(self, count: int) -> list[ReceivedTrace]:
        """At least ``count`` traces, in the order of their arrival. A trace is never split over exports."""
        self._wait(lambda: len(self._traces()) >= count, f"{count} traces")
        return list(self._traces().values())

    def wait_for_trace(self) -> ReceivedTrace:
        """The one trace that there is."""
        (trace,) = self.wait_for_traces(1)
        return trace

    def wait_for_points(self, wanted: Callable[[ReceivedPoint], bool]) -> list[ReceivedPoint]:
        """At least one such point; fails when none comes in time."""
        self._wait(lambda: any(map(wanted, self._points())), "a point of a metric")
        return [point for point in self._points() if wanted(point)]

    def wait_until_hanging(self) -> None:
        """Until an export is being kept waiting."""
        self._wait(lambda: self._hanging > 0, "an export that hangs")

    def _traces(self) -> dict[str, ReceivedTrace]:
        traces: dict[str, ReceivedTrace] = {}
        for span in self.spans:
            traces.setdefault(span.trace_id, ReceivedTrace()).spans.append(span)
        return traces

    def _points(self) -> list[ReceivedPoint]:
        with self._changed:
            return [point for export in self.exports for point in export.points]

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        with self._changed:
            end_s = time.monotonic() + DEADLINE_S
            while not ready():
                left_s = end_s - time.monotonic()
                assert left_s > 0, f"waited {DEADLINE_S} s for {what}; got {self.spans}"
                self._changed.wait(left_s)

    # --- for the handler ---

    def take(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """Keep an export; the status and the headers to answer with."""
        self._keep_waiting()
        if self._answers:
            return self._answers.popleft()
        content = _DECODERS[headers.get("content-encoding", "identity")](body)
        if path.endswith("/v1/metrics"):
            export = Export(path=path, headers=headers, points=tuple(_points(content)))
        else:
            export = Export(path=path, headers=headers, spans=tuple(_spans(content)))
        with self._changed:
            self.exports.append(export)
            self._changed.notify_all()
        return 200, {}

    def _keep_waiting(self) -> None:
        if self._may_go.is_set():
            return
        with self._changed:
            self._hanging += 1
            self._changed.notify_all()
        assert self._may_go.wait(DEADLINE_S * 2)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: OtlpReceiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, more = self.server.receiver.take(self.path, headers, body)
        reply = ExportTraceServiceResponse().SerializeToString() if status == 200 else b""
        self.send_response(status)
        for name, value in {**more, "Content-Type": "application/x-protobuf", "Content-Length": len(reply)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Nothing on standard error."""


def _points(content: bytes) -> Iterable[ReceivedPoint]:
    for resource_metrics in ExportMetricsServiceRequest.FromString(content).resource_metrics:
        resource = _attributes(resource_metrics.resource.attributes)
        for scope_metrics in resource_metrics.scope_metrics:
            for metric in scope_metrics.metrics:
                for point in metric.gauge.data_points:
                    yield ReceivedPoint(
                        name=metric.name,
                        unit=metric.unit,
                        value=point.as_double if point.HasField("as_double") else point.as_int,
                        attributes=_attributes(point.attributes),
                        resource=resource,
                        scope=scope_metrics.scope.name,
                    )


def _spans(content: bytes) -> Iterable[ReceivedSpan]:
    message = ExportTraceServiceRequest.FromString(content)
    for resource_spans in message.resource_spans:
        resource = _attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _span(span, resource, scope_spans.scope.name, scope_spans.schema_url)


def _span(span: Span, resource: dict[str, Any], scope: str, schema_url: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=_KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status=_STATUSES[span.status.code],
        description=span.status.message,
        resource=resource,
        scope=scope,
        schema_url=schema_url,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
