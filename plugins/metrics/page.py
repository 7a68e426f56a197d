"""Converts a snapshot to the series of the Prometheus page.

The page needs no OpenTelemetry. ``opentelemetry-exporter-prometheus`` is not used, since it is a beta (0.66b2),
collects without a pause on the thread that writes the page, and appends units to names
(``headrace_quota_throttle_time_milliseconds``), so that they would no longer be Kafka's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.plugins.metrics.names import MEASURES
from headrace.proxy.long_work import PausingList
from headrace.quota_callbacks.hookspecs import Metric

if TYPE_CHECKING:
    from headrace.plugins.metrics.snapshot import Snapshot


def series_of(snapshot: Snapshot) -> list[Metric]:
    """Return one series for each point of ``snapshot``, named as in `headrace.plugins.metrics.names` with ``_`` for
    ``.``.

    If two points of a measure have the same labels, the last one counts, as in the OpenTelemetry SDK. Called in a
    thread: pauses to leave the interpreter to the event loop.
    """
    series: list[Metric] = []
    for measure in MEASURES:
        points = PausingList(snapshot.points[measure.kafka])
        values = {tuple(labels.items()): value for labels, value in points}
        name = measure.instrument.removeprefix("headrace.").replace(".", "_")
        series += [
            Metric(name=name, help=measure.text, value=value, labels=dict(labels))
            for labels, value in PausingList(values.items())
        ]
    return series
