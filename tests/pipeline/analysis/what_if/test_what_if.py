"""What-if: the same answers as ``headrace replay``, and the effect of waiting senders."""

from __future__ import annotations

import random
from operator import itemgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from click.testing import CliRunner

from headrace.pipeline.analysis.quota_files import read_quotas
from headrace.pipeline.analysis.what_if.answers import partitions, what_if
from headrace.pipeline.analysis.what_if.decisions import decide
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.analysis.what_if.traces import read_trace
from headrace.pipeline.analysis.what_if.waiting import QUEUED, WaitingSenders
from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change, Op, Replay, Usage
from tests.pipeline.records import NOON, record, usage
from tests.proxy.replay.replay_traces import alter, answers, text, use, window

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

RATES = {"under": 900, "at": 999, "above": 1010, "over": 2000}
"""Bytes a second of the users who produce; the quota is 1,000."""
WINDOWS = dict.fromkeys(QuotaKey, Window())


def lines_of(spark: SparkSession, *entries: dict[str, Any] | str) -> DataFrame:
    lines = text(*entries).splitlines()
    return spark.createDataFrame(list(enumerate(lines, 1)), "order long, value string")


def change(user: str, **values: float) -> Change:
    entity = QuotaEntity(user=DEFAULT if user == "<default>" else user)
    return Change(t_ms=0, entity=entity, values={QuotaKey(key): value for key, value in values.items()}, removed=())


# --- the number of tasks ---


@pytest.mark.parametrize(
    ("of_a_shuffle", "cores", "number"), [("8", 2, 8), ("8", 16, 16), ("200", 16, 200), (None, 4, 200)]
)
def test_work_in_python_has_a_task_for_each_core(of_a_shuffle: str | None, cores: int, number: int) -> None:
    conf = SimpleNamespace(get=lambda _: of_a_shuffle)
    session = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(defaultParallelism=cores))
    assert partitions(cast("SparkSession", session)) == number


# --- traces ---


def random_trace(seed: int, length: int = 1500) -> list[dict[str, Any]]:
    """Return a trace with all operations, entities that share and change buckets, idle hours, and changing quotas."""
    chance = random.Random(seed)  # noqa: S311 -- no secrets
    entries = [window(producer_id_window={"samples": 11, "seconds": 60})]
    now_ms = 1_000_000
    users, client_ids = ["alice", "bob", "carol", ""], ["a", "b", None]
    entities = [
        {"user": "alice"},
        {"user": None},
        {"user": "bob", "client-id": "a"},
        {"client-id": "b"},
        {"user": None, "client-id": None},
    ]
    for _ in range(length):
        now_ms += chance.choice([0, 1, 40, 300, 1500, 1500, 20_000]) if chance.random() < 0.99 else 4_000_000
        user, client_id = chance.choice(users), chance.choice(client_ids)
        if chance.random() < 0.03:
            entity = chance.choice(entities)
            keys = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"]
            keys += ["producer_ids_rate"] if "client-id" not in entity else []
            key = chance.choice(keys)
            if chance.random() < 0.3:
                entries.append(alter(now_ms, entity, remove=[key]))
            else:
                entries.append(alter(now_ms, entity, **{key: chance.choice([1, 5, 20, 1000])}))
            continue
        op = chance.choice(["produce", "fetch", "request", "controller_mutation", "producer_id", "new_producer_ids"])
        if op == "producer_id":
            amount: Any = chance.choice([-1, 2**62 + chance.randrange(40), chance.randrange(40)])
        else:
            amount = chance.randrange(30) if op != "request" else round(chance.random() * 400, 3)
        others = {"strict": chance.random() < 0.5} if op == "controller_mutation" else {}
        entries.append(use(now_ms, op, amount, user=user, client_id=client_id, **others))
    return entries


@pytest.mark.parametrize("seed", [2, pytest.param(5, marks=pytest.mark.exhaustive)])
def test_event_for_event_the_same_as_replay(spark: SparkSession, seed: int) -> None:
    trace = random_trace(seed)
    expected = [(each["throttle_time_ms"], each["accepted"]) for each in answers(*trace)]
    assert sum(throttle_ms > 0 for throttle_ms, _ in expected) > 100
    assert not all(accepted for _, accepted in expected)
    events, quotas = read_trace(lines_of(spark, *trace))
    decided = decide(events.repartition(3), quotas).orderBy("order").collect()
    assert [(row.throttle_time_ms, row.accepted) for row in decided] == expected


def test_a_trace_without_quotas_throttles_no_one(spark: SparkSession) -> None:
    events, quotas = read_trace(lines_of(spark, window(), use(5, "produce", 10**9)))
    assert [tuple(row) for row in decide(events, quotas).collect()] == [(2, 0, True, None)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1: the trace is empty"),
        ([use(1, "produce", 1)], 'line 1: the first line has no "window"'),
        ([window(), use(1, "produce", 1), "{"], "line 3: not JSON"),
        (
            [window(), use(5, "produce", 1), use(5, "produce", 1), use(4, "produce", 1), "{"],
            "line 4: t is 4, after a line with 5; expected times that do not go back",
        ),
    ],
)
def test_a_bad_trace_is_an_error_with_its_line(spark: SparkSession, lines: list[Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_trace(lines_of(spark, *lines))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "partitions", [2, pytest.param(1, marks=pytest.mark.exhaustive), pytest.param(3, marks=pytest.mark.exhaustive)]
)
def test_times_that_go_back_are_found_wherever_the_trace_is_cut(spark: SparkSession, partitions: int) -> None:
    trace = [window(), *(use(t_ms, "produce", 1) for t_ms in (10, 20, 30, 29, 40, 50))]
    lines = list(enumerate(text(*trace).splitlines(), 1))
    cut = spark.createDataFrame(spark.sparkContext.parallelize(lines, partitions), "order long, value string")
    with pytest.raises(InputError) as caught:
        read_trace(cut)
    assert str(caught.value).startswith("line 5: t is 29, after a line with 30; ")


# --- usage ---


def test_usage_is_charged_by_second_sender_and_kind(spark: SparkSession) -> None:
    records = [
        record(NOON, api_key=ApiKey.PRODUCE, request_bytes=700, thread_ms=1.0),
        record(NOON, api_key=ApiKey.PRODUCE, request_bytes=300, topic="t", requests=0, thread_ms=0.0),
        record(NOON, api_key=ApiKey.FETCH, request_bytes=90, response_bytes=4000, thread_ms=0.5),
        record(NOON, api_key=ApiKey.CREATE_TOPICS, mutations=3, thread_ms=0.0),
        record(NOON, api_key=ApiKey.PRODUCE, user=None, client_id=None, request_bytes=10**9),
    ]
    quota = change("<default>", **{key.value: 1e12 for key in QuotaKey})
    rows = what_if(usage(spark, records), fixed_quotas([quota], WINDOWS)).collect()
    assert {(row.key, row.user, row.client_id, row.events, row.amount) for row in rows} == {
        ("producer_byte_rate", "alice", None, 1, 1000.0),
        ("consumer_byte_rate", "alice", None, 1, 4000.0),
        ("request_percentage", "alice", None, 1, 1.5),
        ("controller_mutation_rate", "alice", None, 1, 3.0),
    }
    assert {row.entity for row in rows} == {"user=<default>"}


@pytest.fixture(scope="module")
def throttled(spark: SparkSession) -> Mapping[str, Row]:
    """By user, what quotas of 1,000 bytes a second do to a minute of those of `RATES`, and of one who consumes."""
    fetched = {"api_key": ApiKey.FETCH, "request_bytes": 0, "response_bytes": RATES["over"]}
    used = {user: {"request_bytes": rate} for user, rate in RATES.items()} | {"consumer": fetched}
    records = [
        record(NOON + second, user=user, thread_ms=0.0, **fields)
        for second in range(60)
        for user, fields in used.items()
    ]
    quota = change("<default>", producer_byte_rate=1000, consumer_byte_rate=1000)
    rows = what_if(usage(spark, records), fixed_quotas([quota], WINDOWS)).collect()
    assert sorted(row.user for row in rows) == sorted(used)
    return {row.user: row for row in rows}


def test_who_is_over_the_quota_is_throttled_and_who_is_not_is_not(throttled: Mapping[str, Row]) -> None:
    over, under = throttled["over"], throttled["under"]
    assert (over.user, over.events, over.amount, over.quota, over.entity) == (
        "over",
        60,
        120_000.0,
        1000.0,
        "user=<default>",
    )
    assert (under.user, under.throttled, under.waits, under.shifted_amount) == ("under", 0, 0, 0.0)
    assert over.throttled > 40
    # 120,000 bytes, 11,000 of them in the first window, at 1,000 a second: the last come after 109 s, not 60
    assert 45_000 <= over.longest_shift_ms <= 50_000
    assert 100_000 <= over.waited_ms <= 130_000


def test_as_recorded_the_result_equals_that_of_replay(spark: SparkSession) -> None:
    chance = random.Random(7)  # noqa: S311
    records = [
        record(NOON + second, user=user, request_bytes=chance.randrange(3000), thread_ms=chance.random() * 30)
        for second in range(120)
        for user in ("alice", "bob")
    ]
    changes = [
        change("alice", producer_byte_rate=1500, request_percentage=1),
        change("<default>", producer_byte_rate=500),
    ]
    rows = what_if(usage(spark, records), fixed_quotas(changes, WINDOWS)).collect()
    found = {(row.key, row.user): (row.throttled, row.throttle_ms, row.longest_throttle_ms) for row in rows}
    trace = [window(), alter(0, {"user": "alice"}, producer_byte_rate=1500, request_percentage=1)]
    trace.append(alter(0, {"user": None}, producer_byte_rate=500))
    uses = []
    for each in records:
        sender = {"user": each["user"], "client_id": "app-1"}
        for op, amount in (("produce", float(each["request_bytes"])), ("request", each["thread_ms"])):
            begins = each["second"] * 1000  # and with it a rate's sample
            uses += [use(begins, op, 0, **sender), use(begins + 999, op, amount, **sender)]
    trace += sorted(uses, key=itemgetter("t"))
    expected: dict[tuple[str, str], tuple[int, int, int]] = {}
    for each in answers(*trace):
        key = {"produce": "producer_byte_rate", "request": "request_percentage"}[each["op"]], each["user"]
        throttled, total, longest = expected.get(key, (0, 0, 0))
        throttle_ms = each["throttle_time_ms"] if each["t"] % 1000 else 0
        expected[key] = throttled + (throttle_ms > 0), total + throttle_ms, max(longest, throttle_ms)
    del expected["request_percentage", "bob"]  # no such quota holds him
    assert found == expected
    assert found["producer_byte_rate", "bob"][0] > 50


def test_what_is_fetched_beyond_the_quota_comes_later_as_what_is_produced_does(throttled: Mapping[str, Row]) -> None:
    """The proxy forwards a throttled Fetch, so its bytes stay recorded."""
    consumer, producer = throttled["consumer"], throttled["over"]
    assert (consumer.key, producer.key) == ("consumer_byte_rate", "producer_byte_rate")
    columns = ("throttled", "throttle_ms", "waits", "waited_ms", "shifted_amount", "longest_shift_ms")
    assert [consumer[name] for name in columns] == [producer[name] for name in columns]
    assert consumer.longest_shift_ms > 45_000


def test_what_is_used_steadily_at_the_quota_is_not_throttled(throttled: Mapping[str, Row]) -> None:
    """Eleven seconds' usage is held against eleven seconds, not ten."""
    assert {user: throttled[user].throttled > 0 for user in ("at", "above")} == {"at": False, "above": True}


def test_no_usage_is_no_answer(spark: SparkSession) -> None:
    assert what_if(usage(spark, []), fixed_quotas([change("a", producer_byte_rate=1)], WINDOWS)).collect() == []


def test_quotas_come_from_a_configuration_file_or_a_part_of_one(tmp_path: Path) -> None:
    path = tmp_path / "quotas.toml"
    path.write_text('[quota.window]\nnum = 5\n\n[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = "1MiB"\n')
    changes, windows = read_quotas(str(path))
    assert [(each.entity.user, each.values) for each in changes] == [("a", {QuotaKey.PRODUCER_BYTE_RATE: 2**20})]
    assert windows[QuotaKey.PRODUCER_BYTE_RATE].samples == 5
    path.write_text("[quota.window]\nnum = 5\n")
    with pytest.raises(InputError, match=r"quotas\.toml has no \[\[quotas\]\]"):
        read_quotas(str(path))
    path.write_text('[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = -1\n')
    with pytest.raises(InputError, match=r"producer_byte_rate"):
        read_quotas(str(path))
    with pytest.raises(InputError, match=r"nowhere\.toml"):
        read_quotas(str(tmp_path / "nowhere.toml"))


# --- waiting ---


def waiting(rate: float, *usages: tuple[int, str, float]) -> WaitingSenders:
    replay = Replay(WINDOWS)
    replay.alter(change("u", producer_byte_rate=rate))
    bucket = replay.bucket(Op.PRODUCE, "u", "a")
    assert bucket is not None
    senders = WaitingSenders(bucket)
    for t_ms, client_id, amount in usages:
        senders.send(Usage(t_ms=t_ms, user="u", client_id=client_id, op=Op.PRODUCE, amount=amount, strict=False))
    senders.finish()
    return senders


def test_what_comes_in_a_mute_waits_for_its_end() -> None:
    # 22,000 bytes, 999 ms into a second, so over 10.999 s: 11,001 ms (Kafka's X = (O - T) / T * W)
    senders = waiting(1000, (0, "a", 22_000), (1000, "a", 10), (13_000, "a", 10))
    (delay,) = senders.hours.values()
    assert (delay.waits, delay.waited_ms) == (1, 11_001)
    assert (delay.amount, delay.amount_ms, delay.longest_ms) == (10.0, 100_010.0, 10_001)


@pytest.mark.parametrize(
    "field", ["request_bytes", "mutations", pytest.param("response_bytes", marks=pytest.mark.exhaustive)]
)
def test_waiting_senders_are_computed_as_if_from_the_beginning(spark: SparkSession, field: str) -> None:
    """The bucket of waiting senders is created at the first throttle from the state recorded until then."""
    chance = random.Random(3)  # noqa: S311 -- no secrets
    key = {
        "request_bytes": QuotaKey.PRODUCER_BYTE_RATE,
        "response_bytes": QuotaKey.CONSUMER_BYTE_RATE,
        "mutations": QuotaKey.CONTROLLER_MUTATION_RATE,
    }[field]
    api_key = {"request_bytes": 0, "response_bytes": 1, "mutations": 19}[field]
    records = [
        record(NOON + second, api_key=api_key, client_id=client_id, thread_ms=0.0, **{field: chance.randrange(1500)})
        for second in range(200)
        for client_id in ("a", "b")
        if chance.random() < 0.8
    ]
    quota = change("<default>", **{key.value: 1000})
    (row,) = what_if(usage(spark, records), fixed_quotas([quota], WINDOWS)).collect()
    replay = Replay(WINDOWS)
    replay.alter(quota)
    op = {"request_bytes": Op.PRODUCE, "response_bytes": Op.FETCH, "mutations": Op.CONTROLLER_MUTATION}[field]
    bucket = replay.bucket(op, "alice", "a")
    assert bucket is not None
    senders = WaitingSenders(bucket)
    for each in records:
        senders.send(
            Usage(
                t_ms=each["second"] * 1000 + 999,
                user="alice",
                client_id=each["client_id"],
                op=op,
                amount=float(each[field]),
                strict=True,
            )
        )
    senders.finish()
    (delay,) = senders.hours.values()
    assert (row.waits, row.waited_ms, row.longest_shift_ms) == (delay.waits, delay.waited_ms, delay.longest_ms)
    assert row.shifted_amount == pytest.approx(delay.amount)
    assert row.waits > 20
    if field == "mutations":  # nothing is lost: what was refused comes later
        assert row.refused > 20
        assert row.shifted_amount > 100_000


def test_another_channel_of_the_same_bucket_is_not_muted() -> None:
    senders = waiting(1000, (0, "a", 22_000), (1000, "b", 0), (1001, "b", 0))
    (delay,) = senders.hours.values()
    assert delay.amount == 0.0
    assert delay.waits == 2  # its first charge finds the bucket overdrawn, its second comes later


def test_the_queue_of_a_sender_that_falls_behind_for_good_is_bounded() -> None:
    usages = [(second * 1000, "a", 5000.0) for second in range(3 * QUEUED)]
    replay = Replay(WINDOWS)
    replay.alter(change("u", producer_byte_rate=1000))
    bucket = replay.bucket(Op.PRODUCE, "u", "a")
    assert bucket is not None
    senders = WaitingSenders(bucket)
    for t_ms, client_id, amount in usages:
        senders.send(Usage(t_ms=t_ms, user="u", client_id=client_id, op=Op.PRODUCE, amount=amount, strict=False))
        assert sum(len(sender.entries) for sender in senders._senders.values()) <= QUEUED
    senders.finish()
    late = sum(delay.amount for delay in senders.hours.values())
    total = sum(amount for _, _, amount in usages)
    assert late >= total - 2 * 22_000  # all but what the first windows took at once


# --- the command ---


QUOTAS = '[[quotas]]\nentity = { user = "<default>" }\nproducer_byte_rate = 1000\n'


def ask(tmp_path: Path, *arguments: object) -> tuple[int, str]:
    (tmp_path / "quotas.toml").write_text(QUOTAS)
    result = CliRunner().invoke(pipeline, ["what-if", *map(str, arguments)])
    return result.exit_code, result.output


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Lake:
    tables = Lake(spark, str(tmp_path / "lake"))
    records = [
        record(NOON + second, cluster=cluster, request_bytes=900) for second in range(30) for cluster in ("a", "b")
    ]
    tables.append("usage", usage(spark, records), "date", "hour")
    return tables


def test_quotas_are_asked_about_in_one_cluster(tables: Lake, tmp_path: Path) -> None:
    given = ("--lake", tables.root, "--quotas", tmp_path / "quotas.toml")
    status, output = ask(tmp_path, *given)
    assert status == 1, output
    assert "the usage is of 2 clusters, a, b; expected --cluster ID, one of them" in output
    status, output = ask(tmp_path, *given, "--cluster", "a")
    assert status == 0, output
    assert "30 records from" in output
    assert "1 buckets, of which 0 are throttled" in output


def test_what_the_records_cannot_show_is_reported(spark: SparkSession, tmp_path: Path, queries: list[str]) -> None:
    """At a steady 900 bytes a second, 12 seconds have 10,800 bytes, which Kafka may have divided by 10 seconds."""
    tables = Lake(spark, str(tmp_path / "lake"))
    steady = [record(NOON + second, request_bytes=900) for second in range(60)]
    slow = [record(NOON + second, user="bob", request_bytes=800) for second in range(60)]
    held = [
        record(NOON + second, user="carol", request_bytes=500, **by_quota)
        for second in range(60)
        for by_quota in [{"throttled": {"producer_byte_rate": 2}, "refused": {"producer_byte_rate": 1}}]
    ]
    tables.append("usage", usage(spark, steady + slow + held), "date", "hour")
    status, output = ask(tmp_path, "--lake", tables.root, "--quotas", tmp_path / "quotas.toml")
    assert (status, "3 buckets, of which 0 are throttled" in output) == (0, True), output
    # The usage, the senders, the numbers of buckets, and those that might be throttled.
    assert len(queries) == 4, queries
    assert "1 of the buckets that are not throttled might be throttled: a record has the sum of one second" in output
    (line,) = [line for line in output.splitlines() if "not precise enough" in line]
    assert line == (
        "producer_byte_rate of user=alice: the quota of user=<default> is 1000; records of one second are not precise"
        " enough below 1080"
    )
    assert "the recorded usage of 1 buckets was itself throttled, so their demand is not known" in output
    assert (
        "producer_byte_rate of user=carol: 120 requests were throttled and 60 refused by this quota while the usage"
        " was recorded" in output
    )


def test_the_usage_is_read_for_its_senders_and_its_charges(
    spark: SparkSession, tables: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, read = spark.sparkContext.accumulator(0), Lake.read

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            rows.add(batch.num_rows)
            yield batch

    monkeypatch.setattr(Lake, "read", lambda *given: read(*given).mapInArrow(counted, schemas.USAGE))
    given = ("--lake", tables.root, "--quotas", tmp_path / "quotas.toml", "--cluster", "a")
    status, output = ask(tmp_path, *given)
    assert (status, "30 records from" in output) == (0, True), output
    assert rows.value == 2 * 60


def test_each_cluster_has_its_own_answer(tables: Lake, tmp_path: Path) -> None:
    given = ("--lake", tables.root, "--quotas", tmp_path / "quotas.toml")
    for cluster in ("a", "b", "b"):
        status, output = ask(tmp_path, *given, "--cluster", cluster)
        assert status == 0, output
    for cluster in ("a", "b"):
        assert tables.read_of_cluster("what_if", schemas.WHAT_IF, cluster).count() == 1
    assert tables.read("what_if", schemas.WHAT_IF).count() == 2


@pytest.mark.exhaustive
def test_without_usage_the_answer_that_is_there_stays(tables: Lake, tmp_path: Path) -> None:
    given = ("--lake", tables.root, "--quotas", tmp_path / "quotas.toml", "--cluster", "a")
    assert ask(tmp_path, *given)[0] == 0
    status, output = ask(tmp_path, *given, "--from", "2027-01-01")
    assert (status, "no quotas were applied, and nothing was written" in output) == (0, True), output
    assert tables.read("what_if", schemas.WHAT_IF).count() == 1


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (("--from", "2026-09-22", "--to", "2026-09-21"), "--from 2026-09-22 is after --to 2026-09-21"),
        (("--from", "2026-13-45"), "'2026-13-45' does not match the format"),
    ],
)
def test_invalid_days_are_errors(tmp_path: Path, days: tuple[str, ...], expected: str) -> None:
    status, output = ask(tmp_path, "--lake", tmp_path, "--quotas", tmp_path / "quotas.toml", *days)
    assert (status, expected in " ".join(output.split())) == (2, True), output


def test_what_is_where_the_output_goes_stays(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text(text(window(), use(5, "produce", 1)))
    kept = tmp_path / "output" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years of work")
    status, output = ask(tmp_path, "--trace", tmp_path / "trace.jsonl", "--output", kept.parent)
    assert (status, "already exists; remove it, or give another" in output) == (1, True), output
    assert kept.read_text() == "years of work"
    status, output = ask(tmp_path, "--trace", tmp_path / "trace.jsonl", "--output", tmp_path / "decided")
    assert (status, "1 events decided, in" in output) == (0, True), output
