"""The hooks: what runs on the loop, and what starts and stops the thread.

On the loop a completed request costs one random number and a few comparisons; one that is kept also a record and an
append (measured in docs/tracing.md). Switched off, no request reaches this plugin, no thread runs, and the SDK is not
imported.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.extras import OPENTELEMETRY, require
from headrace.plugins.tracing.options import TracingOptions, options_of
from headrace.plugins.tracing.record_queue import RecordQueue
from headrace.plugins.tracing.records import record_of
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.requests import Interest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.plugins.tracing.export_thread import ExportThread
    from headrace.quota_callbacks.requests import ClusterMetadata, Request

log = structlog.get_logger("headrace.tracing")

_RANDOM_BITS: Final = 64
"""Of a trace id's 128, the low half decides about sampling, as in the SDK's ``TraceIdRatioBased``."""


_EVERY_API: Final = range(256)
"""Kafka 4.4 ends at 94; a request of an API to come is to be seen, too."""


class Tracing:
    """A span for every request that is sampled, and for every one that was throttled, refused or failed."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, seed: int | None = None) -> None:
        self._getrandbits = random.Random(seed).getrandbits  # noqa: S311 -- trace ids are no secrets
        self._bound = 0
        self._queue = RecordQueue(1, 1)
        self._thread: ExportThread | None = None

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the options; where they ask for tracing, start the export thread."""
        options = options_of(context.options, os.environ)
        for warning in options.warnings:
            log.warning(warning)
        if options.off_because is not None:
            log.info("tracing stays off", reason=options.off_because)
        if options.enabled:
            require("tracing", "tracing", OPENTELEMETRY)
        if options.enabled and not context.dry:
            self._start(options, context.worker)

    def _start(self, options: TracingOptions, worker: int | None) -> None:
        from headrace.plugins.tracing.export_thread import ExportThread  # the SDK: only now

        self._bound = round(options.sample_ratio * 2**_RANDOM_BITS)
        self._queue = RecordQueue(options.queue_size, wake_at=options.batch_spans // 2)
        self._thread = ExportThread(self._queue, options, worker=worker)
        self._thread.start()
        log.info("tracing is on", sample_ratio=options.sample_ratio, queue_size=options.queue_size)

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Every API by its head, or none at all."""
        return () if self._thread is None else tuple(Interest(api_key=key) for key in _EVERY_API)

    @hookimpl
    def request_completed(self, request: Request) -> None:
        """Keep a record of ``request``, or not. Neither blocks nor calls the SDK."""
        low_bits = self._getrandbits(_RANDOM_BITS)
        if low_bits >= self._bound and not (
            request.throttle_ms
            or request.error is not None
            or request.refused_code
            or request.broker_throttle_ms
            or request.reason is not None
        ):
            return
        queue = self._queue
        if queue.has_room():
            queue.put(record_of(request, self._getrandbits(_RANDOM_BITS) << _RANDOM_BITS | low_bits))

    @hookimpl
    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Learn the cluster's id."""
        if self._thread is not None:
            self._thread.builder.cluster_id = cluster.cluster_id
        return False

    @hookimpl
    def collect_metrics(self) -> Iterable[Metric]:
        """What was exported, what was lost, and what waits."""
        thread, queue = self._thread, self._queue
        if thread is None:
            return
        spans = {"exported": thread.exported_spans, "failed": thread.failed_spans}
        for outcome, count in spans.items():
            text = "Spans handed to the receiver, and those that it did not take."
            yield Metric(name="tracing_spans", help=text, value=count, total=True, labels={"outcome": outcome})
        lost = {"queue_full": queue.dropped, "export_failed": thread.lost_in_export, "closing": thread.lost_at_close}
        for reason, count in lost.items():
            text = "Requests that should have been traced and were not."
            yield Metric(name="tracing_dropped", help=text, value=count, total=True, labels={"reason": reason})
        yield Metric(name="tracing_queue_length", help="Requests that wait to be exported.", value=len(queue))

    @hookimpl
    def close(self) -> None:
        """Export what waits, within a few seconds."""
        if self._thread is not None:
            self._thread.close()
