"""The time for which the event loop was busy between two polls for events, as a histogram for the metrics page.

An event waits for at most one such turn, so long turns are the delay that all clients notice. Short turns are left out,
since counting them would add to the cost of every request. Measured by `headrace.proxy.network.poller`.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SHORT_TURN_S: Final = 0.01
"""Turns of up to this duration, in seconds, are not counted."""

BOUNDS_S: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""Upper bounds of the histogram's buckets, in seconds; a further bucket has no bound."""


class LoopLag:
    """The turns of one event loop, by their duration."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Number of turns, by bucket."""
        self.sum_s = 0.0

    def add(self, busy_s: float) -> None:
        """Count a turn that took ``busy_s`` seconds."""
        self.sum_s += busy_s
        self.counts[bisect_left(BOUNDS_S, busy_s)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus has them: the upper bound as text, and the number of turns up to it."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found
