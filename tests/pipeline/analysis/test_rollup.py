"""Rollups and bills: sums computed by hand, totals equal to those of the usage, and the command on a small lake."""

from __future__ import annotations

import csv
import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from headrace.pipeline.analysis.prices import NO_TEAM, UNATTRIBUTED, PriceSheet, TeamTerms
from headrace.pipeline.analysis.rollup import (
    Period,
    bill,
    by_day,
    by_hour,
    changed_days,
    changed_periods,
    with_clusters,
)
from headrace.pipeline.cli import pipeline
from headrace.pipeline.jobs.rollup import Bills
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.day_counts import recorded_by_day, rolled_up_by_day
from headrace.pipeline.lake.retained import note_removed
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from tests.pipeline.finops.billing import lines, write_bills
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import DataFrame, Row, SparkSession

GIB = 2**30
DAY_S = 86_400
ONE_O_CLOCK = dt.datetime(2026, 9, 21, 13)  # noqa: DTZ001 -- Spark hands out times of the session's zone, UTC
MONDAY, TUESDAY = dt.date(2026, 9, 21), dt.date(2026, 9, 22)

RECORDS = [
    record(request_bytes=1000, response_bytes=50, thread_ms=0.5, broker_ms=2.0),
    record(NOON + 3599, requests=3, errors=1, request_bytes=2000, response_bytes=150, thread_ms=1.5, broker_ms=2.0),
    record(api_key=ApiKey.FETCH, request_bytes=100, response_bytes=9000,
           throttled={"request_percentage": 2, "consumer_byte_rate": 3},
           throttle_ms={"request_percentage": 20, "consumer_byte_rate": 300}),
    record(NOON + 1, api_key=ApiKey.SHARE_FETCH, request_bytes=100, response_bytes=700,
           refused={"controller_mutation_rate": 4}),
    record(NOON + 3600, api_key=ApiKey.CREATE_TOPICS, request_bytes=70, response_bytes=30, mutations=12),
    record(NOON + DAY_S, request_bytes=11, response_bytes=1),
    record(user="bob", client_id="app-2", api_key=ApiKey.INIT_PRODUCER_ID, request_bytes=40, response_bytes=40,
           producer_ids=5),
    record(user=None, client_id=None, request_bytes=17, response_bytes=3),
    record(NOON + 2, user=None, client_id=None, api_key=ApiKey.FETCH, request_bytes=19, response_bytes=23),
]  # fmt: skip
BYTES = sum(each["request_bytes"] + each["response_bytes"] for each in RECORDS)


def teams(
    spark: SparkSession, *rows: tuple[str | None, str | None, str], topics: dict[str, str] | None = None
) -> DataFrame:
    """Return the teams of senders, and those of topics by their names."""
    lines = [(user, client_id, None, team) for user, client_id, team in rows]
    lines += [(None, None, topic, team) for topic, team in (topics or {}).items()]
    return spark.createDataFrame(lines, schemas.TEAMS)


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


@pytest.fixture(scope="module")
def hours(spark: SparkSession) -> DataFrame:
    return by_hour(usage(spark, RECORDS), teams(spark, ("alice", None, "payments"))).cache()


# --- rollups ----------------------------------------------------------------------------------------------------------


def test_an_hour_of_a_sender_is_the_sum_of_its_records(hours: DataFrame) -> None:
    assert hours.schema.names == schemas.ROLLUP_HOUR.names
    (row,) = hours.where("user = 'alice' and hour = timestamp'2026-09-21 13:00:00'").collect()
    assert row.asDict() == {
        "date": MONDAY,
        "hour": ONE_O_CLOCK,
        "cluster": "cluster-1",
        "user": "alice",
        "client_id": "app-1",
        "team": "payments",
        "requests": 6,
        "errors": 1,
        "produced_bytes": 3000,
        "fetched_bytes": 9700,
        "request_bytes": 3200,
        "response_bytes": 9900,
        "thread_ms": pytest.approx(2.2),
        "broker_ms": pytest.approx(6.0),
        "mutations": 0,
        "producer_ids": 0,
        "throttled": 5,
        "throttle_ms": 320,
        "refused": 4,
        "records": 4,
    }


def test_hours_begin_where_they_begin(hours: DataFrame) -> None:
    of_alice = hours.where("user = 'alice'")
    assert rows_of(of_alice, "date", "hour") == [
        (MONDAY, ONE_O_CLOCK),
        (MONDAY, ONE_O_CLOCK + dt.timedelta(hours=1)),
        (TUESDAY, ONE_O_CLOCK + dt.timedelta(days=1)),
    ]


def test_usage_without_a_sender_is_a_row_of_its_own(hours: DataFrame) -> None:
    assert rows_of(hours.where("user is null"), "client_id", "team", "produced_bytes", "fetched_bytes") == [
        (None, None, 17, 23)
    ]


def test_days_are_sums_of_hours(hours: DataFrame) -> None:
    days = by_day(hours)
    assert days.schema.names == schemas.ROLLUP_DAY.names
    assert rows_of(days, "date", "user", "requests", "mutations", "producer_ids", "request_bytes") == [
        (MONDAY, "alice", 7, 12, 0, 3270),
        (MONDAY, "bob", 1, 0, 5, 40),
        (MONDAY, None, 2, 0, 0, 36),
        (TUESDAY, "alice", 1, 0, 0, 11),
    ]


def test_all_totals_are_those_of_the_usage_to_the_byte(hours: DataFrame) -> None:
    for frame in (hours, by_day(hours)):
        (row,) = frame.selectExpr("sum(request_bytes + response_bytes)", "sum(requests)").collect()
        assert tuple(row) == (BYTES, sum(each["requests"] for each in RECORDS))


def test_records_of_an_older_pipeline_have_no_maps(spark: SparkSession) -> None:
    old = record(throttled=None, throttle_ms=None, refused=None, mutations=None)
    (row,) = by_hour(usage(spark, [old]), teams(spark)).collect()
    assert (row.throttled, row.throttle_ms, row.refused, row.mutations) == (0, 0, 0, 0)


# --- teams ------------------------------------------------------------------------------------------------------------


def test_both_names_win_over_the_user_and_the_user_over_the_client_id(spark: SparkSession) -> None:
    senders = [("alice", "app-1"), ("alice", "app-2"), ("bob", "app-1"), ("bob", "app-3"), ("bob", None)]
    found = by_hour(
        usage(spark, [record(user=user, client_id=client_id) for user, client_id in senders]),
        teams(
            spark,
            ("alice", "app-1", "both"),
            ("alice", None, "user"),
            (None, "app-1", "client"),
            (None, "app-2", "client of a user with a team"),
            ("bob", "x", "no"),
        ),
    )
    assert rows_of(found, "user", "client_id", "team") == [
        ("alice", "app-1", "both"),
        ("alice", "app-2", "user"),
        ("bob", "app-1", "client"),
        ("bob", "app-3", None),
        ("bob", None, None),
    ]


def test_usage_without_a_team_of_its_sender_is_that_of_the_topics_owners(spark: SparkSession) -> None:
    topics = {"orders": "shop", "clicks": "web", "views": "web"}
    named = {"client_id": "app-1", "response_bytes": 0}
    found = by_hour(
        usage(
            spark,
            [
                record(topic="orders", request_bytes=1, **named),
                record(topic="clicks", request_bytes=20, **named),
                record(NOON + 1, topic="views", request_bytes=300, api_key=ApiKey.FETCH, **named),
                record(topic="logs", request_bytes=4000, **named),
                record(topic=None, request_bytes=50_000, requests=7, **named),
                record(user="bob", topic="orders", request_bytes=600_000, **named),
                record(user="carol", client_id="app-2", topic="orders", request_bytes=7_000_000, response_bytes=0),
                record(user=None, client_id=None, request_bytes=80_000_000, response_bytes=0),
            ],
        ),
        teams(spark, ("bob", None, "bob's"), (None, "app-2", "app"), topics=topics),
    )
    assert found.schema == schemas.ROLLUP_HOUR
    assert rows_of(found, "user", "client_id", "team", "request_bytes", "produced_bytes", "records") == sorted(
        [
            ("alice", "app-1", "shop", 1, 1, 1),
            ("alice", "app-1", "web", 320, 20, 2),
            ("alice", "app-1", None, 54_000, 54_000, 2),
            ("bob", "app-1", "bob's", 600_000, 600_000, 1),
            ("carol", "app-2", "app", 7_000_000, 7_000_000, 1),
            (None, None, None, 80_000_000, 80_000_000, 1),
        ],
        key=repr,
    )
    assert rows_of(by_day(found).where("user = 'alice'"), "team", "requests") == [("shop", 1), ("web", 2), (None, 8)]


# --- bills ------------------------------------------------------------------------------------------------------------

SHEET = PriceSheet(
    currency="EUR",
    per_gib_produced=Decimal("0.10"),
    per_million_requests=Decimal(2),
    minimum=Decimal(1),
    teams={
        "payments": TeamTerms(discount_percent=Decimal(10), per_gib_produced=Decimal("0.05")),
        "search": TeamTerms(per_thread_hour=Decimal("1.20")),
    },
)


@pytest.fixture(scope="module")
def days(spark: SparkSession) -> DataFrame:
    big = [
        record(request_bytes=100 * GIB, requests=1_500_000, thread_ms=3_600_000.0),
        record(NOON + DAY_S, request_bytes=GIB, requests=0, thread_ms=0.0),
        record(user="bob", request_bytes=GIB // 2, requests=0, thread_ms=1_800_000.0),
        record(user="eve", request_bytes=10, requests=250_000),
        record(user=None, client_id=None, request_bytes=5 * GIB, requests=1),
    ]
    known = teams(spark, ("alice", None, "payments"), ("bob", None, "search"))
    return by_day(by_hour(usage(spark, big), known)).cache()


@pytest.fixture(scope="module")
def by_period(days: DataFrame) -> dict[Period, list[Row]]:
    return {period: bill(days, SHEET, period).orderBy("line").collect() for period in Period}


def lines_of(lines: list[Row], team: str, date: dt.date) -> dict[str, Decimal]:
    return {row["item"]: row.amount for row in lines if (row.team, row.date) == (team, date)}


def test_a_bill_has_the_columns_of_its_table(days: DataFrame) -> None:
    assert [(each.name, each.dataType) for each in bill(days, SHEET, Period.DAY).schema] == [
        (each.name, each.dataType) for each in schemas.CHARGEBACK
    ]


def test_a_bill_by_day(by_period: dict[Period, list[Row]]) -> None:
    lines = by_period[Period.DAY]
    # 100 GiB x 0.05 = 5, 1.5 million requests x 2 = 3; an hour of a thread that only search pays for; 10 % off 8
    assert lines_of(lines, "payments", MONDAY) == {
        "produced": 5, "requests": 3, "thread time": 0, "discount": Decimal("-0.8"), "total": Decimal("7.2"),
    }  # fmt: skip
    # 1 GiB x 0.05, 10 % off is 0.005, half up 0.01; raised to 1
    assert lines_of(lines, "payments", TUESDAY) == {
        "produced": Decimal("0.05"), "requests": 0, "thread time": 0, "discount": Decimal("-0.01"),
        "minimum": Decimal("0.96"), "total": 1,
    }  # fmt: skip
    # half a GiB x 0.10, half an hour x 1.20
    assert lines_of(lines, "search", MONDAY) == {
        "produced": Decimal("0.05"), "requests": 0, "thread time": Decimal("0.6"), "minimum": Decimal("0.35"),
        "total": 1,
    }  # fmt: skip
    # usage without a team has no minimum
    assert lines_of(lines, NO_TEAM, MONDAY) == {
        "produced": 0, "requests": Decimal("0.5"), "thread time": 0, "total": Decimal("0.5"),
    }  # fmt: skip
    assert lines_of(lines, UNATTRIBUTED, MONDAY) == {
        "produced": Decimal("0.5"), "requests": 0, "thread time": 0, "total": Decimal("0.5"),
    }  # fmt: skip


def test_the_columns_of_a_line_of_a_bill(by_period: dict[Period, list[Row]]) -> None:
    (row,) = [row for row in by_period[Period.DAY] if (row.team, row["item"]) == ("search", "produced")]
    assert row.asDict() == {
        "period": "day", "date": MONDAY, "cluster": "cluster-1", "team": "search", "line": 1, "item": "produced",
        "used": GIB // 2, "unit": "bytes", "quantity": Decimal("0.5"), "per": "GiB", "price": Decimal("0.1"),
        "amount": Decimal("0.05"), "currency": "EUR", "records": None,
    }  # fmt: skip


def test_a_bill_by_month_is_one_for_both_days(by_period: dict[Period, list[Row]]) -> None:
    lines = by_period[Period.MONTH]
    assert {(row.period, row.date) for row in lines} == {("month", dt.date(2026, 9, 1))}
    # 101 GiB x 0.05 = 5.05 and 3, less 10 % (0.805, half up 0.81)
    assert lines_of(lines, "payments", dt.date(2026, 9, 1)) == {
        "produced": Decimal("5.05"), "requests": 3, "thread time": 0, "discount": Decimal("-0.81"),
        "total": Decimal("7.24"),
    }  # fmt: skip


@pytest.mark.parametrize("period", Period)
def test_a_bill_has_all_of_the_usage_and_its_totals_are_its_lines(
    by_period: dict[Period, list[Row]], period: Period
) -> None:
    lines = by_period[period]
    assert sum(row.used for row in lines if row["item"] == "produced") == 106 * GIB + GIB // 2 + 10
    assert sum(row.used for row in lines if row["item"] == "requests") == 1_750_001
    totals = sum(row.amount for row in lines if row["item"] == "total")
    assert totals == sum(row.amount for row in lines if row["item"] != "total") != 0


def test_the_largest_usage_is_billed_exactly(spark: SparkSession) -> None:
    sheet = PriceSheet(currency="EUR", decimals=6, per_gib_produced=Decimal("0.000001"))
    most = 2**62
    (row,) = (
        bill(by_day(by_hour(usage(spark, [record(request_bytes=most)]), teams(spark))), sheet, Period.DAY)
        .where("item = 'produced'")
        .collect()
    )
    assert (row.used, row.quantity, row.amount) == (most, 2**32, Decimal("4294.967296"))


def test_clusters_have_bills_of_their_own_or_one(spark: SparkSession) -> None:
    of_both = [record(requests=number, cluster=f"cluster-{number}") for number in (1, 2)]
    days = by_day(by_hour(usage(spark, of_both), teams(spark)))
    sheet = PriceSheet(currency="EUR", per_million_requests=Decimal(1_000_000))
    for across, expected in ((False, [("cluster-1", 1), ("cluster-2", 2)]), (True, [(None, 3)])):
        lines = bill(days, sheet, Period.DAY, across_clusters=across)
        assert rows_of(lines.where("item = 'total'"), "cluster", "amount") == expected


def test_records_get_the_cluster_that_their_instance_learned_later(spark: SparkSession) -> None:
    records = [
        record(cluster=None, requests=1), record(requests=2), record(cluster=None, instance="proxy-b-1", requests=4),
        record(instance="proxy-c-1", cluster="cluster-3", requests=8),
    ]  # fmt: skip
    found = with_clusters(usage(spark, records)).groupBy("cluster").sum("requests").orderBy("cluster").collect()
    assert [tuple(row) for row in found] == [(None, 4), ("cluster-1", 3), ("cluster-3", 8)]


def test_days_with_more_records_have_changed() -> None:
    recorded = {MONDAY: 8, TUESDAY: 1}
    assert changed_days(recorded, recorded) == []
    assert changed_days(recorded | {TUESDAY: 2}, recorded) == [TUESDAY]
    assert changed_days(recorded, {TUESDAY: 1}) == [MONDAY], "it was not rolled up"
    assert changed_days({}, recorded) == [], "its usage was removed since"
    assert changed_days({MONDAY: 7}, recorded) == [], "a part of it was"
    assert changed_days(recorded, dict.fromkeys(recorded)) == [MONDAY, TUESDAY], "of a version that did not count them"


def test_periods_with_more_records_have_changed() -> None:
    rolled_up, september, october = {MONDAY: 8, TUESDAY: 1}, MONDAY.replace(day=1), dt.date(2026, 10, 1)
    for period, billed, changed in (
        (Period.DAY, rolled_up, TUESDAY), (Period.MONTH, {september: 9, october: 4}, september),
    ):  # fmt: skip
        assert changed_periods(rolled_up, billed, period) == []
        assert changed_periods(rolled_up | {TUESDAY: 2}, billed, period) == [changed]
        assert changed_periods(rolled_up, {}, period)[-1] == changed, "there are no bills"
        assert changed_periods({TUESDAY: 1}, billed, period) == [], "rollups were removed since"
    assert changed_periods({MONDAY: None}, {MONDAY: None}, Period.DAY) == [], "of a version that did not count them"
    assert changed_periods({MONDAY: None}, {}, Period.DAY) == [MONDAY]


# --- the command ------------------------------------------------------------------------------------------------------


def run(lake: Path, *arguments: str) -> Result:
    return CliRunner().invoke(pipeline, ["rollup", "--lake", str(lake), *arguments])


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    tables = Lake(spark, str(tmp_path / "lake"))
    tables.append("usage", usage(spark, RECORDS).coalesce(1), "date", "hour")
    return tables


def test_days_that_have_not_changed_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """The files of the day before are removed beneath the tables, so that reading them would fail."""
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nper_producer_id = 1\n', encoding="utf-8")
    lake, given = Lake(spark, str(tmp_path / "lake")), ("--json", "--prices", str(prices), "--per", "day")
    spark.conf.set("spark.databricks.delta.stats.collect", "true")
    try:
        lake.append("usage", usage(spark, RECORDS).coalesce(1), "date", "hour")
        assert run(lake.root, *given).exit_code == 0
        for name in ("usage", "rollup_day", "rollup_hour"):
            for file in Path(lake.path(name)).glob(f"date={MONDAY}/**/*.parquet"):
                file.unlink()
        lake.append("usage", usage(spark, [record(NOON + DAY_S)]).coalesce(1), "date", "hour")
        result = run(lake.root, *given)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["days"] == found["periods"] == [str(TUESDAY)]
        assert recorded_by_day(lake) == rolled_up_by_day(Lake(spark, lake.root)) == {MONDAY: 8, TUESDAY: 2}
    finally:
        spark.conf.set("spark.databricks.delta.stats.collect", "false")


def bytes_by_date(lake: Lake) -> dict[dt.date, int]:
    days = (
        Lake(lake.spark, lake.root)
        .read("rollup_day", schemas.ROLLUP_DAY)
        .selectExpr("date", "request_bytes + response_bytes as size")
    )
    return {row.date: row["sum(size)"] for row in days.groupBy("date").sum("size").collect()}


def test_the_command_rolls_up_and_reports_the_sums(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "teams.csv").write_text("user,client_id,team\nalice,,payments\n", encoding="utf-8")
    result = run(tmp_path / "lake", "--teams", str(tmp_path / "teams.csv"))
    assert result.exit_code == 0, result.output
    assert (
        f"2 days, the last hour is 2026-09-22 13:00 UTC; 2 senders, 11 requests, {BYTES:,} bytes; 62 bytes"
        " have no recorded sender, and 80 bytes are of senders that have no team" in result.output
    )
    assert sum(bytes_by_date(lake).values()) == BYTES
    assert lake.read("rollup_hour", schemas.ROLLUP_HOUR).where("team = 'payments'").count() == 3


def test_a_run_that_is_repeated_changes_nothing_and_other_days_stay(spark: SparkSession, lake: Lake) -> None:
    assert run(lake.root).exit_code == 0
    first = bytes_by_date(lake)
    lake.append("usage", usage(spark, [record(NOON + DAY_S, request_bytes=5, response_bytes=0)]), "date", "hour")
    lake.append("usage", usage(spark, [record(NOON, request_bytes=7, response_bytes=0)]), "date", "hour")
    for _ in range(2):
        assert run(lake.root, "--from", "2026-09-22", "--to", "2026-09-22").exit_code == 0
        assert bytes_by_date(lake) == {MONDAY: first[MONDAY], TUESDAY: first[TUESDAY] + 5}


def test_days_and_bills_of_unchanged_usage_are_left_as_they_are(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    prices, teams_file = tmp_path / "prices.toml", tmp_path / "teams.csv"
    teams_file.write_text("user,client_id,team\nalice,,payments\n", encoding="utf-8")

    def rolled_up(price: int, *more: str) -> tuple[dict[str, Any], dict[tuple[str, str], Decimal]]:
        prices.write_text(f'currency = "EUR"\nper_million_requests = {price}_000_000\n', encoding="utf-8")
        result = run(lake.root, "--prices", str(prices), "--teams", str(teams_file), "--per", "day", "--json", *more)
        assert result.exit_code == 0, result.output
        totals = Lake(spark, lake.root).read("chargeback", schemas.CHARGEBACK).where("item = 'total'")
        return json.loads(result.stdout), {(str(row.date), row.team): row.amount for row in totals.collect()}

    found, before = rolled_up(1)
    assert found["days"] == found["periods"] == ["2026-09-21", "2026-09-22"]
    found, bills = rolled_up(2)
    assert (found["days"], found["periods"], bills) == ([], [], before)
    lake.append("usage", usage(spark, [record(NOON + DAY_S, requests=5)]), "date", "hour")
    assert run(lake.root, "--teams", str(teams_file)).exit_code == 0, "the next run with prices knows what it changed"
    found, bills = rolled_up(2)
    assert (found["days"], found["periods"]) == ([], ["2026-09-22"])
    assert bills == before | {("2026-09-22", "payments"): 2 * (before["2026-09-22", "payments"] + 5)}
    found, bills = rolled_up(3, "--again")
    assert found["days"] == found["periods"] == ["2026-09-21", "2026-09-22"]
    assert bills["2026-09-21", "payments"] == 3 * before["2026-09-21", "payments"]


def test_the_bill_of_a_month_is_kept_after_some_of_its_days_were_removed(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nper_million_requests = 1_000_000\n', encoding="utf-8")

    def amount(*more: str) -> tuple[str, Decimal]:
        result = run(lake.root, "--prices", str(prices), *more)
        assert result.exit_code == 0, result.output
        totals = Lake(spark, lake.root).read("chargeback", schemas.CHARGEBACK).where("item = 'total'")
        return result.output, sum((row.amount for row in totals.collect()), Decimal(0))

    _, before = amount()
    assert before > 0
    note_removed(lake, {"rollup_day": TUESDAY})
    with Lake(spark, lake.root).release() as draft:
        draft.remove_rows("rollup_day", f"date < '{TUESDAY}'")
    output, after = amount("--again", "--from", str(TUESDAY))
    assert after == before
    assert "the rolled up days before 2026-09-22 were removed (retain), so no bills of 1 periods" in output


def test_usage_of_an_unknown_cluster_has_a_bill_of_its_own(spark: SparkSession) -> None:
    days = by_day(by_hour(usage(spark, [record(cluster=None), record()]), teams(spark)))
    sheet = PriceSheet(currency="EUR", per_million_requests=Decimal(10**6))
    found = bill(days, sheet, Period.DAY).where("item = 'total'")
    assert rows_of(found, "cluster") == [("(unknown)",), ("cluster-1",)]


def test_clusters_have_bills_of_their_own_unless_one_is_asked_for(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    lake.append("usage", usage(spark, [record(cluster="cluster-2", requests=5)]), "date", "hour")
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nper_million_requests = 1_000_000\n', encoding="utf-8")
    arguments = ("--prices", str(prices), "--per", "day")

    def totals() -> list[tuple[Any, ...]]:
        lines = Lake(spark, lake.root).read("chargeback", schemas.CHARGEBACK)
        of_monday = lines.where(f"item = 'total' and date = '{MONDAY}' and team = '{NO_TEAM}'")
        return rows_of(of_monday, "cluster", "amount")

    assert run(lake.root, *arguments).exit_code == 0
    apart = totals()
    assert [cluster for cluster, _ in apart] == ["cluster-1", "cluster-2"]
    result = run(lake.root, *arguments, "--across-clusters", "--again")
    assert result.exit_code == 0, result.output
    assert totals() == [(None, sum(amount for _, amount in apart))]


def test_the_bill_as_csv(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(
        'currency = "EUR"\nper_million_requests = 1_000_000\n[teams.nobody]\nminimum = 5\n', encoding="utf-8"
    )
    output = tmp_path / "bill.csv"
    # A day is asked for; its month is billed.
    arguments = ("--prices", str(tmp_path / "prices.toml"), "--output", str(output))
    assert run(lake.root).exit_code == 0
    result = run(lake.root, "--from", "2026-09-22", *arguments)
    assert result.exit_code == 0, result.output
    with output.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "period": "month", "date": "2026-09-01", "cluster": "cluster-1", "team": NO_TEAM, "line": "1",
        "item": "requests", "used": "9", "unit": "requests", "quantity": "0.000009", "per": "million requests",
        "price": "1000000", "amount": "9.00", "currency": "EUR", "records": "",
    }  # fmt: skip
    assert [(row["team"], row["item"], row["amount"]) for row in rows] == [
        (NO_TEAM, "requests", "9.00"), (NO_TEAM, "total", "9.00"),
        (UNATTRIBUTED, "requests", "2.00"), (UNATTRIBUTED, "total", "2.00"),
    ]  # fmt: skip
    assert "cluster-1: 2 bills, 11.00 EUR in all" in result.output
    assert f"2026-09  cluster-1  {NO_TEAM}  9.00 EUR" in result.output
    assert "prices for team nobody, which has no usage" in result.output


def test_bills_are_summed_by_cluster_and_currency_and_keep_their_decimals(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bills of August are of an earlier price sheet, in dollars with six decimals."""
    lake = Lake(spark, str(tmp_path / "lake"))
    write_bills(
        lake,
        lines("a", ("requests", "2.5")),
        lines("b", ("requests", "4"), cluster="c2"),
        lines("a", ("requests", "0.001234"), date=dt.date(2026, 8, 1), currency="USD"),
        lines("b", ("requests", "1"), date=dt.date(2026, 8, 1), currency="USD"),
    )
    bills = Bills(PriceSheet(currency="EUR"), Period.MONTH, across_clusters=False)
    result = bills.report(lake, None, None, [], str(tmp_path / "bills.csv"))
    assert [tuple(each.values()) for each in result["totals"]] == [
        ("c1", "EUR", 1, Decimal("2.5")), ("c1", "USD", 2, Decimal("1.001234")), ("c2", "EUR", 1, 4),
    ]  # fmt: skip
    assert result["bills"] == 4
    reported = capsys.readouterr().err
    assert "c1: 1 bills, 2.50 EUR in all" in reported
    assert "c1: 2 bills, 1.001234 USD in all" in reported
    assert "2026-08  c1  a  0.001234 USD" in reported
    with (tmp_path / "bills.csv").open(encoding="utf-8", newline="") as file:
        amounts = [row["amount"] for row in csv.DictReader(file) if row["item"] == "total"]
    assert amounts == ["0.001234", "1.00", "2.50", "4.00"]


@pytest.mark.exhaustive
def test_bills_by_day_and_by_month_stand_beside_each_other(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_million_requests = 1_000_000\n', encoding="utf-8")
    for per in ("day", "month", "day"):
        assert run(lake.root, "--prices", str(tmp_path / "prices.toml"), "--per", per).exit_code == 0
    totals = lake.read("chargeback", schemas.CHARGEBACK).where("item = 'total'")
    assert rows_of(totals.groupBy("period").sum("amount"), "period", "sum(amount)") == [("day", 11), ("month", 11)]


@pytest.mark.exhaustive
def test_days_whose_usage_is_gone_can_still_be_billed(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_million_requests = 1_000_000\n', encoding="utf-8")
    assert run(lake.root).exit_code == 0
    lake.replace("usage", usage(spark, []))
    result = run(lake.root, "--prices", str(tmp_path / "prices.toml"))
    assert result.exit_code == 0, result.output
    assert f"{lake.root} has no new usage: nothing was rolled up" in result.output
    assert "cluster-1: 2 bills, 11.00 EUR in all" in result.output


@pytest.mark.exhaustive
def test_an_empty_table_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path)).append("usage", usage(spark, []), "date", "hour")
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_producer_id = 1\n', encoding="utf-8")
    result = run(tmp_path, "--from", "2026-09-01", "--to", "2026-09-30", "--prices", str(tmp_path / "prices.toml"))
    assert result.exit_code == 0, result.output
    assert f"{tmp_path} has no usage from 2026-09-01 to 2026-09-30: nothing was rolled up" in result.output
    assert f"{tmp_path} has no rolled up days from 2026-09-01 to 2026-09-30: no bill was written" in result.output
    assert not (tmp_path / "rollup_day").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ((), 1, "there is no table 'usage' in"),
        (("--teams", "nowhere.csv"), 1, "nowhere.csv does not exist"),
        (("--prices", "nowhere.toml"), 1, "nowhere.toml: cannot be read: no such file or directory"),
        (("--output", "bill.csv"), 2, "--output is the file for the bills, which require --prices"),
        (("--from", "2026-09-02", "--to", "2026-09-01"), 2, "--from 2026-09-02 is after --to 2026-09-01"),
        (("--from", "yesterday"), 2, "'yesterday' does not match the format"),
    ],
)
def test_errors_name_their_cause(
    spark: SparkSession, tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str
) -> None:
    (tmp_path / "lake").mkdir()
    result = run(tmp_path / "lake", *arguments)
    assert (result.exit_code, expected in result.output) == (code, True), result.output


@pytest.mark.exhaustive
def test_a_bill_that_cannot_be_written_is_an_error(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_producer_id = 1\n', encoding="utf-8")
    (tmp_path / "bill.csv.draft").mkdir()
    result = run(lake.root, "--prices", str(tmp_path / "prices.toml"), "--output", str(tmp_path / "bill.csv"))
    assert result.exit_code == 1
    assert f"cannot write {tmp_path}/bill.csv: is a directory" in result.output
