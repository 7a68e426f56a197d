"""The producer ids that a user has used within the window (KIP-936): two Bloom filters that overlap in time.

`ProducerIdBucket` has one `TimedBloomFilters` per user. With a false positive, a new id counts as seen, and the quota
does not charge it; there are no false negatives. Pure: time is an argument, in milliseconds of any monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from mmh3 import hash64

from headrace.quota_callbacks.buckets.bloom_filters import GrowingBloomFilter, bloom_size, id_bytes

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.bloom_filters import SliceState

INITIAL_CAPACITY: Final = 64
"""Capacity of a user's first slice, which takes 130 bytes at 1 %. Most users have fewer producers per window."""


class FilterState(TypedDict):
    """The state of a `GrowingBloomFilter`, and its age in milliseconds."""

    age_ms: int
    overflowed: int
    slices: list[SliceState]


class TimedState(TypedDict):
    """The state of a `TimedBloomFilters`, oldest filter first."""

    seed: int
    filters: list[FilterState]


class TimedBloomFilters:
    """The producer ids that a user has used within the window, by the timeline of KIP-936.

    The first id creates a filter. The first new id at least half a window later creates a second one, which new ids are
    added to from then on; look-ups read both. A filter is dropped when it is a window old. So an id is remembered for
    half a window to a window after it was added; seeing it again does not prolong this.

    The capacity of a filter is 1.25 times the number of ids in its predecessor, so that it usually has one slice.
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
        """Create a set without filters.

        ``false_positive_rate`` is that of both filters together. ``seed`` (UINT32) is the hash seed; a secret one
        prevents clients from constructing ids that are taken for seen. Raises `ValueError` for a window below 2 ms, and
        as `bloom_size` does.
        """
        if window_ms < 2:
            raise ValueError(f"a window of {window_ms} ms cannot be halved; expected at least 2 ms")
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
        """Whether there is no filter, as of the last call with a time."""
        return self._newest is None

    @property
    def filters(self) -> tuple[GrowingBloomFilter, ...]:
        """The current filters, older first."""
        return tuple(each for each in (self._older, self._newest) if each is not None)

    def seen_or_add(self, producer_id: int, now_ms: int) -> bool:
        """Return whether the id (INT64) was seen in the window, and add it if it was not.

        Also false, every time, for an id that cannot be added (`GrowingBloomFilter.overflowed`).
        """
        at, stride = hash64(id_bytes(producer_id), self._seed)
        newest = self._newest
        if newest is not None:
            age_ms = now_ms - self._newest_ms
            older = self._older
            if older is not None and now_ms - self._older_ms >= self._window_ms:
                older = self._older = None
            if age_ms + age_ms < self._window_ms:
                return (older is not None and older.has_hash(at, stride)) or not newest.add_hash(at, stride)
            if older is not None and older.has_hash(at, stride):  # only if a restart with a longer window kept it
                return True
            if age_ms < self._window_ms and newest.has_hash(at, stride):
                return True
        self._start(now_ms).add_hash(at, stride)
        return False

    @property
    def remembers_until_ms(self) -> int:
        """Time until which, at least, every id that is seen now is remembered."""
        return self._window_ms + (self._newest_ms if self._older is None else self._older_ms)

    def _start(self, now_ms: int) -> GrowingBloomFilter:
        """Create a new filter; the newest one must be at least half a window old, or missing."""
        self.expire(now_ms)
        capacity = self._initial_capacity
        if self._newest is not None:
            count = self._newest.count
            capacity = max(capacity, count + count // 4)
            self._older, self._older_ms = self._newest, self._newest_ms
        self._newest, self._newest_ms = GrowingBloomFilter(capacity, self._rate), now_ms
        return self._newest

    def expire(self, now_ms: int) -> None:
        """Drop expired filters. Other calls do so too; this one is for users who do not send requests any more."""
        if self._older is not None and now_ms - self._older_ms >= self._window_ms:
            self._older = None
        if self._newest is not None and now_ms - self._newest_ms >= self._window_ms:
            self._newest = None

    def state(self, now_ms: int) -> TimedState:
        """Return a copy of the state for `restore`, with ages instead of times, since a monotonic clock restarts with
        the machine."""
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
        """Replace the filters by those of a state that was taken ``down_ms`` ago, except expired ones.

        Filters keep their size and rate until they are dropped. Raises `ValueError` for an invalid state, and changes
        nothing then.
        """
        filters = state["filters"]
        if len(filters) > 2:
            raise ValueError(f"the state of one user has {len(filters)} filters; expected at most 2")
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
