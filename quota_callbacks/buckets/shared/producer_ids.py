"""New producer ids, published to the other workers through ring buffers: one per worker, which all others read.

An id that one worker has charged is added to the filters of all others before their next look-up, so that it is charged
once. A worker skips the ids of buckets that it does not have; a bucket that is created later reads them from the ring
buffers. If another worker publishes more than `NEW_IDS` ids between two reads, the oldest are lost and may be
charged a second time. The charges themselves are not lost, since the totals are kept in the row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.quota_callbacks.buckets.shared.layout import NEW_ID_WORDS, NEW_IDS, TRIES, WORD

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.shared.layout import Column

Learn = Callable[[int, int], None]
"""Called with a producer id that another worker has charged, and the time of the charge (this worker's ms)."""

BUCKETS, IDS, TIMES, SEALS = range(NEW_ID_WORDS)


class SharedIds:
    """One worker's access to all ring buffers.

    A ring buffer has the number of ids ever published and, in four columns, the last `NEW_IDS` of them: bucket, id,
    time, and a hash of these and the entry's number.
    """

    __slots__ = ("_column", "_learn", "_published", "_rings", "_seen")

    def __init__(self, column: Column) -> None:
        self._column = column
        layout = column.layout
        self._rings = [layout.new_ids_at + each * layout.new_ids_words for each in range(column.workers)]
        self._published = column.numbers[self._rings[column.worker]]
        self._seen = [(self._rings[each], column.numbers[self._rings[each]]) for each in column.others]
        self._learn: dict[int, Learn] = {}

    def publish(self, bucket: int, producer_id: int, now_ms: int) -> None:
        """Publish a producer id that this worker has charged to ``bucket`` (the first 64 bits of its key)."""
        numbers, ring, number = self._column.numbers, self._rings[self._column.worker], self._published
        at = ring + 1 + number % NEW_IDS
        shared_ms = now_ms + self._column.offset_ms
        numbers[at + BUCKETS * NEW_IDS] = bucket
        numbers[at + IDS * NEW_IDS] = producer_id
        numbers[at + TIMES * NEW_IDS] = shared_ms
        numbers[at + SEALS * NEW_IDS] = hash((number, bucket, producer_id, shared_ms))
        self._published = numbers[ring] = number + 1

    def receive(self) -> None:
        """Pass the ids that other workers have published since the last call to their buckets.

        Call it before an id is looked up, and often enough that none are lost: once a second suffices for `NEW_IDS` new
        ids per second and worker.
        """
        numbers = self._column.numbers
        for ring, seen in self._seen:
            if numbers[ring] != seen:
                self._read()
                return

    def subscribe(self, bucket: int, learn: Learn) -> None:
        """Pass all ids of ``bucket`` in the ring buffers to ``learn``, this worker's included, and further ones from
        `receive`."""
        memory = self._column.memory
        key = bucket.to_bytes(WORD, sys.byteorder, signed=True)
        self.receive()
        found = []
        for ring, count in (*self._seen, (self._rings[self._column.worker], self._published)):
            begin = (ring + 1 + BUCKETS * NEW_IDS) * WORD
            keys = bytes(memory[begin : begin + min(count, NEW_IDS) * WORD])
            at = keys.find(key)
            while at >= 0:
                slot, misaligned = divmod(at, WORD)
                if not misaligned:
                    number = count - 1 - (count - 1 - slot) % NEW_IDS
                    found.append(self._slot(ring, number))
                at = keys.find(key, at + 1)
        for at_ms, producer_id, _ in sorted(each for each in found if each is not None and each[2] == bucket):
            learn(producer_id, at_ms)
        self._learn[bucket] = learn

    def unsubscribe(self, bucket: int) -> None:
        """Stop passing ids of ``bucket``."""
        self._learn.pop(bucket, None)

    def _read(self) -> None:
        numbers = self._column.numbers
        received = []
        seen_now = []
        for ring, seen in self._seen:
            head = numbers[ring]
            for number in range(max(seen, head - NEW_IDS), head):
                found = self._slot(ring, number)
                if found is not None and found[2] in self._learn:
                    received.append(found)
            seen_now.append((ring, head))
        self._seen = seen_now
        for at_ms, producer_id, bucket in sorted(received):
            self._learn[bucket](producer_id, at_ms)

    def _slot(self, ring: int, number: int) -> tuple[int, int, int] | None:
        """Return time (this worker's ms), id and bucket of an entry; ``None`` if it has been overwritten."""
        numbers = self._column.numbers
        at = ring + 1 + number % NEW_IDS
        for _ in range(TRIES):
            bucket, producer_id = numbers[at + BUCKETS * NEW_IDS], numbers[at + IDS * NEW_IDS]
            shared_ms = numbers[at + TIMES * NEW_IDS]
            if numbers[at + SEALS * NEW_IDS] == hash((number, bucket, producer_id, shared_ms)):
                return shared_ms - self._column.offset_ms, producer_id, bucket
        return None
