"""Recommended quotas: rates and quotas computed by hand, checked with what-if, as files, and by the command.

Each user of `SCENARIOS` is a case of its own, so that one run of the job serves many tests.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf

from headrace.config.loading import load_quotas
from headrace.pipeline.analysis.quota_files import as_kafka_configs, as_toml
from headrace.pipeline.analysis.recommend import demand, rates, recommend
from headrace.pipeline.analysis.recommend.rounding import rounded_down, rounded_up
from headrace.pipeline.analysis.recommend.rules import DEFAULT_LEAST, DEFAULT_WINDOWS, By, Rules
from headrace.pipeline.analysis.what_if.answers import what_if
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change
from testbed.kafka.tools import Tool, run_tool
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from click.testing import Result
    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.shared_cluster import FirstBroker


PRODUCER, CONSUMER, PERCENTAGE, MUTATIONS, IDS = QuotaKey
NO_LEAST = dict.fromkeys(QuotaKey, 0.001) | {PRODUCER: 1, CONSUMER: 1}
INIT_PRODUCER_ID = ApiKey.INIT_PRODUCER_ID.value


def silent(second: int, **members: Any) -> dict[str, Any]:
    """Return a record without usage except for ``members``."""
    return record(
        NOON + second,
        **{"api_key": ApiKey.METADATA, "request_bytes": 0, "response_bytes": 0, "thread_ms": 0.0} | members,
    )


def produced(user: str, amounts: Mapping[int, int], **members: Any) -> list[dict[str, Any]]:
    return [
        silent(second, user=user, api_key=ApiKey.PRODUCE, request_bytes=size, **members)
        for second, size in amounts.items()
    ]


SCENARIOS = [
    *produced("gaps", {0: 110, 5: 220, 10: 330, 11: 440, 30: 550}),
    *produced("steady", dict.fromkeys(range(100), 1_100_000)),
    *produced("bursty", dict.fromkeys(range(0, 2000, 20), 11_000) | {3000: 22_000_000}),
    *produced("throttled", dict.fromkeys(range(99), 1_100_000)),
    *produced("throttled", {99: 1_100_000}, throttled={"producer_byte_rate": 3, "request_percentage": 1},
              refused={"producer_byte_rate": 1}),
    *produced("brief", {0: 1000}),
    *produced("several", {0: 600}, client_id="app-1", topic="a"),
    *produced("several", {0: 400, 1: 100}, client_id="app-2", topic="b"),
    *(silent(second, user="fetcher", api_key=api_key, response_bytes=5500) for second, api_key in ((0, 1), (1, 78))),
    *(silent(second, user="cpu", thread_ms=ms) for second, ms in ((0, 550.0), (20, 1100.0))),
    *(silent(second, user="admin", mutations=count) for second, count in ((0, 12), (3, 5))),
    *(silent(second, user="ids", producer_ids=count) for second, count in ((0, 5), (1800, 7), (3600, 11), (7300, 2))),
    silent(0, user="ids", api_key=INIT_PRODUCER_ID, requests=500),
    silent(0, user="initialized", api_key=INIT_PRODUCER_ID, requests=30, errors=10),
    silent(9, user="initialized"),
    *produced("", {0: 1000, 1: 1000}),
    *produced("<default>", {0: 1000, 1: 1000}),
    record(user=None, client_id=None),
]  # fmt: skip


@pytest.fixture(scope="module")
def scenarios(spark: SparkSession) -> DataFrame:
    return usage(spark, SCENARIOS).cache()


@pytest.fixture(scope="module")
def found(scenarios: DataFrame) -> dict[tuple[str, QuotaKey], Row]:
    rules = Rules(least=NO_LEAST, least_seconds=2, default=False)
    rows = recommend(scenarios, rules).collect()
    assert all(row.client_id is None for row in rows)
    by_name = {(row.user, QuotaKey(row.key)): row for row in rows}
    assert len(by_name) == len(rows)
    return by_name


# --- rates ------------------------------------------------------------------------------------------------------------


def test_rates_are_over_the_window_and_need_no_rows_for_idle_seconds(scenarios: DataFrame) -> None:
    rules = Rules(least=NO_LEAST)
    rated = rates(demand(scenarios.where("user = 'gaps'"), rules), rules).where("key = 'producer_byte_rate'")
    # Sums over 11 seconds: 110, 330, 660, without the first 990, alone 550; Kafka divides by 10 s at least.
    assert [(row.second - NOON, row.rate, row.most) for row in rated.orderBy("second").collect()] == [
        (0, 10, 11), (5, 30, 33), (10, 60, 66), (11, 90, 99), (30, 50, 55),
    ]  # fmt: skip


def test_the_window_is_the_one_of_the_key(scenarios: DataFrame) -> None:
    windows = {**DEFAULT_WINDOWS, PRODUCER: Window(samples=3, seconds=2)}
    rules = Rules(windows=windows)
    rated = rates(demand(scenarios.where("user = 'gaps'"), rules), rules).where("key = 'producer_byte_rate'")
    # Sums over 6 seconds: 110, 330, 550, 770, 550.
    assert [row.rate * 6 for row in rated.orderBy("second").collect()] == pytest.approx([110, 330, 550, 770, 550])
    assert [row.most * 4 for row in rated.orderBy("second").collect()] == pytest.approx([110, 330, 550, 770, 550])


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_a_steady_rate(found: dict[tuple[str, QuotaKey], Row]) -> None:
    # It is 1.1 MB/s once the window is full, and x 1.3 = 1.43 MB/s; 1.21 MB/s would do.
    row = found["steady", PRODUCER].asDict()
    assert row == {
        "user": "steady",
        "client_id": None,
        "key": "producer_byte_rate",
        "quota": 1_500_000,
        "p50": 1_100_000,
        "p95": 1_100_000,
        "p99": 1_100_000,
        "peak": 1_100_000,
        "burst": 1,
        "headroom": pytest.approx(15 / 11),
        "active_seconds": 100,
        "throttled": 0,
        "reason": "99 % of 100 active seconds are at 1.1 MB/s or less, over 11 s; x 1.3 headroom",
        "peaks": 0,
        "peak_days": 0,
        "misbehaviour": None,
        "present_quota": None,
    }


def test_percentiles_are_over_active_seconds(found: dict[tuple[str, QuotaKey], Row]) -> None:
    row = found["gaps", PRODUCER]
    assert (row.p50, row.peak, row.active_seconds) == (50, 90, 5)
    # The rates are 10, 30, 50, 60 and 90; 95 % of the way from the first to the last is 80 % between 60 and 90.
    assert (row.p95, row.p99) == (pytest.approx(84), pytest.approx(88.8))
    assert row.burst == pytest.approx(550 / 88.8)


def test_a_peak_is_shown_and_not_followed(found: dict[tuple[str, QuotaKey], Row]) -> None:
    # 22 MB in one second are 2 MB/s over the window; the other hundred seconds are 1,000 B/s.
    row = found["bursty", PRODUCER]
    assert (row.quota, row.p99, row.peak, row.burst) == (1300, 1000, 2_000_000, 22_000)
    assert (row.peaks, row.peak_days, row.misbehaviour) == (1, 1, None)
    assert row.reason == (
        "99 % of 101 active seconds are at 1.0 kB/s or less, over 11 s; x 1.3 headroom; not followed: 1 peak, up to"
        " 2.0 MB/s"
    )


def test_a_peak_is_followed_if_asked(scenarios: DataFrame) -> None:
    rules = Rules(least=NO_LEAST, default=False, follow_peaks=True)
    (row,) = recommend(scenarios.where("user = 'bursty'"), rules).collect()
    # 22 MB in one second are 2.2 MB/s over Kafka's shortest window.
    assert (row.quota, row.peaks) == (2_200_000, 0)
    assert row.reason == (
        "99 % of 101 active seconds are at 1.0 kB/s or less, over 11 s; x 1.3 is not enough: 2.2 MB/s is needed"
        " for no second to be throttled"
    )


def test_who_was_throttled_has_more_headroom(found: dict[tuple[str, QuotaKey], Row]) -> None:
    row = found["throttled", PRODUCER]
    assert (row.quota, row.throttled) == (2_200_000, 3)
    assert row.reason == (
        "99 % of 100 active seconds are at 1.1 MB/s or less, over 11 s; x 2 headroom, not 1.3, since this quota"
        " throttled 3 requests and refused 1, so the demand is not known"
    )


def test_clients_and_topics_of_a_user_are_one_entity(found: dict[tuple[str, QuotaKey], Row]) -> None:
    assert found["several", PRODUCER].peak == pytest.approx(1100 / 11)


def test_what_is_fetched_counts_for_consumers(found: dict[tuple[str, QuotaKey], Row]) -> None:
    row = found["fetcher", CONSUMER]
    assert (row.peak, row.quota) == (1000, 1300)
    assert ("fetcher", PRODUCER) not in found


def test_request_time_is_in_percent_of_a_thread(found: dict[tuple[str, QuotaKey], Row]) -> None:
    # 550 ms of a thread are 55 % of a second, and 5 % of 11 seconds.
    row = found["cpu", PERCENTAGE]
    assert (row.p50, row.p99, row.quota) == (7.5, pytest.approx(9.95), 13)
    assert "at 9.95 % of a thread or less" in row.reason


def test_mutations_may_come_in_a_burst_of_their_window(found: dict[tuple[str, QuotaKey], Row]) -> None:
    row = found["admin", MUTATIONS]
    # Rates of 12 / 11 and 17 / 11.
    assert (row.peak, row.quota, row.p99) == (pytest.approx(17 / 11), 2.1, pytest.approx(16.95 / 11))
    assert row.burst == pytest.approx(12 / (16.95 / 11))
    assert "at 1.54 partitions/s or less" in row.reason


def test_producer_ids_are_counted_by_the_hour(found: dict[tuple[str, QuotaKey], Row]) -> None:
    # In the hour until 3600: 7 + 11; what was new at 0 is an hour old by then.
    row = found["ids", IDS]
    assert (row.peak, row.quota, row.active_seconds) == (18, 24, 4)
    # Sums of 2, 5, 12 and 18; x 1.3, the 99th percentile, 17.82, is 23.2.
    assert row.p99 == pytest.approx(17.82)
    assert row.reason == "99 % of 4 active seconds are at 18 ids or less, over 3,600 s; x 1.3 headroom"


def test_without_recorded_producer_ids_those_asked_for_count(found: dict[tuple[str, QuotaKey], Row]) -> None:
    row = found["initialized", IDS]
    assert (row.peak, row.quota) == (20, 26)
    assert "; ids are counted by InitProducerId requests, since none were recorded: this may be more" in row.reason


def test_who_was_there_too_briefly_or_has_no_name_has_no_row(found: dict[tuple[str, QuotaKey], Row]) -> None:
    assert {user for user, _ in found} == {
        "gaps", "steady", "bursty", "throttled", "several", "fetcher", "cpu", "admin", "ids", "initialized",
    }  # fmt: skip


def test_a_part_of_the_seconds_may_be_throttled_and_quotas_have_a_least(scenarios: DataFrame) -> None:
    bursty = scenarios.where("user = 'bursty'")
    following = Rules(least=NO_LEAST, follow_peaks=True, allow_throttled=0.01, headroom=1, default=False)
    (row,) = recommend(bursty, following).collect()
    # 100 of 101 seconds are at 1,100 B/s over Kafka's shortest window.
    assert row.quota == 1100
    assert row.reason.endswith(
        "x 1 is not enough: 1.1 kB/s is needed for at most 1 % of the seconds to be throttled; not followed: 1 peak, up"
        " to 2.0 MB/s"
    )
    (row,) = recommend(bursty, Rules(least=DEFAULT_LEAST, default=False)).collect()
    assert row.quota == 110_000
    assert "; raised to 110.0 kB/s, the minimum for this key; not followed: 1 peak, up to 2.0 MB/s" in row.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1_100_000.0, 1_100_000), (1_100_001.0, 1_200_000), (99.5, 100), (0.57, 0.57), (0.571, 0.58), (1.1 * 1.1, 1.3),
     (1.3 * 100, 130), (7.0, 7), (1000.0, 1000), (0.000123, 0.00013), (9.87e15, 9.9e15)],
)  # fmt: skip
def test_quotas_are_rounded_up_to_two_digits(spark: SparkSession, value: float, expected: float) -> None:
    (row,) = spark.range(1).select(rounded_up(sf.lit(value)).alias("quota")).collect()
    assert row.quota == expected


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("value", "expected"), [(1_190_000.0, 1_100_000), (110.0, 110), (0.579, 0.57), (1.1 * 1.1, 1.2), (99.5, 99)]
)
def test_limits_are_rounded_down_to_two_digits(spark: SparkSession, value: float, expected: float) -> None:
    (row,) = spark.range(1).select(rounded_down(sf.lit(value)).alias("quota")).collect()
    assert row.quota == expected


# --- entities ---------------------------------------------------------------------------------------------------------


def test_the_default_entity_gets_what_is_enough_for_most(spark: SparkSession) -> None:
    # Users i = 1 ... 20 have i and then 2 i MB/s in the window; each wants 1.99 i x 1.3, the nineteenth 49.2.
    users = [
        each for i in range(1, 21) for each in produced(f"user-{i:02}", {0: 11_000_000 * i, 1: 11_000_000 * i})
    ]  # fmt: skip
    rows = recommend(usage(spark, users), Rules(least_seconds=3)).collect()
    (row,) = rows
    assert (row.user, row.client_id, row.key, row.quota) == ("<default>", None, "producer_byte_rate", 50_000_000)
    assert (row.p50, row.peak, row.active_seconds) == (28_500_000, 38_000_000, 40)
    assert row.p99 == pytest.approx(37_810_000)
    assert (row.peaks, row.misbehaviour, row.present_quota) == (None, None, None)
    assert row.reason == (
        "for entities without a quota of their own: 95 % of the 20 entities with such usage need at most, with their"
        " headroom, 49.2 MB/s"
    )
    assert recommend(usage(spark, users[2:]), Rules(least_seconds=3)).count() == 0  # fewer than 20


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (By.CLIENT_ID, {(None, "a", 3000), (None, "b", 400), (None, "<default>", 3000)}),
        (By.BOTH, {("x", "a", 1000), ("x", "b", 400), ("y", "a", 2000), ("<default>", "<default>", 2000)}),
    ],
)
def test_an_entity_can_be_a_client_id_or_a_pair(
    spark: SparkSession, by: By, expected: set[tuple[str | None, str | None, float]]
) -> None:
    senders = {("x", "a"): 1000, ("x", "b"): 400, ("y", "a"): 2000, ("y", ""): 9000, ("y", "<default>"): 9000}
    records = [
        silent(0, user=user, client_id=client_id, api_key=ApiKey.PRODUCE, request_bytes=size * 11, producer_ids=5)
        for (user, client_id), size in senders.items()
    ]
    rules = Rules(by=by, least=NO_LEAST, least_seconds=1, least_entities=2, headroom=1)
    found = recommend(usage(spark, records), rules).collect()
    assert {(row.user, row.client_id, row.peak) for row in found} == expected
    assert {row.key for row in found} == {"producer_byte_rate"}  # producer ids are for users


# --- against what-if --------------------------------------------------------------------------------------------------


def mixed(seed: int) -> list[dict[str, Any]]:
    """Return bursts of all operations from two users; any seed is valid."""
    records = []
    state = seed
    for second in range(0, 900, 3):
        state = state * 1103515245 + 12345 & 0x7FFFFFFF
        size = 10 ** (state >> 16 & 3) * (state >> 8 & 255)
        user = "ab"[state >> 20 & 1]
        records += [
            silent(
                second,
                user=user,
                api_key=ApiKey.PRODUCE,
                request_bytes=size * 1000,
                thread_ms=size / 100,
                producer_ids=1,
            ),
            silent(second, user=user, api_key=ApiKey.FETCH, response_bytes=size * 500),
            silent(second, user=user, api_key=ApiKey.CREATE_TOPICS, mutations=size % 7),
        ]
    return records


def answer(usage_: DataFrame, found: DataFrame, factor: float) -> dict[tuple[str, str], tuple[int, int]]:
    """Return, by key and user, the number of throttled or refused events and of all events, of what-if with these
    quotas times ``factor``.
    """
    changes = [
        Change(t_ms=0, entity=QuotaEntity(user=row.user), values={QuotaKey(row.key): row.quota * factor}, removed=())
        for row in found.collect()
    ]
    hours = what_if(usage_, fixed_quotas(changes, DEFAULT_WINDOWS))
    summed = hours.groupBy("key", "user").agg(
        sf.sum(sf.col("throttled") + sf.col("refused")).alias("held"), sf.sum("events").alias("events")
    )
    return {(row.key, row.user): (row.held, row.events) for row in summed.collect()}


def test_what_if_throttles_no_client_with_these_quotas_and_some_with_less(spark: SparkSession) -> None:
    used = usage(spark, mixed(7)).cache()
    found = recommend(used, Rules(least=NO_LEAST, headroom=1, follow_peaks=True, default=False)).cache()
    keys = {(key.value, user) for key in QuotaKey for user in "ab"}
    enough = answer(used, found, 1)
    assert set(enough) == keys
    assert {held for held, _ in enough.values()} == {0}
    # Rounding up adds a tenth at most, and the sum of 11 s is taken over 10 s, which what-if takes over 11; buckets of
    # tokens may accept up to twice the amount of their window.
    held = {name for name, (count, _) in answer(used, found, 0.8).items() if count}
    assert held >= {(key.value, user) for key in (PRODUCER, CONSUMER, PERCENTAGE) for user in "ab"}
    assert {name for name, (count, _) in answer(used, found, 0.45).items() if count} == keys


@pytest.mark.exhaustive
def test_what_if_throttles_no_more_than_the_part_that_is_allowed(spark: SparkSession) -> None:
    used = usage(spark, mixed(11)).cache()
    rules = Rules(least=NO_LEAST, headroom=1, follow_peaks=True, allow_throttled=0.2, default=False)
    found = recommend(used, rules).cache()
    held = {name: each for name, each in answer(used, found, 1).items() if name[0] == PRODUCER.value}
    assert all(0 < throttled <= math.ceil(0.2 * events) for throttled, events in held.values())


# --- files ------------------------------------------------------------------------------------------------------------

ODD = 'o\'hara "x" $HOME \\ \n[[quotas]]\t\x7f\x9b\u202eé'
QUOTAS = {
    ("<default>", None): {PRODUCER: (1_500_000.0, "why"), PERCENTAGE: (0.57, "why not"), IDS: (24.0, "so")},
    (ODD, "nightly run"): {CONSUMER: (9.9e15, "so"), MUTATIONS: (2.1, "so")},
    (None, "--help"): {CONSUMER: (110_000.0, "so")},
}


def entity_of(*names: str | None) -> QuotaEntity:
    user, client_id = (DEFAULT if name == str(DEFAULT) else name for name in names)
    return QuotaEntity(user=user, client_id=client_id)


def test_the_tables_are_a_configuration_with_the_same_quotas(tmp_path: Path) -> None:
    text = as_toml(QUOTAS)
    assert all(map(str.isprintable, text.splitlines()))
    (tmp_path / "quotas.toml").write_text(text, encoding="utf-8")
    quotas, _ = load_quotas(tmp_path / "quotas.toml")
    assert {entity: {key: quota.value for key, quota in values.items()} for entity, values in quotas.items()} == {
        entity_of(*names): {key: value for key, (value, _) in values.items()} for names, values in QUOTAS.items()
    }
    assert QuotaEntity(user=DEFAULT) in quotas


def test_the_commands_are_those_of_kafka_configs() -> None:
    commands = list(as_kafka_configs(QUOTAS, "broker:9092"))
    head = "kafka-configs --bootstrap-server broker:9092 --alter"
    assert commands[:2] == [
        f"{head} --entity-type users --entity-default --add-config producer_byte_rate=1500000,request_percentage=0.57",
        "# producer_ids_rate: only as [[quotas]], since kafka-configs does not support the key",
    ]
    assert shlex.split(commands[2]) == [
        *head.split(), "--entity-type", "users", "--entity-name", ODD, "--entity-type", "clients", "--entity-name",
        "nightly run", "--add-config", "consumer_byte_rate=9900000000000000,controller_mutation_rate=2.1",
    ]  # fmt: skip
    assert commands[3] == f"{head} --entity-type clients --entity-name --help --add-config consumer_byte_rate=110000"
    assert len(commands) == 4


@pytest.mark.exhaustive
def test_a_broker_takes_the_commands(kafka: FirstBroker) -> None:
    odd = {('o\'hara "x" $HOME\n', "--help"): {CONSUMER: (9.9e15, "so"), MUTATIONS: (2.1, "so")}}
    (command,) = as_kafka_configs(odd, kafka.bootstrap_servers)
    _, *arguments = shlex.split(command)
    run_tool(Tool.CONFIGS, arguments)
    output = run_tool(Tool.CONFIGS, [each for each in arguments[:-2] if each != "--alter"] + ["--describe"]).stdout
    assert "consumer_byte_rate=9.9E15" in output
    assert "controller_mutation_rate=2.1" in output


def test_names_are_safe_in_a_shell() -> None:
    (command,) = as_kafka_configs({("a b; rm -rf $(x)`y`'z", None): {MUTATIONS: (1.0, "")}}, "broker:9092")
    assert command == (
        "kafka-configs --bootstrap-server broker:9092 --alter --entity-type users --entity-name"
        """ 'a b; rm -rf $(x)`y`'"'"'z' --add-config controller_mutation_rate=1"""
    )


def test_a_name_that_no_argument_can_have_is_left_out() -> None:
    (comment,) = as_kafka_configs({("a\0b", None): {MUTATIONS: (1.0, "")}}, "broker:9092")
    assert comment.startswith("# left out: an entity with a NUL character in its name")


# --- the command ------------------------------------------------------------------------------------------------------


def run(lake: str | Path, *arguments: str) -> Result:
    return CliRunner().invoke(pipeline, ["recommend", "--lake", str(lake), *arguments])


FIRST = ("--cluster", "cluster-1")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    tables = Lake(spark, str(tmp_path_factory.mktemp("lake")))
    records = [
        *produced("small user", dict.fromkeys(range(60), 1_100_000)),
        *produced("large", dict.fromkeys(range(60), 2_200_000)),
        *produced("elsewhere", dict.fromkeys(range(60), 3_300_000), cluster="cluster-2"),
        *produced("brief", {0: 1000}),
        record(user=None, client_id=None, request_bytes=10, response_bytes=5),
    ]
    tables.append("usage", usage(spark, records).coalesce(1), "date", "hour")
    return tables


def quotas_in(path: Path) -> dict[str, float]:
    quotas, _ = load_quotas(path)
    return {str(entity): values[PRODUCER].value for entity, values in quotas.items()}


def test_the_command_writes_the_table_and_the_files(lake: Lake, tmp_path: Path, queries: list[str]) -> None:
    toml, commands = tmp_path / "quotas.toml", tmp_path / "quotas.sh"
    files = ("--toml", str(toml), "--commands", str(commands), "--bootstrap-server", "broker:9092")
    enough = ("--least-entities", "3", "--capacity", "producer_byte_rate=6MB/s")
    result = run(lake.root, *FIRST, *enough, *files)
    assert result.exit_code == 0, result.output
    # The usage; who has no quota; all quotas, the largest, those beside the capacity, and those of the files.
    assert len(queries) == 6, queries
    assert "122 records from 2026-09-21 13:00 to 2026-09-21 13:00 UTC" in result.output
    assert "15 bytes have no recorded sender, and are left out" in result.output
    assert "3 quotas for 3 entities" in result.output
    assert "producer_byte_rate: 2 quotas of entities are 4400000 in all, 73.3% of the capacity" in result.output
    assert "1 entities were active for less than 60 s, and have no quota of their own" in result.output
    assert "producer_byte_rate = 1500000 of user=small user: 99 % of 60 active seconds are at 1.1 MB/s" in result.output
    assert lake.read_of_cluster("recommendations", schemas.RECOMMENDATIONS, "cluster-1").count() == 3
    assert quotas_in(toml) == {"user=<default>": 1_600_000, "user=large": 2_900_000, "user=small user": 1_500_000}
    assert "\n# 99 % of 60 active seconds are at 1.1 MB/s or less, over 11 s; x 1.3 headroom\n" in toml.read_text()
    head = "kafka-configs --bootstrap-server broker:9092 --alter --entity-type users"
    assert commands.read_text() == (
        "# Recommended by headrace pipeline recommend from recorded usage.\n"
        f"{head} --entity-default --add-config producer_byte_rate=1600000\n"
        f"{head} --entity-name large --add-config producer_byte_rate=2900000\n"
        f"{head} --entity-name 'small user' --add-config producer_byte_rate=1500000\n"
    )


def test_the_files_have_the_largest_and_say_what_they_lack(lake: Lake, tmp_path: Path) -> None:
    toml = tmp_path / "quotas.toml"
    result = run(lake.root, *FIRST, "--no-default", "--most", "1", "--toml", str(toml))
    assert result.exit_code == 0, result.output
    assert quotas_in(toml) == {"user=large": 2_900_000}
    assert "# 1 smaller entities are left out (--most 1); the table recommendations has them." in toml.read_text()
    assert "1 smaller entities are left out of the files (--most 1)" in result.output


def test_options_reach_the_rules(lake: Lake, tmp_path: Path) -> None:
    quotas = '[[quotas]]\nentity = { user = "large" }\nproducer_byte_rate = "1MiB"\n'
    (tmp_path / "headrace.toml").write_text(f"[quota.window]\nnum = 2\n{quotas}", encoding="utf-8")
    arguments = (
        *FIRST,
        "--headroom",
        "3",
        "--no-default",
        "--config",
        str(tmp_path / "headrace.toml"),
    )
    result = run(lake.root, *arguments, "--least", "producer_byte_rate=3_400_000")
    assert result.exit_code == 0, result.output
    assert (
        "producer_byte_rate = 3400000 of user=small user: 99 % of 60 active seconds are at 1.1 MB/s or less, over 2 s;"
        " x 3 headroom; raised to 3.4 MB/s, the minimum for this key" in result.output
    )
    assert "elsewhere" not in result.output
    rows = lake.read_of_cluster("recommendations", schemas.RECOMMENDATIONS, "cluster-1").orderBy("user").collect()
    assert [(row.user, row.present_quota) for row in rows] == [("large", 2.0**20), ("small user", None)]


@pytest.mark.exhaustive
def test_quotas_are_of_one_cluster(lake: Lake) -> None:
    result = run(lake.root)
    assert result.exit_code == 1
    assert "the usage is of 2 clusters, cluster-1, cluster-2; expected --cluster ID, one of them" in result.output
    assert "user=elsewhere" in run(lake.root, "--cluster", "cluster-2").output


@pytest.mark.parametrize(
    "days",
    [
        ("--from", "2026-09-22"),
        pytest.param(("--to", "2026-09-20"), marks=pytest.mark.exhaustive),
        pytest.param(("--cluster", "cluster-3"), marks=pytest.mark.exhaustive),
    ],
)
def test_no_usage_is_no_error_and_leaves_what_is_there(
    spark: SparkSession, lake: Lake, tmp_path: Path, days: Iterable[str]
) -> None:
    assert run(lake.root, *FIRST, "--no-default").exit_code == 0
    first = () if "--cluster" in days else FIRST
    result = run(lake.root, *first, *days, "--toml", str(tmp_path / "quotas.toml"))
    assert result.exit_code == 0, result.output
    assert "no quotas are recommended, and nothing was written" in result.output
    assert lake.read_of_cluster("recommendations", schemas.RECOMMENDATIONS, "cluster-1").count() == 2
    assert not (tmp_path / "quotas.toml").exists()


@pytest.mark.exhaustive
def test_an_empty_table_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path)).append("usage", usage(spark, []), "date", "hour")
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert "the lake has no usage of these days and this cluster" in result.output
    assert "no quotas are recommended, and nothing was written" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "output"),
    [
        ((), 1, "there is no table 'usage' in"),
        (("--config", "nowhere.toml"), 1, "nowhere.toml: cannot be read: no such file or directory"),
        (
            ("--least", "producer_byte_rate=0"),
            2,
            "--least producer_byte_rate=0: Quota producer_byte_rate must be greater than 0",
        ),
        (("--least", "producer_byte_rate=1.5"), 2, "producer_byte_rate cannot be a fractional value."),
        (("--least", "produced=1"), 2, "expected a rate of one of producer_byte_rate, consumer_byte_rate"),
        (("--least", "produced"), 2, "expected NAME=VALUE"),
        (("--headroom", "0.9"), 2, "0.9 is not in the range x>=1"),
        (("--allow-throttled", "1"), 2, "1.0 is not in the range 0<=x<1"),
        (("--allow-throttled", "0.1"), 2, "--allow-throttled is the limit of --follow-peaks"),
        (("--capacity", "request_percentage=2MiB/s"), 2, "--capacity request_percentage=2MiB/s: could not convert"),
        (("--capacity", "producer_byte_rate=2 apples"), 2, "'2 apples' is not a size; expected a rate of one of"),
        (("--backtest-to", "2026-09-02"), 2, "--backtest-to requires --backtest-from"),
        (("--to", "2026-09-02", "--backtest-from", "2026-09-02"), 2, "is not after the days to recommend from"),
        (("--from", "2026-09-02", "--backtest-from", "2026-09-02"), 2, "is not after the days to recommend from"),
        (("--backtest-from", "2026-09-02", "--backtest-to", "2026-09-01"), 2, "is after --backtest-to 2026-09-01"),
        (("--by", "topic"), 2, "'topic' is not one of 'user', 'client-id', 'user-and-client-id'"),
        (("--from", "2026-09-02", "--to", "2026-09-01"), 2, "--from 2026-09-02 is after --to 2026-09-01"),
    ],
)
def test_errors_name_their_cause(
    spark: SparkSession, tmp_path: Path, arguments: tuple[str, ...], code: int, output: str
) -> None:
    (tmp_path / "lake").mkdir()
    result = run(tmp_path / "lake", *arguments)
    assert (result.exit_code, output in " ".join(result.output.split())) == (code, True), result.output


def test_a_quota_may_divide_by_one_sample_less_than_its_window() -> None:
    """``Rate.windowSize``: a new sample has just begun. Token buckets and producer ids have no samples of this kind."""
    rules = Rules(windows={**Rules().windows, QuotaKey.REQUEST_PERCENTAGE: Window(samples=3, seconds=5)})
    shortest = {key: (rules.span_s(key), rules.shortest(key)) for key in QuotaKey}
    assert shortest == {
        QuotaKey.PRODUCER_BYTE_RATE: (11, 10),
        QuotaKey.CONSUMER_BYTE_RATE: (11, 10),
        QuotaKey.REQUEST_PERCENTAGE: (15, 10),
        QuotaKey.CONTROLLER_MUTATION_RATE: (11, 11),
        QuotaKey.PRODUCER_IDS_RATE: (3600, 1),
    }
