"""The demand of throttled senders, compared with senders whose demand is known.

The usage is that of simulated connections, which are throttled by the proxy's own rates.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.what_if.demand import unserved
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change, Op, Replay, Usage
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
AT_MOST: Final = 10.0
STEP_MS: Final = 10
"""Time after which a sender with messages of its own rate looks for new ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Connections with one quota."""

    quota: float
    request_bytes: int = 100_000
    service_ms: float
    """Time between a request and its reply."""
    seconds: int
    pause_ms: float = 0.0
    """Mean time after a reply, and the throttle time, until the next request."""
    connections: int = 1
    own_rate: float | None = None
    """Bytes a second that the application writes, for a sender that does not send as much as it can."""

    @property
    def demand(self) -> float:
        """What it sends without a quota."""
        if self.own_rate is not None:
            return self.own_rate * self.seconds
        cycle_s = (self.service_ms + self.pause_ms) / 1000
        return self.connections * self.request_bytes / cycle_s * self.seconds

    def records(self, user: str) -> list[dict[str, Any]]:
        """Return its usage records under the quota."""
        chance = random.Random(user)  # noqa: S311 -- no secrets
        replay = Replay(dict.fromkeys(QuotaKey, Window()))
        replay.alter(Change(t_ms=0, entity=QuotaEntity(user=user), values={KEY: self.quota}, removed=()))
        began_ms, end_ms = NOON * 1000, (NOON + self.seconds) * 1000
        due = [(began_ms + 100 * chance.random(), number) for number in range(self.connections)]
        heapq.heapify(due)
        written_ms = float(began_ms)
        by_second: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        while due:
            now_ms, number = heapq.heappop(due)
            if now_ms >= end_ms:
                continue
            size = float(self.request_bytes)
            if self.own_rate is not None:
                size, written_ms = self.own_rate * (now_ms - written_ms) / 1000, now_ms
            done_ms = now_ms + self.service_ms
            event = Usage(t_ms=int(done_ms), user=user, client_id="a", op=Op.PRODUCE, amount=size, strict=False)
            verdict = replay.charge(event)
            mute_ms = 0 if verdict is None else verdict.throttle_ms
            sums = by_second[int(done_ms // 1000)]
            sums[0] += size
            sums[1] += mute_ms
            pause_ms = chance.expovariate(1 / self.pause_ms) if self.pause_ms else 0.0
            heapq.heappush(due, (done_ms + mute_ms + pause_ms + STEP_MS * (self.own_rate is not None), number))
        return [
            record(
                second, user=user, request_bytes=round(size), throttle_ms={KEY.value: int(mute_ms)} if mute_ms else {}
            )
            for second, (size, mute_ms) in by_second.items()
        ]


WAITING: Final = {
    "five times": Sender(quota=1e6, service_ms=20, seconds=120),
    "five times, large requests": Sender(quota=1e6, request_bytes=1_000_000, service_ms=200, seconds=120),
    "twice": Sender(quota=1e6, service_ms=50, seconds=120),
    "a third more": Sender(quota=5e6, service_ms=15, seconds=120),
    "eight times": Sender(quota=1e6, service_ms=12, seconds=120),
    "with pauses": Sender(quota=1e6, service_ms=20, pause_ms=30, seconds=600),
    "for several blocks": Sender(quota=1e6, service_ms=20, seconds=900),
    "for half a minute": Sender(quota=1e6, request_bytes=1_000_000, service_ms=200, seconds=30),
}
"""Senders of one connection that send the next request as soon as they may."""

OTHERS: Final = {
    "own rate": Sender(quota=1e6, own_rate=1.1e6, service_ms=5, seconds=120),
    "own rate, twice": Sender(quota=1e6, own_rate=2e6, service_ms=5, seconds=120),
    "two connections": Sender(quota=1e6, service_ms=100, connections=2, seconds=120),
    "three connections": Sender(quota=1e6, service_ms=100, connections=3, seconds=120),
}
UNTHROTTLED: Final = {"free": Sender(quota=1e9, service_ms=20, seconds=60)}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, Row]:
    """The recorded bytes, and those of the demand beyond them, by user."""
    senders = {**WAITING, **OTHERS, **UNTHROTTLED}
    recorded = usage(spark, [each for user, sender in senders.items() for each in sender.records(user)])
    demand = (
        unserved(recorded, AT_MOST)
        .groupBy("user")
        .agg(
            sf.sum("request_bytes").alias("more"),
            sf.max("bounded").alias("bounded"),
            sf.sum("thread_ms").alias("thread_ms"),
        )
    )
    sums = recorded.groupBy("user").agg(sf.sum("request_bytes").alias("bytes"))
    return {row.user: row for row in sums.join(demand, "user", "left").collect()}


@pytest.mark.parametrize("user", WAITING)
def test_the_demand_of_senders_that_wait_is_what_they_send_without_a_quota(found: dict[str, Row], user: str) -> None:
    sender, row = WAITING[user], found[user]
    assert row.bytes < 0.85 * sender.demand
    tolerance = 0.03 if sender.seconds > 30 else 0.15
    assert row.bytes + row.more == pytest.approx(sender.demand, rel=tolerance)
    assert row.thread_ms > 0


@pytest.mark.parametrize("user", OTHERS)
def test_the_demand_of_other_senders_is_between_the_recorded_and_the_computed(found: dict[str, Row], user: str) -> None:
    sender, row = OTHERS[user], found[user]
    assert row.bytes <= sender.demand <= row.bytes + row.more <= AT_MOST * row.bytes * (1 + 1e-9)
    assert row.bounded


def test_who_is_not_throttled_has_no_demand_beyond_the_recorded_usage(found: dict[str, Row]) -> None:
    assert found["free"].more is None
    assert found["free"].bytes == pytest.approx(UNTHROTTLED["free"].demand, rel=0.01)


def test_demand_is_spread_over_the_seconds_of_a_mute(spark: SparkSession) -> None:
    """A mute of 2 s from the middle of a second: 2.5 s, of which 0.5 s were used. The longest of two quotas counts."""
    mute = {"throttle_ms": {KEY.value: 2000, "request_percentage": 500}}
    records = [
        record(NOON, request_bytes=600, **mute),
        record(NOON, request_bytes=400, topic="t", requests=0),
        record(NOON, api_key=ApiKey.FETCH, response_bytes=70),
        record(NOON + 10, request_bytes=5000),
    ]
    rows = unserved(usage(spark, records), AT_MOST).orderBy("second").collect()
    assert [(row.api_key, row.second - NOON, row.request_bytes, row.bounded) for row in rows] == [
        (0, 0, 1000.0, False),
        (0, 1, 2000.0, False),
        (0, 2, 1000.0, False),
    ]


QUOTAS = '[[quotas]]\nentity = { user = "<default>" }\nproducer_byte_rate = 3_000_000\n'


def test_the_command_charges_demand(spark: SparkSession, tmp_path: Path) -> None:
    """Five megabytes a second were reduced to one; three do not throttle that, but they throttle what was wanted."""
    tables = Lake(spark, str(tmp_path / "lake"))
    sender = WAITING["five times"]
    tables.append("usage", usage(spark, [*sender.records("alice"), record(NOON, user="bob")]), "date", "hour")
    (tmp_path / "quotas.toml").write_text(QUOTAS)
    given = ["what-if", "--lake", tables.root, "--quotas", str(tmp_path / "quotas.toml")]
    recorded = CliRunner().invoke(pipeline, given)
    assert "2 buckets, of which 0 are throttled" in recorded.output, recorded.output
    result = CliRunner().invoke(pipeline, [*given, "--demand"])
    assert "2 buckets, of which 1 are throttled" in result.output, result.output
    assert "which 1 senders would have used at most while they were muted" in result.output
    rows = {row.user: row for row in tables.read("what_if", schemas.WHAT_IF).collect()}
    assert rows["alice"].amount == pytest.approx(sender.demand, rel=0.03)
    assert rows["alice"].throttled > 20
    assert {row.with_demand for row in rows.values()} == {True}


def test_a_trace_has_all_requests() -> None:
    result = CliRunner().invoke(pipeline, ["what-if", "--trace", "trace", "--output", "out", "--demand"])
    assert result.exit_code == 2
    assert "--demand are for usage records" in result.output
