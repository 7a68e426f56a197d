"""The thread that pushes by OTLP. It never reads a bucket: it asks the loop for a snapshot, and waits for it.

A receiver that is slow, hangs or is gone costs a push, and is told in the log and on the page; the loop does not
notice. A push that failed is not repeated: the next one says how things are by then.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from headrace.plugins.metrics.instruments import Instruments
from headrace.plugins.otel_sdk import LastWords
from headrace.proxy.long_work import collector_off

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.plugins.metrics.options import MetricsOptions
    from headrace.plugins.metrics.snapshot import Snapshot

log = structlog.get_logger("headrace.metrics")

FLUSH_DEADLINE_S: Final = 3.0
"""How long `PushThread.close` waits for the last push, as tracing does."""

ABORT_DEADLINE_S: Final = 0.5
"""How much longer for a thread that was told to give up; one inside a system call is left to the end of the process."""

REPORT_EVERY_S: Final = 60.0
"""Failures are logged when they begin, and at most this often while they last."""

SDK_LOGGER: Final = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


class Exporter(Protocol):
    """What is needed of the SDK's exporters."""

    def export(self, metrics_data: MetricsData) -> MetricExportResult:
        """Send it; blocks for as long as its time-out says."""

    def shutdown(self) -> None:
        """Make an `export` that is waiting to try again give up."""


class PushThread:
    """Owns the exporter and the thread. ``take`` brings a snapshot from the loop, and may raise `RuntimeError` when no
    loop runs. The counters are read from other threads."""

    def __init__(
        self,
        take: Callable[[], Snapshot],
        options: MetricsOptions,
        *,
        worker: int | None = None,
        make_exporter: Callable[[str | None], Exporter] = OTLPMetricExporter,
    ) -> None:
        self.pushed = 0
        self.failed = 0
        self._take = take
        self._interval_s = options.push_interval_s
        self._exporter = make_exporter(options.endpoint)
        self._instruments = Instruments(options.max_series, worker)
        self._words = LastWords(SDK_LOGGER)
        self._told = 0
        self._tell_again_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-metrics", daemon=True)

    def start(self) -> None:
        """Begin to push."""
        self._words.listen()
        self._thread.start()

    def close(self) -> None:
        """Push once more, for at most `FLUSH_DEADLINE_S`; then give up. The loop has to run meanwhile."""
        if self._closing.is_set():
            return
        self._instruments.pause = False
        self._closing.set()
        self._thread.join(FLUSH_DEADLINE_S)
        self._exporter.shutdown()
        self._thread.join(ABORT_DEADLINE_S)
        self._words.stop()

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            with collector_off():  # not while it is sent, which may take long
                data = self._instruments.collect(self._take())
            pushed = data is None or self._exporter.export(data) is MetricExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 -- the thread has to outlive whatever an exporter raises
            self._words.note(f"{type(error).__name__}: {error}")
            pushed = False
        if pushed:
            self.pushed += 1
            return
        self.failed += 1
        now_s = time.monotonic()
        if now_s >= self._tell_again_s:
            log.warning("metrics were not pushed", times=self.failed - self._told, last_error=self._words.text)
            self._told, self._tell_again_s = self.failed, now_s + REPORT_EVERY_S
