"""A log in memory that behaves as a topic of Kafka does for the store of quotas: batches, offsets and compaction.

Implements `headrace.proxy.quotas.topic.replica.QuotaLog`; stores of one log share the `MemoryTopic`.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.proxy.quotas.topic.log import MAX_BATCH_BYTES, MAX_BATCH_RECORDS, LogReplacedError
from headrace.proxy.quotas.topic.records import LogRecord, NewRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.proxy.quotas.store import StoreError


@dataclass
class MemoryTopic:
    """The records that are left, and the end of the log. ``batch_ends`` are the offsets after each batch."""

    records: list[LogRecord] = field(default_factory=list)
    end: int = 0
    topic_id: int = 0
    batch_ends: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    failure: Callable[[], StoreError | None] = lambda: None
    """Called with each append before it is done: the error with which it fails."""

    def append(self, records: Sequence[NewRecord]) -> None:
        with self.lock:
            now_ms = time.time_ns() // 1_000_000
            for each in records:
                self.records.append(LogRecord(self.end, now_ms, each.key, each.value, each.header))
                self.end += 1
            self.batch_ends.append(self.end)

    def compact(self, rng: random.Random, *, removals_read_up_to: int = 0) -> None:
        """Compact a part of the log as Kafka's log cleaner does.

        It looks for the last record of each key up to some offset, and then replaces segments from the oldest on; it
        may be interrupted. It removes superseded records, and tombstones before ``removals_read_up_to``. The last
        record of the log is in the active segment, which stays.
        """
        with self.lock:
            looked_at = rng.randint(0, max(0, self.end - 1))
            replaced = rng.randint(0, looked_at)
            last = {record.key: record.offset for record in self.records if record.offset < looked_at}
            self.records = [
                each
                for each in self.records
                if each.offset >= replaced
                or (each.offset == last[each.key] and (each.value is not None or each.offset >= removals_read_up_to))
            ]


class MemoryReader:
    """A reader of a `MemoryTopic`. ``rng`` decides how many records are read at once."""

    def __init__(self, topic: MemoryTopic, rng: random.Random) -> None:
        self._topic = topic
        self._rng = rng
        self._topic_id = topic.topic_id
        self._doubts = False
        self.position = 0

    def go_to(self, offset: int) -> None:
        self.position = offset

    def end(self, deadline_s: float) -> int:
        doubts, self._doubts = self._doubts, False
        if self._topic.end < self.position or (doubts and self._topic.topic_id != self._topic_id):
            raise LogReplacedError
        return self._topic.end

    def require_check(self) -> None:
        self._doubts = True

    def read(self, end: int, deadline_s: float) -> Iterator[list[LogRecord]]:
        with self._topic.lock:
            left = [record for record in self._topic.records if self.position <= record.offset < end]
        while left:
            count = self._rng.randint(1, len(left))
            piece, left = left[:count], left[count:]
            self.position = piece[-1].offset + 1
            yield piece
        self.position = end

    def close(self) -> None:
        pass


class MemoryLog:
    """The log of one process."""

    def __init__(self, topic: MemoryTopic, rng: random.Random | None = None) -> None:
        self.topic = topic
        self.rng = rng or random.Random(1)  # noqa: S311 -- a test's
        self.unreachable: StoreError | None = None

    def prepare(self, deadline_s: float) -> int:
        if self.unreachable is not None:
            raise self.unreachable
        return 86_400_000

    def reader(self) -> MemoryReader:
        return MemoryReader(self.topic, self.rng)

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        assert len(records) <= MAX_BATCH_RECORDS
        assert sum(record.size for record in records) <= MAX_BATCH_BYTES
        if (error := self.topic.failure()) is not None:
            raise error
        self.topic.append(records)

    def close(self) -> None:
        pass
