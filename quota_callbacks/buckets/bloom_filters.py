"""Sets of producer ids, in a few bits per id, with false positives and without false negatives.

`BloomFilter` has a fixed size; `GrowingBloomFilter` adds a slice when the last one is full (P. S. Almeida et al.,
"Scalable Bloom Filters", 2007). `timed_bloom_filters` has two of those per user.

The probes of an id are derived from the two halves of one 128-bit MurmurHash3 (A. Kirsch, M. Mitzenmacher, "Less
Hashing, Same Performance", 2006), with a stride that grows from probe to probe (their *enhanced* double hashing). With
a constant stride, two ids with the same stride share most of their probes: a filter for 64 ids at 0.1 % was then
measured at 0.16 %.
"""

from __future__ import annotations

import functools
import math
from struct import Struct
from typing import Final, TypedDict

from mmh3 import hash64

MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a `GrowingBloomFilter`, of which a user has two at most. At a false positive rate of 1 % this is
sufficient for 3.5 million producers per window."""

MAX_TOTAL_BYTES: Final = 128 * 1024 * 1024
"""Maximum size of the large slices (above `SMALL_BYTES`) of all users. Beyond it, the filters of all users grow only as
far as `SMALL_BYTES`, so users with forged ids take nothing from those with few producers."""

SMALL_BYTES: Final = 16 * 1024
"""Size up to which a filter always grows: 7,000 producers at a false positive rate of 1 %."""

GROWTH: Final = 4
"""Ratio of the capacities of consecutive slices. A new id is looked up in every slice: for 64 to 1,000,000 ids, a
ratio of 2 takes 14 slices and 3.8 µs per new id; 4 with `SECOND_CAPACITY` takes 6 slices and 2.2 µs."""

SECOND_CAPACITY: Final = 4096
"""Minimum capacity of a second slice, which takes 8 KiB: a look-up in a small slice takes as long as in a large one."""

TIGHTENING: Final = 0.8
"""Ratio of the false positive rates of consecutive slices (Almeida et al. advise 0.8 to 0.9). With 1 - 0.8 of the
requested rate for the first slice, the total stays below the requested rate for any number of slices."""

PROBES_OVER_OPTIMUM: Final = 0.6
"""Ratio of the number of probes to log2(1/rate), which gives the smallest filter. Measured: 10 % more bits, 30 % less
time per id."""

id_bytes: Final = Struct(">q").pack
"""Returns the bytes of a producer id that are hashed."""
_BIT: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class SliceState(TypedDict):
    """The state of a `BloomFilter`."""

    capacity: int
    rate: float
    count: int
    bits: bytes


def bloom_size(capacity: int, false_positive_rate: float) -> tuple[int, int]:
    """Return the number of bits m and of probes k of a filter.

    k is `PROBES_OVER_OPTIMUM` of its optimum; m is such that (1 - e^(-kn/m))^k is the rate. Raises `ValueError` for a
    capacity below 1 and a rate that is not between 0 and 1.
    """
    if capacity < 1:
        raise ValueError(f"a Bloom filter is made for at least 1 id, not for {capacity}")
    if not 0 < false_positive_rate < 1:
        raise ValueError(f"a false positive rate lies between 0 and 1, not at {false_positive_rate}")
    probes = math.ceil(PROBES_OVER_OPTIMUM * -math.log2(false_positive_rate))
    bits = -probes * capacity / math.log1p(-(false_positive_rate ** (1 / probes)))
    return 8 * math.ceil(bits / 8), probes


def _capacity_of(size_bytes: int, false_positive_rate: float) -> int:
    """Return the capacity of a filter of ``size_bytes``, 0 or more."""
    bits, _ = bloom_size(1_000_000, false_positive_rate)
    return max(8 * (size_bytes - 1) * 1_000_000 // bits, 0)


@functools.cache
def _steps(probes: int) -> tuple[int, ...]:
    return tuple(range(probes))


class FilterMemory:
    """The memory of the large slices of all filters of the process."""

    __slots__ = ("large_bytes",)

    def __init__(self) -> None:
        self.large_bytes = 0

    def left_for(self, size_bytes: int) -> int:
        """Return how many bytes a filter of ``size_bytes`` may grow by."""
        left = min(MAX_BYTES - size_bytes, MAX_TOTAL_BYTES - self.large_bytes)
        return left if left > SMALL_BYTES else min(MAX_BYTES, SMALL_BYTES) - size_bytes


memory: Final = FilterMemory()


class BloomFilter:
    """A set of producer ids in a fixed number of bits. With more than ``capacity`` ids, the rate of false positives
    exceeds ``false_positive_rate``."""

    __slots__ = ("bits", "capacity", "count", "false_positive_rate", "size", "steps")

    def __init__(self, capacity: int, false_positive_rate: float) -> None:
        """Raises `ValueError` as `bloom_size` does."""
        self.size, probes = bloom_size(capacity, false_positive_rate)
        """m, in bits: a multiple of 8."""
        self.steps = _steps(probes)
        """0, 1, ... k - 1: the increments of the stride."""
        self.bits = bytearray(self.size // 8)
        if len(self.bits) > SMALL_BYTES:
            memory.large_bytes += len(self.bits)
        self.capacity = capacity
        self.false_positive_rate = false_positive_rate
        self.count = 0
        """Number of added ids that were new."""

    def __del__(self) -> None:
        size_bytes = len(getattr(self, "bits", b""))  # there are none after an error in `__init__`
        if size_bytes > SMALL_BYTES:
            memory.large_bytes -= size_bytes

    @classmethod
    def restored(cls, state: SliceState) -> BloomFilter:
        """Return the filter with this state. Raises `ValueError` if the number of bits does not match."""
        restored = cls(state["capacity"], state["rate"])
        if len(state["bits"]) != len(restored.bits):
            raise ValueError(
                f"the state has {len(state['bits'])} bytes of bits; expected {len(restored.bits)} for "
                f"{restored.capacity} ids at a false positive rate of {restored.false_positive_rate}"
            )
        restored.bits[:] = state["bits"]
        restored.count = state["count"]
        return restored

    def state(self) -> SliceState:
        """Return a copy of the state."""
        return {
            "capacity": self.capacity,
            "rate": self.false_positive_rate,
            "count": self.count,
            "bits": bytes(self.bits),
        }

    def add(self, producer_id: int) -> bool:
        """Add an id (INT64); return whether it was new."""
        return self.add_hash(*hash64(id_bytes(producer_id)))

    def __contains__(self, producer_id: int) -> bool:
        return self.has_hash(*hash64(id_bytes(producer_id)))

    def add_hash(self, at: int, stride: int) -> bool:
        """Add an id by the halves of its hash; return whether it was new."""
        bits = self.bits
        size = self.size
        at %= size
        stride %= size
        new = False
        for step in self.steps:
            place = at >> 3
            byte = bits[place]
            bit = _BIT[at & 7]
            if not byte & bit:
                bits[place] = byte | bit
                new = True
            stride += step
            at = (at + stride) % size
        if new:
            self.count += 1
        return new

    def has_hash(self, at: int, stride: int) -> bool:
        """Return whether an id with these halves of its hash was added."""
        bits = self.bits
        size = self.size
        at %= size
        stride %= size
        for step in self.steps:
            if not bits[at >> 3] & _BIT[at & 7]:
                return False
            stride += step
            at = (at + stride) % size
        return True


class GrowingBloomFilter:
    """A set of producer ids that keeps its false positive rate for any number of ids, until `MAX_BYTES` are full, or
    `MAX_TOTAL_BYTES` of the process.

    Then an id that is not in the set is new every time, is not added, and is counted in `overflowed`. If ids were still
    added, all bits would be set eventually and all ids would be taken for seen and not charged. Charging ids more than
    once protects the broker instead.
    """

    __slots__ = ("_full", "_newest", "_slices", "overflowed")

    def __init__(self, initial_capacity: int, false_positive_rate: float) -> None:
        """Create the first slice, for ``initial_capacity`` ids, or as many as there is memory for.

        Raises `ValueError` as `bloom_size` does.
        """
        bloom_size(initial_capacity, false_positive_rate)
        rate = false_positive_rate * (1 - TIGHTENING)
        first = BloomFilter(min(initial_capacity, _capacity_of(memory.left_for(0), rate)), rate)
        self._set_slices((first,))
        self.overflowed = 0
        """Number of new ids that could not be added."""

    @classmethod
    def restored(cls, slices: list[SliceState], overflowed: int) -> GrowingBloomFilter:
        """Return the filter with these slices. Raises `ValueError` without slices, and as `BloomFilter.restored`."""
        if not slices:
            raise ValueError("the state of a filter has no slices; expected at least one")
        restored = cls.__new__(cls)
        restored._set_slices(tuple(BloomFilter.restored(each) for each in slices))  # noqa: SLF001 -- its own
        restored.overflowed = overflowed
        return restored

    def _set_slices(self, slices: tuple[BloomFilter, ...]) -> None:
        self._slices = slices
        self._newest = slices[-1]
        # The attributes that a look-up in older slices needs; the largest slice first, which has most of the ids.
        self._full = tuple((each.bits, each.size, each.steps[:-1]) for each in slices[-2::-1])

    @property
    def count(self) -> int:
        """Number of ids in the filter."""
        return sum(each.count for each in self._slices)

    @property
    def memory_bytes(self) -> int:
        """Size of the bits of all slices."""
        return sum(len(each.bits) for each in self._slices)

    @property
    def slices(self) -> tuple[BloomFilter, ...]:
        """The slices, oldest and smallest first."""
        return self._slices

    def add(self, producer_id: int) -> bool:
        """Add an id (INT64); return whether it was new."""
        return self.add_hash(*hash64(id_bytes(producer_id)))

    def __contains__(self, producer_id: int) -> bool:
        return self.has_hash(*hash64(id_bytes(producer_id)))

    def add_hash(self, at: int, stride: int) -> bool:
        """Add an id by the halves of its hash; return whether it was new."""
        newest = self._newest
        if newest.count >= newest.capacity:
            if self.has_hash(at, stride):
                return False
            if not self._grow():
                self.overflowed += 1
                return True
            return self._newest.add_hash(at, stride)
        if self._full and _any_has(self._full, at, stride):
            return False
        return newest.add_hash(at, stride)

    def has_hash(self, at: int, stride: int) -> bool:
        """Return whether an id with these halves of its hash was added."""
        return self._newest.has_hash(at, stride) or (bool(self._full) and _any_has(self._full, at, stride))

    def _grow(self) -> bool:
        """Add a slice; return false if there is no memory for one."""
        newest = self._newest
        rate = newest.false_positive_rate * TIGHTENING
        desired = max(GROWTH * newest.capacity, SECOND_CAPACITY)
        capacity = min(desired, _capacity_of(memory.left_for(self.memory_bytes), rate))
        if capacity < self._slices[0].capacity:
            return False
        self._set_slices((*self._slices, BloomFilter(capacity, rate)))
        return True


def _any_has(slices: tuple[tuple[bytearray, int, tuple[int, ...]], ...], first: int, second: int) -> bool:
    """Return whether any slice has the hash (`BloomFilter.has_hash` inlined: most look-ups end at the first probe)."""
    for bits, size, steps in slices:
        at = first % size
        if not bits[at >> 3] & _BIT[at & 7]:
            continue
        stride = second % size
        for step in steps:
            stride += step
            at = (at + stride) % size
            if not bits[at >> 3] & _BIT[at & 7]:
                break
        else:
            return True
    return False
