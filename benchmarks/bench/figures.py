"""The measured values and their statistics: medians, quartiles, and ratios of two paths within one run. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RATE = "rate"
"""The client's throughput: MB/s (10**6 bytes) for large batches, otherwise requests or connections per second."""
CPU_S = "cpu_s"
"""CPU seconds of the proxy for the whole run."""
AMOUNT = "amount"
"""The amount of work in the run: GB (10**9 bytes), or thousands of requests or connections."""
RESIDENT_BYTES = "resident_bytes"
"""Resident memory of the proxy at the end of the run."""
P50_MS, P99_MS, P999_MS = "p50_ms", "p99_ms", "p999_ms"
LATENCIES = (P50_MS, P99_MS, P999_MS)
THREAD_SHARE = "thread_share"
"""The share of the least busy thread of the data plane in the CPU time of all of them, if there are several."""
CONNECTIONS = "connections"
CONNECTION_BYTES = "connection_bytes"
"""Resident bytes that each idle connection added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: a workload on a path in one round. Values by the names above; a path without a process has no CPU_S."""

    work: str
    path: str
    round: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure of all rounds, with the quartiles over the rounds."""

    middle: float
    low: float
    high: float


class Results:
    """All samples of a run, and figures computed from them."""

    __slots__ = ("samples",)

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = tuple(samples)

    def workloads(self) -> list[str]:
        """Return the names of the workloads in the order in which they ran."""
        return list(dict.fromkeys(sample.work for sample in self.samples))

    def paths(self, work: str) -> list[str]:
        """Return the names of the paths in the order in which they first ran `work`."""
        return list(dict.fromkeys(sample.path for sample in self.samples if sample.work == work))

    def value(self, work: str, path: str, figure: str) -> Spread | None:
        """Return the median over the rounds, None if the figure was not measured."""
        by_round = self._by_round(work, path, figure)
        return spread(list(by_round.values())) if by_round else None

    def cpu_per_unit(self, work: str, path: str) -> Spread | None:
        """Return the CPU seconds per unit of AMOUNT."""
        cpu, amount = self._by_round(work, path, CPU_S), self._by_round(work, path, AMOUNT)
        each = [cpu[number] / amount[number] for number in cpu if amount.get(number)]
        return spread(each) if each else None

    def ratio(self, work: str, figure: str, path: str, base: str) -> Spread | None:
        """Return the ratio of the medians, with the quartiles of the rounds' ratios; None if either is missing."""
        ours, theirs = self._by_round(work, path, figure), self._by_round(work, base, figure)
        each = [_quotient(ours[number], theirs[number]) for number in ours if number in theirs]
        if not each:
            return None
        rounds = spread(each)
        middle = _quotient(statistics.median(ours.values()), statistics.median(theirs.values()))
        return Spread(middle=middle, low=rounds.low, high=rounds.high)

    def ratio_of_added(self, work: str, figure: str, path: str, base: str, without: str) -> Spread | None:
        """Return the ratio of what `path` and `base` add to `without`, with the quartiles of the rounds' ratios."""
        ours, theirs, none = (self._by_round(work, each, figure) for each in (path, base, without))
        rounds = [number for number in ours if number in theirs and number in none]
        if not rounds:
            return None
        added = [ours[number] - none[number] for number in rounds]
        added_by_base = [theirs[number] - none[number] for number in rounds]
        each = spread([_quotient(mine, other) for mine, other in zip(added, added_by_base, strict=True)])
        middle = _quotient(statistics.median(added), statistics.median(added_by_base))
        return Spread(middle=middle, low=each.low, high=each.high)

    def difference(self, work: str, figure: str, path: str, base: str) -> Spread | None:
        """Return the median of the differences between `path` and `base` in each round."""
        ours, theirs = self._by_round(work, path, figure), self._by_round(work, base, figure)
        each = [ours[number] - theirs[number] for number in ours if number in theirs]
        return spread(each) if each else None

    def _by_round(self, work: str, path: str, figure: str) -> dict[int, float]:
        return {
            sample.round: sample.values[figure]
            for sample in self.samples
            if sample.work == work and sample.path == path and figure in sample.values
        }


def spread(values: Sequence[float]) -> Spread:
    """Return the median and quartiles (of the values as the whole population); for one value, all are equal."""
    if len(values) == 1:
        return Spread(middle=values[0], low=values[0], high=values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle=middle, low=low, high=high)


def _quotient(mine: float, other: float) -> float:
    return mine / other if other else math.nan


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank. `ordered` is ascending and not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
