"""Recommendations equal those computed here with NumPy alone: percentiles exactly, quotas, peaks, who misbehaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from headrace.pipeline.analysis.recommend import recommend
from headrace.pipeline.analysis.recommend.rules import Rules
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaKey
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row, SparkSession

Numbers = np.ndarray[Any, Any]

PRODUCER, CONSUMER, PERCENTAGE, MUTATIONS, IDS = QuotaKey
DAY_S = 86_400
SPAN_S = 11
RNG = np.random.default_rng(18)

BRIEF = ("brief-1", "brief-2")
"""Users without a quota of their own."""
PRESENT = {"ignores": 5000.0, "saturated": 10.0**9}
RULES = Rules(
    least=dict.fromkeys(QuotaKey, 0.001) | {PRODUCER: 1, CONSUMER: 1},
    least_seconds=50,
    least_entities=5,
    capacity={PRODUCER: 3_900_000, CONSUMER: 10.0**12, PERCENTAGE: 1},
    present={(user, None): {PRODUCER: quota} for user, quota in PRESENT.items()}
    | {("<default>", None): {CONSUMER: 10.0**7}, ("calm-0", "app-1"): {PERCENTAGE: 5.0}},
)


@dataclass
class Client:
    """The usage of a user at its active seconds."""

    seconds: Numbers
    produced: Numbers
    fetched: Numbers | None = None
    thread_ms: Numbers | None = None
    requests: Numbers = field(default_factory=lambda: np.array([]))
    failed: Numbers = field(default_factory=lambda: np.array([]))
    held: Numbers = field(default_factory=lambda: np.array([]))

    def __post_init__(self) -> None:
        number = len(self.seconds)
        self.requests = self.requests if self.requests.size else np.ones(number, dtype=int)
        self.failed = self.failed if self.failed.size else np.zeros(number, dtype=int)
        self.held = self.held if self.held.size else np.zeros(number, dtype=int)

    def records(self, user: str) -> Iterator[dict[str, Any]]:
        for index, second in enumerate(self.seconds.tolist()):
            held = {PRODUCER.value: int(self.held[index])} if self.held[index] else {}
            rest: dict[str, Any] = {"user": user, "response_bytes": 0, "thread_ms": 0.0, "throttled": held}
            counts = {"requests": int(self.requests[index]), "errors": int(self.failed[index])}
            yield record(second, **rest | counts, api_key=ApiKey.PRODUCE, request_bytes=int(self.produced[index]))
            if self.fetched is not None and self.thread_ms is not None:
                used = {"response_bytes": int(self.fetched[index]), "thread_ms": float(self.thread_ms[index])}
                yield record(second, **rest | used, api_key=ApiKey.FETCH, request_bytes=0, requests=0)


def some_seconds(number: int, days: int = 1) -> Numbers:
    drawn = [day * DAY_S + np.sort(RNG.choice(3600, number, replace=False)) for day in range(days)]
    return NOON + np.concatenate(drawn)


def sizes(number: int) -> Numbers:
    return np.ceil(RNG.lognormal(10, 2, number)).astype(int)


def changing(before: int, then: int, calm: int = 90, other: int = 60) -> Numbers:
    return np.array([before] * calm + [then] * other)


def clients() -> dict[str, Client]:
    found = {
        f"calm-{number}": Client(some_seconds(25, 3), sizes(75), sizes(75), RNG.uniform(0.001, 900, 75))
        for number in range(6)
    }
    apart = NOON + 20 * np.arange(150)  # no two of them in one window
    half = NOON + 20 * np.arange(80)
    # Peaks: one second, two seconds that are one peak, and one second of the next day.
    seconds = np.concatenate([NOON + 20 * np.arange(450), NOON + np.array([6005]), NOON + np.array([DAY_S])])
    produced = np.full(452, 11_000)
    produced[[100, 300, 450, 451]] = 10**8
    order = np.argsort(seconds)
    found["peaks"] = Client(seconds[order], produced[order])
    found["fails"] = Client(apart, changing(2000, 200_000), requests=changing(2, 100), failed=changing(0, 60))
    found["empties"] = Client(apart, changing(2000, 3000), requests=changing(2, 100))
    found["polls"] = Client(apart, changing(2_000_000, 750), requests=changing(2, 15))
    held = np.array([1] * 60 + [0] * 20)
    found["ignores"] = Client(half, sizes(80) + 200_000, held=held)
    found["saturated"] = Client(half, sizes(80) + 200_000, held=held)
    found["unknown"] = Client(half, sizes(80) + 200_000, held=held)
    for name in BRIEF:
        found[name] = Client(half[:10], sizes(10))
    return found


def rounded(value: float, rounding: str) -> float:
    return float(Context(prec=2, rounding=rounding).plus(Decimal(f"{value:.12g}")))


def rates(seconds: Numbers, amounts: Numbers) -> Numbers:
    sums = [amounts[(seconds > second - SPAN_S) & (seconds <= second)].sum() for second in seconds]
    return np.array(sums) / SPAN_S


def misbehaviour(name: str, client: Client, median: float) -> str | None:
    calm = np.argsort(client.requests, kind="stable")[: (len(client.requests) + 1) // 2]
    more = client.requests > 10 * np.median(client.requests)
    usual = client.requests[calm].sum() / client.produced[calm].sum()
    emptier = client.requests / client.produced > 10 * usual
    storm = (client.requests >= 10) & ((client.failed >= client.requests / 2) | (more & emptier))
    found = []
    if storm.sum() >= 50 and storm.mean() >= 0.01:
        found.append("retry-storm")
    if (client.held > 0).sum() >= 50 and (client.held > 0).mean() >= 0.5 and median >= PRESENT.get(name, 0):
        found.append("limit-ignored")
    return ", ".join(found) or None


def expected(name: str, client: Client) -> dict[str, Any]:
    """Return what the row of a user's `PRODUCER` should be."""
    rate = rates(client.seconds, client.produced)
    p50, p95, p99 = np.percentile(rate, [50, 95, 99])
    mark = misbehaviour(name, client, p50)
    if mark is None:
        wanted = p99 * (2 if client.held.any() else 1.3)
        quota = np.ceil(rounded(wanted, ROUND_CEILING))
        above = client.seconds[rate > quota]
        peaks: int | None = int((np.diff(above, prepend=-DAY_S) >= SPAN_S).sum())
        days: int | None = len(np.unique(above // DAY_S))
    else:
        wanted = min(p99 * 1.3, PRESENT.get(name, p50))
        quota = PRESENT[name] if name in PRESENT else np.ceil(rounded(p50, ROUND_FLOOR))
        peaks = days = None
    return {
        "quota": quota, "p50": p50, "p95": p95, "p99": p99, "peak": rate.max(), "active_seconds": len(rate),
        "burst": client.produced.max() / p99, "throttled": client.held.sum(), "misbehaviour": mark, "peaks": peaks,
        "peak_days": days, "present_quota": PRESENT.get(name), "wanted": wanted,
    }  # fmt: skip


CLIENTS = clients()
EXPECTED = {name: expected(name, client) for name, client in CLIENTS.items()}
EXACT = {"rel": 1e-12, "abs": 0.0}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[tuple[str, QuotaKey], Row]:
    records = [each for name, client in CLIENTS.items() for each in client.records(name)]
    return {(row.user, QuotaKey(row.key)): row for row in recommend(usage(spark, records), RULES).collect()}


def test_the_clients_are_of_every_kind() -> None:
    assert {name: each["misbehaviour"] for name, each in EXPECTED.items() if each["misbehaviour"]} == {
        "fails": "retry-storm", "empties": "retry-storm", "ignores": "limit-ignored", "unknown": "limit-ignored",
    }  # fmt: skip
    assert (EXPECTED["peaks"]["peaks"], EXPECTED["peaks"]["peak_days"]) == (3, 2)


def test_rows_are_those_of_numpy(found: dict[tuple[str, QuotaKey], Row]) -> None:
    assert {user for user, key in found if key is PRODUCER} == {*CLIENTS, "<default>"} - set(BRIEF)
    for name, each in EXPECTED.items():
        if name not in BRIEF:
            row = found[name, PRODUCER].asDict()
            assert row["misbehaviour"] == each["misbehaviour"], name
            for column in each.keys() - {"wanted", "misbehaviour"}:
                number = each[column]
                exact = None if number is None else pytest.approx(float(number), **EXACT)
                assert row[column] == exact, (name, column)


def test_percentiles_of_other_keys_are_those_of_numpy(found: dict[tuple[str, QuotaKey], Row]) -> None:
    for name, client in CLIENTS.items():
        if client.fetched is not None and client.thread_ms is not None:
            for key, amounts in ((CONSUMER, client.fetched), (PERCENTAGE, client.thread_ms / 10)):
                row = found[name, key]
                # Sums over a window are rounded to a millionth.
                exact = EXACT if key is CONSUMER else {"rel": 0.0, "abs": 1e-6}
                all_three = np.percentile(rates(client.seconds, amounts), [50, 95, 99])
                assert [row.p50, row.p95, row.p99] == [pytest.approx(float(each), **exact) for each in all_three]


def test_the_quota_of_the_default_entity_is_present_for_others(found: dict[tuple[str, QuotaKey], Row]) -> None:
    assert (found["calm-0", CONSUMER].present_quota, found["calm-0", PERCENTAGE].present_quota) == (10.0**7, None)


def test_the_default_quota_is_what_most_need_and_the_cluster_can_bear(
    found: dict[tuple[str, QuotaKey], Row],
) -> None:
    behaving = [each["wanted"] for each in EXPECTED.values() if each["misbehaviour"] is None]
    widely = np.ceil(rounded(np.percentile(behaving, 95, method="inverted_cdf"), ROUND_CEILING))
    own = sum(each["quota"] for name, each in EXPECTED.items() if name not in BRIEF)
    left = rounded((RULES.capacity[PRODUCER] - own) / len(BRIEF), ROUND_FLOOR)
    assert 0 < left < widely
    row = found["<default>", PRODUCER]
    assert row.quota == pytest.approx(left)
    assert f"of the {len(behaving)} entities with such usage" in row.reason
    assert "; bounded to what the capacity of 3.9 MB/s leaves after the other 13 quotas," in row.reason
    assert row.reason.endswith(" for each of the 2 entities without a quota of their own")
    calm = [client for client in CLIENTS.values() if client.fetched is not None]
    most = max(np.percentile(rates(each.seconds, each.fetched), 99) for each in calm if each.fetched is not None)
    assert found["<default>", CONSUMER].quota == rounded(1.3 * most, ROUND_CEILING)
    assert ("<default>", PERCENTAGE) not in found  # nothing is left


def test_reasons_say_what_was_not_followed(found: dict[tuple[str, QuotaKey], Row]) -> None:
    assert found["peaks", PRODUCER].reason.endswith("; not followed: 3 peaks on 2 days, up to 18.2 MB/s")
    assert "; not above its median, " in found["fails", PRODUCER].reason
    assert ", since 40 % of its active seconds are of retry storms" in found["fails", PRODUCER].reason
    assert found["ignores", PRODUCER].reason.endswith(
        "; not above its present quota, 5.0 kB/s, since it was throttled or refused in 75 % of its seconds with such"
        " usage, and still sends at the limit"
    )
