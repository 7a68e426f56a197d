"""The hook implementations: sample completed requests on the event loop, and start and stop the export thread.

The proxy chooses the sample, and calls this plugin for each request in it and for each that was throttled, refused or
failed; each call costs a record and an append (measured in docs/tracing.md). While tracing is disabled, this plugin
receives no requests, no thread runs, and the SDK is not imported.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.extras import OPENTELEMETRY, require
from headrace.plugins.tracing.options import TracingOptions, TracingTable, options_of
from headrace.plugins.tracing.record_queue import RecordQueue
from headrace.plugins.tracing.records import record_of
from headrace.quota_callbacks.api_keys import EVERY_API
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.plugins.tracing.export_thread import ExportThread
    from headrace.quota_callbacks.options import Table
    from headrace.quota_callbacks.requests import ClusterMetadata, Request

log = structlog.get_logger("headrace.tracing")

_RANDOM_BITS: Final = 64
"""The SDK's ``TraceIdRatioBased`` samples a trace if the lower 64 of the 128 bits of its id are below a bound."""


class Tracing:
    """A span for every request that is sampled, and for every one that was throttled, refused or failed."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, seed: int | None = None) -> None:
        self._getrandbits = random.Random(seed).getrandbits  # noqa: S311 -- trace ids are no secrets
        self._bound = 0
        self._ratio: float | None = None
        self._now_s: Callable[[], float] = lambda: 0.0
        self._queue = RecordQueue(1, 1)
        self._thread: ExportThread | None = None

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return TracingTable

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; if they enable tracing, start the export thread."""
        options = options_of(context.options, os.environ)
        options.log_to(log, "tracing stays off")
        if options.enabled:
            require("tracing", "tracing", OPENTELEMETRY)
        self._now_s = context.now_s
        if options.enabled and not context.dry:
            self._start(options)

    def _start(self, options: TracingOptions) -> None:
        from headrace.plugins.tracing.export_thread import ExportThread  # imports the SDK

        self._ratio = options.sample_ratio
        self._bound = round(options.sample_ratio * 2**_RANDOM_BITS)
        self._queue = RecordQueue(options.queue_size, wake_at=options.batch_spans // 2)
        self._thread = ExportThread(self._queue, options)
        self._thread.start()
        log.info("tracing is on", sample_ratio=options.sample_ratio, queue_size=options.queue_size)

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return an interest in every API, or none while tracing is disabled."""
        return () if self._thread is None else tuple(Interest(api_key=key) for key in EVERY_API)

    @hookimpl
    def request_sample_ratio(self) -> float | None:
        """Return the ratio of the options; ``None`` while tracing is disabled."""
        return self._ratio

    @hookimpl
    def request_completed(self, request: Request) -> None:
        """Queue a record of ``request``, which is sampled, throttled, refused or failed. Does not block or call the
        SDK."""
        queue = self._queue
        if queue.has_room():
            low_bits = self._getrandbits(_RANDOM_BITS)
            if request.is_ordinary:
                low_bits = low_bits * self._bound >> _RANDOM_BITS
            trace_id = self._getrandbits(_RANDOM_BITS) << _RANDOM_BITS | low_bits
            queue.put(record_of(request, trace_id, self._now_s()))

    @hookimpl
    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Keep the cluster id for the spans."""
        if self._thread is not None:
            self._thread.builder.cluster_id = cluster.cluster_id
        return False

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """Return the numbers of exported spans, lost requests and queued requests."""
        thread, queue = self._thread, self._queue
        if thread is None:
            return
        spans = {"exported": thread.exported_spans, "failed": thread.failed_spans}
        for outcome, count in spans.items():
            text = "Spans by outcome: exported, or failed because the receiver did not accept them."
            yield Metric(name="tracing_spans", help=text, value=count, total=True, labels={"outcome": outcome})
        lost = {"queue_full": queue.dropped, "export_failed": thread.lost_in_export, "closing": thread.lost_at_close}
        for reason, count in lost.items():
            text = "Requests whose trace was lost, by reason."
            yield Metric(name="tracing_dropped", help=text, value=count, total=True, labels={"reason": reason})
        yield Metric(name="tracing_queue_length", help="Requests that are waiting for export.", value=len(queue))

    @hookimpl
    def close(self) -> None:
        """Export the queued records, within a few seconds."""
        if self._thread is not None:
            self._thread.close()
