"""Fits a line to noisy times, with the least relative error from the median of each kind of request.

Pure. Called by `benchmarks.request_costs`. Medians exclude the influence of other programs. The error of a point is the
absolute logarithm of estimate over measurement: twice too much counts as half, a heartbeat's microseconds count as much
as a large Produce's milliseconds, and an outlier has little influence (least absolute deviations).
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.quota_callbacks.builtin.request_costs import RequestCost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The cost of a KiB cannot be determined from sizes that differ by less.
LEAST_SPREAD_KIB = 0.5
# A slope that adds a smaller fraction of the base, from the smallest to the largest size, is considered noise.
LEAST_RISE = 0.1
# The resolution of the log, which truncates smaller times to zero.
LEAST_MS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All requests of one API in one workload."""

    work: str
    kib: float
    """Median size of request and reply together."""
    ms: float
    """Median handler time."""
    lower_ms: float
    """First quartile of the handler time."""
    upper_ms: float
    """Third quartile of the handler time."""
    samples: int


def point(work: str, kib: Sequence[float], ms: Sequence[float]) -> Point:
    """Return the medians of at least two samples; shorter times count as `LEAST_MS`."""
    lower, middle, upper = statistics.quantiles([max(each, LEAST_MS) for each in ms], n=4)
    return Point(work=work, kib=statistics.median(kib), ms=middle, lower_ms=lower, upper_ms=upper, samples=len(ms))


def fit(points: Sequence[Point]) -> RequestCost:
    """Return the fitted line, a constant if the sizes hardly differ. Raises ValueError without points."""
    flat = RequestCost(base_ms=2 ** statistics.median(math.log2(each.ms) for each in points))
    spread = max(each.kib for each in points) - min(each.kib for each in points)
    if spread < LEAST_SPREAD_KIB:
        return flat
    best = min([flat, *_lines(points)], key=lambda cost: sum(abs(off_by(cost, each)) for each in points))
    return flat if best.per_kib_ms * spread < LEAST_RISE * best.base_ms else best


def _lines(points: Sequence[Point]) -> Iterator[RequestCost]:
    """Yield the lines through every two points, one of which has the least absolute deviations, or nearly."""
    for one, other in itertools.combinations(points, 2):
        if one.kib != other.kib:
            slope = (other.ms - one.ms) / (other.kib - one.kib)
            base = one.ms - slope * one.kib
            if slope >= 0 and base >= LEAST_MS:
                yield RequestCost(base_ms=base, per_kib_ms=slope)


def estimate(cost: RequestCost, measured: Point) -> float:
    """Return the line's milliseconds for a request of the measured size."""
    return cost.base_ms + cost.per_kib_ms * measured.kib


def off_by(cost: RequestCost, measured: Point) -> float:
    """Return the error of the line at a point as log2 of the ratio: 1 is twice the measurement, -1 is half."""
    return math.log2(estimate(cost, measured) / measured.ms)
