"""The thread that drains the queue and exports. If the receiver is slow, hangs or is unreachable, records are lost, but
the event loop is not affected.

A thread that computes without a pause delays the event loop: after every system call the loop waits up to 5 ms
(``sys.getswitchinterval``) for the interpreter lock. So this thread pauses after every span, which bounds both the
loop's wait (one span, about 0.1 ms) and the thread's share of the interpreter. Records that it cannot export within
that share are dropped at the queue and counted.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from headrace.plugins.otel_sdk import LastErrors
from headrace.plugins.tracing.records import MOST_SPANS, TraceRecord
from headrace.plugins.tracing.spans import SpanBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.plugins.tracing.options import TracingOptions
    from headrace.plugins.tracing.record_queue import RecordQueue

log = structlog.get_logger("headrace.tracing")

PAUSE_S: Final = 200e-6
"""The pause after every span, which takes about half as long to build and encode. Measured on two cores with an event
loop that does small reads without a break and a queue that is always full:

| pause | speed of the loop | 99.9th percentile of its waits | spans per second |
|---|---|---|---|
| none | 24 % | 9.1 ms | 9,700 |
| 0 | 49 % | 0.11 ms | 3,600 |
| 100 µs | 60 % | 0.10 ms | 2,000 |
| 200 µs | 68 % | 0.08 ms | 1,500 |
| 400 µs | 77 % | 0.08 ms | 1,000 |
"""

FLUSH_DEADLINE_S: Final = 3.0
"""How long `ExportThread.close` waits until the queue is exported. A single export may take up to
OTEL_EXPORTER_OTLP_TIMEOUT, 10 s by default."""

ABORT_DEADLINE_S: Final = 0.5
"""How long `ExportThread.close` then waits for the aborted export; a thread in a system call ends with the process."""

REPORT_EVERY_S: Final = 60.0
"""Losses are logged when they begin, and then at most once in this interval."""

SDK_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class Exporter(Protocol):
    """The methods of the SDK's exporters that are used here."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send ``spans``; block for at most the exporter's time-out."""

    def shutdown(self) -> None:
        """Abort an `export` that is waiting to retry."""


class ExportThread:
    """The owner of the exporter and the thread. The counters may be read from other threads."""

    def __init__(
        self,
        queue: RecordQueue,
        options: TracingOptions,
        *,
        make_exporter: Callable[[], Exporter] = OTLPSpanExporter,
    ) -> None:
        self.exported_spans = 0
        """Spans that the receiver accepted."""
        self.failed_spans = 0
        """Spans whose export failed."""
        self.lost_in_export = 0
        """Records whose export failed."""
        self.lost_at_close = 0
        """Records that had not been exported when `close` returned."""
        self.builder = SpanBuilder()
        self._queue = queue
        self._batch_spans = options.batch_spans
        self._delay_s = options.delay_ms / 1000
        self._exporter = make_exporter()
        self._last_errors = LastErrors(SDK_LOGGER)
        self._losses = _LossReport()
        self._exporting = 0
        self._closing = False
        self._aborted = False
        self._thread = threading.Thread(target=self._run, name="headrace-tracing", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._last_errors.listen()
        self._thread.start()

    def close(self) -> None:
        """Export the queued records for at most `FLUSH_DEADLINE_S`, end the thread, and count and log what is lost."""
        if self._closing:
            return
        self._closing = True
        self._queue.wake()
        self._thread.join(FLUSH_DEADLINE_S)
        self._aborted = self._thread.is_alive()
        self._exporter.shutdown()
        self._thread.join(ABORT_DEADLINE_S)
        self._last_errors.stop()
        self.lost_at_close = len(self._queue) + self._exporting
        if self.lost_at_close:
            log.warning("traces were lost at the end", requests=self.lost_at_close, last_error=self._last_errors.text)

    # --- the thread ---

    def _run(self) -> None:
        closing = False
        while not closing:
            self._queue.wait(self._delay_s)
            closing = self._closing  # set before the thread is woken: records queued until then are drained once more
            self._drain()
            if not self._aborted:
                self._losses.update(
                    self._queue.dropped + self.lost_in_export, self._queue.dropped, self._last_errors.text
                )

    def _drain(self) -> None:
        """Export all queued records; while closing, stop at the first failure."""
        while not self._aborted and (records := self._next_batch()):
            self._exporting = len(records)
            exported = self._export(records)
            self._exporting = 0
            if self._closing and not exported:
                break

    def _next_batch(self) -> list[TraceRecord]:
        records: list[TraceRecord] = []
        spans = 0
        while not records or spans + MOST_SPANS <= self._batch_spans:
            record = self._queue.take()
            if record is None:
                break
            records.append(record)
            spans += record.span_count
        return records

    def _export(self, records: list[TraceRecord]) -> bool:
        count = sum(record.span_count for record in records)
        try:
            spans = PausingSpans(self._build(records), self._pause)
            exported = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 -- the thread must survive any exception of an exporter
            self._last_errors.note(f"{type(error).__name__}: {error}")
            exported = False
        if exported:
            self.exported_spans += count
        else:
            self.failed_spans += count
            self.lost_in_export += len(records)
        return exported

    def _build(self, records: Iterable[TraceRecord]) -> Iterator[ReadableSpan]:
        for record in records:
            yield from self.builder.spans(record)
            self._pause()

    def _pause(self) -> None:
        if not self._closing:
            time.sleep(PAUSE_S)


class PausingSpans(list[ReadableSpan]):
    """A list of spans whose iteration pauses after each, since the exporter encodes them one by one as it iterates."""

    def __init__(self, spans: Iterable[ReadableSpan], pause: Callable[[], None]) -> None:
        super().__init__(spans)
        self._pause = pause

    def __iter__(self) -> Iterator[ReadableSpan]:
        for span in super().__iter__():
            yield span
            self._pause()


class _LossReport:
    """The log of losses: one line when records begin to be lost, and then at most one in `REPORT_EVERY_S`."""

    def __init__(self) -> None:
        self._reported = 0
        self._next_s = 0.0

    def update(self, lost: int, queue_full: int, last_error: str | None) -> None:
        """Log the losses since the last line, if a line is due. ``lost`` and ``queue_full`` are totals."""
        now_s = time.monotonic()
        if lost == self._reported or now_s < self._next_s:
            return
        log.warning(
            "traces are being lost",
            requests=lost - self._reported,
            queue_full=queue_full,
            export_failed=lost - queue_full,
            last_error=last_error,
        )
        self._reported, self._next_s = lost, now_s + REPORT_EVERY_S
