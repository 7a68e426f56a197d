"""Shared buckets: the directory of rows, dead workers, producer ids, restored states, and invalid memory."""

from __future__ import annotations

import mmap
from contextlib import AbstractContextManager, nullcontext
from struct import Struct
from typing import TYPE_CHECKING, Final, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, RateBucket
from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets, SharedRow
from headrace.quota_callbacks.buckets.shared.layout import NEW_IDS, seal, sealed
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS
from tests.quota_callbacks.buckets.shared.shared_workers import Workers, shared_memory

if TYPE_CHECKING:
    from types import TracebackType

    from tests.quota_callbacks.our_quotas import OurQuotas

PRODUCED, MUTATIONS, IDS = (
    QuotaKey.PRODUCER_BYTE_RATE,
    QuotaKey.CONTROLLER_MUTATION_RATE,
    QuotaKey.PRODUCER_IDS_RATE,
)
PACED: Final = QuotaPolicy(mode=EnforcementMode.PACED)


def produced(quotas: OurQuotas, client_id: str) -> RateBucket:
    bucket = quotas.quotas.bucket(PRODUCED, "u", client_id)
    assert isinstance(bucket, RateBucket)
    return bucket


def mutations(quotas: OurQuotas) -> MutationBucket:
    bucket = quotas.quotas.bucket(MUTATIONS, "u", "c")
    assert isinstance(bucket, MutationBucket)
    return bucket


def producer_ids(quotas: OurQuotas, user: str = "u") -> ProducerIdBucket:
    bucket = quotas.quotas.bucket(IDS, user, "c")
    assert isinstance(bucket, ProducerIdBucket)
    return bucket


def by_client(count: int, rows: int) -> Workers:
    """Return workers with a limit of 100 bytes a second for every client id."""
    workers = Workers(count, rows=rows)
    for client_id in "abcdef":
        workers.set(PRODUCED, None, client_id, 100)
    return workers


def usage_of(memory: memoryview, worker: int) -> SharedBuckets:
    return SharedBuckets(memory, worker=worker, lock=nullcontext())


# --- rows ---


def test_a_bucket_has_one_row_in_all_workers_and_another_bucket_another() -> None:
    workers = by_client(2, rows=2)
    first, second = workers.quotas
    produced(first, "a").charge(1000, 0)
    assert produced(second, "a").observed(0) == produced(first, "a").observed(0) == 100
    assert produced(second, "b").observed(0) == 0
    produced(first, "b").charge(2000, 0)
    assert produced(second, "b").observed(0) == 200
    assert [each.left_out for each in workers.usages] == [0, 0]


def test_without_a_free_row_a_bucket_is_its_workers_own() -> None:
    workers = by_client(2, rows=2)
    first, second = workers.quotas
    for client_id in "abc":
        produced(first, client_id).charge(1000, 0)
    assert [usage.left_out for usage in workers.usages] == [1, 0]
    assert produced(first, "c").observed(0) == 100
    assert produced(second, "c").observed(0) == 0
    assert produced(second, "b").observed(0) == 100
    assert [usage.left_out for usage in workers.usages] == [1, 1]


def test_a_row_that_nobody_uses_any_more_is_given_to_another_bucket() -> None:
    workers = by_client(2, rows=2)
    first, second = workers.quotas
    for client_id in "ab":
        produced(first, client_id).charge(1000, 0)
    produced(second, "a").charge(1000, IDLE_EXPIRY_MS)
    assert first.quotas.expire(IDLE_EXPIRY_MS + 1) == 2
    assert produced(second, "c").observed(0) == 0, "the row of b, and nothing of b in it"
    assert produced(first, "a").observed(IDLE_EXPIRY_MS) == 100, "still used by the second"
    assert produced(first, "d").observed(0) == 0
    assert [usage.left_out for usage in workers.usages] == [1, 0], "a and c are used"


def test_a_row_that_was_given_back_is_found_again_with_what_was_charged() -> None:
    workers = by_client(1, rows=4)
    (only,) = workers.quotas
    produced(only, "a").charge(5000, 0)
    produced(only, "a").last_used_ms = -IDLE_EXPIRY_MS - 1
    assert only.quotas.expire(0) == 1
    assert produced(only, "a").observed(0) == 500


def test_a_dropped_bucket_charges_nobody() -> None:
    """When a request is settled, the row may belong to another bucket."""
    workers = Workers(2, rows=1)
    for client_id in "ab":
        workers.set(PRODUCED, None, client_id, 100, PACED)
    first, second = workers.quotas
    dropped = produced(first, "a")
    dropped.reserve(50, 0)
    assert first.quotas.expire(1) == 0
    assert first.quotas.expire(IDLE_EXPIRY_MS + 2) == 1
    other = produced(second, "b")
    dropped.settle(1000, 50, IDLE_EXPIRY_MS + 3)
    assert other.observed(IDLE_EXPIRY_MS + 3) == 0
    assert other.reserve(100, IDLE_EXPIRY_MS + 3) is None
    assert other.reserve(1, IDLE_EXPIRY_MS + 3) is None
    assert [usage.left_out for usage in workers.usages] == [0, 0]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdefgh"), st.booleans()), max_size=60))
def test_the_directory_never_gives_a_row_twice(uses: list[tuple[int, str, bool]]) -> None:
    """4 rows for 8 buckets, and 3 workers that allocate and release rows and sometimes die."""
    memory = shared_memory(3, rows=4)
    usages = [usage_of(memory, worker) for worker in range(3)]
    held: list[dict[str, SharedRow]] = [{}, {}, {}]
    for worker, name, dies in uses:
        if name in held[worker]:
            held[worker].pop(name).give_back()
        elif dies and name == "h":
            SharedBuckets.worker_lost(memory, worker)
            held[worker] = {}
            usages[worker] = usage_of(memory, worker)
        else:
            row = usages[worker].row(name)
            if row is None:
                assert len({each for rows in held for each in rows}) == 4, "all rows are used"
            else:
                held[worker][name] = row
        rows = {(each, row._row) for rows in held for each, row in rows.items()}
        assert len(rows) == len({name for name, _ in rows}) == len({row for _, row in rows}), "one each"


class Counting(AbstractContextManager["Counting"]):
    def __init__(self) -> None:
        self.taken = 0

    def __enter__(self) -> Self:
        self.taken += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


def test_only_a_new_bucket_takes_the_lock() -> None:
    workers, lock = by_client(2, rows=4), Counting()
    workers.usages[0]._lock = lock
    for now_ms in range(0, 5000, 100):
        for quotas in workers.quotas:
            produced(quotas, "a").charge(10, now_ms)
    assert lock.taken == 1


# --- dead workers ---


@pytest.mark.parametrize("policy", [QuotaPolicy(), PACED], ids=["kafka", "paced"])
def test_who_replaces_a_dead_worker_has_no_fresh_quota(policy: QuotaPolicy) -> None:
    workers = Workers(2)
    workers.set(MUTATIONS, "u", None, 1, policy)
    bucket = mutations(workers.quotas[0])
    if policy is PACED:
        bucket.reserve(15, 0)
    else:
        bucket.admit(15, 0)
    workers.replace(0)
    assert mutations(workers.quotas[0]).tokens(1000) == -3
    workers.replace(0)
    workers.replace(1)
    assert mutations(workers.quotas[1]).tokens(2000) == -2


def test_what_requests_of_another_worker_cost_more_delays_those_that_are_held() -> None:
    workers = Workers(2)
    workers.set(PRODUCED, None, "c", 1000, PACED)
    mine, other = (produced(quotas, "c") for quotas in workers.quotas)
    assert other.reserve(5000, 0) is None
    settled = mine.settled()
    assert mine.reserve(1000, 0) is not None
    other.settle(9000, 5000, 1000)
    delay = mine.delay(settled, MAX_THROTTLE_MS, 4000)
    assert delay is not None
    assert delay.throttle_ms == 4000
    assert mine.delay(mine.settled(), MAX_THROTTLE_MS, 8000) is None


def test_others_count_on_over_a_death() -> None:
    workers = by_client(2, rows=4)
    produced(workers.quotas[0], "a").charge(1000, 0)
    produced(workers.quotas[1], "a").charge(1000, 0)
    workers.replace(0)
    produced(workers.quotas[0], "a").charge(1000, 0)
    assert [produced(quotas, "a").observed(0) for quotas in workers.quotas] == [300, 300]


def test_a_state_that_its_writer_could_not_finish_is_passed_over() -> None:
    """The total is written before the state, so the charge counts."""
    workers = Workers(2)
    workers.set(MUTATIONS, "u", None, 1)
    first, second = map(mutations, workers.quotas)
    first.admit(5, 0)
    assert second.tokens(0) == 6
    first.admit(5, 0)
    cells = first._bucket._shared  # type: ignore[attr-defined]
    workers.memory[cells._states_at[0] * 8] ^= 0xFF
    assert second.tokens(0) == 1
    assert mutations(workers.quotas[1]).admit(2, 0) is None
    workers.replace(0)
    assert mutations(workers.quotas[0]).tokens(0) == -1


@given(
    words=st.lists(st.floats(allow_nan=False), min_size=4, max_size=4),
    byte=st.integers(0, 39),
    bit=st.integers(0, 7),
)
def test_a_torn_group_of_words_is_seen(words: list[float], byte: int, bit: int) -> None:
    memory, structure = memoryview(bytearray(64)), Struct("4dq")
    assert sealed(structure, memory, 1) is None, "nothing yet"
    seal(structure, memory, 1, tuple(words))
    assert sealed(structure, memory, 1) == tuple(words)
    memory[8 + byte] ^= 1 << bit
    torn = sealed(structure, memory, 1)
    assert torn is None or torn == tuple(words), "but for -0.0, which is 0.0"


# --- producer ids ---


def with_ids(count: int, limit: float = 10) -> Workers:
    workers = Workers(count)
    workers.set(IDS, "u", None, limit)
    workers.set(IDS, "v", None, limit)
    return workers


def test_a_producer_id_costs_once_in_all_workers() -> None:
    workers = with_ids(3)
    for quotas in workers.quotas:
        for producer_id in (7, 8):
            assert producer_ids(quotas).charge(producer_id, 0) is None
    assert [producer_ids(quotas).tokens(0) for quotas in workers.quotas] == [8, 8, 8]


def test_who_replaces_a_dead_worker_knows_the_ids_of_both() -> None:
    workers = with_ids(2)
    producer_ids(workers.quotas[0]).charge(7, 0)
    producer_ids(workers.quotas[1]).charge(8, 0)
    workers.replace(0)
    for producer_id in (7, 8, 9):
        producer_ids(workers.quotas[0]).charge(producer_id, 0)
    assert producer_ids(workers.quotas[1]).tokens(0) == 7


def test_ids_of_users_that_a_worker_does_not_serve_are_learnt_when_it_does() -> None:
    workers = with_ids(2)
    for producer_id in range(5):
        producer_ids(workers.quotas[0], "v").charge(producer_id, 0)
        producer_ids(workers.quotas[0], "u").charge(producer_id, 0)
        producer_ids(workers.quotas[1], "u").charge(producer_id, 0)
    for producer_id in range(5):
        producer_ids(workers.quotas[1], "v").charge(producer_id, 0)
    assert [producer_ids(workers.quotas[1], user).tokens(0) for user in "uv"] == [5, 5]


def test_ids_that_were_overwritten_are_charged_again_and_totals_hold() -> None:
    workers = with_ids(2, limit=3 * NEW_IDS)
    first, second = map(producer_ids, workers.quotas)
    for producer_id in range(NEW_IDS + 100):
        first.charge(producer_id, 0)
    charged = 3 * NEW_IDS - first.tokens(0)
    assert charged == pytest.approx(NEW_IDS + 100, abs=40), "one in a thousand passes for seen"
    for producer_id in range(NEW_IDS + 100):
        second.charge(producer_id, 0)
    assert first.tokens(0) == second.tokens(0)
    assert 0 < 3 * NEW_IDS - charged - second.tokens(0) <= 100, "overwritten ids are charged a second time"


def test_ids_that_are_received_in_time_are_not_charged_again() -> None:
    workers = with_ids(2, limit=3 * NEW_IDS)
    first, second = map(producer_ids, workers.quotas)
    for producer_id in range(2 * NEW_IDS):
        first.charge(producer_id, 0)
        if producer_id % 4000 == 0:
            workers.usages[1].receive_ids()
    before = second.tokens(0)
    for producer_id in range(2 * NEW_IDS):
        assert second.charge(producer_id, 0) is None
    assert second.tokens(0) == pytest.approx(before, abs=40)


# --- restored states ---


@pytest.mark.parametrize("policy", [QuotaPolicy(), PACED], ids=["kafka", "paced"])
@pytest.mark.parametrize("key", [PRODUCED, MUTATIONS])
def test_what_several_restore_is_restored_once(key: QuotaKey, policy: QuotaPolicy) -> None:
    def state_of(workers: Workers, worker: int, now_ms: int) -> dict[str, object]:
        bucket = workers.quotas[worker].quotas.bucket(key, "u", "c")
        assert bucket is not None
        return bucket.state(now_ms)

    before = Workers(1)
    before.set(key, "u", None, 1, policy)
    bucket = before.quotas[0].quotas.bucket(key, "u", "c")
    assert isinstance(bucket, RateBucket | MutationBucket)
    if policy is PACED:
        bucket.reserve(20, 0)
        bucket.record(20, 0)
    else:
        bucket.charge(20, 0)
    saved = bucket.state(500)
    after = Workers(2)
    after.set(key, "u", None, 1, policy)
    tags = bucket.tags
    for quotas in after.quotas:
        quotas.quotas.restore(key, tags, saved, 10_000)
    assert state_of(after, 0, 10_000) == state_of(after, 1, 10_000) == saved
    again = after.quotas[0].quotas.bucket(key, "u", "c")
    assert isinstance(again, RateBucket | MutationBucket)
    if policy is PACED:
        again.reserve(1, 10_500)
    again.record(1, 10_500)
    after.quotas[1].quotas.restore(key, tags, saved, 10_500)
    assert state_of(after, 1, 10_500) == state_of(after, 0, 10_500) != saved, "what is shared is newer"


# --- invalid memory ---


def test_memory_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="0 workers; expected 1 to 256"):
        SharedBuckets.size_of(0, 10)
    with pytest.raises(ValueError, match="0 rows and 11 samples"):
        SharedBuckets.size_of(2, 0)
    size = SharedBuckets.size_of(2, 10)
    with pytest.raises(ValueError, match=f"has {size - 8} bytes; expected at least {size}"):
        SharedBuckets.create(memoryview(bytearray(size - 8)), workers=2, rows=10)
    with pytest.raises(ValueError, match="was not initialized by"):
        usage_of(memoryview(mmap.mmap(-1, size)), 0)
    memory = shared_memory(2, rows=10)
    with pytest.raises(ValueError, match="worker 2: the shared memory was created for 2 workers"):
        usage_of(memory, 2)
