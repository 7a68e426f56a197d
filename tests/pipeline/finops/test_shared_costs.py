"""Shared costs: parts computed by hand, sums that are exact for random teams, and bills that have them."""

from __future__ import annotations

import calendar
import datetime as dt
import random
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.analysis.prices import MEASURES, NO_TEAM, UNATTRIBUTED, PriceSheet, SharedCost, Split, TeamTerms
from headrace.pipeline.analysis.rollup import Period, bill, by_day, by_hour
from headrace.pipeline.analysis.shared_costs import TeamUsage, month_part, parts_of, split_exactly
from headrace.pipeline.lake import schemas
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

DAY_S = 86_400
SEPTEMBER = dt.date(2026, 9, 1)


def cost(split: Split = Split.BYTES, amount: str = "100", *clusters: str) -> SharedCost:
    only = {"clusters": clusters} if clusters else {}
    return SharedCost(amount=Decimal(amount), split=split, **only)


def used(team: str, size: int, cluster: str | None = "c1") -> TeamUsage:
    return TeamUsage(cluster=cluster, team=team, measures=dict.fromkeys(MEASURES, Decimal(size)))


def parts(shared: SharedCost, *usage: TeamUsage, decimals: int = 2) -> dict[tuple[str | None, str], Decimal]:
    return parts_of(shared, shared.amount, usage, decimals)


# --- the rule ---


def test_what_is_left_by_rounding_goes_to_the_largest_remainder_and_then_by_name() -> None:
    assert split_exactly(100, {"b": 1, "a": 1, "c": 1}) == {"a": 34, "b": 33, "c": 33}
    assert split_exactly(10, {"a": 1, "b": 3, "c": 2}) == {"a": 2, "b": 5, "c": 3}  # 1.67, 5, 3.33
    assert split_exactly(3, {"a": 0, "b": 1, "c": 1}) == {"a": 0, "b": 2, "c": 1}
    assert split_exactly(0, {"a": 1}) == {"a": 0}


def test_a_cost_is_split_by_usage_and_usage_without_a_team_has_its_share() -> None:
    found = parts(cost(), used("a", 30), used(NO_TEAM, 60), used(UNATTRIBUTED, 10))
    assert found == {("c1", "a"): 30, ("c1", NO_TEAM): 60, ("c1", UNATTRIBUTED): 10}


def test_equal_parts_are_for_teams_and_for_others_only_if_there_are_none() -> None:
    teams = used("a", 1), used("b", 99), used(NO_TEAM, 50)
    assert parts(cost(Split.EQUAL), *teams) == {("c1", "a"): 50, ("c1", "b"): 50}
    assert parts(cost(Split.EQUAL), used(NO_TEAM, 1), used(UNATTRIBUTED, 2)) == {
        ("c1", NO_TEAM): 50, ("c1", UNATTRIBUTED): 50,
    }  # fmt: skip


def test_without_usage_of_the_measure_all_teams_pay_the_same() -> None:
    assert parts(cost(), used("a", 0), used("b", 0), used(NO_TEAM, 0)) == {("c1", "a"): 50, ("c1", "b"): 50}


def test_a_cost_of_some_clusters_is_split_by_their_usage() -> None:
    usage = used("a", 1, "c1"), used("b", 1, "c2"), used("b", 3, "c1"), used("c", 5, None)
    assert parts(cost(Split.BYTES, "100", "c1"), *usage) == {("c1", "a"): 25, ("c1", "b"): 75}
    assert parts(cost(Split.BYTES, "100", "c3"), *usage) == {}


def test_a_teams_part_is_the_same_over_clusters() -> None:
    apart = used("a", 1, "c1"), used("a", 0, "c2"), used("b", 1, "c1"), used("c", 1, "c2")
    found = parts(cost(Split.EQUAL), *apart)
    assert found == {
        ("c1", "a"): Decimal("16.67"), ("c2", "a"): Decimal("16.67"), ("c1", "b"): Decimal("33.33"),
        ("c2", "c"): Decimal("33.33"),
    }  # fmt: skip
    together = parts(cost(Split.EQUAL), *(used(team, 1, None) for team in "abc"))
    assert together == {(None, "a"): Decimal("33.34"), (None, "b"): Decimal("33.33"), (None, "c"): Decimal("33.33")}


# --- sums ---

AMOUNTS = st.integers(0, 10**12 - 1)
USAGE = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "ä", "", NO_TEAM, UNATTRIBUTED]),
        st.sampled_from(["c1", "c2", None]),
        st.one_of(st.integers(0, 5), st.integers(0, 10**21)),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each[:2],
)


@given(units=AMOUNTS, decimals=st.integers(0, 6), usage=USAGE, split=st.sampled_from(list(Split)))
def test_parts_sum_to_the_amount_to_the_last_decimal(
    units: int, decimals: int, usage: list[tuple[str, str | None, int]], split: Split
) -> None:
    amount = Decimal(units).scaleb(-decimals)
    shared = cost(split, str(amount))
    found = parts(shared, *(used(team, size, cluster) for team, cluster, size in usage), decimals=decimals)
    assert sum(found.values()) == amount
    unit = Decimal(1).scaleb(-decimals)
    assert all(part >= 0 and part == part.quantize(unit) for part in found.values())
    # Independent: each team's exact share as a fraction, from which its rounded part is less than a unit away.
    weights: dict[str, int] = {}
    for team, _, size in usage:
        weights[team] = weights.get(team, 0) + size
    if split is Split.EQUAL or not any(weights.values()):
        named = [team for team in weights if team not in (NO_TEAM, UNATTRIBUTED)]
        weights = dict.fromkeys(named or weights, 1)
    for team, weight in weights.items():
        exact = Fraction(units * weight, sum(weights.values()))
        of_team = sum(part for (_, each), part in found.items() if each == team)
        assert abs(Fraction(of_team) / Fraction(unit) - exact) < 1


@given(units=AMOUNTS, decimals=st.integers(0, 6), year=st.integers(2020, 2030), month=st.integers(1, 12))
def test_the_parts_of_the_days_sum_to_the_month(units: int, decimals: int, year: int, month: int) -> None:
    shared = cost(Split.EQUAL, str(Decimal(units).scaleb(-decimals)))
    days = calendar.monthrange(year, month)[1]
    by_day = [month_part(shared, dt.date(year, month, day), decimals) for day in range(1, days + 1)]
    assert sum(by_day) == shared.amount
    assert all(abs(part - shared.amount / days) < Decimal(1).scaleb(-decimals) for part in by_day)


# --- bills ---

TEAMS = [(user, None, None, team) for user, team in (("alice", "payments"), ("bob", "search"), ("carol", "search"))]


def days_of(spark: SparkSession, *records: dict[str, Any]) -> DataFrame:
    return by_day(by_hour(usage(spark, records), spark.createDataFrame(TEAMS, schemas.TEAMS)))


def lines_of(bills: Sequence[Row], team: str, cluster: str = "cluster-1") -> list[tuple[Any, ...]]:
    return sorted((row.line, row["item"], row.amount) for row in bills if (row.team, row.cluster) == (team, cluster))


def test_a_bill_has_a_line_for_each_shared_cost_which_discount_and_minimum_do_not_concern(spark: SparkSession) -> None:
    days = days_of(
        spark,
        record(requests=1, request_bytes=600, response_bytes=0),
        record(user="bob", requests=1, request_bytes=100, response_bytes=100),
        record(user="eve", requests=2, request_bytes=150, response_bytes=50),
    )
    sheet = PriceSheet(
        currency="EUR",
        per_million_requests=Decimal(10_000_000),
        minimum=Decimal(15),
        shared={"support": cost(Split.BYTES, "100"), "licences": cost(Split.EQUAL, "0.01")},
        teams={"payments": TeamTerms(discount_percent=Decimal(50))},
    )
    bills = bill(days, sheet, Period.MONTH).collect()
    assert lines_of(bills, "payments") == [
        (1, "requests", 10), (2, "shared: support", 60), (3, "shared: licences", Decimal("0.01")),
        (4, "discount", -5), (5, "minimum", 10), (6, "total", Decimal("75.01")),
    ]  # fmt: skip
    assert lines_of(bills, "search") == [
        (1, "requests", 10), (2, "shared: support", 20), (3, "shared: licences", 0), (5, "minimum", 5),
        (6, "total", 35),
    ]  # fmt: skip
    assert lines_of(bills, NO_TEAM) == [(1, "requests", 20), (2, "shared: support", 20), (6, "total", 40)]
    (row,) = [row for row in bills if (row.team, row["item"]) == ("search", "shared: support")]
    assert (row.used, row.unit, row.quantity, row.per, row.price) == (None, None, None, None, None)


def independent(
    days: Sequence[Mapping[str, Any]], shared: SharedCost, *, across_clusters: bool
) -> dict[tuple[str | None, str], Decimal]:
    """The parts of one month's cents, with NumPy: sums by team, floors, and the largest remainders."""
    rows = [row for row in days if not shared.clusters or row["cluster"] in shared.clusters]
    names = [row["team"] or NO_TEAM for row in rows]
    sizes = np.array([row["request_bytes"] + row["response_bytes"] for row in rows], dtype=object)
    teams, of = np.unique(np.array(names), return_inverse=True)
    sums = np.zeros(len(teams), dtype=object)
    np.add.at(sums, of, sizes)
    cents = int(shared.amount * 100)

    def largest_remainder(total: int, weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        floors, rest = total * weights // weights.sum(), total * weights % weights.sum()
        more = np.argsort(-rest, kind="stable")[: total - floors.sum()]
        floors[more] += 1
        return floors

    found: dict[tuple[str | None, str], Decimal] = {}
    for team, part in zip(teams, largest_remainder(cents, sums), strict=True):
        if across_clusters:
            found[None, str(team)] = Decimal(part) / 100
            continue
        clusters = sorted({row["cluster"] for row, name in zip(rows, names, strict=True) if name == team})
        by_cluster = [
            sum(s for s, row, name in zip(sizes, rows, names, strict=True) if (row["cluster"], name) == (cluster, team))
            for cluster in clusters
        ]
        weights = np.array(by_cluster, dtype=object)
        for cluster, of_cluster in zip(clusters, largest_remainder(int(part), weights), strict=True):
            found[cluster, str(team)] = Decimal(of_cluster) / 100
    return found


def test_bills_of_random_usage_are_those_of_an_independent_computation(spark: SparkSession) -> None:
    randoms = random.Random(7)  # noqa: S311 -- test data
    records = [
        record(
            NOON + DAY_S * randoms.randrange(9),
            cluster=f"c{randoms.randrange(3)}",
            user=randoms.choice(["alice", "bob", "carol", "eve"]),
            request_bytes=randoms.randrange(1, 10 ** randoms.randrange(1, 12)),
            response_bytes=randoms.randrange(10**6),
        )
        for _ in range(60)
    ]
    days = days_of(spark, *records).cache()
    rows = [row.asDict() for row in days.collect()]
    shared = {"all": cost(Split.BYTES, "12345.67"), "some": cost(Split.BYTES, "100.01", "c0", "c2")}
    sheet = PriceSheet(currency="EUR", shared=shared)
    for across_clusters in (False, True):
        bills = bill(days, sheet, Period.MONTH, across_clusters=across_clusters).collect()
        for name, each in shared.items():
            found = {(row.cluster, row.team): row.amount for row in bills if row["item"] == f"shared: {name}"}
            assert sum(found.values()) == each.amount
            assert found == independent(rows, each, across_clusters=across_clusters)
    days.unpersist()


def test_days_have_parts_of_a_month(spark: SparkSession) -> None:
    days = days_of(spark, record(), record(user="bob"), record(NOON + DAY_S))
    bills = bill(days, PriceSheet(currency="EUR", shared={"x": cost(Split.REQUESTS, "100")}), Period.DAY)
    amounts = {(row.date.day, row.team): row.amount for row in bills.where("item = 'total'").collect()}
    # 100 / 30, the 21st day: 70.00 less 66.67; the 22nd: 73.33 less 70.00
    assert amounts == {
        (21, "payments"): Decimal("1.67"), (21, "search"): Decimal("1.66"), (22, "payments"): Decimal("3.33"),
    }  # fmt: skip
