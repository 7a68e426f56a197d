"""The charges of one bucket after the other, summed by hour.

Charges arrive in arrays, ordered by bucket and second. What is certainly not throttled
(`headrace.pipeline.analysis.what_if.never_throttled`) is summed with NumPy; from the first charge on that may be
throttled, a bucket's charges go through `headrace.pipeline.analysis.what_if.loop`. So do all charges to token buckets
(mutations and producer ids), which are few. Pure. Memory is bounded by the charges of a chunk and of one window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.pipeline.analysis.what_if.buckets import RATES
from headrace.pipeline.analysis.what_if.loop import Loop, Replays, Tally
from headrace.pipeline.analysis.what_if.never_throttled import SECOND_BITS, RateCharges, certain, context, firsts
from headrace.quota_callbacks.records.replay import Op
from headrace.quota_callbacks.requests import PERCENT_PER_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.pipeline.analysis.what_if.buckets import Buckets
    from headrace.pipeline.analysis.what_if.loop import Charge, HourSums
    from headrace.pipeline.analysis.what_if.never_throttled import BoolArray, FloatArray, IntArray
    from headrace.pipeline.analysis.what_if.quotas import Quotas

CHUNK: Final = 200_000
"""Number of rows that are processed at once: enough for the time to be NumPy's, few enough for its caches."""

_SECOND: Final = (1 << SECOND_BITS) - 1


@dataclass(frozen=True, slots=True)
class QuietHours:
    """The sums of hours in which no charge was throttled: arrays of one length, ordered by bucket and hour."""

    bucket: IntArray
    hour: IntArray
    """Since 1970."""
    events: IntArray
    amount: FloatArray
    needed: FloatArray
    """The limit from which on the records show that no charge is throttled; 0 if that of the bucket is higher."""

    def __getitem__(self, rows: slice | BoolArray) -> QuietHours:
        """Return a part of the hours."""
        return QuietHours(self.bucket[rows], self.hour[rows], self.events[rows], self.amount[rows], self.needed[rows])


@dataclass(frozen=True, slots=True)
class LoopedHours:
    """The sums of hours of buckets of which some charge may have been throttled."""

    rows: list[tuple[int, float, HourSums]]
    """Bucket, ``needed`` as in `QuietHours`, and the sums."""


@dataclass(frozen=True, slots=True)
class Charges:
    """Charges of senders to buckets: arrays of one length."""

    key: IntArray
    """The bucket's number, shifted by `SECOND_BITS`, plus the second."""
    sender: IntArray
    amount: FloatArray
    """The amount in the unit of the bucket's operation."""

    def __getitem__(self, rows: slice | IntArray | BoolArray) -> Charges:
        """Return a part of the charges."""
        return Charges(self.key[rows], self.sender[rows], self.amount[rows])

    def __len__(self) -> int:
        return len(self.key)

    def __iter__(self) -> Iterator[Charge]:
        """Iterate over second, sender and amount, as Python values, whose arithmetic is faster than NumPy's."""
        return zip((self.key & _SECOND).tolist(), self.sender.tolist(), self.amount.tolist(), strict=True)


NO_CHARGES: Final = Charges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


def joined(parts: Iterable[Charges]) -> Charges:
    """Return the charges of all parts."""
    columns = zip(*((part.key, part.sender, part.amount) for part in parts), strict=True)
    return Charges(*(np.concatenate(column) for column in columns))


def merged(charges: Charges) -> Charges:
    """Return one charge for each bucket, second and sender, in this order, given charges in the order of their keys."""
    key, sender = charges.key, charges.sender
    same = key[1:] == key[:-1]
    if not same.any():
        return charges
    tied = np.append(same, False) | np.append(False, same)
    rows = np.flatnonzero(tied)
    order = np.arange(len(key))
    order[rows] = rows[np.lexsort((sender[rows], key[rows]))]
    charges = charges[order]
    begins = np.append(True, ~same | (charges.sender[1:] != charges.sender[:-1]))
    if begins.all():
        return charges
    sums = np.bincount(np.cumsum(begins) - 1, weights=charges.amount).astype(np.float64)
    return Charges(key[begins], charges.sender[begins], sums)


@dataclass(slots=True)
class _Open:
    """The last bucket of a chunk, whose charges may continue in the next chunk."""

    bucket: int = -1
    began_s: int = 0
    hour: QuietHours | None = None
    """The sums of its last hour, unless the bucket is in a loop."""
    before: Charges = NO_CHARGES
    """The charges of the bucket that its next charges can still depend on."""
    loop: Loop | None = None
    needed: float = 0.0


class Totals:
    """The sums of charges that arrive in the order of their keys."""

    def __init__(self, buckets: Buckets, quotas: Quotas, *, chunk: int = CHUNK) -> None:
        self._buckets = buckets.buckets
        self._replays = Replays(quotas, buckets.senders)
        self._chunk = chunk
        self._is_rate = np.array([each.op in RATES for each in self._buckets], np.bool_)
        self._is_request = np.array([each.op is Op.REQUEST for each in self._buckets], np.bool_)
        self._limit = np.array([each.limit for each in self._buckets], np.float64)
        self._samples = np.array([each.window.samples for each in self._buckets], np.int64)
        self._seconds = np.array([each.window.seconds for each in self._buckets], np.int64)
        self._kept: list[Charges] = []
        self._open = _Open()
        self._rows: list[tuple[int, float, HourSums]] = []

    def add(self, charges: Charges) -> Iterator[QuietHours | LoopedHours]:
        """Add charges; yield the sums that are complete."""
        self._kept.append(charges)
        if sum(map(len, self._kept)) >= self._chunk:
            yield from self._process(joined(self._kept), last=False)
            yield from self._looped()

    def finish(self) -> Iterator[QuietHours | LoopedHours]:
        """Yield the sums of what is left."""
        yield from self._process(joined([NO_CHARGES, *self._kept]), last=True)
        yield from self._close()
        yield from self._looped()

    def _looped(self) -> Iterator[LoopedHours]:
        """Yield the rows of buckets whose loops have ended."""
        if self._rows:
            rows, self._rows = self._rows, []
            yield LoopedHours(rows)

    def _process(self, charges: Charges, *, last: bool) -> Iterator[QuietHours]:
        """Process all charges but those of the last key, which the next chunk may go on with."""
        at = len(charges) if last else int(np.searchsorted(charges.key, charges.key[-1]))
        self._kept = [charges[at:]]
        charges = merged(charges[:at])
        opened = self._open
        goes_on = int(np.searchsorted(charges.key, (opened.bucket + 1) << SECOND_BITS))
        if opened.loop is not None:
            _run(opened.loop, charges[:goes_on])
            charges = charges[goes_on:]
            goes_on = 0
        if len(charges):
            if not goes_on:
                yield from self._close()
            yield from self._sum(charges)

    def _close(self) -> Iterator[QuietHours]:
        """Yield the sums of the open bucket that are left, or add them to the rows if it is in a loop."""
        opened, self._open = self._open, _Open()
        if opened.loop is not None:
            self._rows += [(opened.bucket, opened.needed, sums) for sums in opened.loop.finish()]
        elif opened.hour is not None:
            yield opened.hour

    def _sum(self, charges: Charges) -> Iterator[QuietHours]:
        """Sum up charges, of which the first may be those of the open bucket."""
        opened, self._open = self._open, _Open()
        past = len(opened.before)
        charges = joined([opened.before, charges])
        bucket = charges.key >> SECOND_BITS
        certain_rows, needed = self._screen(charges, bucket)
        certain_rows[:past] = True  # the chunk before has found that they are certain
        first, count = firsts(bucket), len(bucket)
        cut = np.full(count, count)
        doubtful = np.flatnonzero(~certain_rows)
        np.minimum.at(cut, first[doubtful], doubtful)
        rows = np.arange(count)
        counted = np.flatnonzero((rows < cut[first]) & (rows >= past))
        hours = _by_hour(bucket[counted], charges[counted], needed[counted], opened.hour)
        kept = np.ones(len(hours.bucket), np.bool_)
        for begin in np.unique(first[doubtful]).tolist():
            number, at = int(bucket[begin]), int(cut[begin])
            end = int(np.searchsorted(bucket, number, side="right"))
            mine = slice(*np.searchsorted(hours.bucket, (number, number + 1)).tolist())
            kept[mine] = False
            began_s = opened.began_s if number == opened.bucket else int(charges.key[begin] & _SECOND)
            loop = Loop(
                self._replays,
                self._buckets[number].op,
                began_s,
                charges[begin + self._context(number, charges.key[begin:at]) : at],
                _tallies(hours[mine]),
            )
            _run(loop, charges[at:end])
            self._open = _Open(bucket=number, loop=loop, needed=float(needed[begin:end].max()))
            if end < count:
                yield from self._close()
        if self._open.loop is None:
            begin, number = int(first[-1]), int(bucket[-1])
            self._open = _Open(
                bucket=number,
                began_s=opened.began_s if number == opened.bucket else int(charges.key[begin] & _SECOND),
                hour=hours[-1:],
                before=charges[begin + self._context(number, charges.key[begin:]) :],
            )
            kept[-1] = False
        if kept.any():
            yield hours[kept]

    def _screen(self, charges: Charges, bucket: IntArray) -> tuple[BoolArray, FloatArray]:
        """Return `certain` for all charges; those to token buckets are never certain."""
        rates = self._is_rate[bucket]
        found, needed = np.zeros(len(bucket), np.bool_), np.zeros(len(bucket))
        bucket, amount = bucket[rates], charges.amount[rates]
        if len(bucket):
            percent = np.rint(amount * 1e6) * PERCENT_PER_NS
            found[rates], needed[rates] = certain(
                RateCharges(
                    key=charges.key[rates],
                    value=np.where(self._is_request[bucket], percent, amount),
                    limit=self._limit[bucket],
                    samples=self._samples[bucket],
                    seconds=self._seconds[bucket],
                )
            )
        return found, needed

    def _context(self, number: int, key: IntArray) -> int:
        """Return from which of a bucket's charges on the next ones depend on them."""
        return context(key, int(self._samples[number]), int(self._seconds[number])) if len(key) else 0


def _run(loop: Loop, charges: Charges) -> None:
    for each in charges:
        loop.add(*each)


def _tallies(hours: QuietHours) -> dict[int, Tally]:
    rows = zip(hours.hour.tolist(), hours.events.tolist(), hours.amount.tolist(), strict=True)
    return {hour: Tally(events, amount) for hour, events, amount in rows}


def _by_hour(bucket: IntArray, charges: Charges, needed: FloatArray, begun: QuietHours | None) -> QuietHours:
    """Return the sums of charges by bucket and hour, together with those of an hour that has ``begun``.

    Amounts are added in the order of the charges, so that the sums are those of the loop to the last bit.
    """
    hour, events, amount = (charges.key & _SECOND) // 3600, np.ones(len(bucket)), charges.amount
    if begun is not None:
        bucket, hour = np.append(begun.bucket, bucket), np.append(begun.hour, hour)
        events, amount = np.append(begun.events, events), np.append(begun.amount, amount)
        needed = np.append(begun.needed, needed)
    if not len(bucket):
        return NO_HOURS
    begins = np.append(True, (bucket[1:] != bucket[:-1]) | (hour[1:] != hour[:-1]))
    group = np.cumsum(begins) - 1
    return QuietHours(
        bucket[begins],
        hour[begins],
        np.bincount(group, weights=events).astype(np.int64),
        np.bincount(group, weights=amount).astype(np.float64),
        np.maximum.reduceat(needed, np.flatnonzero(begins)),
    )


_NO_NUMBERS: Final = np.empty(0, np.int64)
NO_HOURS: Final = QuietHours(_NO_NUMBERS, _NO_NUMBERS, _NO_NUMBERS, np.empty(0), np.empty(0))
