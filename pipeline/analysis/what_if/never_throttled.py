"""Charges to rates that are certainly not throttled, found for many buckets at once with NumPy.

A charge that is reported as certain is never throttled; one that is reported as uncertain may be throttled or not, and
`headrace.pipeline.analysis.what_if.totals` charges it with the code of the proxy. The sums here are those of
`headrace.quota_callbacks.buckets.sampled_rate`, for charges at the end of a second and samples that begin at the
beginning of one (`headrace.pipeline.analysis.events.open_second`). Pure.

A rate of n samples of s seconds is the sum of the samples whose last charge is less than n * s seconds old, divided by
the time since the first of them began, which counts as (n - 1) * s seconds at least. So no charge is throttled while
the sum over the last (n + 1) * s + 1 seconds, which includes these samples wherever they begin, is at most the limit
times (n - 1) * s. `certain` tests that for all charges first, and computes samples only for the buckets that fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.pipeline.analysis.events import END_OF_SECOND_MS

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

SECOND_BITS: Final = 33
"""Bits of the second in the key of a charge: enough until the year 2242."""

LONGEST_WINDOW_S: Final = 3600
"""Windows above it are not tested: a bucket is dropped after an hour without use, with what its window has."""

_MARGIN: Final = 1e-9
"""Relative distance from the limit below which a charge is uncertain: far more than the rounding of a division."""
_ROUNDING: Final = 2.0**-52
"""Twice the relative error of one addition. The error of a running total is at most this for each addition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCharges:
    """Charges to rates: arrays of one length, ordered by bucket and second."""

    key: IntArray
    """The bucket's number, shifted by `SECOND_BITS`, plus the second."""
    value: FloatArray
    """The charged amount, in units of the limit times seconds; above 0."""
    limit: FloatArray
    samples: IntArray
    """Number of samples of the bucket's window."""
    seconds: IntArray
    """Length of a sample of the bucket's window."""

    def __getitem__(self, rows: BoolArray) -> RateCharges:
        """Return a part of the charges."""
        return RateCharges(
            key=self.key[rows],
            value=self.value[rows],
            limit=self.limit[rows],
            samples=self.samples[rows],
            seconds=self.seconds[rows],
        )


def certain(charges: RateCharges) -> tuple[BoolArray, FloatArray]:
    """Return which charges are certainly not throttled, and for each charge a limit from which on this is certain,
    however the usage of each second was spread over it. This limit is 0 if that of the bucket is higher anyway.

    The charges of a bucket must begin with the first one of a sample.
    """
    key, samples, seconds = charges.key, charges.samples, charges.seconds
    first = firsts(key >> SECOND_BITS)
    before = _running_total(charges.value)
    slack = len(key) * _ROUNDING * before[-1]
    least_s = ((samples - 1) * seconds).astype(np.float64)
    low_limit = charges.limit * (1 - _MARGIN)
    widest = _since(key, first, before, (samples + 1) * seconds + 1)
    near = (widest + slack > low_limit * least_s) | (samples * seconds > LONGEST_WINDOW_S)
    found = np.ones(len(key), np.bool_)
    needed = np.zeros(len(key))
    if not near.any():
        return found, needed
    number = np.cumsum(first == np.arange(len(key))) - 1
    rows = np.isin(number, number[near])
    found[rows] = _certain_by_samples(charges[rows], slack)
    narrow_s, wide_s = np.maximum(least_s[rows], 1e-9), (samples * seconds)[rows]
    narrow = _since(key, first, before, samples * seconds + 1)[rows]
    needed[rows] = np.where(least_s[rows] > 0, np.maximum(narrow / narrow_s, widest[rows] / wide_s), np.inf)
    return found, needed


def _certain_by_samples(charges: RateCharges, slack: float) -> BoolArray:
    """Compute the samples of each bucket, and from them the rate of each charge."""
    key, samples, seconds = charges.key, charges.samples, charges.seconds
    span_s = samples * seconds
    starts = sample_starts(key, seconds)
    number = np.cumsum(starts) - 1
    begins = np.flatnonzero(starts)
    last_key = key[np.append(begins[1:], len(key)) - 1]
    oldest = np.searchsorted(last_key, key - span_s, side="right")
    oldest = np.maximum(oldest, number[firsts(key >> SECOND_BITS)])
    before = _running_total(charges.value)
    total = before[1:] - before[begins[oldest]]
    window_ms = (key - key[begins[oldest]]) * 1000 + END_OF_SECOND_MS
    window_ms += np.maximum(samples - 1 - window_ms // (seconds * 1000), 0) * seconds * 1000
    within: BoolArray = total + slack <= charges.limit * (1 - _MARGIN) * (window_ms / 1000.0)
    return within & (span_s <= LONGEST_WINDOW_S)


def sample_starts(key: IntArray, seconds: IntArray) -> BoolArray:
    """Return which charges begin a sample: the first of a bucket, and the first of those after a sample has ended."""
    if (seconds == 1).all():
        return np.append(True, key[1:] != key[:-1])
    ends = np.searchsorted(key, key + seconds).tolist()
    starts = np.zeros(len(key), np.bool_)
    at = 0
    while at < len(ends):
        starts[at] = True
        at = ends[at]
    return starts


def context(key: IntArray, samples: int, seconds: int) -> int:
    """Return the index of the first charge of a bucket that its next charge can still depend on.

    From there on are the samples that the rate had when the current sample began, and the charges that `certain`
    compares with the limit.
    """
    starts = sample_starts(key, np.full(len(key), seconds))
    begins = np.flatnonzero(starts)
    last_key = key[np.append(begins[1:], len(key)) - 1]
    return int(begins[np.searchsorted(last_key, key[begins[-1]] - (samples + 1) * seconds)])


def firsts(groups: IntArray) -> IntArray:
    """Return, for each row, the first row of its group; rows of a group are adjacent."""
    begins = np.append(True, groups[1:] != groups[:-1])
    return np.maximum.accumulate(np.where(begins, np.arange(len(groups)), 0))


def _running_total(values: FloatArray) -> FloatArray:
    """Return for each row the sum of the values before it, and at the end the sum of all values."""
    return np.append(0.0, np.cumsum(values))


def _since(key: IntArray, first: IntArray, before: FloatArray, span_s: IntArray) -> FloatArray:
    """Return the sum of each row and those of its bucket in the ``span_s`` seconds that end with its own."""
    begin = np.maximum(np.searchsorted(key, key - span_s, side="right"), first)
    return before[1:] - before[begin]
