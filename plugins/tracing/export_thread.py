"""The thread that drains the queue and exports. A receiver that is slow, hangs or is gone costs records, not the loop.

What it must not take from the loop is the interpreter: a thread that computes without a pause makes every system call
of the loop wait up to 5 ms (``sys.getswitchinterval``) to get going again. So this thread pauses after every span,
which bounds both how long the loop waits (one span, about 0.1 ms) and what share of the interpreter the thread takes;
what it cannot export in that share is dropped at the queue and counted.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from headrace.plugins.otel_sdk import LastWords
from headrace.plugins.tracing.records import MOST_SPANS, TraceRecord
from headrace.plugins.tracing.spans import SpanBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from headrace.plugins.tracing.options import TracingOptions
    from headrace.plugins.tracing.record_queue import RecordQueue

log = structlog.get_logger("headrace.tracing")

PAUSE_S: Final = 200e-6
"""After every span, which takes about half as long to build and encode. Measured on two cores beside a loop of small
reads that never rests, with a queue that is always full:

| pause | the loop's speed | its wait in 1 of 1,000 reads | spans a second |
|---|---|---|---|
| none | 24 % | 9.1 ms | 9,700 |
| 0 | 49 % | 0.11 ms | 3,600 |
| 100 µs | 60 % | 0.10 ms | 2,000 |
| 200 µs | 68 % | 0.08 ms | 1,500 |
| 400 µs | 77 % | 0.08 ms | 1,000 |
"""

FLUSH_DEADLINE_S: Final = 3.0
"""How long `ExportThread.close` waits for what is queued. An export may take OTEL_EXPORTER_OTLP_TIMEOUT, 10 s if
unset."""

ABORT_DEADLINE_S: Final = 0.5
"""How much longer for a thread that was told to give up; one inside a system call is left to the end of the process."""

REPORT_EVERY_S: Final = 60.0
"""Losses are logged when they begin, and at most this often while they last."""

SDK_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class Exporter(Protocol):
    """What is needed of the SDK's exporters."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send them; blocks for as long as its time-out says."""

    def shutdown(self) -> None:
        """Make an `export` that is waiting to try again give up."""


class ExportThread:
    """Owns the exporter and the thread. The counters are read from other threads."""

    def __init__(
        self,
        queue: RecordQueue,
        options: TracingOptions,
        *,
        worker: int | None = None,
        make_exporter: Callable[[], Exporter] = OTLPSpanExporter,
    ) -> None:
        self.exported_spans = 0
        self.failed_spans = 0
        self.lost_in_export = 0
        """Records whose export failed."""
        self.lost_at_close = 0
        """Records that were still waiting when `close` gave up."""
        self.builder = SpanBuilder(worker)
        self._queue = queue
        self._batch_spans = options.batch_spans
        self._delay_s = options.delay_ms / 1000
        self._exporter = make_exporter()
        self._words = LastWords(SDK_LOGGER)
        self._losses = _LossReport()
        self._in_hand = 0
        self._closing = False
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="headrace-tracing", daemon=True)

    def start(self) -> None:
        """Begin to export."""
        self._words.listen()
        self._thread.start()

    def close(self) -> None:
        """Export what is queued, for at most `FLUSH_DEADLINE_S`; then give up, and count and log what is lost."""
        if self._closing:
            return
        self._closing = True
        self._queue.ring()
        self._thread.join(FLUSH_DEADLINE_S)
        self._given_up = self._thread.is_alive()
        self._exporter.shutdown()
        self._thread.join(ABORT_DEADLINE_S)
        self._words.stop()
        self.lost_at_close = len(self._queue) + self._in_hand
        if self.lost_at_close:
            log.warning("traces were lost at the end", requests=self.lost_at_close, last_error=self._words.text)

    # --- the thread ---

    def _run(self) -> None:
        closing = False
        while not closing:
            self._queue.wait(self._delay_s)
            closing = self._closing  # set before the bell is rung: what was queued until then is drained once more
            self._drain()
            if not self._given_up:
                self._losses.tell(self._queue.dropped + self.lost_in_export, self._queue.dropped, self._words.text)

    def _drain(self) -> None:
        """Export all that is queued; when it is the last time, until the first failure."""
        while not self._given_up and (records := self._next_batch()):
            self._in_hand = len(records)
            exported = self._export(records)
            self._in_hand = 0
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
            spans = PacedSpans(self._build(records), self._pause)
            exported = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 -- the thread has to outlive whatever an exporter raises
            self._words.note(f"{type(error).__name__}: {error}")
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


class PacedSpans(list[ReadableSpan]):
    """Spans in a list whose iteration pauses after each, since the exporter encodes them one by one as it iterates."""

    def __init__(self, spans: Iterable[ReadableSpan], pause: Callable[[], None]) -> None:
        super().__init__(spans)
        self._pause = pause

    def __iter__(self) -> Iterator[ReadableSpan]:
        for span in super().__iter__():
            yield span
            self._pause()


class _LossReport:
    """Says in one line that records are being lost: when that begins, and then every `REPORT_EVERY_S`."""

    def __init__(self) -> None:
        self._told = 0
        self._next_s = 0.0

    def tell(self, lost: int, queue_full: int, last_error: str | None) -> None:
        now_s = time.monotonic()
        if lost == self._told or now_s < self._next_s:
            return
        log.warning(
            "traces are being lost",
            requests=lost - self._told,
            queue_full=queue_full,
            export_failed=lost - queue_full,
            last_error=last_error,
        )
        self._told, self._next_s = lost, now_s + REPORT_EVERY_S
