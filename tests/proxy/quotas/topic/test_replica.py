"""Copies of the topic of quotas, on a log in memory: whoever reads it, and whenever, ends with the same quotas."""

from __future__ import annotations

import gc
import random
import time
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.quotas.store import Alteration, ImportState, StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic import replica as topic_replica
from headrace.proxy.quotas.topic import state as topic_state
from headrace.proxy.quotas.topic.log import MAX_BATCH_BYTES
from headrace.proxy.quotas.topic.plan import prepared
from headrace.proxy.quotas.topic.records import NewRecord, record_key
from headrace.proxy.quotas.topic.replica import TopicReplica
from headrace.proxy.quotas.topic.state import TopicState
from headrace.quota_callbacks.entities import QuotaEntity
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, Quotas, alteration, altered, copy, replay
from tests.proxy.quotas.topic.log_in_memory import MemoryLog, MemoryReader, MemoryTopic

if TYPE_CHECKING:
    from collections.abc import Sequence


BOB = QuotaEntity(user="bob")
LATER_S = time.monotonic() + 3600

alters = st.lists(
    st.builds(
        Alteration,
        entity=st.sampled_from([ALICE, BOB]),
        values=st.dictionaries(st.sampled_from("abc"), st.none() | st.sampled_from([1.0, 2.0, 3.0])),
    ),
    min_size=1,
    max_size=3,
)
PROCESSES = 3
steps = st.lists(
    st.tuples(st.integers(0, PROCESSES - 1), st.sampled_from(["read", "restart", "compact", "audit"]) | alters),
    max_size=30,
)


def quotas_of(replica: TopicReplica) -> Quotas:
    return copy(replica.snapshot(LATER_S).quotas)


def first_reader(topic: MemoryTopic) -> Quotas:
    """Return what a process that starts now reads."""
    return quotas_of(TopicReplica(MemoryLog(topic)))


class RacingLog(MemoryLog):
    """A log in which, between a writer's reading and its append, other processes append their batches first."""

    def __init__(self, topic: MemoryTopic, rng: random.Random) -> None:
        super().__init__(topic, rng)
        self.others_first: list[tuple[TopicReplica, Sequence[Alteration]]] = []
        self.in_order: list[Sequence[Alteration]] = []

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        others, self.others_first = self.others_first, []
        for replica, their in others:
            self.in_order.append(their)
            replica.write([prepared(their, AUTHOR)], LATER_S)
        super().append(records, deadline_s)


@given(steps=steps, seed=st.integers(0, 2**32))
def test_all_processes_have_the_same_quotas_whenever_they_read_and_whatever_was_compacted(
    steps: Sequence[tuple[int, str | Sequence[Alteration]]], seed: int
) -> None:
    """Each process reads at its own times; the log is compacted at any time; some processes start in between.

    The reference applies the alterations in the order in which they were acknowledged.
    """
    rng = random.Random(seed)  # noqa: S311 -- a test's
    topic = MemoryTopic()
    replicas = [TopicReplica(MemoryLog(topic, rng)) for _ in range(PROCESSES)]
    read_up_to = [0] * PROCESSES
    model: Quotas = {}
    for number, step in steps:
        if step == "compact":
            topic.compact(rng, removals_read_up_to=min(read_up_to))
            continue
        if step == "audit":
            replicas[number].audit(10, None, LATER_S)
            continue
        if step == "restart":
            replicas[number] = TopicReplica(MemoryLog(topic, rng))
        elif step != "read":
            assert not isinstance(step, str)
            before = copy(model)
            altered(model, step)
            (changes,) = replicas[number].write([prepared(step, AUTHOR)], LATER_S)
            assert not isinstance(changes, StoreError)
            assert replay(before, changes) == model
        assert quotas_of(replicas[number]) == model
        read_up_to[number] = topic.end
    assert [quotas_of(each) for each in replicas] == [model] * PROCESSES
    topic.compact(rng, removals_read_up_to=topic.end)
    assert first_reader(topic) == model


@given(racing=st.lists(st.lists(alters, min_size=1, max_size=PROCESSES), max_size=10), seed=st.integers(0, 2**32))
def test_writers_that_do_not_know_of_each_other_are_ordered_by_the_log(
    racing: Sequence[Sequence[Sequence[Alteration]]], seed: int
) -> None:
    """Each round, all writers have read the same log, and then append one after the other, the first one last.

    A key that a writer leaves out, since it was set to this value already when the writer read the log, is as if it was
    written before the others.
    """
    rng = random.Random(seed)  # noqa: S311 -- a test's
    topic = MemoryTopic()
    logs = [RacingLog(topic, rng) for _ in range(PROCESSES)]
    replicas = [TopicReplica(each) for each in logs]
    follower = TopicReplica(MemoryLog(topic, rng))
    position, followed = follower.snapshot(LATER_S).sequence, dict[QuotaEntity, dict[str, float]]()
    model: Quotas = {}
    for turn in racing:
        mine, others = turn[0], list(zip(replicas[1:], turn[1:], strict=False))
        known = copy(model)
        logs[0].others_first = list(others)
        (changes,) = replicas[0].write([prepared(mine, AUTHOR)], LATER_S)
        assert not isinstance(changes, StoreError)
        if not logs[0].others_first:
            for _, their in others:
                altered(model, their)
        apply_differences(model, known, mine)
        found = follower.changes_since(position, LATER_S)
        assert found is not None
        replay(followed, found)
        position = found[-1].sequence if found else position
        assert followed == model == quotas_of(replicas[0])
        assert [each for each in found if each in changes] == list(changes)
        topic.compact(rng)
        assert first_reader(topic) == model


def apply_differences(model: Quotas, known: Quotas, alterations: Sequence[Alteration]) -> None:
    """Apply to ``model`` what alterations change in ``known``."""
    for each in alterations:
        values = {key: value for key, value in each.values.items() if known.get(each.entity, {}).get(key) != value}
        altered(known, [each])
        altered(model, [Alteration(entity=each.entity, values=values)])


@given(alters=st.lists(alters, min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_an_end_of_the_log_has_alterations_as_a_whole(alters: Sequence[Sequence[Alteration]], seed: int) -> None:
    """At every end that a broker can give, which is between batches, each entity is as after some alterations."""
    topic = MemoryTopic()
    writer = TopicReplica(MemoryLog(topic))
    allowed = [Quotas()]
    for alter in alters:
        for each in alter:
            allowed.append(altered(copy(allowed[-1]), [each]))
        writer.write([prepared(alter, AUTHOR)], LATER_S)
    at = 0
    for end in topic.batch_ends:
        state = TopicState()
        for record in topic.records:
            if record.offset < end:
                state.apply(record)
        quotas = copy(state.snapshot().quotas)
        for entity in (ALICE, BOB):
            assert any(quotas.get(entity) == each.get(entity) for each in allowed[at:]), (entity, end)


@given(seed=st.integers(0, 2**32))
def test_alterations_are_never_spread_over_batches(seed: int) -> None:
    """Even if a call needs several batches, whose sizes are limited."""
    rng = random.Random(seed)  # noqa: S311 -- a test's
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    keys = [f"{number}" + "k" * rng.choice([1, 100, 30_000]) for number in range(rng.randint(1, 9))]
    alter = [
        Alteration(entity=QuotaEntity(user=f"u{number}"), values=dict.fromkeys(keys, 1.0))
        for number in range(rng.randint(1, 40))
    ]
    (changes,) = replica.write([prepared(alter, AUTHOR)], LATER_S)
    assert not isinstance(changes, StoreError)
    assert len(changes) == len(alter) * len(keys)
    assert all(end % len(keys) == 0 for end in topic.batch_ends)
    sizes = sum(len(each.key or b"") + len(each.header or b"") for each in topic.records)
    assert len(topic.batch_ends) >= sizes / MAX_BATCH_BYTES


def test_an_alteration_that_fits_into_no_batch_is_refused_alone() -> None:
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    huge = Alteration(entity=ALICE, values={f"{number}" + "k" * 100_000: 1.0 for number in range(10)})
    first, second = replica.write([prepared([alteration(BOB, a=1.0), huge], AUTHOR), prepared(BOB_2, AUTHOR)], LATER_S)
    assert isinstance(first, StoreError)
    assert "too large" in str(first)
    assert not isinstance(second, StoreError)
    assert quotas_of(replica) == {BOB: {"a": 2.0}}


BOB_2 = [alteration(BOB, a=2.0)]


def test_each_call_learns_what_has_become_of_its_records() -> None:
    """The second of three batches fails: what is in the first is stored, what is in the third is not."""
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    appends = iter([None, StoreTimeoutError("too late")])
    topic.failure = lambda: next(appends)
    long = "k" * 250_000
    calls = [[alteration(QuotaEntity(user=f"u{number}"), **{long: 1.0})] for number in range(8)]
    calls[2] += calls.pop(3)
    outcomes = replica.write([prepared(each, AUTHOR) for each in calls], LATER_S)
    kinds = [type(each) for each in outcomes]
    assert kinds == [list, list, *[StoreTimeoutError] * 3, *[StoreError] * 2]
    assert [str(outcomes[2]), str(outcomes[-1])] == [
        "too late. A part of the changes was made",
        "too late. Nothing was changed",
    ]
    assert len(quotas_of(replica)) == 3


def test_a_log_that_was_replaced_is_read_from_its_beginning() -> None:
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    replica.write([prepared([alteration(ALICE, a=1.0, b=2.0)], AUTHOR)], LATER_S)
    position = replica.snapshot(LATER_S).sequence
    topic.records, topic.end = [], 0
    with structlog.testing.capture_logs() as lines:
        assert replica.changes_since(position, LATER_S) is None
    assert [(line["quotas_before"], line["quotas"]) for line in lines if "quotas" in line] == [(2, 0)]
    snapshot = replica.snapshot(LATER_S)
    assert snapshot.quotas == {}
    assert replica.changes_since(snapshot.sequence, LATER_S) == []
    assert replica.changes_since(position, LATER_S) is None, "whoever took a snapshot meanwhile"
    replica.write([prepared([alteration(BOB, **{f"key_{number}": 1.0 for number in range(9)})], AUTHOR)], LATER_S)
    assert replica.changes_since(position, LATER_S) is None, "though the new log is longer"
    found = replica.changes_since(snapshot.sequence, LATER_S)
    assert found is not None
    assert len(found) == 9


def test_a_change_in_a_log_that_is_replaced_is_not_acknowledged() -> None:
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    replica.write([prepared([alteration(ALICE, a=1.0, b=2.0)], AUTHOR)], LATER_S)

    def replace() -> None:
        topic.records, topic.end = [], 0

    topic.failure = replace
    (outcome,) = replica.write([prepared([alteration(ALICE, a=2.0)], AUTHOR)], LATER_S)
    assert isinstance(outcome, StoreTimeoutError)
    assert "may or may not" in str(outcome)


def test_nothing_is_acknowledged_in_a_log_that_was_replaced_unseen() -> None:
    """The new log is as long as the old one, so only its id differs: neither a change nor a quota that was set already
    is acknowledged, since the new log may lack what was known of the old one."""
    for alterations in ([alteration(ALICE, a=1.0)], [alteration(ALICE, a=5.0)]):
        topic = MemoryTopic()
        replica = TopicReplica(MemoryLog(topic))
        replica.write([prepared([alteration(ALICE, a=1.0)], AUTHOR)], LATER_S)
        topic.records, topic.end, topic.topic_id = [], 0, 1
        TopicReplica(MemoryLog(topic)).write([prepared(BOB_2, AUTHOR)], LATER_S)
        (outcome,) = replica.write([prepared(alterations, AUTHOR)], LATER_S)
        assert isinstance(outcome, StoreTimeoutError)
        assert "was replaced" in str(outcome)
        assert quotas_of(replica) == first_reader(topic)
        assert quotas_of(replica)[BOB] == {"a": 2.0}


def test_an_import_is_possible_if_nothing_was_ever_appended() -> None:
    """Compaction can leave nothing but the record of a removal, or nothing at all."""
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    assert replica.import_state(LATER_S) is ImportState.POSSIBLE
    for value in (1.0, None):
        replica.write([prepared([alteration(ALICE, a=value)], AUTHOR)], LATER_S)
    for left in (topic.records[1:], []):
        topic.records = left
        assert TopicReplica(MemoryLog(topic)).import_state(LATER_S) is ImportState.OVER


def test_the_collector_runs_while_the_end_of_the_log_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    enabled: list[bool] = []
    end = MemoryReader.end

    def noted(reader: MemoryReader, deadline_s: float) -> int:
        enabled.append(gc.isenabled())
        return end(reader, deadline_s)

    monkeypatch.setattr(MemoryReader, "end", noted)
    replica = TopicReplica(MemoryLog(MemoryTopic()))
    for _ in range(2):
        replica.catch_up(LATER_S)
    assert enabled == [True, True]


def test_a_process_that_was_absent_for_long_misses_no_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that was read by nobody here, and whose record is gone since."""
    topic = MemoryTopic()
    now_s = 1000.0
    monkeypatch.setattr(topic_replica, "_clock_s", lambda: now_s)
    replica, other = TopicReplica(MemoryLog(topic)), TopicReplica(MemoryLog(topic))
    replica.write([prepared([alteration(ALICE, a=1.0), alteration(BOB, a=1.0)], AUTHOR)], LATER_S)
    position = replica.snapshot(LATER_S).sequence
    other.write([prepared([alteration(ALICE, a=None), alteration(BOB, a=2.0)], AUTHOR)], LATER_S)
    topic.records = [each for each in topic.records if each.value == b"2.0"]
    now_s += 43_201
    assert replica.changes_since(position, LATER_S) is None
    assert quotas_of(replica) == {BOB: {"a": 2.0}}


def test_followers_that_are_far_behind_take_a_snapshot() -> None:
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic), kept_changes=3)
    begin = replica.snapshot(LATER_S).sequence
    positions = [begin]
    for value in range(1, 5):
        replica.write([prepared([alteration(ALICE, a=float(value))], AUTHOR)], LATER_S)
        positions.append(replica.snapshot(LATER_S).sequence)
    found = [replica.changes_since(each, LATER_S) for each in positions]
    assert [None if each is None else len(each) for each in found] == [None, 3, 2, 1, 0]


def test_fewer_changes_of_long_names_are_kept() -> None:
    topic = MemoryTopic()
    writer = TopicReplica(MemoryLog(topic))
    entities = [QuotaEntity(user=f"{number}{'x' * 999}") for number in range(5)]
    writer.write([prepared([alteration(each, a=1.0) for each in entities], AUTHOR)], LATER_S)
    for characters, kept in ((3_500, 3), (10, 1)):
        state = TopicState(kept_characters=characters)
        for record in topic.records:
            state.apply(record)
        assert [each.entity for each in state.latest()] == entities[: -kept - 1 : -1]
        found = [state.changes_since(sequence) for sequence in range(6)]
        assert [None if each is None else len(each) for each in found] == [*[None] * (5 - kept), *range(kept, -1, -1)]


def test_quotas_beyond_the_maximum_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_state, "MAX_QUOTAS", 3)
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    calls = [[alteration(ALICE, a=1.0, b=1.0)], [alteration(ALICE, c=1.0)], [alteration(BOB, a=1.0)]]
    *made, refused = replica.write([prepared(each, AUTHOR) for each in calls], LATER_S)
    assert [type(each) for each in made] == [list, list]
    assert "more than 3 quotas" in str(refused)
    (changed,) = replica.write([prepared([alteration(ALICE, a=2.0)], AUTHOR)], LATER_S)
    assert not isinstance(changed, StoreError), "a quota that exists can be changed"
    topic.append([NewRecord(record_key(BOB, "a"), b"1", b"{}")])
    replica.catch_up(LATER_S)
    assert quotas_of(replica) == {ALICE: {"a": 2.0, "b": 1.0, "c": 1.0}}


def test_names_beyond_the_maximum_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of all quotas are bounded, too; room comes back when quotas are removed."""
    monkeypatch.setattr(topic_state, "MAX_QUOTA_CHARACTERS", 20)
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    replica.write([prepared([alteration(ALICE, a=1.0), alteration(BOB, a=1.0)], AUTHOR)], LATER_S)
    long = QuotaEntity(user="x" * 10)
    (refused,) = replica.write([prepared([alteration(long, a=1.0)], AUTHOR)], LATER_S)
    assert "more than 20 characters: nothing was changed" in str(refused)
    topic.append([NewRecord(record_key(long, "a"), b"1", b"{}")])
    assert quotas_of(replica) == {ALICE: {"a": 1.0}, BOB: {"a": 1.0}}
    replica.write([prepared([alteration(ALICE, a=None)], AUTHOR)], LATER_S)
    (made,) = replica.write([prepared([alteration(long, a=1.0)], AUTHOR)], LATER_S)
    assert not isinstance(made, StoreError)
    assert quotas_of(replica) == {BOB: {"a": 1.0}, long: {"a": 1.0}}


class ClosedLog(MemoryLog):
    """A log that counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_another_log_is_read_from_its_beginning() -> None:
    """The brokers are reached by other bootstrap servers; after a failure the quotas stay."""
    topic, other = MemoryTopic(), MemoryTopic()
    TopicReplica(MemoryLog(other)).write([prepared([alteration(ALICE, a=2.0)], AUTHOR)], LATER_S)
    before, after = ClosedLog(topic), MemoryLog(other)
    replica = TopicReplica(before)
    replica.write([prepared([alteration(ALICE, a=1.0)], AUTHOR)], LATER_S)
    quotas, sequence = quotas_of(replica), replica.snapshot(LATER_S).sequence
    after.unreachable = StoreTimeoutError("no answer")
    replica.replace_log(after)
    with pytest.raises(StoreTimeoutError):
        replica.catch_up(LATER_S)
    assert before.closed == 1
    assert copy(replica._state.snapshot().quotas) == quotas
    after.unreachable = None
    assert quotas_of(replica) == first_reader(other) != quotas
    assert replica.snapshot(LATER_S).sequence > sequence
