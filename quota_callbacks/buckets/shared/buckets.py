"""The shared memory of the buckets of all workers, so that a quota applies to the workers together.

A `SharedBuckets` is one worker's view of memory that all workers map. A bucket has the same row in all workers, and in
the row each worker has a cell that only it writes: the total that it has charged, and its state after that
(`headrace.quota_callbacks.buckets.shared.rates`, `debts`; new producer ids: `producer_ids`). Cells are read and written
without locks. Two workers that decide at the same moment do not see each other's request, so that each may admit one
request where a single process would have admitted one in total.

A lock is taken only to allocate a row, once per bucket. Created by the proxy's workers and used by `ClientQuotas`.
Pure: memory, lock and time are arguments.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.shared.debts import SharedTimeline, SharedTokens
from headrace.quota_callbacks.buckets.shared.layout import (
    GIVEN_AT,
    HAND_AT,
    KEY_BYTES,
    MAGIC,
    MOST_WORKERS,
    ROWS_AT,
    SAMPLES_AT,
    WAIT,
    WAIT_WORDS,
    WORD,
    WORKERS_AT,
    Column,
    Layout,
    seal,
    sealed,
)
from headrace.quota_callbacks.buckets.shared.producer_ids import SharedIds
from headrace.quota_callbacks.buckets.shared.rates import SharedRate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from headrace.quota_callbacks.buckets.shared.producer_ids import Learn

ROWS: Final = 65_536
"""Default number of rows. Only used rows take physical memory: with the default window 0.9 KiB each for two workers,
2 KiB for four."""


class SharedRow:
    """A bucket's row, while this worker uses it."""

    __slots__ = ("_at", "_bucket_id", "_column", "_ids", "_row", "_waits_at")

    def __init__(self, column: Column, ids: SharedIds, row: int, key: bytes) -> None:
        self._column = column
        self._ids = ids
        self._row = row
        self._at = column.layout.rows_at + row * column.layout.row_words
        self._waits_at = self._at + column.layout.waits_at
        self._bucket_id = int.from_bytes(key[:WORD], "little", signed=True)

    def rate(self, window: Window) -> SharedRate:
        """Return the row's rate."""
        return SharedRate(window, self._column, self._at)

    def tokens(self, burst_s: float) -> SharedTokens:
        """Return the row's token bucket."""
        return SharedTokens(burst_s, self._column, self._at + self._column.layout.tokens_at)

    def timeline(self) -> SharedTimeline:
        """Return the row's timeline."""
        layout = self._column.layout
        return SharedTimeline(self._column, self._at + layout.timeline_at, self._at + layout.settled_at)

    def learn_ids(self, learn: Learn) -> None:
        """Call ``learn`` with the producer ids that other workers charge to this bucket."""
        self._ids.subscribe(self._bucket_id, learn)

    def receive_ids(self) -> None:
        """Receive the producer ids that other workers have published."""
        self._ids.receive()

    def publish_id(self, producer_id: int, now_ms: int) -> None:
        """Publish a producer id that this worker has charged to this bucket."""
        self._ids.publish(self._bucket_id, producer_id, now_ms)

    def publish_wait(self, since_ms: int, until_ms: int, terms: float) -> None:
        """Publish until when the entity has to wait, as this worker has decided. ``terms`` are those of the quota."""
        column = self._column
        words = (float(since_ms + column.offset_ms), float(until_ms + column.offset_ms), terms)
        seal(WAIT, column.memory, self._waits_at + column.worker * WAIT_WORDS, words)

    def waits(self) -> Iterator[tuple[int, int, float]]:
        """Yield beginning and end (this worker's ms) of the waits that other workers have imposed, and the terms."""
        column = self._column
        for worker in column.others:
            words = sealed(WAIT, column.memory, self._waits_at + worker * WAIT_WORDS)
            if words is not None:
                yield int(words[0]) - column.offset_ms, int(words[1]) - column.offset_ms, words[2]

    def give_back(self) -> None:
        """Release the row. Its content is kept until the row is needed for another bucket."""
        self._ids.unsubscribe(self._bucket_id)
        layout, worker = self._column.layout, self._column.worker
        self._column.memory[(layout.in_use_at + worker * layout.in_use_words) * WORD + self._row] = 0


class SharedBuckets:
    """One worker's view of the shared memory.

    *Memory:* writable, mapped by all workers, and zero-filled before `create`: an anonymous shared ``mmap`` that the
    supervisor creates before it forks. All workers must run the same Python.

    *Lock:* a context manager that excludes all other workers and is released when its holder dies, such as ``flock`` on
    a file that each worker opens itself. It is held for about ten microseconds when a bucket is created.

    *Time:* ``offset_ms`` is added to this worker's ``now_ms`` to convert it to the time that all workers share. It is 0
    if all workers take their milliseconds from ``CLOCK_MONOTONIC``. ``trio.current_time()`` starts at a random number
    in each run; with it, pass ``round(1000 * (time.perf_counter() - trio.current_time()))``. Differences of a
    millisecond between the clocks do no harm.

    *Death of a worker:* its cells are kept, and its charges stay in force. Call `worker_lost` in the supervisor. The
    replacement takes the same number and continues with the same cells.
    """

    def __init__(
        self, memory: memoryview, *, worker: int, lock: AbstractContextManager[object], offset_ms: int = 0
    ) -> None:
        """Raises `ValueError` for memory that `create` has not initialized, and for a worker without cells in it."""
        layout = _layout_of(memory)
        if not 0 <= worker < layout.workers:
            raise ValueError(f"worker {worker}: the shared memory was created for {layout.workers} workers, from 0")
        self._column = Column(memory, layout, worker, offset_ms)
        self._lock = lock
        self._ids = SharedIds(self._column)
        self.left_out: int = 0
        """Number of buckets without a row, which this worker does not share; above 0, more rows are needed."""

    @staticmethod
    def size_of(workers: int, rows: int = ROWS, samples: int = Window().samples) -> int:
        """Return the size of the memory in bytes. Raises `ValueError` as `create`."""
        return _checked(workers, rows, samples).words * WORD

    @classmethod
    def create(cls, memory: memoryview, *, workers: int, rows: int = ROWS, samples: int = Window().samples) -> None:
        """Initialize zero-filled memory for ``workers`` workers and ``rows`` buckets.

        ``samples`` is the number of samples of the longest window (``quota.window.num``); with a longer window, a
        worker that reads rarely would miss the oldest samples. Raises `ValueError` for numbers below 1, for more than
        `MOST_WORKERS` workers, and for memory that is too small.
        """
        layout = _checked(workers, rows, samples)
        if memory.nbytes < layout.words * WORD:
            raise ValueError(f"the shared memory has {memory.nbytes} bytes; expected at least {layout.words * WORD}")
        numbers: memoryview[int] = memory[: layout.rows_at * WORD].cast("q")
        numbers[WORKERS_AT], numbers[ROWS_AT], numbers[SAMPLES_AT] = workers, rows, samples
        numbers[0] = MAGIC

    @staticmethod
    def worker_lost(memory: memoryview, worker: int) -> None:
        """Release all rows of a worker that has died. Call it before its replacement starts."""
        layout = _layout_of(memory)
        begin = (layout.in_use_at + worker * layout.in_use_words) * WORD
        memory[begin : begin + layout.rows] = bytes(layout.rows)

    def receive_ids(self) -> None:
        """Receive the producer ids that other workers have published.

        Call it about once a second, for workers whose own clients use no producer ids (`SharedIds.receive`).
        """
        self._ids.receive()

    def row(self, name: object) -> SharedRow | None:
        """Return the row of a bucket, allocating it if necessary; ``None`` if other buckets use all rows.

        The ``repr`` of ``name`` must be the same in all workers.
        """
        key = blake2b(repr(name).encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
        with self._lock:
            row = self._find(key)
            if row is None:
                row = self._claim(key)
            if row is not None:
                self._column.memory[self._in_use_at(self._column.worker) + row] = 1
        if row is None:
            self.left_out += 1
            return None
        return SharedRow(self._column, self._ids, row, key)

    # --- called with the lock held; the directory is consistent after each step, in case the worker dies ---

    def _find(self, key: bytes) -> int | None:
        layout, numbers = self._column.layout, self._column.numbers
        row = numbers[self._chain_at(key)] - 1
        while row >= 0:
            if self._key_of(row) == key:
                return row
            row = numbers[layout.nexts_at + row] - 1
        return None

    def _claim(self, key: bytes) -> int | None:
        """Allocate a row that was never used, or else the next unused one."""
        layout, numbers, memory = self._column.layout, self._column.numbers, self._column.memory
        row = numbers[GIVEN_AT]
        if row < layout.rows:
            numbers[GIVEN_AT] = row + 1
        else:
            unused = self._unused()
            if unused is None:
                return None
            row = unused
            self._unlink(row)
        begin = (layout.rows_at + row * layout.row_words) * WORD
        memory[begin : begin + layout.row_words * WORD] = bytes(layout.row_words * WORD)
        begin = layout.keys_at * WORD + row * KEY_BYTES
        memory[begin : begin + KEY_BYTES] = key
        chain_at = self._chain_at(key)
        numbers[layout.nexts_at + row] = numbers[chain_at]
        numbers[chain_at] = row + 1
        return row

    def _unused(self) -> int | None:
        layout, memory = self._column.layout, self._column.memory
        used = 0
        for worker in range(layout.workers):
            begin = self._in_use_at(worker)
            used |= int.from_bytes(memory[begin : begin + layout.rows], "little")
        flags = used.to_bytes(layout.rows, "little")
        hand = self._column.numbers[HAND_AT]
        row = flags.find(0, hand)
        if row < 0:
            row = flags.find(0)
        if row < 0:
            return None
        self._column.numbers[HAND_AT] = (row + 1) % layout.rows
        return row

    def _unlink(self, row: int) -> None:
        layout, numbers = self._column.layout, self._column.numbers
        at = self._chain_at(self._key_of(row))
        while numbers[at]:
            if numbers[at] == row + 1:
                numbers[at] = numbers[layout.nexts_at + row]
                return
            at = layout.nexts_at + numbers[at] - 1

    def _key_of(self, row: int) -> bytes:
        begin = self._column.layout.keys_at * WORD + row * KEY_BYTES
        return bytes(self._column.memory[begin : begin + KEY_BYTES])

    def _chain_at(self, key: bytes) -> int:
        layout = self._column.layout
        return layout.heads_at + (int.from_bytes(key[WORD:], "little") & (layout.chains - 1))

    def _in_use_at(self, worker: int) -> int:
        layout = self._column.layout
        return (layout.in_use_at + worker * layout.in_use_words) * WORD


def _checked(workers: int, rows: int, samples: int) -> Layout:
    if not 1 <= workers <= MOST_WORKERS:
        raise ValueError(f"shared memory for {workers} workers; expected 1 to {MOST_WORKERS}")
    if rows < 1 or samples < 1:
        raise ValueError(f"shared memory with {rows} rows and {samples} samples; expected at least 1 of each")
    return Layout(workers, rows, samples)


def _layout_of(memory: memoryview) -> Layout:
    header: memoryview[int] = memory[: 8 * WORD].cast("q")
    if header[0] != MAGIC:
        raise ValueError("the memory was not initialized by SharedBuckets.create")
    return Layout(header[WORKERS_AT], header[ROWS_AT], header[SAMPLES_AT])
