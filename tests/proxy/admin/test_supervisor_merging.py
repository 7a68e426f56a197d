"""One page of metrics, and one of decisions, from those of several workers."""

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


def values(metrics: WorkerMetrics, besides: Iterable[Family] = ()) -> dict[str, float]:
    """As Prometheus would read them."""
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page_of(metrics.merged(besides)).decode())
        for sample in family.samples
    }


def tell(metrics: WorkerMetrics, worker: int, *families: Family) -> None:
    metrics.told(worker, decode(encode(families)))


@pytest.mark.parametrize(("across", "value"), [(AcrossWorkers.SUM, 9), (AcrossWorkers.MAX, 6), (AcrossWorkers.MIN, 1)])
def test_gauges_become_one_as_they_say(across: AcrossWorkers, value: float) -> None:
    metrics = WorkerMetrics()
    for worker, told in enumerate((2, 1, 6)):
        tell(metrics, worker, gauge("g", told, across))
    assert values(metrics) == {"g": value}
    tell(metrics, 2, gauge("g", 1, across))
    assert values(metrics) == {"g": {AcrossWorkers.SUM: 4, AcrossWorkers.MAX: 2, AcrossWorkers.MIN: 1}[across]}


def test_totals_are_added_up_by_their_labels() -> None:
    metrics = WorkerMetrics()
    tell(metrics, 0, counter("c", x=1, y=2))
    tell(metrics, 1, counter("c", y=30, z=40))
    assert values(metrics, [counter("c", z=500)]) == {"c_totalx": 1, "c_totaly": 32, "c_totalz": 540}


def test_totals_of_a_worker_that_is_gone_stay_and_its_gauges_go() -> None:
    metrics = WorkerMetrics()
    for worker in (0, 1):
        tell(metrics, worker, counter("c", x=10), gauge("g", 5, AcrossWorkers.SUM))
    metrics.ended(0)
    assert values(metrics) == {"c_totalx": 20, "g": 5}
    tell(metrics, 0, counter("c", x=1), gauge("g", 2, AcrossWorkers.SUM))
    assert values(metrics) == {"c_totalx": 21, "g": 7}
    metrics.ended(0)
    metrics.ended(0)
    metrics.ended(1)
    assert values(metrics) == {"c_totalx": 21}


def test_a_family_that_is_told_in_pieces_is_whole_again() -> None:
    family = counter("c", **{f'label {number} \n\t"\\ü': number for number in range(3 * PIECE + 1)})
    (again,) = decode(encode([family]))
    assert again.metric == family.metric
    (empty,) = decode(encode([counter("c")]))
    assert empty.metric.samples == []


def test_each_workers_own_values_can_be_told() -> None:
    metrics = WorkerMetrics()
    for worker in (0, 1):
        tell(metrics, worker, gauge("g", 5 + worker, AcrossWorkers.MAX), gauge("h", 0, AcrossWorkers.MAX))
    assert dict(metrics.of_each("g")) == {0: 5, 1: 6}


def test_decisions_are_told_newest_first_and_no_more_than_asked_for() -> None:
    def page(*ages_s: float) -> dict[str, object]:
        return {"waiting": [{"peer": ages_s[0]}], "decisions": [{"age_s": age_s} for age_s in ages_s]}

    pages = [json.loads(json.dumps(page(0.5, 2.0, 7.5))), page(1.0, 1.5, 9.0)]
    merged = merge_decisions(iter(pages), 4)
    assert [decision["age_s"] for decision in merged["decisions"]] == [0.5, 1.0, 1.5, 2.0]
    assert merged["waiting"] == [{"peer": 0.5}, {"peer": 1.0}]
    assert merge_decisions([], 4) == {"waiting": [], "decisions": []}
