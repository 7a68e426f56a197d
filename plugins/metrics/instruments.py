"""Converts a snapshot to the SDK's data, with one observable gauge for each measure and a reader that is polled.

The SDK keeps every attribute set that an observable instrument has ever reported, and reports new ones beyond the
reader's cardinality limit (2,000 by default) as ``otel.metric.overflow``. So the limit is set here, and the instruments
are recreated once as many entities have been admitted as there may be series. They are not recreated for every
collection, since each ``MeterProvider`` leaves a callback of ``os.register_at_fork`` behind for good.
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
from headrace.proxy.long_work import PAUSE_S, PausingList
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions
    from opentelemetry.sdk.metrics.export import Metric, ScopeMetrics

    from headrace.plugins.metrics.snapshot import Snapshot

SCOPE: Final = "headrace.metrics"

PIECE: Final = 16
"""Observations between two pauses; the SDK takes about 20 µs for each."""

COLLECT_TIMEOUT_MS: Final = 60_000
"""Time-out of a collection; the SDK's default of 10 s is too short for callbacks that pause."""

_OTHER_ATTRIBUTE_SETS: Final = MOST_QUEUES + 4 * (len(QuotaKey) + MOST_QUEUES)
"""Attribute sets of one instrument that do not belong to an entity."""


class Instruments:
    """The gauges and their reader. Used by one thread at a time."""

    def __init__(self, max_series: int) -> None:
        self.pause = True
        """Whether to pause regularly, so that the event loop gets the interpreter lock."""
        self._max_series = max_series
        self._resource = own_resource()
        self._snapshot: Snapshot | None = None
        self._made_at = 0
        self._reader = self._make()

    def collect(self, snapshot: Snapshot) -> MetricsData | None:
        """Return the observations of ``snapshot`` in lists that pause during iteration; ``None`` if there are none."""
        if snapshot.admitted - self._made_at > self._max_series:
            self._made_at = snapshot.admitted
            self._reader = self._make()
        self._snapshot = snapshot
        self._reader.collect(timeout_millis=COLLECT_TIMEOUT_MS)
        data = self._reader.take()
        self._snapshot = None
        return _pausing(data) if data is not None and self.pause else data

    def _make(self) -> _Reader:
        reader = _Reader(cardinality_limits={ObservableGauge: 2 * self._max_series + _OTHER_ATTRIBUTE_SETS})
        provider = MeterProvider(
            metric_readers=(reader,),
            resource=self._resource,
            exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = provider.get_meter(SCOPE, own_version())
        for measure in MEASURES:
            meter.create_observable_gauge(
                measure.instrument,
                callbacks=[self._callback(measure.kafka)],
                unit=measure.unit,
                description=measure.text,
            )
        return reader

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_options: CallbackOptions) -> Iterator[Observation]:
            snapshot = self._snapshot
            if snapshot is None:
                return
            for at, (labels, value) in enumerate(snapshot.points[name], 1):
                yield Observation(value, labels)
                if at % PIECE == 0 and self.pause:
                    time.sleep(PAUSE_S)

        return observe


class _Reader(MetricReader):
    """A reader that keeps the last collection, like the SDK's ``InMemoryMetricReader``, whose time-out is fixed."""

    _taken: MetricsData | None = None

    def _receive_metrics(self, metrics_data: MetricsData, *_: object, **__: object) -> None:
        self._taken = metrics_data

    def shutdown(self, *_: object, **__: object) -> None:
        """Do nothing: there are no resources to release."""

    def take(self) -> MetricsData | None:
        """Return the last collection and drop it."""
        taken, self._taken = self._taken, None
        return taken


def _pausing(data: MetricsData) -> MetricsData:
    """Return ``data`` with lists of points that pause during iteration, by the page's writer or the exporter's
    encoder."""

    def metric(each: Metric) -> Metric:
        data = each.data
        return replace(each, data=Gauge(data_points=PausingList(data.data_points)) if isinstance(data, Gauge) else data)

    def scope(each: ScopeMetrics) -> ScopeMetrics:
        return replace(each, metrics=[metric(one) for one in each.metrics])

    resources = [
        replace(each, scope_metrics=[scope(one) for one in each.scope_metrics]) for each in data.resource_metrics
    ]
    return replace(data, resource_metrics=resources)
