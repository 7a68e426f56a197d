"""The hook implementations: they collect the page's series when it is requested, and start and stop the push thread.

Nothing runs on the path of a request, and nothing between two collections. The buckets are read on the loop, in slices
of a millisecond; the rest is done in a thread (measured in docs/metrics.md). The OpenTelemetry SDK is imported only
where metrics are pushed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog
import trio

from headrace.plugins.extras import OPENTELEMETRY, require
from headrace.plugins.metrics.options import MetricsOptions, MetricsTable, options_of
from headrace.plugins.metrics.page import series_of
from headrace.plugins.metrics.snapshot import BucketReader
from headrace.proxy.long_work import in_slices
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.plugins.metrics.push_thread import PushThread
    from headrace.plugins.metrics.snapshot import Snapshot
    from headrace.quota_callbacks.options import Table

log = structlog.get_logger("headrace.metrics")


class Metrics:
    """Kafka's metrics of every quota, user and client id."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._source: SnapshotSource | None = None
        self._push: PushThread | None = None
        self._series: list[Metric] = []

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return MetricsTable

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; unless they disable metrics, prepare to read the buckets and start the push thread."""
        options = options_of(context.options, os.environ)
        options.log_to(log, "metrics of entities stay off")
        if options.push:
            require("pushing metrics by OTLP", "metrics-otlp", OPENTELEMETRY)
        if options.enabled and not context.dry:
            self._start(context, options)

    def _start(self, context: PluginContext, options: MetricsOptions) -> None:
        self._source = SnapshotSource(context, options)
        if options.push:
            from headrace.plugins.metrics.push_thread import PushThread

            self._push = PushThread(self._source.take_from_thread, options)
            self._push.start()
            log.info("metrics are pushed", every_s=options.push_interval_s)

    @hookimpl
    async def prepare_metrics(self) -> None:
        """Read the buckets, and convert them to series in a thread."""
        if self._source is not None:
            snapshot = await self._source.take()
            self._series = await trio.to_thread.run_sync(series_of, snapshot)

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """Return the series that `prepare_metrics` has collected, and the number of pushes by outcome."""
        series, self._series = self._series, []
        yield from series
        if self._push is not None:
            for outcome, count in {"pushed": self._push.pushed, "failed": self._push.failed}.items():
                text = "Pushes of metrics over OTLP, by outcome; failed: the receiver did not accept them."
                yield Metric(name="metrics_pushes", help=text, value=count, total=True, labels={"outcome": outcome})

    @hookimpl
    def close(self) -> None:
        """Push once more, within a few seconds."""
        if self._push is not None:
            self._push.close()


class SnapshotSource:
    """The source of snapshots of the buckets, one at a time."""

    def __init__(self, context: PluginContext, options: MetricsOptions) -> None:
        self._run_on_loop = context.run_on_loop
        self._lock = trio.Lock()
        self._reader = BucketReader(
            context.quotas,
            now_ms=context.now_ms,
            muted=context.muted,
            max_series=options.max_series,
            idle_ms=options.idle_s * 1000,
        )

    async def take(self) -> Snapshot:
        """Take a snapshot on the event loop, with a checkpoint every millisecond."""
        async with self._lock:
            return await in_slices(self._reader.steps())

    def take_from_thread(self) -> Snapshot:
        """Take a snapshot from another thread. Raises `RuntimeError` when the event loop does not run."""
        taken: list[Snapshot] = []

        async def take() -> None:
            taken.append(await self.take())

        self._run_on_loop(take)
        return taken[0]
