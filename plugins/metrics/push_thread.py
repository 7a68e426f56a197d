"""The thread that pushes metrics over OTLP. It never reads a bucket: it requests a snapshot from the event loop and
waits for it.

If the receiver is slow, hangs or is unreachable, the push fails, which the log and the metrics page report; the event
loop is not affected. A failed push is not repeated, since the next one carries the current values.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from headrace.plugins.metrics.instruments import Instruments
from headrace.plugins.otel_sdk import LastErrors
from headrace.proxy.long_work import collector_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.plugins.metrics.options import MetricsOptions
    from headrace.plugins.metrics.snapshot import Snapshot

log = structlog.get_logger("headrace.metrics")

FLUSH_DEADLINE_S: Final = 3.0
"""How long `PushThread.close` waits for the last push; the same as in tracing."""

ABORT_DEADLINE_S: Final = 0.5
"""How long `PushThread.close` then waits for the aborted export; a thread in a system call ends with the process."""

REPORT_EVERY_S: Final = 60.0
"""Failures are logged when they begin, and then at most once in this interval."""

SDK_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class Exporter(Protocol):
    """The methods of the SDK's exporters that are used here."""

    def export(self, metrics_data: MetricsData) -> MetricExportResult:
        """Send ``metrics_data``; block for at most the exporter's time-out."""

    def shutdown(self) -> None:
        """Abort an `export` that is waiting to retry."""


class PushThread:
    """The owner of the exporter and the thread. ``take`` returns a snapshot taken on the event loop, and raises
    `RuntimeError` when no loop runs. The counters may be read from other threads."""

    def __init__(
        self,
        take: Callable[[], Snapshot],
        options: MetricsOptions,
        *,
        make_exporter: Callable[[str | None], Exporter] = OTLPMetricExporter,
    ) -> None:
        self.pushed = 0
        """Pushes that the receiver accepted."""
        self.failed = 0
        """Pushes that failed."""
        self._take = take
        self._interval_s = options.push_interval_s
        self._exporter = make_exporter(options.endpoint)
        self._instruments = Instruments(options.max_series)
        self._last_errors = LastErrors(SDK_LOGGER)
        self._failures_reported = 0
        self._next_report_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-metrics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._last_errors.listen()
        self._thread.start()

    def close(self) -> None:
        """Push once more and end the thread; abort the push after `FLUSH_DEADLINE_S`. The event loop must be
        running."""
        if self._closing.is_set():
            return
        self._instruments.pause = False
        self._closing.set()
        self._thread.join(FLUSH_DEADLINE_S)
        self._exporter.shutdown()
        self._thread.join(ABORT_DEADLINE_S)
        self._last_errors.stop()

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            with collector_off():  # only until the data is built: sending it may take long
                data = self._instruments.collect(self._take())
            pushed = data is None or self._exporter.export(data) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 -- the thread must survive any exception of an exporter
            self._last_errors.note(f"{type(error).__name__}: {error}")
            pushed = False
        if pushed:
            self.pushed += 1
            return
        self.failed += 1
        now_s = time.monotonic()
        if now_s >= self._next_report_s:
            log.warning(
                "metrics were not pushed",
                times=self.failed - self._failures_reported,
                last_error=self._last_errors.text,
            )
            self._failures_reported, self._next_report_s = self.failed, now_s + REPORT_EVERY_S
