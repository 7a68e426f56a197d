"""Converts the SDK's data to the series of the Prometheus page.

``opentelemetry-exporter-prometheus`` is not used: it is a beta (0.66b2), collects without a pause on the thread that
writes the page, adds three labels of the instrumentation scope to every series by default, and appends units to names
(``headrace_quota_throttle_time_milliseconds``), which would then differ from Kafka's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.metrics.export import NumberDataPoint

from headrace.plugins.metrics.names import MEASURES
from headrace.quota_callbacks.hookspecs import Metric

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData


_ACROSS_WORKERS: Final = {measure.instrument: measure.across_workers for measure in MEASURES}


def series_of(data: MetricsData | None) -> list[Metric]:
    """Return one series for each point, named as in `headrace.plugins.metrics.names` with ``_`` in place of ``.``."""
    return [
        Metric(
            name=metric.name.removeprefix("headrace.").replace(".", "_"),
            help=metric.description or "",
            value=point.value,
            labels={name: str(value) for name, value in (point.attributes or {}).items()},
            across_workers=_ACROSS_WORKERS[metric.name],
        )
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]
