"""Kafka's rate and throttle times: values of Kafka's own tests, and of its classes with a fake clock.

Kafka's tests of other parts of quotas are in the modules of this folder with the corresponding names, except:
``ThrottledChannelExpirationTest``, ``NetworkClientTest`` (F: channels and clients, not arithmetic; tests/proxy),
``ConnectionQuotasTest`` (G: connection rates, which a listener of the broker counts), ``ClientQuotasRequestTest`` and
``ClientQuotaControlManagerTest`` (H: the quota APIs).
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.sampled_rate import SampledRate, Window
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

USUAL = Window(samples=11, seconds=1)


def charge(rate: SampledRate, bound: float, amount: float, now_ms: int, longest_ms: int = MAX_THROTTLE_MS) -> int:
    rate.record(amount, now_ms)
    return rate.throttle_ms(bound, now_ms, longest_ms=longest_ms)


def test_quota_violation_of_client_quota_manager() -> None:
    """``ClientQuotaManagerTest.testQuotaViolation``: 400 a second is allowed; 2300 more are not for 2100 ms."""
    rate, now_ms = SampledRate(USUAL), 0
    for _ in range(10):
        assert charge(rate, 500, 400, now_ms) == 0
        now_ms += 1000
    now_ms += 500
    assert charge(rate, 500, 2300, now_ms) == 2100
    now_ms += 2100
    after = []
    for _ in range(10):
        after.append(charge(rate, 500, 400, now_ms))
        now_ms += 1000
    assert after == [1200] * 8 + [1700, 0]


def test_request_quota_violation() -> None:
    """``ClientRequestQuotaManagerTest``: percent of a thread, capped at one window."""
    per_ms = 100 / 1000  # 1 ms of a second, in percent
    rate, now_ms = SampledRate(USUAL), 0
    for _ in range(10):
        assert charge(rate, 1, 4 * per_ms, now_ms, 1000) == 0
        now_ms += 1000
    now_ms += 500
    assert charge(rate, 1, 67.1 * per_ms, now_ms, 1000) == 210
    now_ms += 210
    after = []
    for _ in range(12):
        after.append(charge(rate, 1, 4 * per_ms, now_ms, 1000))
        now_ms += 1000
    assert after == [400] * 10 + [900, 0]
    assert charge(rate, 1, 500 * per_ms, now_ms, 1000) == 1000


@pytest.mark.parametrize(
    ("amount", "throttle_ms"), [(10_000, 0), (10_001, 1), (10_100, 100), (11_000, 1000), (100_000, 90_000)]
)
def test_the_first_record_counts_as_if_the_window_were_full(amount: int, throttle_ms: int) -> None:
    assert charge(SampledRate(USUAL), 1000, amount, 0) == throttle_ms


def test_sawtooth() -> None:
    rate = SampledRate(USUAL)
    assert charge(rate, 1000, 1, 0) == 0
    assert charge(rate, 1000, 11_000, 999) == 2
    assert charge(rate, 1000, 0, 1000) == 1001


def test_waiting_out_the_throttle_is_no_cure() -> None:
    rate = SampledRate(USUAL)
    assert charge(rate, 1000, 20_000, 0) == 10_000
    assert rate.throttle_ms(1000, 999) == 9001
    assert charge(rate, 1000, 0, 1000) == 10_000
    assert rate.throttle_ms(1000, 10_999) == 9001
    assert rate.throttle_ms(1000, 11_000) == 0, "gone with its sample"


def test_a_late_record_keeps_old_bytes_counted() -> None:
    rate = SampledRate(USUAL)
    rate.record(10_000, 0)
    rate.record(10_000, 999)
    assert rate.throttle_ms(1000, 11_998) > 0
    assert rate.throttle_ms(1000, 11_999) == 0


def test_a_window_of_one_sample_divides_the_first_record_by_a_millisecond() -> None:
    assert charge(SampledRate(Window(samples=1, seconds=1)), 1000, 10, 0) == 9


def test_a_huge_amount_clamps_as_kafka_4_4_does() -> None:
    assert charge(SampledRate(USUAL), 1, 10**12, 0) == MAX_THROTTLE_MS
    assert charge(SampledRate(USUAL), 1, 10**18, 0) == MAX_THROTTLE_MS


def test_less_than_half_a_millisecond_over_is_no_throttle() -> None:
    assert charge(SampledRate(USUAL), 1_000_000, 10_000_000 + 499, 0) == 0
    assert charge(SampledRate(USUAL), 1_000_000, 10_000_000 + 500, 0) == 1


@pytest.mark.parametrize("samples", [1, 11])
@pytest.mark.parametrize("seconds", [1, 11])
def test_rate_of_one_sample(samples: int, seconds: int) -> None:
    """``RateTest``: 50 in one sample that has 1 ms to go."""
    rate = SampledRate(Window(samples=samples, seconds=seconds))
    rate.record(50, 0)
    now_ms = seconds * 1000 - 1
    assert rate.rate(now_ms) == pytest.approx(50 / ((seconds - 0.001) + (samples - 1) * seconds))


def test_rate_windowing() -> None:
    """``MetricsTest.testRateWindowing``: 3 samples of 30 s, 100 in each of two."""
    rate = SampledRate(Window(samples=3, seconds=30))
    rate.record(100, 0)
    rate.record(100, 30_000)
    assert rate.rate(45_000 + 30_000) == pytest.approx(200 / 75)


@pytest.mark.parametrize(
    ("observed", "samples", "longest_ms", "throttle_ms"),
    [
        (100, 3, MAX_THROTTLE_MS, 2000),
        (55, 2, 500, 100),
        (100, 10, 500, 500),
        (50, 3, MAX_THROTTLE_MS, 0),
        (40, 3, MAX_THROTTLE_MS, 0),  # Kafka's function returns -400; it is never called below the bound
    ],
)
def test_quota_utils(observed: int, samples: int, longest_ms: int, throttle_ms: int) -> None:
    """``QuotaUtilsTest``: the observed rate over samples less one, against 50 a second."""
    rate = SampledRate(Window(samples=samples, seconds=1))
    assert charge(rate, 50, observed * (samples - 1), 0, longest_ms) == throttle_ms


def test_strict_quota_enforcement_with_rate() -> None:
    """``SensorTest.testStrictQuotaEnforcementWithRate``: 11 x 1 s at 2 a second; idling does not help in the window."""
    rate = SampledRate(USUAL)
    rate.record(30, 0)
    assert rate.rate(0) == 3
    assert rate.rate(5000) == 3
    assert rate.throttle_ms(2, 5000) > 0


def test_a_sample_is_purged_when_its_last_event_is_a_window_old() -> None:
    """``SampledStatTest``: 2 x 1 s."""
    rate = SampledRate(Window(samples=2, seconds=1))
    rate.record(1, 0)
    assert rate.rate(1500) > 0
    assert rate.rate(2500) == 0


def test_one_sample_more_than_the_window_has_is_kept() -> None:
    """``SampledStatTest``: 2 x 1 s, of which three are alive."""
    rate = SampledRate(Window(samples=2, seconds=1))
    for start_ms, last_ms in ((0, 700), (1000, 1700), (2000, 2000)):
        rate.record(1, start_ms)
        rate.record(1, last_ms)
    assert rate.window_ms(2600) == 2600
    assert rate.rate(2600) == pytest.approx(6 / 2.6)
    assert rate.rate(2700) == pytest.approx(4 / 1.7), "0 to 700 is gone at 2700"


def test_unrecording_takes_back_but_keeps_the_time() -> None:
    rate = SampledRate(USUAL)
    rate.record(500, 0)
    rate.record(-500, 900)
    assert rate.rate(900) == 0
    assert rate.window_ms(11_899) == 11_899
    assert rate.window_ms(11_900) == 10_000


steps = st.lists(st.tuples(st.integers(0, 20_000), st.floats(0, 1e18)), min_size=1, max_size=60)


@settings(deadline=None)
@given(steps=steps, bound=st.floats(1e-3, 1e18), samples=st.integers(1, 20), seconds=st.integers(1, 60))
def test_no_trace_makes_a_rate_negative_or_a_throttle_absurd(
    steps: list[tuple[int, float]], bound: float, samples: int, seconds: int
) -> None:
    rate, now_ms = SampledRate(Window(samples=samples, seconds=seconds)), 0
    for gap_ms, amount in steps:
        now_ms += gap_ms
        rate.record(amount, now_ms)
        measured = rate.rate(now_ms)
        throttle_ms = rate.throttle_ms(bound, now_ms)
        assert measured >= 0
        assert math.isfinite(measured)
        assert 0 <= throttle_ms <= MAX_THROTTLE_MS
        assert isinstance(throttle_ms, int)


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 2**30)), max_size=60),
    bound=st.integers(1, 2**30),
    samples=st.integers(1, 12),
    seconds=st.integers(1, 3),
)
def test_a_rate_far_below_its_bound_needs_no_window(
    steps: list[tuple[int, int]], bound: int, samples: int, seconds: int
) -> None:
    """`throttle_ms` decides as if it computed the window and dropped old samples for each event."""
    window, now_ms = Window(samples=samples, seconds=seconds), 0
    rate, computed = SampledRate(window), SampledRate(window)
    for wait_ms, amount in steps:
        now_ms += wait_ms
        computed.record(amount, now_ms)
        observed, window_ms = computed.rate(now_ms), computed.window_ms(now_ms)
        throttle_ms = 0 if observed <= bound else math.floor((observed - bound) / bound * window_ms + 0.5)
        assert charge(rate, bound, amount, now_ms) == min(throttle_ms, MAX_THROTTLE_MS)


@settings(deadline=None)
@given(steps=steps)
def test_an_idle_window_forgets_everything(steps: list[tuple[int, float]]) -> None:
    rate, now_ms = SampledRate(USUAL), 0
    for gap_ms, amount in steps:
        now_ms += gap_ms
        rate.record(amount, now_ms)
    assert rate.rate(now_ms + 11_000) == 0


@pytest.mark.parametrize(("samples", "seconds"), [(0, 1), (1, 0)])
def test_a_window_needs_samples_and_seconds(samples: int, seconds: int) -> None:
    with pytest.raises(ValueError, match="a window needs at least 1 sample of at least 1 s"):
        Window(samples=samples, seconds=seconds)
