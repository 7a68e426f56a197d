"""Medians, quartiles and ratios within a run."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bench.figures import CPU_S, RATE, Results, Spread, percentile, spread
from tests.benchmarks.samples import results, rounds, sample

FINITE = st.floats(min_value=-1e9, max_value=1e9)


def test_a_spread_is_the_median_and_the_quartiles_of_all_values() -> None:
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(middle=3.0, low=2.0, high=4.0)
    assert spread([1.0, 2.0]) == Spread(middle=1.5, low=1.25, high=1.75)
    assert spread([7.0]) == Spread(middle=7.0, low=7.0, high=7.0)


@given(st.lists(FINITE, min_size=1))
def test_quartiles_enclose_the_median(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.middle <= found.high <= max(values)


def test_a_ratio_is_median_over_median_with_the_quartiles_of_rounds() -> None:
    measured = results(rounds("w", "ours", CPU_S, 2.0, 3.0, 100.0), rounds("w", "base", CPU_S, 1.0, 2.0, 10.0))
    found = measured.ratio("w", CPU_S, "ours", "base")
    assert found == Spread(middle=1.5, low=1.75, high=6.0)


def test_what_was_not_measured_has_no_figures() -> None:
    measured = results(rounds("w", "ours", CPU_S, 2.0))
    assert measured.ratio("w", CPU_S, "ours", "base") is None
    assert measured.difference("w", CPU_S, "ours", "base") is None
    assert measured.value("w", "ours", RATE) is None
    assert measured.cpu_per_unit("w", "ours") is None


def test_rounds_that_only_one_way_has_are_not_compared() -> None:
    measured = results(rounds("w", "ours", CPU_S, 2.0, 9.0), rounds("w", "base", CPU_S, 1.0))
    assert measured.difference("w", CPU_S, "ours", "base") == Spread(middle=1.0, low=1.0, high=1.0)


def test_a_difference_is_taken_in_each_round() -> None:
    measured = results(rounds("w", "ours", "p50_ms", 1.0, 5.0, 9.0), rounds("w", "base", "p50_ms", 0.5, 1.0, 8.0))
    assert measured.difference("w", "p50_ms", "ours", "base") == Spread(middle=1.0, low=0.75, high=2.5)


def test_cpu_for_a_unit_of_work() -> None:
    measured = Results([sample("w", "ours", 1, cpu_s=3.0, amount=1.5), sample("w", "ours", 2, cpu_s=5.0, amount=1.0)])
    assert measured.cpu_per_unit("w", "ours") == Spread(middle=3.5, low=2.75, high=4.25)


def test_a_ratio_to_nothing_is_no_number() -> None:
    measured = results(rounds("w", "ours", CPU_S, 2.0), rounds("w", "base", CPU_S, 0.0))
    found = measured.ratio("w", CPU_S, "ours", "base")
    assert found is not None
    assert math.isnan(found.middle)


def test_order_of_works_and_ways() -> None:
    measured = Results([sample("b", "y", 1), sample("a", "x", 1), sample("b", "x", 1), sample("b", "y", 2)])
    assert measured.workloads() == ["b", "a"]
    assert measured.paths("b") == ["y", "x"]


@pytest.mark.parametrize(
    ("percent", "expected"), [(50.0, 500), (99.0, 990), (99.9, 999), (100.0, 1000), (0.0, 1), (99.95, 1000)]
)
def test_percentiles_by_nearest_rank(percent: float, expected: int) -> None:
    assert percentile(range(1, 1001), percent) == expected


def test_the_percentile_of_one_value_is_that() -> None:
    assert percentile([3.0], 99.9) == 3.0
