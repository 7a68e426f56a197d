"""The layout of the memory that workers share: one row per bucket, with one cell per worker.

All data are aligned words of 8 bytes in native byte order. A word that may be read while it is written has one writer,
which writes it with a single store (``memoryview.cast`` copies an item with one 8-byte move on x86-64 and arm64), so
that readers never see a partial word. Groups of words that must be consistent end with a hash of the group (`sealed`),
so that a reader detects a concurrent write, independent of the machine's memory ordering.

    header     magic, workers, rows, samples; the row at which the search for an unused one starts, rows ever allocated
    heads      first row of each hash chain of the directory, + 1
    nexts      next row of the chain, + 1
    keys       128-bit key of each row's bucket
    in use     one byte per worker and row
    new ids    one ring buffer per worker (`headrace.quota_callbacks.buckets.shared.producer_ids`)
    rows       rate (totals, times, checkpoints), tokens and timeline (totals, states), settled amounts, waits
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

WORD: Final = 8
MAGIC: Final = 0x48524143_00000003
"""``HRAC`` and the version of the layout."""

HEADER_WORDS: Final = 8
WORKERS_AT, ROWS_AT, SAMPLES_AT, HAND_AT, GIVEN_AT = range(1, 6)

NEW_IDS: Final = 4096
"""Entries of a worker's ring buffer, which takes 128 KiB. Written only if a producer id quota is set."""
NEW_ID_WORDS: Final = 4

WAIT_WORDS: Final = 4
"""Size of a worker's wait: beginning, end, limit, hash."""

KEY_BYTES: Final = 16
MOST_WORKERS: Final = 256
TRIES: Final = 3
"""Number of attempts to read words that are being written. A write takes less than a microsecond, unless the writer
has died or was preempted; readers do not wait for that."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets and sizes of all parts, in words."""

    workers: int
    rows: int
    samples: int
    """Number of samples of the longest window (``quota.window.num``)."""

    @property
    def chains(self) -> int:
        """Number of hash chains of the directory, a power of two."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def heads_at(self) -> int:
        """Offset of the first rows of the chains."""
        return HEADER_WORDS

    @property
    def nexts_at(self) -> int:
        """Offset of the next rows."""
        return self.heads_at + self.chains

    @property
    def keys_at(self) -> int:
        """Offset of the rows' keys."""
        return self.nexts_at + self.rows

    @property
    def in_use_at(self) -> int:
        """Offset of the first worker's in-use bytes."""
        return self.keys_at + self.rows * KEY_BYTES // WORD

    @property
    def in_use_words(self) -> int:
        """Size of one worker's in-use bytes."""
        return -(-self.rows // WORD)

    @property
    def new_ids_at(self) -> int:
        """Offset of the first worker's ring buffer."""
        return self.in_use_at + self.workers * self.in_use_words

    @property
    def new_ids_words(self) -> int:
        """Size of a ring buffer, including its counter."""
        return 1 + NEW_IDS * NEW_ID_WORDS

    @property
    def rows_at(self) -> int:
        """Offset of the first row."""
        return self.new_ids_at + self.workers * self.new_ids_words

    @property
    def kept_samples(self) -> int:
        """Maximum number of samples of a `SampledRate`: one more than its window has, and temporarily one more."""
        return self.samples + 2

    @property
    def checkpoint_words(self) -> int:
        """Size of a checkpoint: number of samples; start, last record and sum of each; included totals; hash."""
        return 1 + 3 * self.kept_samples + self.workers + 1

    @property
    def state_words(self) -> int:
        """Size of a state: value, time, limit, included totals, hash."""
        return 3 + self.workers + 1

    @property
    def tokens_at(self) -> int:
        """Offset of the token bucket within a row, after the rate."""
        return self.workers * (2 + self.checkpoint_words)

    @property
    def timeline_at(self) -> int:
        """Offset of the timeline within a row."""
        return self.tokens_at + self.workers * (1 + self.state_words)

    @property
    def settled_at(self) -> int:
        """Offset of the settled amounts of the timeline within a row, one word for each worker."""
        return self.timeline_at + self.workers * (1 + self.state_words)

    @property
    def waits_at(self) -> int:
        """Offset of the waits within a row."""
        return self.settled_at + self.workers

    @property
    def row_words(self) -> int:
        """Size of a row."""
        return self.waits_at + self.workers * WAIT_WORDS

    @property
    def words(self) -> int:
        """Size of the whole memory."""
        return self.rows_at + self.rows * self.row_words


class Column:
    """One worker's view of the memory: its number, its clock offset, and the structures of its cells."""

    __slots__ = (
        "checkpoint",
        "layout",
        "memory",
        "numbers",
        "offset_ms",
        "others",
        "state",
        "totals",
        "words",
        "worker",
        "workers",
    )

    def __init__(self, memory: memoryview, layout: Layout, worker: int, offset_ms: int) -> None:
        self.memory = memory
        self.words: memoryview[float] = memory.cast("d")
        self.numbers: memoryview[int] = memory.cast("q")
        self.layout = layout
        self.worker = worker
        self.workers = layout.workers
        self.others = tuple(each for each in range(layout.workers) if each != worker)
        self.offset_ms = offset_ms
        """Shared time minus this worker's time, in milliseconds."""
        self.totals = Struct(f"{layout.workers}d")
        self.checkpoint = Struct(f"{layout.checkpoint_words - 1}dq")
        self.state = Struct(f"{layout.state_words - 1}dq")


WAIT: Final = Struct(f"{WAIT_WORDS - 1}dq")
"""The structure of a wait."""


def seal(structure: Struct, memory: memoryview, at: int, words: tuple[float, ...]) -> None:
    """Write ``words`` at word ``at``, followed by their hash. Only one worker may write at this offset."""
    structure.pack_into(memory, at * WORD, *words, hash(words))


def sealed(structure: Struct, memory: memoryview, at: int) -> tuple[Any, ...] | None:
    """Return the words that `seal` wrote; ``None`` before the first write, and while they are being written."""
    for _ in range(TRIES):
        words = structure.unpack_from(memory, at * WORD)
        if not words[-1]:
            return None
        if hash(words[:-1]) == words[-1]:
            return words[:-1]
    return None
