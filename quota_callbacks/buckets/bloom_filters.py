"""Which producer ids of a user were seen within the window, in a few bits an id (KIP-936).

Three layers: `BloomFilter` has a fixed size, `GrowingBloomFilter` starts a further slice when one is full (P. S.
Almeida et al., "Scalable Bloom Filters", 2007), and `TimedBloomFilters` overlaps two of those as the KIP's timeline has
it. The producer id quota keeps one `TimedBloomFilters` a user. Pure: the caller brings the time, in milliseconds of any
clock that does not go back. A false positive takes a new id for a seen one, which the quota then does not count; false
negatives do not occur.

An id's probes are made of the two halves of one 128-bit MurmurHash3 (A. Kirsch, M. Mitzenmacher, "Less Hashing, Same
Performance", 2006), with the stride growing from probe to probe (their *enhanced* double hashing). With an even stride,
two ids of the same stride share most of their probes: measured, a filter for 64 ids at 0.1 % then comes out at 0.16 %.
"""

from __future__ import annotations

import functools
import math
from struct import Struct
from typing import Final, TypedDict

from mmh3 import hash64

MAX_BYTES: Final = 64 * 1024 * 1024
"""What one `GrowingBloomFilter` may hold. A user has two at most, so a flood of forged ids takes 128 MiB of a worker at
the worst; at a rate of 1 % it is room for 28 million ids, which is 28 million producers a window."""

GROWTH: Final = 4
"""Capacity of a slice over that of the slice before it. A new id is looked for in every slice: from 64 to 1,000,000 ids
are 14 slices with a factor of 2 and a new id costs 3.8 us; with 4 and `SECOND_CAPACITY` they are 6, and it is 2.2."""

SECOND_CAPACITY: Final = 4096
"""Ids that a second slice is made for at least, at 8 KiB: small slices cost an id as much as large ones."""

TIGHTENING: Final = 0.8
"""Rate of a slice over that of the slice before it (Almeida et al. advise 0.8 to 0.9). With the first at 1 - 0.8 of the
rate asked for, all slices together stay under it however many they are."""

PROBES_OVER_OPTIMUM: Final = 0.6
"""Probes taken, of the log2(1/rate) with which a filter is smallest. Measured: 10 % more bits, an id 30 % cheaper."""

INITIAL_CAPACITY: Final = 64
"""Ids that a user's first slice is made for: 130 bytes at 1 %. Most users have fewer producers in a window."""

_id_bytes: Final = Struct(">q").pack
_BIT: Final = (1, 2, 4, 8, 16, 32, 64, 128)


class SliceState(TypedDict):
    """A `BloomFilter` as plain values."""

    capacity: int
    rate: float
    count: int
    bits: bytes


class FilterState(TypedDict):
    """A `GrowingBloomFilter`, and how many ms before the state was taken it was started."""

    age_ms: int
    overflowed: int
    slices: list[SliceState]


class TimedState(TypedDict):
    """A `TimedBloomFilters`, its oldest filter first."""

    seed: int
    filters: list[FilterState]


def bloom_size(capacity: int, false_positive_rate: float) -> tuple[int, int]:
    """Bits m and probes k of a filter: k under its optimum, and the m at which (1 - e^(-kn/m))^k is the rate.

    Raises `ValueError` for a capacity below 1 or a rate that does not lie between 0 and 1.
    """
    if capacity < 1:
        raise ValueError(f"a Bloom filter is made for at least 1 id, not for {capacity}")
    if not 0 < false_positive_rate < 1:
        raise ValueError(f"a false positive rate lies between 0 and 1, not at {false_positive_rate}")
    probes = math.ceil(PROBES_OVER_OPTIMUM * -math.log2(false_positive_rate))
    bits = -probes * capacity / math.log1p(-(false_positive_rate ** (1 / probes)))
    return 8 * math.ceil(bits / 8), probes


def _capacity_of(room_bytes: int, false_positive_rate: float) -> int:
    """How many ids a filter of so many bytes holds at the rate; 0 where there is no room."""
    bits, _ = bloom_size(1_000_000, false_positive_rate)
    return max(8 * (room_bytes - 1) * 1_000_000 // bits, 0)


@functools.cache
def _steps(probes: int) -> tuple[int, ...]:
    return tuple(range(probes))


class BloomFilter:
    """Producer ids, in a fixed number of bits. At ``capacity`` ids, an id that is not in it is taken for seen at
    ``false_positive_rate``; beyond, more often."""

    __slots__ = ("bits", "capacity", "count", "false_positive_rate", "size", "steps")

    def __init__(self, capacity: int, false_positive_rate: float) -> None:
        """Raises `ValueError` as `bloom_size` does."""
        self.size, probes = bloom_size(capacity, false_positive_rate)
        """m, in bits: a multiple of 8."""
        self.steps = _steps(probes)
        """0, 1, ... k - 1: what each probe adds to the stride."""
        self.bits = bytearray(self.size // 8)
        self.capacity = capacity
        self.false_positive_rate = false_positive_rate
        self.count = 0
        """How many of the ids added were new."""

    @classmethod
    def restored(cls, state: SliceState) -> BloomFilter:
        """The filter that ``state`` was taken of. Raises `ValueError` if its bits are too few or too many."""
        restored = cls(state["capacity"], state["rate"])
        if len(state["bits"]) != len(restored.bits):
            raise ValueError(
                f"{len(state['bits'])} bytes of bits where {len(restored.bits)} belong to a filter for "
                f"{restored.capacity} ids at {restored.false_positive_rate}"
            )
        restored.bits[:] = state["bits"]
        restored.count = state["count"]
        return restored

    def state(self) -> SliceState:
        """All of it, copied."""
        return {
            "capacity": self.capacity,
            "rate": self.false_positive_rate,
            "count": self.count,
            "bits": bytes(self.bits),
        }

    def add(self, producer_id: int) -> bool:
        """Add an INT64; whether it was new."""
        return self.add_hash(*hash64(_id_bytes(producer_id)))

    def __contains__(self, producer_id: int) -> bool:
        return self.has_hash(*hash64(_id_bytes(producer_id)))

    def add_hash(self, at: int, stride: int) -> bool:
        """`add` for the halves of an id's hash."""
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
        """``in`` for the halves of an id's hash."""
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
    """Producer ids, at ``false_positive_rate`` or less however many they are, until `MAX_BYTES` are full.

    From then on an id that is not in it is new every time it comes, is not added, and is counted in `overflowed`. To go
    on adding would set all bits in the end, and everything a flood brings would pass as seen, uncounted; so its sender
    pays for ids twice instead, and what protects the broker holds.
    """

    __slots__ = ("_full", "_newest", "_slices", "overflowed")

    def __init__(self, initial_capacity: int, false_positive_rate: float) -> None:
        """A first slice for ``initial_capacity`` ids, or for as many as `MAX_BYTES` hold.

        Raises `ValueError` as `bloom_size` does.
        """
        bloom_size(initial_capacity, false_positive_rate)
        rate = false_positive_rate * (1 - TIGHTENING)
        first = BloomFilter(min(initial_capacity, _capacity_of(MAX_BYTES, rate)), rate)
        self._take((first,))
        self.overflowed = 0
        """How many ids were new and could not be added."""

    @classmethod
    def restored(cls, slices: list[SliceState], overflowed: int) -> GrowingBloomFilter:
        """The filter with these slices. Raises `ValueError` if there are none, and as `BloomFilter.restored` does."""
        if not slices:
            raise ValueError("a filter without slices")
        restored = cls.__new__(cls)
        restored._take(tuple(BloomFilter.restored(each) for each in slices))  # noqa: SLF001 -- its own
        restored.overflowed = overflowed
        return restored

    def _take(self, slices: tuple[BloomFilter, ...]) -> None:
        self._slices = slices
        self._newest = slices[-1]
        # What a look-up reads of the slices before the newest, the largest first: most ids are there.
        self._full = tuple((each.bits, each.size, each.steps[:-1]) for each in slices[-2::-1])

    @property
    def count(self) -> int:
        """How many ids are in it."""
        return sum(each.count for each in self._slices)

    @property
    def memory_bytes(self) -> int:
        """Of the bits of all slices."""
        return sum(len(each.bits) for each in self._slices)

    @property
    def slices(self) -> tuple[BloomFilter, ...]:
        """Oldest and smallest first."""
        return self._slices

    def add(self, producer_id: int) -> bool:
        """Add an INT64; whether it was new."""
        return self.add_hash(*hash64(_id_bytes(producer_id)))

    def __contains__(self, producer_id: int) -> bool:
        return self.has_hash(*hash64(_id_bytes(producer_id)))

    def add_hash(self, at: int, stride: int) -> bool:
        """`add` for the halves of an id's hash."""
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
        """``in`` for the halves of an id's hash."""
        return self._newest.has_hash(at, stride) or (bool(self._full) and _any_has(self._full, at, stride))

    def _grow(self) -> bool:
        """Start a further slice; false where no room is left for one."""
        newest = self._newest
        rate = newest.false_positive_rate * TIGHTENING
        wanted = max(GROWTH * newest.capacity, SECOND_CAPACITY)
        capacity = min(wanted, _capacity_of(MAX_BYTES - self.memory_bytes, rate))
        if capacity < self._slices[0].capacity:
            return False
        self._take((*self._slices, BloomFilter(capacity, rate)))
        return True


def _any_has(slices: tuple[tuple[bytearray, int, tuple[int, ...]], ...], first: int, second: int) -> bool:
    """`BloomFilter.has_hash` in one loop over slices: most say no at the first probe or the second."""
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


class TimedBloomFilters:
    """The producer ids that a user has shown within the window, by the timeline of KIP-936.

    The first id starts a filter. The first new id half a window later or more starts a second one: from then on new ids
    go into that, and both are read. A filter is dropped when it is a window old, and so on. So an id is remembered for
    half a window at least and a window at most from when it was new; being seen again prolongs nothing.

    A filter starts a quarter larger than the ids of the one before it need, so many ids have one slice, too.
    """

    __slots__ = ("_initial_capacity", "_newest", "_newest_ms", "_older", "_older_ms", "_rate", "_seed", "_window_ms")

    def __init__(
        self,
        window_ms: int,
        false_positive_rate: float,
        initial_capacity: int = INITIAL_CAPACITY,
        *,
        seed: int = 0,
    ) -> None:
        """``false_positive_rate`` is that of both filters together.

        ``seed`` (UINT32) is the hash's: who does not know it cannot make up ids that pass as seen. Raises `ValueError`
        for a window below 2 ms, and as `bloom_size` does.
        """
        if window_ms < 2:
            raise ValueError(f"a window of {window_ms} ms cannot be halved")
        bloom_size(initial_capacity, false_positive_rate)
        self._window_ms = window_ms
        self._rate = false_positive_rate / 2
        self._initial_capacity = initial_capacity
        self._seed = seed
        self._older: GrowingBloomFilter | None = None
        self._newest: GrowingBloomFilter | None = None
        self._older_ms = self._newest_ms = 0

    @property
    def empty(self) -> bool:
        """Whether no filter is left, as of the last call that brought a time: the user can be dropped."""
        return self._newest is None

    @property
    def filters(self) -> tuple[GrowingBloomFilter, ...]:
        """Those that are read, the older first."""
        return tuple(each for each in (self._older, self._newest) if each is not None)

    def seen_or_add(self, producer_id: int, now_ms: int) -> bool:
        """Whether the id (INT64) was seen in the window; if it was not, it has been added.

        False as well, every time, for an id that no longer fits (`GrowingBloomFilter.overflowed`).
        """
        at, stride = hash64(_id_bytes(producer_id), self._seed)
        newest = self._newest
        if newest is not None:
            age_ms = now_ms - self._newest_ms
            older = self._older
            if older is not None and now_ms - self._older_ms >= self._window_ms:
                older = self._older = None
            if age_ms + age_ms < self._window_ms:
                return (older is not None and older.has_hash(at, stride)) or not newest.add_hash(at, stride)
            if older is not None and older.has_hash(at, stride):  # only where a restart made the window longer
                return True
            if age_ms < self._window_ms and newest.has_hash(at, stride):
                return True
        self._start(now_ms).add_hash(at, stride)
        return False

    @property
    def remembers_until_ms(self) -> int:
        """Until when, at least, every id that is seen now stays seen."""
        return self._window_ms + (self._newest_ms if self._older is None else self._older_ms)

    def _start(self, now_ms: int) -> GrowingBloomFilter:
        """Put a filter in front of the newest, which is half a window old or more, or not there."""
        self.expire(now_ms)
        capacity = self._initial_capacity
        if self._newest is not None:
            count = self._newest.count
            capacity = max(capacity, count + count // 4)
            self._older, self._older_ms = self._newest, self._newest_ms
        self._newest, self._newest_ms = GrowingBloomFilter(capacity, self._rate), now_ms
        return self._newest

    def expire(self, now_ms: int) -> None:
        """Drop what is a window old. The other calls do so by themselves; this is for users who no longer call."""
        if self._older is not None and now_ms - self._older_ms >= self._window_ms:
            self._older = None
        if self._newest is not None and now_ms - self._newest_ms >= self._window_ms:
            self._newest = None

    def state(self, now_ms: int) -> TimedState:
        """What `restore` takes up: ages instead of times, since a monotonic clock begins anew with the machine. Copies
        all bits."""
        self.expire(now_ms)
        dated = ((self._older, self._older_ms), (self._newest, self._newest_ms))
        return {
            "seed": self._seed,
            "filters": [
                {
                    "age_ms": now_ms - started_ms,
                    "overflowed": each.overflowed,
                    "slices": [part.state() for part in each.slices],
                }
                for each, started_ms in dated
                if each is not None
            ],
        }

    def restore(self, state: TimedState, now_ms: int, *, down_ms: int = 0) -> None:
        """Take up a state, taken ``down_ms`` ago, in place of what is here. What is too old is left out.

        Filters keep the size and the rate they were made with until they are dropped. Raises `ValueError` for a state
        that `state` does not give, and then nothing has changed.
        """
        filters = state["filters"]
        if len(filters) > 2:
            raise ValueError(f"{len(filters)} filters of one user, where there are two at most")
        dated = [
            (GrowingBloomFilter.restored(each["slices"], each["overflowed"]), now_ms - down_ms - each["age_ms"])
            for each in filters
        ]
        self._older = self._newest = None
        if dated:
            self._newest, self._newest_ms = dated[-1]
        if len(dated) == 2:
            self._older, self._older_ms = dated[0]
        self._seed = state["seed"]
        self.expire(now_ms)
