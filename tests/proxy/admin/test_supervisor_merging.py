"""Metrics and decisions of several workers are merged into one page each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from headrace.proxy.admin.merged_metrics import PIECE, Family, WorkerMetrics, decode, encode, merge_decisions
from headrace.proxy.admin.metrics_page import page_of
from headrace.quota_callbacks.hookspecs import AcrossWorkers

if TYPE_CHECKING:
    from collections.abc import Iterable


def counter(name: str, **by_label: float) -> Family:
    metric = CounterMetricFamily(name, "Counted.", labels=("label",))
    for label, value in by_label.items():
        metric.add_metric((label,), value)
    return Family(metric=metric)


def gauge(name: str, value: float, across: AcrossWorkers) -> Family:
    return Family(metric=GaugeMetricFamily(name, "Measured.", value=value), across=across)


def values(metrics: WorkerMetrics, own: Iterable[Family] = ()) -> dict[str, float]:
    """Return the merged samples as Prometheus reads them."""
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page_of(metrics.merged(own)).decode())
        for sample in family.samples
    }


def update(metrics: WorkerMetrics, worker: int, *families: Family) -> None:
    metrics.update(worker, decode(encode(families)))


@pytest.mark.parametrize(("across", "value"), [(AcrossWorkers.SUM, 9), (AcrossWorkers.MAX, 6), (AcrossWorkers.MIN, 1)])
def test_gauges_are_merged_as_declared(across: AcrossWorkers, value: float) -> None:
    metrics = WorkerMetrics()
    for worker, reported in enumerate((2, 1, 6)):
        update(metrics, worker, gauge("g", reported, across))
    assert values(metrics) == {"g": value}
    update(metrics, 2, gauge("g", 1, across))
    assert values(metrics) == {"g": {AcrossWorkers.SUM: 4, AcrossWorkers.MAX: 2, AcrossWorkers.MIN: 1}[across]}


def test_totals_are_added_up_by_their_labels() -> None:
    metrics = WorkerMetrics()
    update(metrics, 0, counter("c", x=1, y=2))
    update(metrics, 1, counter("c", y=30, z=40))
    assert values(metrics, [counter("c", z=500)]) == {"c_totalx": 1, "c_totaly": 32, "c_totalz": 540}


def test_totals_of_an_ended_worker_are_kept_and_its_gauges_dropped() -> None:
    metrics = WorkerMetrics()
    for worker in (0, 1):
        update(metrics, worker, counter("c", x=10), gauge("g", 5, AcrossWorkers.SUM))
    metrics.remove(0)
    assert values(metrics) == {"c_totalx": 20, "g": 5}
    update(metrics, 0, counter("c", x=1), gauge("g", 2, AcrossWorkers.SUM))
    assert values(metrics) == {"c_totalx": 21, "g": 7}
    metrics.remove(0)
    metrics.remove(0)
    metrics.remove(1)
    assert values(metrics) == {"c_totalx": 21}


def test_a_family_encoded_in_pieces_is_decoded_whole() -> None:
    family = counter("c", **{f'label {number} \n\t"\\ü': number for number in range(3 * PIECE + 1)})
    (again,) = decode(encode([family]))
    assert again.metric == family.metric
    (empty,) = decode(encode([counter("c")]))
    assert empty.metric.samples == []


def test_values_are_available_by_worker() -> None:
    metrics = WorkerMetrics()
    for worker in (0, 1):
        update(metrics, worker, gauge("g", 5 + worker, AcrossWorkers.MAX), gauge("h", 0, AcrossWorkers.MAX))
    assert dict(metrics.by_worker("g")) == {0: 5, 1: 6}


def test_merged_decisions_are_newest_first_and_limited() -> None:
    def page(*ages_s: float) -> dict[str, object]:
        return {"waiting": [{"peer": ages_s[0]}], "decisions": [{"age_s": age_s} for age_s in ages_s]}

    pages = [json.loads(json.dumps(page(0.5, 2.0, 7.5))), page(1.0, 1.5, 9.0)]
    merged = merge_decisions(iter(pages), 4)
    assert [decision["age_s"] for decision in merged["decisions"]] == [0.5, 1.0, 1.5, 2.0]
    assert merged["waiting"] == [{"peer": 0.5}, {"peer": 1.0}]
    assert merge_decisions([], 4) == {"waiting": [], "decisions": []}
