"""Audits of the topic of quotas: which changes they find, with which old values, and how much of the log they read."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.proxy.quotas.store import StoreError
from headrace.proxy.quotas.topic import replica as topic_replica
from headrace.proxy.quotas.topic.log import LogReplacedError
from headrace.proxy.quotas.topic.plan import prepared
from headrace.proxy.quotas.topic.records import NewRecord
from headrace.proxy.quotas.topic.replica import TopicReplica
from tests.proxy.quotas.store_contract import ALICE, AUTHOR, alteration
from tests.proxy.quotas.topic.log_in_memory import MemoryLog, MemoryReader, MemoryTopic
from tests.proxy.quotas.topic.test_replica import BOB, LATER_S, RacingLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from headrace.proxy.quotas.store import Change
    from headrace.proxy.quotas.topic.records import LogRecord


def test_the_audit_has_old_values_of_records_that_were_compacted() -> None:
    topic = MemoryTopic()
    replica = TopicReplica(MemoryLog(topic))
    made: list[Change] = []
    for value in (1.0, 2.0, None, 4.0, 5.0):
        (changes,) = replica.write([prepared([alteration(ALICE, a=value)], AUTHOR)], LATER_S)
        assert not isinstance(changes, StoreError)
        made = [*changes, *made]
    assert list(replica.audit(9, None, LATER_S)) == made
    del topic.records[2:4]
    assert list(replica.audit(9, None, LATER_S)) == [replace(made[0], old=2.0), *made[3:]]
    del topic.records[:2]
    assert list(replica.audit(9, None, LATER_S)) == made[:1]


class CountedReader(MemoryReader):
    """A reader that counts records. Before ``first`` the log has been deleted."""

    def __init__(self, topic: MemoryTopic, rng: random.Random, first: int = 0) -> None:
        super().__init__(topic, rng)
        self.first = first
        self.count = 0

    def read(self, end: int, deadline_s: float) -> Iterator[list[LogRecord]]:
        if 0 < self.position < self.first:
            raise LogReplacedError
        for piece in super().read(end, deadline_s):
            self.count += len(piece)
            yield piece


def test_an_audit_reads_no_more_than_a_page_needs(monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> None:
    monkeypatch.setattr(topic_replica, "AUDIT_OVERLAP", 5)
    topic = MemoryTopic()
    log = MemoryLog(topic)
    replica = TopicReplica(log)
    made: list[Change] = []
    for value in range(400):
        (changes,) = replica.write([prepared([alteration(rng.choice([ALICE, BOB]), a=value)], AUTHOR)], LATER_S)
        assert not isinstance(changes, StoreError)
        made = [*changes, *made]
    topic.append([NewRecord(b"no quota", b"1", b"{}")] * 30)
    for first in (0, 100):
        topic.records = [each for each in topic.records if each.offset >= first]
        kept = [each for each in made if each.sequence > first]
        for limit, before, at_most in (
            (10, None, 15 + 60),
            (10, 201, 15),
            (0, None, 5),
            (999, None, 430),
            (9, 107, 107),
        ):
            reader = CountedReader(topic, rng, first)
            monkeypatch.setattr(log, "reader", lambda reader=reader: reader)
            wanted = [each for each in kept if before is None or each.sequence < before][:limit]
            assert list(replica.audit(limit, before, LATER_S)) == wanted, (first, limit, before)
            assert reader.count <= at_most, (first, limit, before)


def test_an_audit_page_has_the_old_values_of_the_log_though_a_writer_did_not_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_replica, "AUDIT_OVERLAP", 1)
    topic = MemoryTopic()
    late = RacingLog(topic, random.Random(1))  # noqa: S311 -- a test's
    replica, other = TopicReplica(late), TopicReplica(MemoryLog(topic))
    replica.write([prepared([alteration(ALICE, a=1.0)], AUTHOR)], LATER_S)
    late.others_first = [(other, [alteration(ALICE, a=2.0)])]
    replica.write([prepared([alteration(ALICE, a=3.0)], AUTHOR)], LATER_S)
    (latest,) = replica.audit(1, None, LATER_S)
    assert (latest.old, latest.new) == (2.0, 3.0)
