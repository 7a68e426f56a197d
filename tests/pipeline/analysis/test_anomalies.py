"""Anomalies: data with one anomaly of each kind, and data without any."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import Row
from pyspark.sql import functions as sf
from pyspark.sql.types import DateType, StructField, StructType

from headrace.pipeline.analysis.anomalies.deviating import Examined, deviations
from headrace.pipeline.analysis.anomalies.findings import anomalies, duration
from headrace.pipeline.analysis.anomalies.rules import DAY_S, Rules
from headrace.pipeline.analysis.anomalies.sketches import sketches_of
from headrace.pipeline.analysis.anomalies.stored import Days, Part, days_between
from headrace.pipeline.analysis.anomalies.windows import starts_of, windows_of
from headrace.pipeline.cli import pipeline
from headrace.pipeline.jobs.anomalies import _end, _report_result
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from tests.pipeline.records import record, usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

DAY = date(2026, 9, 22)
MIDNIGHT = int(datetime(2026, 9, 22, tzinfo=UTC).timestamp())
HOUR = 3600
RULES = Rules(window_s=HOUR, least_past=20)
"""The default rules, except for windows of an hour, which keep the data small."""
MIB = 1024 * 1024

Records = list[dict[str, Any]]


def at(hour: float, **members: Any) -> dict[str, Any]:
    """Return a record at this number of hours after the midnight before `DAY`."""
    return record(MIDNIGHT + round(hour * HOUR), **members)


def steady(hours: Iterable[int] = range(-48, 24), **members: Any) -> Records:
    """Return equal hours of 10,000 Produce requests, 20 MiB, 10 s of thread time, 10 connections and 2 producer ids."""
    return [
        each
        for hour in hours
        for each in (
            at(hour, requests=10_000, request_bytes=20 * MIB, response_bytes=0, thread_ms=10_000.0, **members),
            at(hour, requests=10, api_key=ApiKey.API_VERSIONS, request_bytes=0, response_bytes=0, **members),
            at(hour, requests=2, api_key=ApiKey.INIT_PRODUCER_ID, request_bytes=0, response_bytes=0, **members),
        )
    ]


def found(
    spark: SparkSession,
    records: Iterable[dict[str, Any]],
    rules: Rules = RULES,
    day: date = DAY,
    until_hour: float = 24,
) -> list[Row]:
    windows = windows_of(usage(spark, records), rules.window_s).persist()
    midnight = MIDNIGHT + (day - DAY).days * DAY_S
    try:
        starts, past = starts_of(windows), sf.col("start") < midnight
        sketches = sketches_of(windows.where(past), range(midnight), starts, rules, 0)
        of_day = sf.col("start").between(midnight - rules.window_s, midnight + DAY_S - 1)
        until_s = MIDNIGHT + round(until_hour * HOUR)
        examined = Examined(since_s=midnight, until_s=until_s, starts=starts, rules=rules)
        frame = anomalies(deviations(windows.where(of_day), sketches, examined, 0), rules)
        assert frame.schema.names == schemas.ANOMALIES.names
        return frame.orderBy("start", "kind", "user", "client_id").collect()
    finally:
        windows.unpersist()


def hour_of(row: Row) -> float:
    """Return the hours after midnight. The session's time zone is UTC; Python's datetimes are in the machine's time
    zone.
    """
    return (row.start.timestamp() - MIDNIGHT) / HOUR


def one(rows: list[Row]) -> Row:
    assert len(rows) == 1, [row.description for row in rows]
    return rows[0]


# --- windows ---


def test_windows_have_the_sums_of_each_client_and_of_all_of_a_user(spark: SparkSession) -> None:
    records = [
        at(0, requests=3, errors=1, refused={"a": 1, "b": 1}, request_bytes=100, response_bytes=20, thread_ms=1.5),
        at(0.9, requests=1, request_bytes=80, response_bytes=0, thread_ms=0.5, producer_ids=5),
        at(0.5, api_key=ApiKey.API_VERSIONS, requests=4, request_bytes=0, response_bytes=0, thread_ms=0.0),
        at(0.5, api_key=ApiKey.SASL_HANDSHAKE, requests=3, request_bytes=0, response_bytes=0, thread_ms=0.0),
        at(0.5, api_key=ApiKey.INIT_PRODUCER_ID, requests=2, request_bytes=0, response_bytes=0, thread_ms=0.0),
        at(0.5, client_id="app-2", requests=7, request_bytes=0, response_bytes=0, thread_ms=0.0),
        at(0.5, user=None, client_id=None, requests=99),
        at(1.0, client_id=None, requests=1, request_bytes=0, response_bytes=0, thread_ms=0.0),
    ]
    rows = windows_of(usage(spark, records), HOUR).orderBy("start", "client_id").collect()
    columns = ("requests", "failed", "bytes", "thread_ms", "new_ids", "produced", "connections")
    reported = {((row.start - MIDNIGHT) // HOUR, row.client_id): tuple(row[name] for name in columns) for row in rows}
    assert reported == {
        (0, None): (20, 2, 200, 2.0, 5, 11, 4),
        (0, "app-1"): (13, 2, 200, 2.0, 5, 4, 4),
        (0, "app-2"): (7, 0, 0, 0.0, 0, 7, 0),
        (1, None): (1, 0, 0, 0.0, 0, 1, 0),
        (1, ""): (1, 0, 0, 0.0, 0, 1, 0),
    }


# --- each kind, planted ---


def nothing(hour: float, **members: Any) -> dict[str, Any]:
    """Return a record that adds no bytes and no time."""
    return at(hour, **{"request_bytes": 0, "response_bytes": 0, "thread_ms": 0.0} | members)


def days_and_nights() -> Records:
    """Return two weeks with a quarter of the load at night; hours vary by some 30 %, small counts at random."""
    dice = random.Random(3)  # noqa: S311
    records = []
    for hour in range(-14 * 24, 24):
        load = (4 if 8 <= hour % 24 < 20 else 1) * dice.lognormvariate(0, 0.3)
        work = {"request_bytes": round(5 * MIB * load), "response_bytes": 0, "thread_ms": 2500.0 * load}
        records += [
            at(hour, requests=round(2500 * load), errors=dice.randint(0, 40), **work),
            nothing(hour, requests=dice.randint(0, 100), api_key=ApiKey.API_VERSIONS),
            nothing(hour, requests=dice.randint(0, 25), api_key=ApiKey.INIT_PRODUCER_ID),
        ]
    return records


def burst(*hours: int, mib: int = 200) -> Records:
    return [nothing(hour + 0.5, requests=1, request_bytes=mib * MIB) for hour in hours]


STORIES: dict[str, Records] = {
    # producer ids
    "churn": [*steady(), nothing(7.5, requests=598, api_key=ApiKey.INIT_PRODUCER_ID)],
    "new-pods": [*steady(), nothing(7.5, requests=400, api_key=ApiKey.INIT_PRODUCER_ID)],
    "id-each": [nothing(3, requests=100, api_key=ApiKey.INIT_PRODUCER_ID), nothing(3, requests=120)],
    "id-each-but-few": [nothing(3, requests=99, api_key=ApiKey.INIT_PRODUCER_ID), nothing(3, requests=120)],
    "id-for-two": [nothing(3, requests=100, api_key=ApiKey.INIT_PRODUCER_ID), nothing(3, requests=201)],
    "ids-counted": [nothing(3, requests=300, producer_ids=200)],
    # failures
    "errors": [*steady(), nothing(9.5, requests=0, errors=2000)],
    "refusals": [*steady(), nothing(9.5, requests=0, refused={"producer_byte_rate": 1500, "request_percentage": 500})],
    "some-errors": [*steady(), nothing(9.5, requests=0, errors=900)],
    "half-fails": [nothing(3, requests=500, errors=250)],
    "less-fails": [nothing(3, requests=500, errors=249)],
    "emptier": [*steady(), nothing(9.5, requests=70_012)],
    "more-alike": [*steady(), nothing(9.5, requests=25_000, request_bytes=19 * MIB)],
    # connections
    "reconnects": [*steady(), nothing(9.5, requests=990, api_key=ApiKey.SASL_HANDSHAKE)],
    "connection-each": [nothing(3, requests=300, api_key=ApiKey.API_VERSIONS), nothing(3, requests=300)],
    "connection-for-two": [nothing(3, requests=300, api_key=ApiKey.API_VERSIONS), nothing(3, requests=301)],
    # changes
    "more-bytes": [*steady(), nothing(9.5, requests=1, request_bytes=40 * MIB, response_bytes=20 * MIB)],
    "some-more-bytes": [*steady(), *burst(9, mib=38)],
    "more-time": [*steady(), nothing(9.5, requests=0, thread_ms=90_000.0)],
    "more-of-both": [*steady(), nothing(9.5, requests=1, request_bytes=80 * MIB, thread_ms=90_000.0)],
    "less-bytes": [
        *steady(hour for hour in range(-48, 24) if hour != 9),
        at(9.5, requests=10_012, request_bytes=4 * MIB, response_bytes=0, thread_ms=10_000.0),
    ],
    "stops": steady(range(-48, 9)),
    "comes-and-goes": steady(range(-48, 9, 2)),
    # what is known
    "often": [*steady(), *burst(*range(-48, 12, 6))],
    "seldom": [*steady(), *burst(-30, -20, -10, 6)],
    "new-level": [*steady(), *burst(*range(9, 24))],
    # quiet
    "quiet": steady(),
    "days-and-nights": days_and_nights(),
    "newcomer": [nothing(hour, requests=10, request_bytes=(hour - 8) * 100 * MIB) for hour in range(9, 24)],
    # clients with a name each
    "jobs": [
        *steady(),
        *(nothing(9 + n / 700, client_id=f"job-{n}", requests=1, api_key=ApiKey.API_VERSIONS) for n in range(600)),
    ],
}
"""The usage of the user with each name; all users are examined in one run."""


@pytest.fixture(scope="module")
def reported(spark: SparkSession) -> dict[str, list[Row]]:
    records = [each | {"user": user} for user, story in STORIES.items() for each in story]
    by_user: dict[str, list[Row]] = {user: [] for user in STORIES}
    for row in found(spark, records):
        by_user[row.user].append(row)
    return by_user


Reported = dict[str, list["Row"]]


def test_producer_ids_beyond_the_usual_are_churn(reported: Reported) -> None:
    row = one(reported["churn"])
    assert (hour_of(row), row.kind, row.client_id) == (7, "producer-id-churn", "app-1")
    assert (row.observed, row.usual, row.windows) == (600, 2, 1)
    assert row.score == pytest.approx(math.log(601 / 3) / 0.1)
    assert row.description == "app-1 of churn: 600 new producer ids in 1 hour, usually 2, for 10,000 Produce requests"
    assert reported["new-pods"] == [], "400 ids for 10,000 Produce requests: 25 to each"


def test_a_producer_for_each_record_is_churn_without_a_past(reported: Reported) -> None:
    row = one(reported["id-each"])
    assert (row.kind, row.observed, row.usual, row.score) == ("producer-id-churn", 100, None, None)
    assert row.description == "app-1 of id-each: 100 new producer ids in 1 hour, for 120 Produce requests"
    assert reported["id-each-but-few"] == []
    assert reported["id-for-two"] == []


def test_new_ids_that_the_proxy_has_counted_are_churn(reported: Reported) -> None:
    row = one(reported["ids-counted"])
    assert (row.kind, row.observed) == ("producer-id-churn", 200)


@pytest.mark.parametrize("user", ["errors", "refusals"])
def test_requests_that_fail_are_a_retry_storm(reported: Reported, user: str) -> None:
    row = one(reported[user])
    assert (hour_of(row), row.kind, row.usual) == (9, "retry-storm", 0)
    assert row.observed == pytest.approx(2000 / 10_012)
    assert (
        row.description == f"app-1 of {user}: 20.0 % of 10,012 requests in 1 hour failed or were refused, usually 0.0 %"
    )
    assert reported["some-errors"] == [], "9 %"


def test_a_client_with_half_of_its_requests_failing_is_reported_without_a_past(reported: Reported) -> None:
    assert (
        one(reported["half-fails"]).description
        == "app-1 of half-fails: 50.0 % of 500 requests in 1 hour failed or were refused"
    )
    assert reported["less-fails"] == []


def test_more_requests_that_carry_less_are_a_retry_storm(reported: Reported) -> None:
    row = one(reported["emptier"])
    assert (row.kind, row.observed, row.usual) == ("retry-storm", 80_024, 10_012)
    assert (
        row.description
        == "app-1 of emptier: 80,024 requests in 1 hour, usually 10,012, with 262 B each, usually 2.0 KiB"
    )
    assert reported["more-alike"] == [], "3.5 times the requests, more than half of the bytes each"


def test_connections_beyond_the_usual_are_a_storm(reported: Reported) -> None:
    row = one(reported["reconnects"])
    assert (hour_of(row), row.kind, row.observed, row.usual) == (9, "connection-storm", 990, 10)
    assert row.description == "app-1 of reconnects: 990 connections opened in 1 hour, usually 10, for 11,002 requests"


def test_a_connection_for_each_request_is_a_storm_without_a_past(reported: Reported) -> None:
    row = one(reported["connection-each"])
    assert row.description == "app-1 of connection-each: 300 connections opened in 1 hour, for 600 requests"
    assert reported["connection-for-two"] == []


def test_bytes_that_jump_are_a_sudden_change(reported: Reported) -> None:
    row = one(reported["more-bytes"])
    assert (row.kind, row.observed, row.usual) == ("sudden-change", 80 * MIB, 20 * MIB)
    assert row.score == pytest.approx(math.log(4) / 0.1, abs=0.01)
    assert row.description == "app-1 of more-bytes: 80.0 MiB in 1 hour, usually 20.0 MiB: 4.0 times as much"
    assert reported["some-more-bytes"] == [], "2.9 times"


def test_thread_time_that_jumps_is_a_sudden_change(reported: Reported) -> None:
    row = one(reported["more-time"])
    assert (row.kind, row.observed) == ("sudden-change", pytest.approx(100_000.2))
    assert row.description == (
        "app-1 of more-time: 100.0 s of thread time in 1 hour, usually 10.0 s: 10.0 times as much"
    )
    assert "thread time" in one(reported["more-of-both"]).description, "ten times is more than five times the bytes"


def test_bytes_that_fall_are_a_sudden_change(reported: Reported) -> None:
    row = one(reported["less-bytes"])
    assert (row.observed, row.usual) == (4 * MIB, 20 * MIB)
    assert row.score == pytest.approx(math.log(1 / 5) / 0.1, abs=0.01)
    assert row.description == "app-1 of less-bytes: 4.0 MiB in 1 hour, usually 20.0 MiB: 20.0 % of the usual"


def test_who_stops_while_others_go_on_is_a_sudden_change(reported: Reported) -> None:
    row = one(reported["stops"])
    assert (hour_of(row), row.observed, row.windows) == (9, 0, 1)
    assert row.description == "app-1 of stops: 0 B in 1 hour, usually 20.0 MiB: none"
    assert reported["comes-and-goes"] == []


def test_no_entity_stops_where_nothing_was_recorded(spark: SparkSession) -> None:
    assert found(spark, steady(range(-48, 9)) + steady(range(12, 24))) == []


def test_what_came_in_several_hours_before_is_known(reported: Reported) -> None:
    """A burst every sixth hour has occurred nine times and is not reported; one that occurred three times is."""
    assert reported["often"] == []
    assert hour_of(one(reported["seldom"])) == 6


def test_a_new_level_is_reported_once_and_known_by_then(reported: Reported) -> None:
    row = one(reported["new-level"])
    assert (hour_of(row), row.windows) == (9, RULES.known_hours)
    assert row.description.endswith(": 11.0 times as much; for 300 minutes")


@pytest.mark.parametrize("user", ["quiet", "days-and-nights", "newcomer"])
def test_what_is_quiet_or_new_is_not_reported(reported: Reported, user: str) -> None:
    assert reported[user] == []


def test_clients_with_a_name_each_are_examined_as_their_user(reported: Reported) -> None:
    """600 short-lived processes with one connection each have no past; their user has."""
    row = one(reported["jobs"])
    assert (row.kind, row.client_id, row.observed) == ("connection-storm", None, 610)
    assert row.description.startswith("all clients of jobs: 610 connections opened in 1 hour, usually 10, ")


def test_a_storm_of_two_minutes_is_reported_by_the_default_rules(spark: SparkSession) -> None:
    """Five hours of five connections in five minutes, and 100 in the window from 5:05 on."""
    calm = [nothing(minute / 60, requests=5, api_key=ApiKey.API_VERSIONS) for minute in range(0, 360, 5)]
    storm = [nothing((306 + minute) / 60, requests=50, api_key=ApiKey.API_VERSIONS) for minute in (0, 1)]
    row = one(found(spark, calm + storm, Rules()))
    assert (row.kind, row.observed, row.usual) == ("connection-storm", 105, 5)
    assert hour_of(row) == pytest.approx(5 + 5 / 60)
    assert row.description == "app-1 of alice: 105 connections opened in 5 minutes, usually 5, for 105 requests"


@pytest.mark.parametrize(("until_hour", "count"), [(9.9, 0), (10, 1)])
def test_a_window_that_is_not_over_is_not_examined(spark: SparkSession, until_hour: float, count: int) -> None:
    assert len(found(spark, [*steady(), *burst(9)], until_hour=until_hour)) == count


@pytest.mark.exhaustive
def test_other_days_are_not_examined(spark: SparkSession) -> None:
    assert found(spark, [*steady(), *burst(9)], day=DAY - timedelta(days=1)) == []


@pytest.mark.parametrize(
    ("stricter", "looser"),
    [
        ({"factor": 5.0}, {"factor": 4.9}),
        ({"score": 16.2}, {"score": 16.0}),
        ({"least_bytes": 100 * MIB + 1}, {"least_bytes": 100 * MIB}),
        ({"least_past": 58}, {"least_past": 57}),
    ],
)
def test_the_limits_are_options(spark: SparkSession, stricter: dict[str, Any], looser: dict[str, Any]) -> None:
    """Five times the usual at the 58th window, which has 100 MiB: ln(5) / 0.1 is 16.1."""
    records = [*steady(), *burst(9, mib=80)]
    assert found(spark, records, dataclasses.replace(RULES, **stricter)) == []
    assert len(found(spark, records, dataclasses.replace(RULES, **looser))) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "1 minute"), (300, "5 minutes"), (3600, "1 hour"), (86_400, "24 hours"), (5400, "90 minutes")],
)
def test_durations(seconds: int, text: str) -> None:
    assert duration(seconds) == text


# --- the command ---


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(pipeline, ["anomalies", *arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_times_are_utc(lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"date": DAY, "start": datetime.fromtimestamp(at(9)["second"], UTC), "kind": "churn", "description": "much"}
    schema = StructType([*schemas.ANOMALIES, StructField("date", DateType())])
    made = lake.spark.createDataFrame([tuple(row.get(name) for name in schema.names)], schema)
    lake.replace("anomalies", made.coalesce(1), "date")
    try:
        with monkeypatch.context() as patched:
            patched.setenv("TZ", "Asia/Kolkata")
            time.tzset()
            _report_result(lake, DAY, DAY)
    finally:
        time.tzset()
    assert f"{DAY} 09:00 churn: much" in capsys.readouterr().out


def working_hours(first_day: int, days: int) -> list[int]:
    """Return the hours from 8:00 to 15:59 of some days, from the midnight before `DAY`; the first day is this many days
    after it. A table with fewer hours has fewer files."""
    return [24 * day + hour for day in range(first_day, first_day + days) for hour in range(8, 16)]


def test_usage_is_complete_up_to_what_all_running_instances_have_written(lake: Lake) -> None:
    """The files of proxy-b-1 come ten minutes later; proxy-c-1 has ended, or was killed."""
    seconds = {"proxy-a-1": 23 * HOUR, "proxy-b-1": 23 * HOUR - 600, "proxy-c-1": 20 * HOUR}
    records = [record(MIDNIGHT + second, instance=name) for name, second in seconds.items()]
    lake.append("usage", usage(lake.spark, records).coalesce(1), "date", "hour")
    assert _end(lake) == (DAY, MIDNIGHT + 23 * HOUR - 600 + 1)


def test_the_table_is_rewritten_for_the_examined_days(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    records = [*steady(working_hours(-2, 3)), *burst(-10, 9, mib=80)]
    lake.append("usage", usage(spark, records).coalesce(1), "date", "hour")
    given = ("--lake", str(tmp_path), "--window", "60", "--least-past", "10")
    for _ in range(2):
        status, output = run(*given)
        assert status == 0, output
        assert output.splitlines() == [
            "2026-09-21 to 2026-09-22: 2 x sudden-change",
            "2026-09-21 14:00 sudden-change: app-1 of alice: 100.0 MiB in 1 hour, usually 20.0 MiB: 5.0 times as much",
            "2026-09-22 09:00 sudden-change: app-1 of alice: 100.0 MiB in 1 hour, usually 20.0 MiB: 5.0 times as much",
        ]
    table = lake.read("anomalies", schemas.ANOMALIES)
    assert {(str(row.date), row.observed) for row in table.collect()} == {
        ("2026-09-21", 100 * MIB), ("2026-09-22", 100 * MIB),
    }  # fmt: skip
    status, output = run(*given, "--from", "2026-09-22", "--to", "2026-09-22", "--factor", "6")
    assert "2026-09-22 to 2026-09-22: nothing unusual" in output
    assert [str(row.date) for row in lake.read("anomalies", schemas.ANOMALIES).collect()] == ["2026-09-21"]


def days_back(*numbers: int) -> list[date]:
    return [DAY - timedelta(days=number) for number in numbers]


def days_of(lake: Lake, blocks: dict[int, int], sketched: Iterable[int]) -> Days:
    """Return the days of a lake with blocks of so many days, by their last days, and sketches of single days; days are
    given by how many they are before `DAY`.
    """
    parts = {Part(last=DAY - timedelta(days=last), days=days) for last, days in blocks.items()}
    kept = {day: Row(date=day, records=1, final=day != DAY) for day in days_back(*sketched)}
    return Days(lake=lake, until_s=0, rules=RULES, _sketched=kept, _blocks=parts)


def test_the_past_is_the_longest_blocks_and_the_days_between_them() -> None:
    days = days_of(None, {1: 4, 3: 2, 5: 4}, (0, 1, 2, 10, 11))  # type: ignore[arg-type]
    assert [(part.last, part.days) for part in days._parts(DAY - timedelta(days=11), DAY)] == [
        (DAY - timedelta(days=number), count) for number, count in ((11, 1), (10, 1), (5, 4), (1, 4), (0, 1))
    ], "day 9 has no sketches"
    assert [(part.last, part.days) for part in days._parts(DAY - timedelta(days=4), DAY - timedelta(days=2))] == [
        (DAY - timedelta(days=number), count) for number, count in ((3, 2), (2, 1))
    ], "a block that ends later is not used"


def test_a_month_is_eight_parts_at_most() -> None:
    first, rules = DAY - timedelta(days=63), Rules(past_days=30)
    every = [Part(last=last, days=2**n) for last in days_between(first, DAY) for n in range(1, 5)]
    final = {day: Row(date=day, records=1, final=True) for day in days_between(first, DAY)}
    days = Days(lake=None, until_s=0, rules=rules, _sketched=final, _blocks={each for each in every if each.is_aligned})  # type: ignore[arg-type]
    for last in days_between(first + timedelta(days=29), DAY):
        parts = days._parts(last - timedelta(days=29), last)
        assert sum(part.days for part in parts) == 30
        assert len(parts) <= 8


@pytest.mark.parametrize("missing", ["no sketches", "not final", None])
def test_a_block_is_made_if_all_of_its_days_are_final(missing: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The days from the 21st on are the first days of blocks of 2, 4 and 8 days."""
    first, made = DAY - timedelta(days=1), []
    final = {day: Row(date=day, records=1, final=True) for day in days_between(first, first + timedelta(days=7))}
    if missing is not None:
        del final[first + timedelta(days=1)]
    if missing == "not final":
        final[first + timedelta(days=1)] = Row(date=first + timedelta(days=1), records=1, final=False)
    days = Days(lake=None, until_s=0, rules=Rules(past_days=7), _sketched=final)  # type: ignore[arg-type]

    def make(self: Days, block: Part, parts: list[Part]) -> None:
        made.append((block.first.day, block.days, [part.days for part in parts]))
        self._blocks.add(block)

    monkeypatch.setattr(Days, "_make_block", make)
    for day in days_between(first, first + timedelta(days=7)):
        days._make_blocks(first, day)
    whole = [(21, 2, [1, 1]), (23, 2, [1, 1]), (21, 4, [2, 2]), (25, 2, [1, 1]), (27, 2, [1, 1]), (25, 4, [2, 2])]
    assert made == (whole if missing is None else [each for each in whole if each[0] > 21]), "8 days are no past of 7"
    made.clear()
    days._blocks.clear()
    days._make_blocks(first + timedelta(days=1), first + timedelta(days=3))
    assert made == whole[1:2], "the 21st is before the first day of any past"


def blocks_in(lake: Lake) -> set[tuple[str, int]]:
    return {(str(row.date), row.days) for row in lake.read("anomaly_past", schemas.ANOMALY_PAST).collect()}


def test_the_past_is_read_in_blocks_that_are_made_again_if_a_day_changes(spark: SparkSession, tmp_path: Path) -> None:
    """The past of September 25th has the days from the 21st on: blocks of the 21st to 22nd and 23rd to 24th, and of all
    four. The result is compared with that of a lake in which nothing is stored.
    """
    examined = DAY + timedelta(days=3)
    hours = [*working_hours(-1, 5), 96]  # the first of the 26th, after which the days before the 25th are final
    records, more = [*steady(hours), *burst(81, mib=80)], burst(8, 9, 10, 11, 12, mib=80)
    lake, other = (Lake(spark, str(tmp_path / name)) for name in ("lake", "other"))
    rules = ("--window", "60", "--least-past", "20", "--past", "4")

    def reported(of: Lake, *given: str) -> list[str]:
        status, output = run("--lake", of.root, *rules, *given)
        assert status == 0, output
        return output.splitlines()[1:]

    day = ("--from", str(examined), "--to", str(examined))
    every = {("2026-09-22", 2), ("2026-09-24", 2), ("2026-09-24", 4)}
    spark.conf.set("spark.databricks.delta.stats.collect", "true")  # as jobs have it; files without are read
    try:
        lake.append("usage", usage(spark, records).coalesce(1), "date", "hour")
        assert [line.split(":")[0] for line in reported(lake, *day)] == ["2026-09-25 09"]
        assert blocks_in(lake) == every
        lake.append("usage", usage(spark, more).coalesce(1), "date", "hour")
        reported(lake, "--from", str(DAY), "--to", str(DAY))
        assert blocks_in(lake) == every - {("2026-09-24", 4)}, "until the next run"
        for number in range(-1, 3):
            remove_files(lake, "usage", DAY + timedelta(days=number))
            remove_files(lake, "anomaly_sketches", DAY + timedelta(days=number))
        after = reported(lake, *day)
        assert after == [], "a level that was reached in five hours is known"
        assert blocks_in(lake) == every
    finally:
        spark.conf.set("spark.databricks.delta.stats.collect", "false")
    other.append("usage", usage(spark, [*records, *more]).coalesce(1), "date", "hour")
    assert reported(other, *day) == after


def remove_files(lake: Lake, table: str, day: date) -> None:
    """Remove a day's files beneath a table, so that reading them fails."""
    for file in Path(lake.path(table)).glob(f"date={day}/**/*.parquet"):
        file.unlink()


def stored(lake: Lake) -> set[str]:
    """Return the names of the files of windows and sketches, from the table's on."""
    files = (
        file for table in ("anomaly_windows", "anomaly_sketches") for file in lake.table(table).toDF().inputFiles()
    )
    return {file[file.index("/anomaly_") + 1 :] for file in files}


def test_a_day_is_computed_again_only_if_its_usage_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, str(tmp_path))
    records = [*steady(working_hours(-2, 3)), *burst(9, mib=80)]
    lake.append("usage", usage(spark, records).coalesce(1), "date", "hour")
    tuesday = ("--lake", str(tmp_path), "--from", "2026-09-22")
    given = (*tuesday, "--window", "60", "--least-past", "10")
    assert run(*given)[0] == 0
    first = stored(lake)
    days = {name.rpartition("/")[0] for name in first}
    assert days == {
        *(f"anomaly_windows/date=2026-09-{day}" for day in (20, 21, 22)),
        *(f"anomaly_sketches/date=2026-09-{day}" for day in (20, 21)),
    }
    assert run(*given)[0] == 0
    assert stored(lake) == first
    lake.append("usage", usage(spark, burst(-10, mib=80)), "date", "hour")
    assert run(*given)[0] == 0
    changed = {name.rpartition("/")[0] for name in first - stored(lake)}
    assert changed == {"anomaly_windows/date=2026-09-21", "anomaly_sketches/date=2026-09-21"}
    assert run(*tuesday, "--window", "120", "--least-past", "5")[0] == 0
    assert first & stored(lake) == set()
    windows = lake.read("anomaly_windows", schemas.ANOMALY_WINDOWS)
    assert [row.window_s for row in windows.select("window_s").distinct().collect()] == [7200]


def test_usage_that_is_empty_and_a_lake_without_it(spark: SparkSession, tmp_path: Path) -> None:
    status, output = run("--lake", str(tmp_path))
    assert status == 1
    assert "there is no table 'usage'" in output
    Lake(spark, str(tmp_path)).append("usage", usage(spark, []), "date", "hour")
    assert run("--lake", str(tmp_path)) == (0, "the lake has no usage, so no day was examined\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--window", "7"), "--window 7: expected a divisor of the 1440 minutes of a day"),
        (("--from", "yesterday"), "'yesterday' does not match the format"),
        (("--past", "0"), "Invalid value for '--past'"),
    ],
)
def test_invalid_options_are_errors(tmp_path: Path, given: tuple[str, ...], message: str) -> None:
    status, reported = run("--lake", str(tmp_path), *given)
    assert status == 2
    assert message in reported


def test_days_in_the_wrong_order_are_errors(spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path)).append("usage", usage(spark, [at(0)]), "date", "hour")
    status, reported = run("--lake", str(tmp_path), "--from", "2026-09-23", "--to", "2026-09-22")
    assert (status, "--from 2026-09-23 is after --to 2026-09-22; expected a first and a last day" in reported) == (
        2,
        True,
    )
    status, reported = run("--lake", str(tmp_path), "--from", "2031-09-23")
    newest = (datetime.fromtimestamp(at(0)["second"], UTC)).date()
    assert (status, reported) == (
        1,
        f"headrace pipeline: --from 2031-09-23 is after {newest}, the last day with usage\n",
    )
