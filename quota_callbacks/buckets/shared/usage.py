"""What the workers of one proxy tell each other about usage, so that a quota holds for all of them as for one process.

A `SharedUsage` is one worker's view of memory that all map. A bucket has a row in it, the same in all workers, and in
the row each worker has a cell that it alone writes: what it has charged in all, and the state that left
(`headrace.quota_callbacks.buckets.shared.rates`, `debts`; new producer ids: `producer_ids`). Nobody waits for
anybody to read or write a cell. Two workers that decide in the same instant do not see each other's request, so
together they may let through one request each where one process would have let through one.

Rows are given out under a lock, once per bucket, and that is all that is locked. Pure: memory, lock and time are the
caller's.
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
    WORD,
    WORKERS_AT,
    Column,
    Layout,
)
from headrace.quota_callbacks.buckets.shared.producer_ids import SharedIds
from headrace.quota_callbacks.buckets.shared.rates import SharedRate

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from headrace.quota_callbacks.buckets.shared.producer_ids import Learn

ROWS: Final = 65_536
"""Rows to make room for unless there is a reason: memory is taken only for those that are used, with the default
window 0.9 KiB each with two workers, 2 KiB with four."""


class SharedRow:
    """A bucket's row, as long as it is used by this worker."""

    __slots__ = ("_at", "_bucket_id", "_column", "_ids", "_row")

    def __init__(self, column: Column, ids: SharedIds, row: int, key: bytes) -> None:
        self._column = column
        self._ids = ids
        self._row = row
        self._at = column.layout.rows_at + row * column.layout.row_words
        self._bucket_id = int.from_bytes(key[:WORD], "little", signed=True)

    def rate(self, window: Window) -> SharedRate:
        """What all workers measure."""
        return SharedRate(window, self._column, self._at)

    def tokens(self, burst_s: float) -> SharedTokens:
        """What all workers take of."""
        return SharedTokens(burst_s, self._column, self._at + self._column.layout.tokens_at)

    def timeline(self) -> SharedTimeline:
        """In which all workers reserve places."""
        return SharedTimeline(self._column, self._at + self._column.layout.places_at)

    def learn_ids(self, learn: Learn) -> None:
        """Have ``learn`` called with the producer ids that other workers charged to this bucket."""
        self._ids.serve(self._bucket_id, learn)

    def take_up_ids(self) -> None:
        """Learn what is new now."""
        self._ids.take_up()

    def tell_id(self, producer_id: int, now_ms: int) -> None:
        """This worker has charged a new id to this bucket."""
        self._ids.tell(self._bucket_id, producer_id, now_ms)

    def give_back(self) -> None:
        """This worker no longer uses it. What was charged stays, until the row is needed for another bucket."""
        self._ids.leave(self._bucket_id)
        layout, worker = self._column.layout, self._column.worker
        self._column.memory[(layout.in_use_at + worker * layout.in_use_words) * WORD + self._row] = 0


class SharedUsage:
    """The shared memory, seen by one worker.

    *Memory:* writable, the same in all workers, zero-filled before `create`: an anonymous shared ``mmap`` that the
    supervisor makes before it forks. All workers run the same Python.

    *Lock:* a context manager that excludes all other workers, and is released when its holder dies, such as ``flock``
    on a file that each worker opens for itself. It is held for some ten microseconds, when a bucket is made.

    *Time:* ``offset_ms`` is added to this worker's ``now_ms`` to have the time that all workers share. It is 0 where
    all get their milliseconds from ``CLOCK_MONOTONIC`` itself. ``trio.current_time()`` starts at a random number in
    each run; with it, pass ``round(1000 * (time.perf_counter() - trio.current_time()))``. Clocks that differ by a
    millisecond do no harm.

    *A worker that dies* leaves its cells: what it has charged stays in force. Call `worker_lost` then, in the
    supervisor; who replaces it takes the same number and goes on with the same cells.
    """

    def __init__(
        self, memory: memoryview, *, worker: int, lock: AbstractContextManager[object], offset_ms: int = 0
    ) -> None:
        """Raises `ValueError` for memory that `create` has not made, and for a worker that it has no cells for."""
        layout = _layout_of(memory)
        if not 0 <= worker < layout.workers:
            raise ValueError(f"worker {worker} of shared memory that was made for {layout.workers}")
        self._column = Column(memory, layout, worker, offset_ms)
        self._lock = lock
        self._ids = SharedIds(self._column)
        self.left_out: int = 0
        """Buckets that found no row, and count for this worker alone. When it is above 0, make more rows."""

    @staticmethod
    def size_of(workers: int, rows: int = ROWS, samples: int = Window().samples) -> int:
        """Bytes that are needed. Raises `ValueError` as `create`."""
        return _checked(workers, rows, samples).words * WORD

    @classmethod
    def create(cls, memory: memoryview, *, workers: int, rows: int = ROWS, samples: int = Window().samples) -> None:
        """Make zero-filled memory ready for ``workers`` workers and ``rows`` buckets.

        ``samples`` are those of the longest window (``quota.window.num``); of a longer one, a worker that has not
        looked for long would miss the oldest. Raises `ValueError` for numbers below 1, for more than `MOST_WORKERS`
        workers, and for memory that is too small.
        """
        layout = _checked(workers, rows, samples)
        if memory.nbytes < layout.words * WORD:
            raise ValueError(f"{memory.nbytes} bytes of shared memory where {layout.words * WORD} are needed")
        numbers: memoryview[int] = memory[: layout.rows_at * WORD].cast("q")
        numbers[WORKERS_AT], numbers[ROWS_AT], numbers[SAMPLES_AT] = workers, rows, samples
        numbers[0] = MAGIC

    @staticmethod
    def worker_lost(memory: memoryview, worker: int) -> None:
        """The worker has died: it uses no row any longer. To be called before another one takes its number."""
        layout = _layout_of(memory)
        begin = (layout.in_use_at + worker * layout.in_use_words) * WORD
        memory[begin : begin + layout.rows] = bytes(layout.rows)

    @property
    def lost_ids(self) -> int:
        """Producer ids that others charged and this worker did not learn in time; they may cost a second time."""
        return self._ids.lost

    @property
    def rows_given(self) -> int:
        """Rows that were ever given out."""
        return self._column.numbers[GIVEN_AT]

    def take_up_ids(self) -> None:
        """Learn the producer ids that others have charged. To be called about once a second, for workers whose own
        clients bring none (`SharedIds.take_up`)."""
        self._ids.take_up()

    def row(self, name: object) -> SharedRow | None:
        """The row of the bucket with this name, whose ``repr`` is the same in all workers; ``None`` when all rows are
        used by other buckets."""
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

    # --- under the lock; each step leaves the directory sound, should its worker die behind it ---

    def _find(self, key: bytes) -> int | None:
        layout, numbers = self._column.layout, self._column.numbers
        row = numbers[self._chain_at(key)] - 1
        while row >= 0:
            if self._key_of(row) == key:
                return row
            row = numbers[layout.nexts_at + row] - 1
        return None

    def _claim(self, key: bytes) -> int | None:
        """A row that nobody uses: one that was never used, or the next that was given back."""
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
        raise ValueError(f"shared memory for {workers} workers: must be 1 to {MOST_WORKERS}")
    if rows < 1 or samples < 1:
        raise ValueError(f"shared memory with {rows} rows and {samples} samples: must be 1 or more")
    return Layout(workers, rows, samples)


def _layout_of(memory: memoryview) -> Layout:
    header: memoryview[int] = memory[: 8 * WORD].cast("q")
    if header[0] != MAGIC:
        raise ValueError("this memory has not been made by SharedUsage.create")
    return Layout(header[WORKERS_AT], header[ROWS_AT], header[SAMPLES_AT])
