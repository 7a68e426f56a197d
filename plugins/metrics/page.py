"""From the SDK's data to the series of the Prometheus page.

Not by ``opentelemetry-exporter-prometheus``: it is a beta (0.66b2), collects on the thread that writes the page
without a pause, puts three labels of the instrumentation scope on every series unless told not to, and appends units
to names (``headrace_quota_throttle_time_milliseconds``), so that they would no longer be Kafka's.
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
    """Every point as a series; names as `headrace.plugins.metrics.names` has them, with ``_`` for ``.``."""
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
