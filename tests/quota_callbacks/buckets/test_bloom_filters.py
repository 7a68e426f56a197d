"""Bloom filters: no false negatives, the rate of false positives, and expiry."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets import bloom_filters
from headrace.quota_callbacks.buckets.bloom_filters import BloomFilter, GrowingBloomFilter, bloom_size
from headrace.quota_callbacks.buckets.timed_bloom_filters import INITIAL_CAPACITY, TimedBloomFilters, TimedState

HOUR_MS = 3_600_000
HALF_MS = HOUR_MS // 2

producer_ids = st.integers(-(2**63), 2**63 - 1)
rates = st.sampled_from([0.3, 0.01, 0.001, 1e-6])


def ids_of(seed: int, count: int, below: int = 2**62) -> list[int]:
    """Return distinct producer ids."""
    return random.Random(seed).sample(range(below), count)  # noqa: S311 -- for tests


def bound(rate: float, tried: int) -> float:
    """Return the share that ``tried`` samples at this rate exceed once in three million times: five sigma."""
    return rate + 5 * math.sqrt(rate * (1 - rate) / tried)


# One filter of a fixed size.


@given(st.sets(producer_ids, max_size=80), rates)
def test_what_was_added_is_in_it(ids: set[int], rate: float) -> None:
    bloom = BloomFilter(20, rate)
    new = [each for each in ids if bloom.add(each)]
    assert all(each in bloom for each in ids)
    assert not any(bloom.add(each) for each in ids)
    assert bloom.count == len(new)


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("capacity", [64, 1000, 20_000])
def test_a_full_filter_errs_no_more_often_than_asked(capacity: int, rate: float) -> None:
    """Many small filters are measured, so that the result does not depend on a single one."""
    filters = max(1, 10_000 // capacity)
    wrong = tried = 0
    for number in range(filters):
        bloom = BloomFilter(capacity, rate)
        ids = ids_of(number, capacity + 20_000 // filters + 200)
        for each in ids[:capacity]:
            bloom.add(each)
        tried += len(ids) - capacity
        wrong += sum(each in bloom for each in ids[capacity:])
    assert tried >= 20_000
    assert wrong / tried <= bound(rate, tried)
    assert wrong / tried >= rate - (bound(rate, tried) - rate)  # and is no larger than it must be


@pytest.mark.parametrize(("rate", "probes"), [(0.5, 1), (0.1, 2), (0.01, 4), (0.001, 6)])
def test_the_size_is_what_the_formula_asks_for(rate: float, probes: int) -> None:
    size, k = bloom_size(1000, rate)
    assert k == probes
    assert size % 8 == 0
    assert (1 - math.exp(-k * 1000 / size)) ** k <= rate
    assert (1 - math.exp(-k * 1000 / (size - 8))) ** k > rate
    assert size <= 1.13 * -1000 * math.log(rate) / math.log(2) ** 2 + 8 or k == 1


@pytest.mark.parametrize(
    ("capacity", "rate"), [(0, 0.01), (-1, 0.01), (10, 0.0), (10, 1.0), (10, -0.1), (10, math.nan)]
)
def test_sizes_that_cannot_be(capacity: int, rate: float) -> None:
    for make in (BloomFilter, GrowingBloomFilter, lambda capacity, rate: TimedBloomFilters(HOUR_MS, rate, capacity)):
        with pytest.raises(ValueError, match=r"rate|at least 1 id"):
            make(capacity, rate)


# Growth.


@given(st.lists(producer_ids, max_size=200), st.integers(1, 10), rates)
def test_growth_forgets_nothing(ids: list[int], initial_capacity: int, rate: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bloom_filters, "SECOND_CAPACITY", 1)
        bloom = GrowingBloomFilter(initial_capacity, rate)
        for place, each in enumerate(ids):
            was_in = each in bloom
            assert bloom.add(each) is not was_in
            assert all(before in bloom for before in ids[: place + 1])
        assert not any(bloom.add(each) for each in ids)
    assert bloom.overflowed == 0
    assert all(each.count <= each.capacity for each in bloom.slices)
    assert all(each.count == each.capacity for each in bloom.slices[:-1])
    assert bloom.count == sum(each.count for each in bloom.slices)


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("growth", [pytest.param(2, marks=pytest.mark.exhaustive), bloom_filters.GROWTH])
def test_growth_keeps_the_rate(rate: float, growth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom_filters, "GROWTH", growth)
    monkeypatch.setattr(bloom_filters, "SECOND_CAPACITY", 1)
    ids = ids_of(7, 80_000)
    bloom = GrowingBloomFilter(64, rate)
    added = 0
    for size in (64, 500, 5_000, 30_000):
        for each in ids[added:size]:
            bloom.add(each)
        added = size
        unknown = ids[50_000:]
        assert sum(each in bloom for each in unknown) / len(unknown) <= bound(rate, len(unknown))
    assert len(bloom.slices) >= 5
    assert sum(each.false_positive_rate for each in bloom.slices) <= rate
    assert [each.false_positive_rate for each in bloom.slices] == sorted(
        (each.false_positive_rate for each in bloom.slices), reverse=True
    )


def test_slices_get_larger_by_the_factor() -> None:
    bloom = GrowingBloomFilter(64, 0.01)
    for each in ids_of(1, 25_000):
        bloom.add(each)
    first, second, third, fourth = (each.capacity for each in bloom.slices)
    assert (first, second) == (64, bloom_filters.SECOND_CAPACITY)
    assert (third, fourth) == (second * bloom_filters.GROWTH, third * bloom_filters.GROWTH)


def test_a_full_filter_goes_on_answering_and_adds_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom_filters, "MAX_BYTES", 12_000)
    ids = ids_of(2, 40_000)
    bloom = GrowingBloomFilter(64, 0.01)
    known = [each for each in ids[:10_000] if bloom.add(each) and not bloom.overflowed]
    assert len(known) == bloom.count
    assert 11_800 < bloom.memory_bytes <= 12_000
    assert not any(bloom.add(each) for each in known)
    before, overflowed = bloom.count, bloom.overflowed
    unknown = ids[20_000:]
    assert sum(not bloom.add(each) for each in unknown) / len(unknown) <= bound(0.01, len(unknown))
    new = [each for each in unknown if each not in bloom]
    assert len(new) > 19_000
    assert all(bloom.add(each) for each in new)  # every time
    assert bloom.count == before
    assert bloom.overflowed == overflowed + 2 * len(new)


def test_a_first_slice_is_no_larger_than_all_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bloom_filters, "MAX_BYTES", 5_000)
    bloom = GrowingBloomFilter(10**9, 0.01)
    assert 4_900 < bloom.memory_bytes <= 5_000


# Time.


def test_the_timeline_of_the_kip() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.001)
    assert user.empty
    start = 5_000
    assert not user.seen_or_add(1, start)  # step 1: the first filter
    assert not user.empty
    assert not user.seen_or_add(2, start + HALF_MS - 1)  # still into the first
    assert len(user.filters) == 1
    assert not user.seen_or_add(3, start + HALF_MS)  # step 2: the second, to which new ids go
    assert [each.count for each in user.filters] == [2, 1]
    assert [user.seen_or_add(each, start + HOUR_MS - 1) for each in (1, 2, 3)] == [True] * 3  # both are read
    assert [each.count for each in user.filters] == [2, 1]  # and what was seen is not added again
    # Step 3: the first is gone at a window's age, and with it ids 1 and 2. Step 4: a third is started for them.
    assert user.seen_or_add(3, start + HOUR_MS)
    assert len(user.filters) == 1
    assert not user.seen_or_add(2, start + HOUR_MS)
    assert not user.seen_or_add(1, start + HOUR_MS)
    assert [each.count for each in user.filters] == [1, 2]
    assert user.seen_or_add(3, start + HOUR_MS + HALF_MS - 1)
    assert not user.seen_or_add(3, start + HOUR_MS + HALF_MS)
    assert user.seen_or_add(1, start + 2 * HOUR_MS - 1)
    assert not user.seen_or_add(1, start + 2 * HOUR_MS)


def test_an_id_that_is_always_there_is_new_once_a_window() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.001)
    new_ms = [now_ms for now_ms in range(0, 4 * HOUR_MS, HOUR_MS // 60) if not user.seen_or_add(9, now_ms)]
    assert new_ms == [0, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS]


def test_idle_filters_expire_one_by_one() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.001)
    user.seen_or_add(1, 0)
    user.seen_or_add(2, HALF_MS + 10)
    user.expire(HOUR_MS - 1)
    assert len(user.filters) == 2
    user.expire(HOUR_MS)
    assert len(user.filters) == 1
    user.expire(HOUR_MS + HALF_MS + 9)
    assert not user.empty
    user.expire(HOUR_MS + HALF_MS + 10)
    assert user.empty
    assert user.filters == ()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 7 * HOUR_MS + 13, 10**15])
def test_a_jump_over_windows_forgets_all(jump_ms: int) -> None:
    user = TimedBloomFilters(HOUR_MS, 0.001)
    for each in range(5):
        user.seen_or_add(each, 0)
    assert [user.seen_or_add(each, jump_ms) for each in range(5)] == [False] * 5
    assert [user.seen_or_add(each, jump_ms + 1) for each in range(5)] == [True] * 5
    assert len(user.filters) == 1


@given(
    window_ms=st.integers(2, 9),
    steps=st.lists(st.tuples(st.integers(0, 5) | st.integers(0, 40), st.integers(0, 6)), max_size=80),
    saved_at=st.integers(0, 80),
)
def test_every_step_is_as_with_exact_sets(window_ms: int, steps: list[tuple[int, int]], saved_at: int) -> None:
    """The same timeline with exact sets, and with a restart."""
    user = TimedBloomFilters(window_ms, 1e-9)
    exact: list[tuple[int, set[int]]] = []
    now_ms = 0
    for number, (wait_ms, producer_id) in enumerate(steps):
        now_ms += wait_ms
        if number == saved_at:
            restarted = TimedBloomFilters(window_ms, 1e-9)
            restarted.restore(user.state(now_ms), 3)
            user, exact = restarted, [(started - now_ms + 3, ids) for started, ids in exact]
            now_ms = 3
        exact = [(started, ids) for started, ids in exact if now_ms - started < window_ms]
        seen = any(producer_id in ids for _, ids in exact)
        if not seen:
            if not exact or 2 * (now_ms - exact[-1][0]) >= window_ms:
                exact.append((now_ms, set()))
            exact[-1][1].add(producer_id)
        assert user.seen_or_add(producer_id, now_ms) is seen
        assert len(user.filters) == len(exact) <= 2


@pytest.mark.parametrize("rate", [0.1, 0.01])
def test_the_rate_holds_for_both_filters_together(rate: float) -> None:
    ids = ids_of(3, 60_000)
    user = TimedBloomFilters(HOUR_MS, rate)
    for each in ids[:10_000]:
        user.seen_or_add(each, 0)
    for each in ids[10_000:20_000]:
        user.seen_or_add(each, HALF_MS)
    unknown = ids[20_000:]
    assert all(each.count > 8_000 for each in user.filters)
    wrong = sum(any(each in part for part in user.filters) for each in unknown)
    assert wrong / len(unknown) <= bound(rate, len(unknown))


def test_the_next_filter_is_made_for_as_many_as_were_in_the_last() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.01)
    for each in ids_of(4, 5_000):
        user.seen_or_add(each, 0)
    assert len(user.filters[0].slices) == 3
    user.seen_or_add(-5, HALF_MS)
    (only,) = user.filters[1].slices
    assert only.capacity == user.filters[0].count * 5 // 4
    user.seen_or_add(-6, 2 * HOUR_MS)
    (only,) = user.filters[0].slices
    assert only.capacity == INITIAL_CAPACITY


def test_a_seed_makes_other_filters_of_the_same_ids() -> None:
    bits = []
    for seed in (0, 1, 2**32 - 1):
        user = TimedBloomFilters(HOUR_MS, 0.01, seed=seed)
        assert not user.seen_or_add(4711, 0)
        assert user.seen_or_add(4711, 1)
        bits.append(bytes(user.filters[0].slices[0].bits))
    assert len(set(bits)) == 3


# Restarts.


@given(
    early=st.lists(producer_ids, max_size=60),
    late=st.lists(producer_ids, max_size=60),
    down_ms=st.integers(0, 2 * HOUR_MS),
    clock_ms=st.integers(-HOUR_MS, HOUR_MS),
)
def test_a_restored_state_answers_the_same(early: list[int], late: list[int], down_ms: int, clock_ms: int) -> None:
    before = TimedBloomFilters(HOUR_MS, 0.01, 8, seed=77)
    for each in early:
        before.seen_or_add(each, 1_000)
    for each in late:
        before.seen_or_add(each, 1_000 + HALF_MS)
    state = before.state(1_000 + HALF_MS)
    after = TimedBloomFilters(HOUR_MS, 0.01, 8)
    after.restore(state, clock_ms, down_ms=down_ms)
    before.expire(1_000 + HALF_MS + down_ms)
    assert after.empty is before.empty
    assert after.state(clock_ms) == before.state(1_000 + HALF_MS + down_ms)
    for each in [*early, *late, 5, 6]:
        assert after.seen_or_add(each, clock_ms) is before.seen_or_add(each, 1_000 + HALF_MS + down_ms)


def test_a_state_is_plain_values() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.01, 2, seed=5)
    for each in range(5):
        user.seen_or_add(each, 100)
    state = user.state(350)
    as_json = json.loads(json.dumps(state, default=bytes.hex))
    assert as_json["seed"] == 5
    (only,) = as_json["filters"]
    assert (only["age_ms"], only["overflowed"]) == (250, 0)
    assert [each["count"] for each in only["slices"]] == [2, 3]
    assert [set(each) for each in only["slices"]] == [{"capacity", "rate", "count", "bits"}] * 2


def test_a_longer_window_after_a_restart_still_reads_both_filters() -> None:
    before = TimedBloomFilters(HOUR_MS, 0.001)
    before.seen_or_add(1, 0)
    before.seen_or_add(2, HALF_MS)
    after = TimedBloomFilters(4 * HOUR_MS, 0.001)
    after.restore(before.state(HALF_MS), HALF_MS)
    assert after.seen_or_add(1, 3 * HOUR_MS)
    assert after.seen_or_add(2, 3 * HOUR_MS)
    assert not after.seen_or_add(3, 3 * HOUR_MS)
    assert len(after.filters) == 2


def test_a_state_that_cannot_be_changes_nothing() -> None:
    user = TimedBloomFilters(HOUR_MS, 0.01)
    user.seen_or_add(1, 0)
    good = user.state(0)
    (one,) = good["filters"]
    (part,) = one["slices"]
    broken: list[tuple[TimedState, str]] = [
        ({"seed": 0, "filters": [one] * 3}, "3 filters"),
        ({"seed": 0, "filters": [{**one, "slices": []}]}, "has no slices"),
        ({"seed": 0, "filters": [one, {**one, "slices": [{**part, "bits": b"abc"}]}]}, "3 bytes of bits"),
        ({"seed": 0, "filters": [{**one, "slices": [{**part, "rate": 2.0}]}]}, "false positive rate"),
    ]
    for state, message in broken:
        with pytest.raises(ValueError, match=message):
            user.restore(state, 0)
    assert user.state(0) == good


def test_a_window_that_cannot_be_halved() -> None:
    with pytest.raises(ValueError, match="cannot be halved"):
        TimedBloomFilters(1, 0.01)


def test_the_filters_of_all_users_have_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with forged ids takes all of it, and users with few producers still have each id charged once."""
    before = bloom_filters.memory.large_bytes
    monkeypatch.setattr(bloom_filters, "MAX_TOTAL_BYTES", before + 200_000)
    monkeypatch.setattr(bloom_filters, "SMALL_BYTES", 16_384)
    forged = TimedBloomFilters(HOUR_MS, 0.001)
    for producer_id in range(200_000):
        forged.seen_or_add(producer_id, 0)
    assert bloom_filters.memory.large_bytes <= before + 200_000
    assert forged.filters[0].overflowed > 0
    honest = TimedBloomFilters(HOUR_MS, 0.001)
    for producer_id in range(3000):
        honest.seen_or_add(producer_id, 0)
    assert honest.filters[0].overflowed == 0
    assert all(honest.seen_or_add(producer_id, 1) for producer_id in range(3000))
    del forged
    assert bloom_filters.memory.large_bytes == before
