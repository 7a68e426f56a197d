"""Kafka's token bucket: the values of ``TokenBucketTest`` and ``SensorTest``, and unexpected behaviour."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.token_bucket import TokenBucket
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS


def bucket(samples: int, seconds: int) -> TokenBucket:
    return TokenBucket.over(Window(samples=samples, seconds=seconds))


def test_record() -> None:
    """``TokenBucketTest.testRecord``: 10 x 2 s at 5 a second."""
    tokens = bucket(10, 2)
    assert tokens.tokens(5, 0) == 100
    assert tokens.take(60, 5, 0) == 40
    assert tokens.take(5, 5, 2000) == 45
    assert tokens.take(60, 5, 4000) == -5


def test_unrecord() -> None:
    """``TokenBucketTest.testUnrecord``: giving back does not exceed the burst."""
    tokens = bucket(10, 2)
    assert tokens.tokens(5, 0) == 100
    assert tokens.take(-60, 5, 0) == 100
    assert tokens.take(60, 5, 2000) == 40
    assert tokens.take(-60, 5, 4000) == 100


def test_a_sensor_that_enforces_strictly() -> None:
    """``SensorTest.testStrictQuotaEnforcementWithTokenBucket``: 10 x 1 s at 2 a second, checked before each record."""
    tokens = bucket(10, 1)
    assert tokens.tokens(2, 0) >= 0
    assert tokens.take(30, 2, 0) == -10
    assert tokens.tokens(2, 0) < 0, "no further record is let through"
    assert tokens.tokens(2, 5000) == 0
    assert tokens.take(30, 2, 5000) == -30
    assert tokens.tokens(2, 5000) < 0


def test_the_example_of_kip_599() -> None:
    """Q = 5, S = 100, W = 1: a burst of 560 is paid off in 12 s."""
    tokens = bucket(100, 1)
    for _ in range(7):
        tokens.take(80, 5, 0)
    assert tokens.tokens(5, 0) == -60
    assert tokens.throttle_ms(5, 0) == 12_000
    assert tokens.throttle_ms(5, 11_999) == 1
    assert tokens.throttle_ms(5, 12_000) == 0


@pytest.mark.parametrize(("owed", "throttle_ms"), [(0, 0), (5, 500), (10, 1000)])
def test_throttle_time(owed: int, throttle_ms: int) -> None:
    """``ControllerMutationQuotaManagerTest.testThrottleTime``: at 10 a second."""
    tokens = bucket(1, 1)
    tokens.take(10 + owed, 10, 0)
    assert tokens.throttle_ms(10, 0) == throttle_ms


def test_a_token_short_by_less_than_half_a_millisecond_is_a_throttle_of_0_ms() -> None:
    """The throttle time can be 0 although the bucket is overdrawn, since it is rounded."""
    tokens = bucket(10, 1)
    tokens.take(31, 3, 0)
    assert tokens.throttle_ms(3, 0) == 333
    assert tokens.throttle_ms(3, 333) == 0
    assert tokens.tokens(3, 333) < 0
    assert tokens.tokens(3, 334) > 0


def test_a_changed_rate_applies_to_all_time_since_the_last_touch() -> None:
    """Refill is lazy: a new rate applies to all time since the last use."""
    tokens = bucket(10, 1)
    assert tokens.take(110, 10, 0) == -10
    assert tokens.tokens(1000, 1000) == 990
    assert tokens.tokens(10, 1000) == 100, "what is over the new burst is lost"


def test_a_raised_rate_does_not_fill_a_full_bucket_to_its_new_burst() -> None:
    """A new burst is filled at the new rate."""
    tokens = bucket(10, 1)
    assert tokens.tokens(10, 0) == 100
    assert tokens.tokens(20, 0) == 100
    assert tokens.tokens(20, 1000) == 120


def test_a_huge_debt_clamps() -> None:
    tokens = bucket(11, 1)
    tokens.take(1e18, 1, 0)
    assert tokens.throttle_ms(1, 0) == MAX_THROTTLE_MS


def test_a_bucket_that_was_never_touched_has_no_state() -> None:
    fresh = bucket(10, 1)
    assert fresh.state(5) is None
    fresh.restore(None, 5)
    assert fresh.tokens(10, 5) == 100


def test_a_restored_bucket_has_refilled_in_between() -> None:
    before, after = bucket(10, 1), bucket(10, 1)
    before.take(150, 10, 1_000_000)
    after.restore(before.state(1_001_000), 7000)
    assert after.tokens(10, 7000) == before.tokens(10, 1_001_000) == -40


steps = st.lists(st.tuples(st.integers(0, 10**9), st.floats(-1e18, 1e18), st.floats(1e-3, 1e18)), max_size=60)


@settings(deadline=None)
@given(steps=steps, samples=st.integers(1, 100), seconds=st.integers(1, 3600))
def test_no_trace_overfills_it_or_makes_a_throttle_absurd(
    steps: list[tuple[int, float, float]], samples: int, seconds: int
) -> None:
    tokens, now_ms = bucket(samples, seconds), 0
    for gap_ms, amount, rate in steps:
        now_ms += gap_ms
        left = tokens.take(amount, rate, now_ms)
        assert math.isfinite(left)
        assert left <= samples * seconds * rate
        throttle_ms = tokens.throttle_ms(rate, now_ms)
        assert isinstance(throttle_ms, int)
        assert 0 <= throttle_ms <= MAX_THROTTLE_MS
        assert left < 0 or throttle_ms == 0
