"""Quotas across workers: what several decide in turn is what one process decides, and at once one request more each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quota_callbacks.buckets import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from quota_callbacks.policies import EnforcementMode, QuotaPolicy
from quota_callbacks.sampled_rate import Window
from tests.quota_callbacks.our_quotas import KEY_OF, Op, OurQuotas, charge
from tests.quota_callbacks.shared_workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy

KAFKA: Final = QuotaPolicy()
PACED: Final = QuotaPolicy(mode=EnforcementMode.PACED)
WORKERS: Final = 3
OPS: Final = [Op.PRODUCE, Op.REQUEST, Op.STRICT, Op.PERMISSIVE, Op.PRODUCER_ID]
"""Fetches are charged as Produce is; where they are un-recorded, in a replay, there are no workers."""
EIGHTH_MS: Final = 125
"""Of which any number is a float without rounding, so that who refills a bucket how often makes no difference."""


@dataclass(frozen=True, slots=True)
class Step:
    gap_ms: int
    worker: int
    amount: int
    limit: int | None
    """Set before; 0 keeps the one before; ``None`` removes it."""
    back: int
    """Of the amount, given back by the same worker."""


def steps(gaps: SearchStrategy[int]) -> SearchStrategy[list[Step]]:
    amounts = st.one_of(st.integers(1, 20), st.integers(1, 5000))
    limits = st.one_of(st.just(0), st.just(0), st.just(0), st.sampled_from([1, 8, 100, 1000]), st.none())
    step = st.builds(Step, gaps, st.integers(0, WORKERS - 1), amounts, limits, st.sampled_from([0, 0, 0, 1, 5]))
    return st.lists(step, min_size=1, max_size=60)


eighths = st.one_of(st.just(0), st.integers(0, 100)).map(lambda count: count * EIGHTH_MS)
any_gaps = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([0, 999, 1000, 1001, 20_000]))
windows = st.builds(
    lambda samples, seconds: Window(samples=samples, seconds=seconds), st.integers(1, 14), st.integers(1, 3)
)


def bucket_of(quotas: OurQuotas, op: Op) -> QuotaBucket:
    bucket = quotas.quotas.bucket(KEY_OF[op], "u", "c")
    assert bucket is not None
    return bucket


def take(bucket: QuotaBucket, op: Op, step: Step, now_ms: int) -> tuple[int, bool]:
    """Throttle time, and whether it was admitted."""
    if bucket.paced and not isinstance(bucket, ProducerIdBucket):
        assert isinstance(bucket, RateBucket | MutationBucket)
        verdict = bucket.reserve(step.amount, now_ms)
        bucket.record(step.amount, now_ms)
        if step.back:
            bucket.correct(-min(step.back, step.amount), now_ms)
        return (0 if verdict is None else verdict.throttle_ms), True
    outcome = charge(bucket, op, step.amount, now_ms)
    if step.back and isinstance(bucket, MutationBucket) and outcome.accepted:
        bucket.give_back(min(step.back, step.amount), now_ms)
    return outcome.throttle_ms, outcome.accepted


def touch(op: Op, alone: OurQuotas, workers: Workers, now_ms: int) -> None:
    for quotas, offset_ms in zip((alone, *workers.quotas), (0, *workers.offsets_ms), strict=True):
        bucket = quotas.quotas.bucket(KEY_OF[op], "u", "c")
        if bucket is not None:
            bucket.observed(now_ms - offset_ms)


def in_turn(op: Op, steps: list[Step], window: Window, policy: QuotaPolicy) -> Iterator[tuple[QuotaBucket, ...]]:
    """Each step by one process, and by one worker of several; yields the bucket of the one process and of the worker,
    before and after (which is the same list)."""
    alone, workers = OurQuotas(window), Workers(WORKERS, window, offsets_ms=(0, 5_000_000, -400))
    for quotas in (alone, workers):
        quotas.set(KEY_OF[op], "u", None, 1000, policy)
    now_ms = 1_000_000
    for step in steps:
        now_ms += step.gap_ms
        if step.limit != 0:
            # A new limit is for the time since the last touch, of which workers do not tell each other: all touch.
            touch(op, alone, workers, now_ms)
            for every in (alone, workers):
                every.set(KEY_OF[op], "u", None, step.limit, policy)
            touch(op, alone, workers, now_ms)
        worker = workers.quotas[step.worker]
        its_ms = now_ms - workers.offsets_ms[step.worker]
        one, each = alone.quotas.bucket(KEY_OF[op], "u", "c"), worker.quotas.bucket(KEY_OF[op], "u", "c")
        if one is None or each is None:
            assert one is each
            continue
        yield one, each
        expected, found = take(one, op, step, now_ms), take(each, op, step, its_ms)
        assert found == expected
        for (name, value), (_, theirs) in zip(one.measures(now_ms), each.measures(its_ms), strict=True):
            if name != "throttle-time":  # each worker's own
                assert value == pytest.approx(theirs, rel=1e-9, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("policy", [KAFKA, PACED], ids=["kafka", "paced"])
@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=steps(eighths), window=windows)
def test_in_turn_workers_decide_as_one_process(op: Op, policy: QuotaPolicy, steps: list[Step], window: Window) -> None:
    for _ in in_turn(op, steps, window, policy):
        pass
