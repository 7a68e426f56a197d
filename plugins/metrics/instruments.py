"""From a snapshot to the SDK's data: an observable gauge for each measure, and a reader that is asked.

The SDK keeps every set of attributes that an observable instrument has ever told, and beyond the reader's cardinality
limit (2,000 by default) tells new ones as ``otel.metric.overflow``: so the limit is ours, and the instruments are made
anew after as many newcomers as there may be series. Not for every collection: each ``MeterProvider`` leaves a callback
of ``os.register_at_fork`` behind for good.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider, ObservableGauge
from opentelemetry.sdk.metrics.export import Gauge, MetricReader, MetricsData

from headrace.plugins.metrics.names import MEASURES
from headrace.plugins.metrics.snapshot import MOST_QUEUES
from headrace.plugins.otel_sdk import own_resource, own_version
from headrace.proxy.long_work import PAUSE_S, PacedList
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.sdk.metrics.export import Metric, ScopeMetrics

    from headrace.plugins.metrics.snapshot import Snapshot

SCOPE: Final = "headrace.metrics"

PIECE: Final = 16
"""Observations between two pauses; the SDK takes some 20 µs for each."""

COLLECT_TIMEOUT_MS: Final = 60_000
"""Of the SDK; its default of 10 s is for callbacks that wait for others."""

_BESIDES: Final = MOST_QUEUES + 4 * len(QuotaKey)
"""Sets of attributes of one instrument that are no entity's."""


class Instruments:
    """The gauges and their reader. Used by one thread at a time."""

    def __init__(self, max_series: int, worker: int | None = None) -> None:
        self.pause = True
        """Whether to leave the interpreter to the loop now and then."""
        self._max_series = max_series
        self._resource = own_resource(worker)
        self._snapshot: Snapshot | None = None
        self._made_at = 0
        self._reader = self._make()

    def collect(self, snapshot: Snapshot) -> MetricsData | None:
        """What the gauges tell of ``snapshot``, in lists that pause; ``None`` when there is nothing."""
        if snapshot.admitted - self._made_at > self._max_series:
            self._made_at = snapshot.admitted
            self._reader = self._make()
        self._snapshot = snapshot
        self._reader.collect(timeout_millis=COLLECT_TIMEOUT_MS)
        data = self._reader.take()
        self._snapshot = None
        return _paced(data) if data is not None and self.pause else data

    def _make(self) -> _Reader:
        reader = _Reader(cardinality_limits={ObservableGauge: 2 * self._max_series + _BESIDES})
        provider = MeterProvider(
            metric_readers=(reader,),
            resource=self._resource,
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = provider.get_meter(SCOPE, own_version())
        for measure in MEASURES:
            meter.create_observable_gauge(
                measure.instrument, callbacks=[self._teller(measure.kafka)], unit=measure.unit, description=measure.text
            )
        return reader

    def _teller(self, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def tell(_options: CallbackOptions) -> Iterator[Observation]:
            snapshot = self._snapshot
            if snapshot is None:
                return
            for at, (labels, value) in enumerate(snapshot.points[name], 1):
                yield Observation(value, labels)
                if at % PIECE == 0 and self.pause:
                    time.sleep(PAUSE_S)

        return tell


class _Reader(MetricReader):
    """Keeps what was collected last. As the SDK's ``InMemoryMetricReader``, whose time-out cannot be set."""

    _taken: MetricsData | None = None

    def _receive_metrics(self, metrics_data: MetricsData, *_: object, **__: object) -> None:
        self._taken = metrics_data

    def shutdown(self, *_: object, **__: object) -> None:
        """Nothing is held."""

    def take(self) -> MetricsData | None:
        """What was collected last, once."""
        taken, self._taken = self._taken, None
        return taken


def _paced(data: MetricsData) -> MetricsData:
    """``data`` whose points pause whoever iterates them: the page's writer and the exporter's encoder."""

    def metric(each: Metric) -> Metric:
        data = each.data
        return replace(each, data=Gauge(data_points=PacedList(data.data_points)) if isinstance(data, Gauge) else data)

    def scope(each: ScopeMetrics) -> ScopeMetrics:
        return replace(each, metrics=[metric(one) for one in each.metrics])

    resources = [
        replace(each, scope_metrics=[scope(one) for one in each.scope_metrics]) for each in data.resource_metrics
    ]
    return replace(data, resource_metrics=resources)
