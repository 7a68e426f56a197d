"""New producer ids, told from worker to worker: one ring each, which its worker writes and all others read.

An id that one worker has charged is put into the filters of all others before they look one up there, so that it costs
once in all. Ids of users whom a worker does not serve (yet) are passed over; their bucket takes them from the rings
when it is made. A worker that has not looked while another told more than `NEW_IDS` has lost some (``lost``): these may
cost a second time. What was charged is not lost with them, since totals stand elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.shared.layout import NEW_ID_WORDS, NEW_IDS, TRIES, WORD

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.shared.layout import Column

Learn = Callable[[int, int], None]
"""Called with a producer id that another worker has charged, and when (this worker's ms)."""

BUCKETS, IDS, TIMES, SEALS = range(NEW_ID_WORDS)


class SharedIds:
    """One worker's side of all rings. A ring has the number of ids ever told, and, in four columns, the last of
    them: whose, which, when, and the hash of these and the number."""

    __slots__ = ("_column", "_learn", "_rings", "_seen", "_told", "lost")

    def __init__(self, column: Column) -> None:
        self._column = column
        layout = column.layout
        self._rings = [layout.new_ids_at + each * layout.new_ids_words for each in range(column.workers)]
        self._told = column.numbers[self._rings[column.worker]]
        self._seen = [(self._rings[each], column.numbers[self._rings[each]]) for each in column.others]
        self._learn: dict[int, Learn] = {}
        self.lost: int = 0
        """Ids of others that were overwritten before this worker looked."""

    def tell(self, bucket: int, producer_id: int, now_ms: int) -> None:
        """This worker has charged ``producer_id`` to ``bucket`` (the first 64 bits of its key)."""
        numbers, ring, number = self._column.numbers, self._rings[self._column.worker], self._told
        at = ring + 1 + number % NEW_IDS
        shared_ms = now_ms + self._column.offset_ms
        numbers[at + BUCKETS * NEW_IDS] = bucket
        numbers[at + IDS * NEW_IDS] = producer_id
        numbers[at + TIMES * NEW_IDS] = shared_ms
        numbers[at + SEALS * NEW_IDS] = hash((number, bucket, producer_id, shared_ms))
        self._told = numbers[ring] = number + 1

    def take_up(self) -> None:
        """Have the buckets learn what the others told since the last time. To be called before an id is looked up, and
        often enough that nothing is lost: once a second is for `NEW_IDS` new ids a second and worker."""
        numbers = self._column.numbers
        for ring, seen in self._seen:
            if numbers[ring] != seen:
                self._read()
                return

    def serve(self, bucket: int, learn: Learn) -> None:
        """``bucket`` is made: have it learn what the rings still hold of it, this worker's own predecessor's, too."""
        memory = self._column.memory
        wanted = bucket.to_bytes(WORD, sys.byteorder, signed=True)
        self.take_up()
        found = []
        for ring, told in (*self._seen, (self._rings[self._column.worker], self._told)):
            begin = (ring + 1 + BUCKETS * NEW_IDS) * WORD
            keys = bytes(memory[begin : begin + min(told, NEW_IDS) * WORD])
            at = keys.find(wanted)
            while at >= 0:
                slot, astray = divmod(at, WORD)
                if not astray:
                    number = told - 1 - (told - 1 - slot) % NEW_IDS
                    found.append(self._slot(ring, number))
                at = keys.find(wanted, at + 1)
        for at_ms, producer_id, _ in sorted(each for each in found if each is not None and each[2] == bucket):
            learn(producer_id, at_ms)
        self._learn[bucket] = learn

    def leave(self, bucket: int) -> None:
        """``bucket`` is dropped."""
        self._learn.pop(bucket, None)

    def _read(self) -> None:
        numbers = self._column.numbers
        told = []
        seen_now = []
        for ring, seen in self._seen:
            head = numbers[ring]
            if head - seen > NEW_IDS:
                self.lost += head - NEW_IDS - seen
            for number in range(max(seen, head - NEW_IDS), head):
                found = self._slot(ring, number)
                if found is None:
                    self.lost += 1
                elif found[2] in self._learn:
                    told.append(found)
            seen_now.append((ring, head))
        self._seen = seen_now
        for at_ms, producer_id, bucket in sorted(told):
            self._learn[bucket](producer_id, at_ms)

    def _slot(self, ring: int, number: int) -> tuple[int, int, int] | None:
        """When (this worker's ms), which id, whose; ``None`` if it has been overwritten."""
        numbers = self._column.numbers
        at = ring + 1 + number % NEW_IDS
        for _ in range(TRIES):
            bucket, producer_id = numbers[at + BUCKETS * NEW_IDS], numbers[at + IDS * NEW_IDS]
            shared_ms = numbers[at + TIMES * NEW_IDS]
            if numbers[at + SEALS * NEW_IDS] == hash((number, bucket, producer_id, shared_ms)):
                return shared_ms - self._column.offset_ms, producer_id, bucket
        return None
