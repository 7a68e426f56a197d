"""Where what lies in the memory that workers share: one row per bucket, and in it one cell per worker.

Everything is in words of 8 bytes, aligned, in the machine's own order. A word that is read while it may be written is
written by one worker only, in one store (``memoryview.cast`` copies an item with one 8-byte move on x86-64 and arm64),
so no word is ever half old. Groups of words that belong together carry the hash of all of them (`sealed`), so a reader
that comes between finds out by itself, on every machine, whatever order its stores become visible in.

    header   magic, workers, rows, samples; the next row to look at, rows ever given out
    heads    first row of each chain of the directory, + 1
    nexts    next row of the chain, + 1
    keys     128 bits of each row's bucket
    in use   one byte per worker and row
    new ids  one ring per worker (`headrace.quota_callbacks.buckets.shared.producer_ids`)
    rows     rate (totals, times, checkpoints), tokens and places (totals, states)
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

WORD: Final = 8
MAGIC: Final = 0x48524143_00000001
"""``HRAC`` and the number of this layout."""

HEADER_WORDS: Final = 8
WORKERS_AT, ROWS_AT, SAMPLES_AT, HAND_AT, GIVEN_AT = range(1, 6)

NEW_IDS: Final = 4096
"""Producer ids of a worker that others can still read; 128 KiB, written only where such a quota is set."""
NEW_ID_WORDS: Final = 4

KEY_BYTES: Final = 16
MOST_WORKERS: Final = 256
TRIES: Final = 3
"""Readings of words that are being written. A writer is done within a microsecond, unless it has died or was
interrupted; then nobody waits for it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The offsets, in words, that follow from three numbers."""

    workers: int
    rows: int
    samples: int
    """Of the longest window (``quota.window.num``)."""

    @property
    def chains(self) -> int:
        """Chains of the directory: a power of two."""
        return 1 << (self.rows - 1).bit_length()

    @property
    def heads_at(self) -> int:
        """Of the chains."""
        return HEADER_WORDS

    @property
    def nexts_at(self) -> int:
        """Of the rows."""
        return self.heads_at + self.chains

    @property
    def keys_at(self) -> int:
        """Of the rows."""
        return self.nexts_at + self.rows

    @property
    def in_use_at(self) -> int:
        """Of the first worker's bytes."""
        return self.keys_at + self.rows * KEY_BYTES // WORD

    @property
    def in_use_words(self) -> int:
        """Of one worker."""
        return -(-self.rows // WORD)

    @property
    def new_ids_at(self) -> int:
        """Of the first worker's ring."""
        return self.in_use_at + self.workers * self.in_use_words

    @property
    def new_ids_words(self) -> int:
        """Of one ring, its head included."""
        return 1 + NEW_IDS * NEW_ID_WORDS

    @property
    def rows_at(self) -> int:
        """Of the first row."""
        return self.new_ids_at + self.workers * self.new_ids_words

    @property
    def kept_samples(self) -> int:
        """A `SampledRate` holds one more than its window has, and for a moment one more than that."""
        return self.samples + 2

    @property
    def checkpoint_words(self) -> int:
        """How many samples, their start, last record and sum, what it includes of each worker, the hash."""
        return 1 + 3 * self.kept_samples + self.workers + 1

    @property
    def state_words(self) -> int:
        """Value, time, limit, what it includes of each worker, the hash."""
        return 3 + self.workers + 1

    @property
    def tokens_at(self) -> int:
        """Within a row; the rate comes before."""
        return self.workers * (2 + self.checkpoint_words)

    @property
    def places_at(self) -> int:
        """Within a row."""
        return self.tokens_at + self.workers * (1 + self.state_words)

    @property
    def row_words(self) -> int:
        """Of one row."""
        return self.places_at + self.workers * (1 + self.state_words)

    @property
    def words(self) -> int:
        """Of all."""
        return self.rows_at + self.rows * self.row_words


class Column:
    """One worker's place in the memory: its number, and the time base that it shares with the others."""

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
        """What makes the worker's milliseconds the shared ones."""
        self.totals = Struct(f"{layout.workers}d")
        self.checkpoint = Struct(f"{layout.checkpoint_words - 1}dq")
        self.state = Struct(f"{layout.state_words - 1}dq")


def seal(structure: Struct, memory: memoryview, at: int, words: tuple[float, ...]) -> None:
    """Write ``words`` from word ``at`` on, and their hash behind them. Its one writer alone may call this."""
    structure.pack_into(memory, at * WORD, *words, hash(words))


def sealed(structure: Struct, memory: memoryview, at: int) -> tuple[Any, ...] | None:
    """The words that `seal` wrote; ``None`` where none were yet, and where they are being written just now."""
    for _ in range(TRIES):
        words = structure.unpack_from(memory, at * WORD)
        if not words[-1]:
            return None
        if hash(words[:-1]) == words[-1]:
            return words[:-1]
    return None
