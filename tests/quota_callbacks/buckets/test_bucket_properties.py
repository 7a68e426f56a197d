"""Properties of all buckets, for arbitrary charges, times and quotas."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS
from tests.quota_callbacks.kafka_quotas import KafkaQuotas
from tests.quota_callbacks.our_quotas import KEY_OF, Op, OurQuotas, Outcome, charge

if TYPE_CHECKING:
    from headrace.quota_callbacks.verdicts import Throttle

KAFKA, PACED = EnforcementMode.KAFKA, EnforcementMode.PACED
OPS: Final = [Op.PRODUCE, Op.FETCH, Op.REQUEST, Op.STRICT, Op.PERMISSIVE, Op.PRODUCER_ID]

windows = st.builds(
    lambda samples, seconds: Window(samples=samples, seconds=seconds), st.integers(1, 20), st.integers(1, 60)
)
gaps = st.one_of(st.integers(0, 2000), st.sampled_from([0, 1, 999, 1000, 1001]), st.integers(0, 10**8))


@dataclass(frozen=True, slots=True)
class Step:
    gap_ms: int
    amount: float
    limit: float | None
    """The quota to set first; 0 keeps the previous one, ``None`` removes it."""


def step_lists(amounts: st.SearchStrategy[float], limits: st.SearchStrategy[float]) -> st.SearchStrategy[list[Step]]:
    changes = st.one_of(st.just(0.0), st.just(0.0), limits, st.none())
    return st.lists(st.builds(Step, gaps, amounts, changes), min_size=1, max_size=40)


any_steps = step_lists(st.floats(0, 1e18), st.floats(1e-3, 1e18))
whole_steps = step_lists(st.integers(0, 10**9).map(float), st.sampled_from([1.0, 0.1, 1000.0, 1e7]))
"""Amounts whose sums are exact, in whatever order they are taken."""

policies = st.builds(
    lambda mode, observe, burst_s, longest_ms: QuotaPolicy(
        mode=mode, observe=observe, burst_s=burst_s, longest_throttle_ms=longest_ms
    ),
    st.sampled_from(EnforcementMode),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 3600)),
    st.sampled_from([MAX_THROTTLE_MS, 5000]),
)


def bucket(op: Op, window: Window, policy: QuotaPolicy) -> QuotaBucket:
    ours = OurQuotas(window)
    ours.set(KEY_OF[op], "u", None, 1000, policy)
    made = ours.quotas.bucket(KEY_OF[op], "u", "c")
    assert made is not None
    return made


def take(made: QuotaBucket, op: Op, step: Step, now_ms: int) -> tuple[int, bool]:
    """Charge a step, paced or not, and return the throttle time and whether it was accepted."""
    if step.limit != 0:
        made.limit = step.limit
    if made.paced and not isinstance(made, ProducerIdBucket):
        verdict = made.reserve(step.amount, now_ms)
        check(verdict, made)
        assert isinstance(made, RateBucket | MutationBucket)
        made.record(step.amount, now_ms)
        return (0 if verdict is None else verdict.throttle_ms), True
    outcome = charge(made, op, step.amount, now_ms)
    return outcome.throttle_ms, outcome.accepted


def check(verdict: Throttle | None, made: QuotaBucket) -> None:
    if verdict is None:
        return
    assert verdict.observe is made.policy.observe
    assert verdict.hold
    assert verdict.reason is not None
    assert math.isfinite(verdict.reason.observed)


def sound(made: QuotaBucket, throttle_ms: int, now_ms: int) -> None:
    assert isinstance(throttle_ms, int)
    assert 0 <= throttle_ms <= min(MAX_THROTTLE_MS, made.policy.longest_throttle_ms)
    for name, value in made.measures(now_ms):
        if name == "tokens":
            assert not math.isnan(value)
            limit = made.limit
            if limit is not None:
                window = made.window
                whole = limit if isinstance(made, ProducerIdBucket) else limit * window.samples * window.seconds
                whole = made.burst(limit) if made.paced else whole
                assert value <= whole * (1 + 1e-12), "over its burst"
        elif name != "throttle-time" or not math.isnan(value):
            assert math.isfinite(value)
            assert value >= 0, name


@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=any_steps, window=windows, policy=policies)
def test_nothing_is_negative_overfull_or_absurd(op: Op, steps: list[Step], window: Window, policy: QuotaPolicy) -> None:
    made, now_ms = bucket(op, window, policy), 0
    for step in steps:
        now_ms += step.gap_ms
        throttle_ms, _ = take(made, op, step, now_ms)
        sound(made, throttle_ms, now_ms)


@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=whole_steps, window=windows, policy=policies, at=st.integers(0, 40), clock_ms=st.integers(0, 10**12))
def test_a_restored_bucket_goes_on_as_if_nothing_had_been(
    op: Op, steps: list[Step], window: Window, policy: QuotaPolicy, at: int, clock_ms: int
) -> None:
    """``clock_ms`` is the time after the restart, by another clock."""
    first, now_ms = bucket(op, window, policy), 0
    for step in steps[:at]:
        now_ms += step.gap_ms
        take(first, op, step, now_ms)
    second = bucket(op, window, policy)
    second.limit = first.limit
    shift_ms = clock_ms - now_ms
    second.restore(copy.deepcopy(first.state(now_ms)), now_ms + shift_ms)
    for step in steps[at:]:
        now_ms += step.gap_ms
        assert take(second, op, step, now_ms + shift_ms) == take(first, op, step, now_ms)


@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=any_steps, policy=policies)
def test_shadow_mode_and_the_longest_throttle_change_no_arithmetic(
    op: Op, steps: list[Step], policy: QuotaPolicy
) -> None:
    """With Kafka's arithmetic, the verdicts of shadow mode equal those of enforcement."""
    kafkas_way = replace(policy, mode=KAFKA)
    plain, other, now_ms = bucket(op, Window(), QuotaPolicy()), bucket(op, Window(), kafkas_way), 0
    for step in steps:
        now_ms += step.gap_ms
        throttle_ms, accepted = take(plain, op, step, now_ms)
        assert take(other, op, step, now_ms) == (min(throttle_ms, policy.longest_throttle_ms), accepted)


parts = st.lists(st.tuples(gaps, st.floats(0, 1)), max_size=10)


@settings(deadline=None)
@given(steps=whole_steps, window=windows, policy=policies, parts=parts)
def test_the_credit_can_be_charged_in_any_parts_at_any_later_times(
    steps: list[Step], window: Window, policy: QuotaPolicy, parts: list[tuple[int, float]]
) -> None:
    made, now_ms = bucket(Op.PRODUCE, window, policy), 0
    assert isinstance(made, RateBucket)
    for step in steps:
        now_ms += step.gap_ms
        take(made, Op.PRODUCE, step, now_ms)
    left = int(min(made.credit(now_ms), 10**12))
    for gap_ms, share in [*parts, (0, 1.0)]:
        now_ms += gap_ms
        part = int(left * share)
        left -= part
        if part:
            assert made.charge(part, now_ms) is None


@pytest.mark.parametrize("op", [Op.PRODUCE, Op.FETCH, Op.PERMISSIVE])
def test_1e18_at_a_limit_of_1_clamps(op: Op) -> None:
    ours = OurQuotas()
    ours.set(KEY_OF[op], "u", None, 1)
    assert ours.use(op, "u", "c", 1e18, 0) == Outcome(2147483647)


def test_where_kafka_4_3_1_overflows() -> None:
    """1e12 bytes at 1 a second overflow an int in 4.3.1, which then does not throttle. 4.4.0 clamps."""
    produced = QuotaKey.PRODUCER_BYTE_RATE
    with KafkaQuotas(Window()) as kafkas:
        kafkas.set(produced, "u", None, 1)
        assert kafkas.use(Op.PRODUCE, "u", "c", 1e12, 0) == Outcome(-1530504976)
    ours = OurQuotas()
    ours.set(produced, "u", None, 1)
    assert ours.use(Op.PRODUCE, "u", "c", 1e12, 0) == Outcome(MAX_THROTTLE_MS)


def test_paced_1e18_at_a_limit_of_1_clamps() -> None:
    made = bucket(Op.PRODUCE, Window(), QuotaPolicy(mode=PACED))
    made.limit = 1.0
    assert made.reserve(1e18, 0) is None, "the first place comes at once"
    verdict = made.reserve(1, 0)
    assert verdict is not None
    assert verdict.throttle_ms == MAX_THROTTLE_MS
