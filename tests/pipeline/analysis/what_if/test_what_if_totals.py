"""What is summed with NumPy equals what the loop over all charges computes, to the last bit."""

from __future__ import annotations

import pickle
import random
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.analysis.events import END_OF_SECOND_MS, open_second
from headrace.pipeline.analysis.what_if.buckets import find_buckets, replay_of
from headrace.pipeline.analysis.what_if.loop import Loop, Replays
from headrace.pipeline.analysis.what_if.never_throttled import SECOND_BITS, RateCharges, certain
from headrace.pipeline.analysis.what_if.quotas import Quotas, fixed_quotas
from headrace.pipeline.analysis.what_if.totals import Charges, LoopedHours, Totals, merged
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import KEYS, Change, Op, Usage, charge

if TYPE_CHECKING:
    from headrace.pipeline.analysis.what_if.buckets import Buckets
    from headrace.pipeline.analysis.what_if.loop import HourSums

BEGAN_S = 1_789_995_600
WINDOWS = [(11, 1), (11, 1), (1, 1), (2, 1), (3, 30), (5, 2), (2, 7), (60, 60), (2, 3600)]
SENDERS = [("alice", "a"), ("alice", "b"), ("bob", "a"), ("carol", "c")]
LIMITS = {Op.PRODUCE: 1000.0, Op.REQUEST: 3.0, Op.CONTROLLER_MUTATION: 2.0, Op.NEW_PRODUCER_IDS: 20.0}
UNITS = {Op.REQUEST: 10.0}
"""The amount of an event that is one unit of the limit for a second."""


@dataclass(frozen=True)
class Traffic:
    quotas: Quotas
    buckets: Buckets
    charges: Charges


@st.composite
def traffic(draw: st.DrawFn, ops: tuple[Op, ...] = tuple(LIMITS)) -> Traffic:
    """Random charges to the buckets of three users, in stretches far from the limit and near it, with long pauses."""
    window = Window(samples=(chosen := draw(st.sampled_from(WINDOWS)))[0], seconds=chosen[1])
    values = {KEYS[op]: LIMITS[op] for op in ops}
    change = Change(t_ms=0, entity=QuotaEntity(user=DEFAULT), values=values, removed=())
    quotas = fixed_quotas([change], dict.fromkeys(QuotaKey, window))
    buckets = find_buckets(SENDERS, quotas)
    chance = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311 -- Hypothesis' own takes ten times as long
    rows = []
    for op in ops:
        for user in sorted({user for user, _ in SENDERS}):
            senders = [number for number, (name, _) in enumerate(buckets.senders) if name == user]
            number = buckets.by_op[op][senders[0]]
            second = BEGAN_S + chance.randrange(3600)
            for _ in range(chance.randrange(5)):
                level = chance.choice([0.1, 0.5, 0.85, 0.95, 0.999, 1.0, 1.001, 1.1, 3.0])
                for _ in range(chance.choice([1, 5, 40])):
                    second += chance.choice([0, 1, 1, 1, 1, 1, 2, window.seconds, 12])
                    amount = LIMITS[op] * UNITS.get(op, 1.0) * level * chance.choice([1.0, 1.0, chance.random() * 2])
                    if op is not Op.REQUEST:
                        amount = float(max(1, round(amount)))
                    rows.append((number << SECOND_BITS | second, chance.choice(senders), amount))
                second += chance.choice([0, 5, window.samples * window.seconds, 3599, 3601, 4000, 9000])
    rows.sort(key=lambda row: row[0])
    key, sender, amount = zip(*rows, strict=True) if rows else ((), (), ())
    charges = Charges(np.array(key, np.int64), np.array(sender, np.int64), np.array(amount, np.float64))
    return Traffic(quotas, buckets, charges)


def by_the_loop(given_: Traffic) -> dict[tuple[int, int], HourSums]:
    """Charge every event of each bucket in the loop, from its first one on."""
    replays = Replays(given_.quotas, given_.buckets.senders)
    charges = merged(given_.charges)
    rows = zip((charges.key >> SECOND_BITS).tolist(), charges, strict=True)
    found = {}
    for number, events in groupby(rows, key=lambda row: row[0]):
        mine = [event for _, event in events]
        loop = Loop(replays, given_.buckets.buckets[number].op, mine[0][0])
        for event in mine:
            loop.add(*event)
        found.update({(number, hour): (hour, *sums) for hour, *sums in loop.finish()})
    return found


def by_totals(
    given_: Traffic, part: int, chunk: int
) -> tuple[dict[tuple[int, int], HourSums], set[int], dict[int, float]]:
    """Return the sums, the buckets that went through the loop, and for the other ones the limit from which on the
    records are certain, or the bucket's own if that is higher.
    """
    totals = Totals(given_.buckets, given_.quotas, chunk=chunk)
    charges = given_.charges
    results = [hours for at in range(0, len(charges), part) for hours in totals.add(charges[at : at + part])]
    found: dict[tuple[int, int], HourSums] = {}
    looped: set[int] = set()
    needed: dict[int, float] = {}
    for hours in [*results, *totals.finish()]:
        if isinstance(hours, LoopedHours):
            rows = [(number, sums) for number, _, sums in hours.rows]
            looped |= {number for number, _ in rows}
        else:
            columns = (hours.bucket, hours.hour, hours.events, hours.amount)
            rows = [
                (number, (hour, events, amount, 0, 0, 0, 0, 0, 0, 0.0, None, 0))
                for number, hour, events, amount in zip(*(each.tolist() for each in columns), strict=True)
            ]
            for number, limit in zip(hours.bucket.tolist(), hours.needed.tolist(), strict=True):
                needed[number] = max(limit, needed.get(number, given_.buckets.buckets[number].limit))
        for number, sums in rows:
            assert (number, sums[0]) not in found
            found[number, sums[0]] = sums
    return found, looped, needed


@given(traffic(), st.sampled_from([1, 7, 50, 1000]), st.sampled_from([1, 2, 10, 64, 10_000]))
def test_the_sums_are_those_of_the_loop_wherever_chunks_end(given_: Traffic, part: int, chunk: int) -> None:
    found, looped, needed = by_totals(given_, part, chunk)
    assert found == by_the_loop(given_)
    _, _, expected = by_totals(given_, len(given_.charges) or 1, 10_000)
    both = needed.keys() & expected.keys() - looped
    assert {number: needed[number] for number in both} == pytest.approx({number: expected[number] for number in both})


@given(traffic((Op.PRODUCE, Op.REQUEST)))
def test_what_is_certain_is_not_throttled_and_what_is_below_the_limit_is_certain(given_: Traffic) -> None:
    charges = merged(given_.charges)
    number = charges.key >> SECOND_BITS
    if not len(charges):
        return
    kinds = [given_.buckets.buckets[each] for each in number.tolist()]
    window = kinds[0].window
    percent = np.array([each.op is Op.REQUEST for each in kinds])
    found, needed = certain(
        RateCharges(
            key=charges.key,
            value=np.where(percent, np.rint(charges.amount * 1e6) * 1e-7, charges.amount),
            limit=np.array([each.limit for each in kinds]),
            samples=np.full(len(charges), window.samples),
            seconds=np.full(len(charges), window.seconds),
        )
    )
    replay = replay_of(given_.quotas)
    before = -1
    long = window.samples * window.seconds > 3600
    for at, (second, sender, amount) in enumerate(charges):
        if number[at] != before:
            replay.forget()
            before = number[at]
        user, client_id = given_.buckets.senders[sender]
        t_ms = second * 1000 + END_OF_SECOND_MS
        event = Usage(t_ms=t_ms, user=user, client_id=client_id, op=kinds[at].op, amount=amount, strict=False)
        replay.advance(t_ms)
        bucket = replay.bucket(event.op, user, client_id)
        assert bucket is not None
        open_second(bucket, t_ms)
        verdict = charge(bucket, event, empty_fetches=False)
        assert verdict is None or not found[at]
        below = bucket.observed(t_ms) < kinds[at].limit * (1 - 1e-6)
        assert found[at] or not below or long
        assert found[at] or long or needed[at] >= kinds[at].limit * (1 - 1e-6)


def test_executors_get_the_buckets() -> None:
    change = Change(t_ms=0, entity=QuotaEntity(user=DEFAULT), values={QuotaKey.PRODUCER_BYTE_RATE: 1000.0}, removed=())
    buckets = find_buckets(SENDERS, fixed_quotas([change], dict.fromkeys(QuotaKey, Window())))
    assert pickle.loads(pickle.dumps(buckets)) == buckets  # noqa: S301


def test_only_buckets_that_are_throttled_go_through_the_loop() -> None:
    change = Change(t_ms=0, entity=QuotaEntity(user=DEFAULT), values={QuotaKey.PRODUCER_BYTE_RATE: 1000.0}, removed=())
    quotas = fixed_quotas([change], dict.fromkeys(QuotaKey, Window()))
    buckets = find_buckets(SENDERS, quotas)
    numbers = {"alice": 999, "bob": 1010, "carol": 10}
    rows = [
        (number << SECOND_BITS | BEGAN_S + second, buckets.senders.index((user, client_id)), float(numbers[user]))
        for user, client_id in (("alice", "a"), ("bob", "a"), ("carol", "c"))
        for second in range(100)
        if (number := buckets.by_op[Op.PRODUCE][buckets.senders.index((user, client_id))]) is not None
    ]
    charges = Charges(*map(np.array, zip(*sorted(rows), strict=True)))
    found, looped, needed = by_totals(Traffic(quotas, buckets, charges), 30, 100)
    assert [buckets.buckets[number].user for number in looped] == ["bob"]
    assert {buckets.buckets[number].user: limit for number, limit in needed.items()} == {
        "alice": pytest.approx(999 * 12 / 10),
        "carol": 1000.0,
    }
    assert [sums[3] > 0 for _, sums in sorted(found.items())] == [False, True, False]


@pytest.mark.parametrize(("level", "expected"), [(0.7, 0), (0.8, 960), (0.9, 1080)])
def test_the_quota_from_which_on_records_are_certain(level: float, expected: float) -> None:
    """Twelve seconds of usage may lie in ten seconds of Kafka's window, and thirteen in eleven."""
    second = BEGAN_S + np.arange(100)
    count = len(second)
    found, needed = certain(
        RateCharges(
            key=second,
            value=np.full(count, 1000.0 * level),
            limit=np.full(count, 1000.0),
            samples=np.full(count, 11),
            seconds=np.full(count, 1),
        )
    )
    assert found.all()
    assert needed.max() == pytest.approx(expected)
