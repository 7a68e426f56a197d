"""Quotas with several workers: charges one after the other have the outcomes of a single process; simultaneous ones can
each exceed the limit by one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from tests.quota_callbacks.buckets.shared.shared_workers import Workers
from tests.quota_callbacks.our_quotas import KEY_OF, Op, OurQuotas, charge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hypothesis.strategies import SearchStrategy

KAFKA: Final = QuotaPolicy()
PACED: Final = QuotaPolicy(mode=EnforcementMode.PACED)
WORKERS: Final = 3
OPS: Final = [Op.PRODUCE, Op.REQUEST, Op.STRICT, Op.PERMISSIVE, Op.PRODUCER_ID]
"""Without Fetch, which is charged like Produce; a replay, which un-records fetches, has no workers."""
Outcome = tuple[int, bool]
"""Throttle time in milliseconds, and whether the request was admitted."""
EIGHTH_MS: Final = 125
"""An eighth of a second. Its multiples are exact as floats, so that the number of refills makes no difference."""


@dataclass(frozen=True, slots=True)
class Step:
    gap_ms: int
    worker: int
    amount: int
    limit: int | None
    """The limit to set first; 0 keeps the previous one, ``None`` removes it."""
    back: int
    """The part of the amount that the worker gives back."""
    dies: bool = False
    """Whether the worker dies first and is replaced."""


def steps(gaps: SearchStrategy[int]) -> SearchStrategy[list[Step]]:
    """Return steps in which either limits change or workers die.

    Not both: a new limit applies from the last use of a bucket, and the time of a dead worker's last use is unknown.
    """
    amounts = st.one_of(st.integers(1, 20), st.integers(1, 5000))
    limits = st.one_of(st.just(0), st.just(0), st.just(0), st.sampled_from([1, 8, 100, 1000]), st.none())
    back, worker = st.sampled_from([0, 0, 0, 1, 5]), st.integers(0, WORKERS - 1)
    changing = st.builds(Step, gaps, worker, amounts, limits, back)
    dying = st.builds(Step, gaps, worker, amounts, st.just(0), back, st.sampled_from([False] * 5 + [True]))
    return st.one_of(st.lists(each, min_size=1, max_size=60) for each in (changing, dying))


eighths = st.one_of(st.just(0), st.integers(0, 100)).map(lambda count: count * EIGHTH_MS)
any_gaps = st.one_of(st.integers(0, 40), st.integers(0, 3000), st.sampled_from([0, 999, 1000, 1001, 20_000]))
windows = st.builds(
    lambda samples, seconds: Window(samples=samples, seconds=seconds), st.integers(1, 14), st.integers(1, 3)
)


NEW_LIMIT_GIVEN_BACK: Final = [Step(0, 0, 1, 0, 0)] * 9 + [Step(0, 1, 1, 1, 1), Step(1, 0, 1, 0, 0)]
"""The first charge under a new limit is given back completely, so that the totals of the others do not change."""


def bucket_of(quotas: OurQuotas, op: Op) -> QuotaBucket:
    bucket = quotas.quotas.bucket(KEY_OF[op], "u", "c")
    assert bucket is not None
    return bucket


def take(bucket: QuotaBucket, op: Op, step: Step, now_ms: int) -> Outcome:
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
            if bucket.paced and bucket.limit is not None:
                bucket.burst_left(bucket.limit, now_ms - offset_ms)


def in_turn(op: Op, steps: list[Step], window: Window, policy: QuotaPolicy) -> Iterator[tuple[Outcome, Outcome, float]]:
    """Yield the outcomes of each step for a single process and for one of several workers, and the former's state."""
    alone, workers = OurQuotas(window), Workers(WORKERS, window, offsets_ms=(0, 5_000_000, -400))
    for quotas in (alone, workers):
        quotas.set(KEY_OF[op], "u", None, 1000, policy)
    now_ms = 1_000_000
    for step in steps:
        now_ms += step.gap_ms
        if step.limit != 0:
            # A new limit applies from the last use, whose time workers do not share: so all use the bucket now.
            touch(op, alone, workers, now_ms)
            for every in (alone, workers):
                every.set(KEY_OF[op], "u", None, step.limit, policy)
            touch(op, alone, workers, now_ms)
        if step.dies:
            workers.replace(step.worker)
        its_ms = now_ms - workers.offsets_ms[step.worker]
        one = alone.quotas.bucket(KEY_OF[op], "u", "c")
        each = workers.quotas[step.worker].quotas.bucket(KEY_OF[op], "u", "c")
        if one is None or each is None:
            assert one is each
            continue
        left = one.observed(now_ms)
        yield take(one, op, step, now_ms), take(each, op, step, its_ms), left
        for (name, value), (_, its) in zip(one.measures(now_ms), each.measures(its_ms), strict=True):
            if name != "throttle-time":  # not shared
                assert its == pytest.approx(value, rel=1e-9, abs=1e-6, nan_ok=True), name


@pytest.mark.parametrize("policy", [KAFKA, PACED], ids=["kafka", "paced"])
@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=steps(eighths), window=windows)
def test_in_turn_workers_decide_as_one_process(op: Op, policy: QuotaPolicy, steps: list[Step], window: Window) -> None:
    for expected, found, _ in in_turn(op, steps, window, policy):
        assert found == expected


@pytest.mark.parametrize("policy", [KAFKA, PACED], ids=["kafka", "paced"])
@pytest.mark.parametrize("op", OPS)
@settings(deadline=None)
@given(steps=steps(any_gaps), window=windows)
@example(steps=NEW_LIMIT_GIVEN_BACK, window=Window(samples=1, seconds=1))
def test_at_any_time_but_for_the_last_digit(op: Op, policy: QuotaPolicy, steps: list[Step], window: Window) -> None:
    """The number of refills affects the rounding."""
    for (wait_ms, admitted), (its_wait_ms, its_admitted), left in in_turn(op, steps, window, policy):
        if admitted is not its_admitted:
            assert abs(left) < 1e-6
            return
        assert its_wait_ms == pytest.approx(wait_ms, abs=1)


def one_round(workers: Workers, decide: Callable[[OurQuotas], Outcome]) -> list[Outcome]:
    """Let each worker decide without seeing the charges of the others, and merge their cells afterwards."""
    before = bytes(workers.memory)
    outcomes, after = [], []
    for quotas in workers.quotas:
        outcomes.append(decide(quotas))
        after.append(bytes(workers.memory))
        workers.memory[:] = before
    merged = int.from_bytes(before, "little")
    for each in after:  # no two workers write the same byte
        merged ^= int.from_bytes(each, "little") ^ int.from_bytes(before, "little")
    workers.memory[:] = merged.to_bytes(len(before), "little")
    return outcomes


QUICK_EXAMPLES: Final = 25
FEW: Final = settings(
    max_examples=10 if settings.default.max_examples <= QUICK_EXAMPLES else settings.default.max_examples
)
"""In ``make test`` few examples, each of which has up to 20 rounds; in the long run as many as of any property."""
rounds = st.lists(st.tuples(st.integers(0, 40).map(lambda count: count * EIGHTH_MS), st.integers(1, 3000)), max_size=20)


@pytest.mark.parametrize("policy", [KAFKA, PACED], ids=["kafka", "paced"])
@pytest.mark.parametrize("op", [Op.PRODUCE, Op.STRICT, Op.PERMISSIVE])
@FEW
@given(rounds=rounds, limit=st.sampled_from([1, 8, 100, 1000]))
def test_at_once_each_misses_one_request_of_each_other(
    op: Op, policy: QuotaPolicy, rounds: list[tuple[int, int]], limit: int
) -> None:
    """Each worker decides as a single process that has seen all previous rounds, so it misses only the requests of the
    others in the same round, one each."""
    alone, workers = OurQuotas(), Workers(WORKERS)
    for quotas in (alone, workers):
        quotas.set(KEY_OF[op], "u", None, limit, policy)
    one, now_ms = bucket_of(alone, op), 0
    for quotas in workers.quotas:
        bucket_of(quotas, op)
    for gap_ms, amount in rounds:
        now_ms += gap_ms
        step = Step(gap_ms, 0, amount, 0, 0)
        expected = take(copy_of(one, op, limit, policy, now_ms), op, step, now_ms)
        found = one_round(
            workers, lambda quotas, step=step, now_ms=now_ms: take(bucket_of(quotas, op), op, step, now_ms)
        )
        assert found == [expected] * WORKERS
        if expected[1]:
            for _ in range(WORKERS):
                force(one, op, step, now_ms)
        measured = dict(one.measures(now_ms))
        for quotas in workers.quotas:
            for name, value in bucket_of(quotas, op).measures(now_ms):
                assert name == "throttle-time" or value == pytest.approx(measured[name], rel=1e-9, abs=1e-6), name


def copy_of(bucket: QuotaBucket, op: Op, limit: int, policy: QuotaPolicy, now_ms: int) -> QuotaBucket:
    quotas = OurQuotas()
    quotas.set(KEY_OF[op], "u", None, limit, policy)
    copy = bucket_of(quotas, op)
    copy.restore(bucket.state(now_ms), now_ms)
    return copy


def force(bucket: QuotaBucket, op: Op, step: Step, now_ms: int) -> None:
    if isinstance(bucket, MutationBucket) and not bucket.paced:
        bucket.charge(step.amount, now_ms)
    else:
        take(bucket, op, step, now_ms)


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        (2000.0, KAFKA),
        (None, KAFKA),
        (1000.0, QuotaPolicy(longest_throttle_ms=10)),
        (1000.0, QuotaPolicy(mode=EnforcementMode.PACED)),
    ],
    ids=["raised", "removed", "shorter throttles", "paced"],
)
def test_a_changed_quota_ends_the_wait_that_another_worker_has_imposed(
    value: float | None, policy: QuotaPolicy
) -> None:
    """The other worker has not used its bucket since the change, so that its wait is still published."""
    workers = Workers(2)
    workers.set(QuotaKey.PRODUCER_BYTE_RATE, "alice", None, 1000.0)
    workers.set(QuotaKey.PRODUCER_BYTE_RATE, "bob", None, 1000.0)
    assert workers.quotas[0].use(Op.PRODUCE, "alice", "", 100_000, 0).throttle_ms > 0

    def learned() -> QuotaBucket:
        bucket = workers.quotas[1].quotas.bucket(QuotaKey.PRODUCER_BYTE_RATE, "alice", "")
        assert bucket is not None
        bucket.learn_wait(1)
        return bucket

    assert learned().gate_ms > 1000
    workers.set(QuotaKey.PRODUCER_BYTE_RATE, "alice", None, value, policy)
    assert learned().gate_ms <= 1
