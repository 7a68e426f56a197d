"""A line through noisy times: the one that is least far off, in proportion, from the median of each kind of request.

Pure. Called by `benchmarks.request_costs`. The medians keep other programs' use of the machine out. How far off is the
absolute logarithm of estimate over measurement: twice too much is as bad as half, a heartbeat's microseconds count as
much as a large Produce's milliseconds, and one strange point does not draw the line to itself (least absolute
deviations).
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

# Sizes that differ by less tell nothing of what a KiB costs.
LEAST_SPREAD_KIB = 0.5
# A line that rises by a smaller part of its base, from the smallest size to the largest, is noise.
LEAST_RISE = 0.1
# The log's step; it cuts off what is less, down to zero.
LEAST_MS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """All requests of one API that one piece of work sent."""

    work: str
    kib: float
    """Request and reply, median."""
    ms: float
    """Handler time, median."""
    lower_ms: float
    """The first quartile."""
    upper_ms: float
    """The third."""
    samples: int


def point(work: str, kib: Sequence[float], ms: Sequence[float]) -> Point:
    """The medians of at least two samples; times are taken for at least `LEAST_MS`."""
    lower, middle, upper = statistics.quantiles([max(each, LEAST_MS) for each in ms], n=4)
    return Point(work=work, kib=statistics.median(kib), ms=middle, lower_ms=lower, upper_ms=upper, samples=len(ms))


def fit(points: Sequence[Point]) -> RequestCost:
    """The line through the points; flat where their sizes hardly differ. Raises ValueError without points."""
    flat = RequestCost(base_ms=2 ** statistics.median(math.log2(each.ms) for each in points))
    spread = max(each.kib for each in points) - min(each.kib for each in points)
    if spread < LEAST_SPREAD_KIB:
        return flat
    best = min([flat, *_lines(points)], key=lambda cost: sum(abs(off_by(cost, each)) for each in points))
    return flat if best.per_kib_ms * spread < LEAST_RISE * best.base_ms else best


def _lines(points: Sequence[Point]) -> Iterator[RequestCost]:
    """Through every two points: the least absolute deviations are those of one such line, or nearly."""
    for one, other in itertools.combinations(points, 2):
        if one.kib != other.kib:
            slope = (other.ms - one.ms) / (other.kib - one.kib)
            base = one.ms - slope * one.kib
            if slope >= 0 and base >= LEAST_MS:
                yield RequestCost(base_ms=base, per_kib_ms=slope)


def estimate(cost: RequestCost, measured: Point) -> float:
    """Milliseconds that the line has for a request of that size."""
    return cost.base_ms + cost.per_kib_ms * measured.kib


def off_by(cost: RequestCost, measured: Point) -> float:
    """How far the line is from a point: log2 of the ratio, so 1 is twice too much and -1 is half."""
    return math.log2(estimate(cost, measured) / measured.ms)
