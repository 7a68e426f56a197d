"""What was measured, and the arithmetic on it: medians, quartiles, and ratios of two ways within one run. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RATE = "rate"
"""What the client got through: MB/s (10**6 bytes) of large batches, else requests or connections a second."""
CPU_S = "cpu_s"
"""Of the proxy, for the whole run."""
AMOUNT = "amount"
"""How many units of work the run did: GB (10**9 bytes), or thousands of requests or connections."""
RESIDENT_BYTES = "resident_bytes"
"""Of the proxy, at the run's end."""
P50_MS, P99_MS, P999_MS = "p50_ms", "p99_ms", "p999_ms"
LATENCIES = (P50_MS, P99_MS, P999_MS)
WORKER_SHARE = "worker_share"
"""Of what all workers' CPU grew by, the part of the one that did least; where there are several."""
CONNECTIONS = "connections"
CONNECTION_BYTES = "connection_bytes"
"""Resident bytes that each idle connection added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: a work done one way in one round. Values by the names above; a way without a process has no CPU."""

    work: str
    way: str
    round: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure of a whole run, with the quartiles of what single rounds say."""

    middle: float
    low: float
    high: float


class Results:
    """All samples of a run."""

    __slots__ = ("samples",)

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = tuple(samples)

    def works(self) -> list[str]:
        """In the order in which they were done."""
        return list(dict.fromkeys(sample.work for sample in self.samples))

    def ways(self, work: str) -> list[str]:
        """In the order in which they first did `work`."""
        return list(dict.fromkeys(sample.way for sample in self.samples if sample.work == work))

    def value(self, work: str, way: str, figure: str) -> Spread | None:
        """The median over the rounds; None where it was not measured."""
        by_round = self._by_round(work, way, figure)
        return spread(list(by_round.values())) if by_round else None

    def cpu_per_unit(self, work: str, way: str) -> Spread | None:
        """CPU seconds for a unit of work."""
        cpu, amount = self._by_round(work, way, CPU_S), self._by_round(work, way, AMOUNT)
        each = [cpu[number] / amount[number] for number in cpu if amount.get(number)]
        return spread(each) if each else None

    def ratio(self, work: str, figure: str, way: str, base: str) -> Spread | None:
        """Median over median; the quartiles are of the rounds' own ratios. None where either was not measured."""
        ours, theirs = self._by_round(work, way, figure), self._by_round(work, base, figure)
        each = [_quotient(ours[number], theirs[number]) for number in ours if number in theirs]
        if not each:
            return None
        rounds = spread(each)
        middle = _quotient(statistics.median(ours.values()), statistics.median(theirs.values()))
        return Spread(middle=middle, low=rounds.low, high=rounds.high)

    def difference(self, work: str, figure: str, way: str, base: str) -> Spread | None:
        """The median of what `way` has more than `base` in the same round."""
        ours, theirs = self._by_round(work, way, figure), self._by_round(work, base, figure)
        each = [ours[number] - theirs[number] for number in ours if number in theirs]
        return spread(each) if each else None

    def _by_round(self, work: str, way: str, figure: str) -> dict[int, float]:
        return {
            sample.round: sample.values[figure]
            for sample in self.samples
            if sample.work == work and sample.way == way and figure in sample.values
        }


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles (of the values as the whole population); of a single value all three are that."""
    if len(values) == 1:
        return Spread(middle=values[0], low=values[0], high=values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle=middle, low=low, high=high)


def _quotient(mine: float, other: float) -> float:
    return mine / other if other else math.nan


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above (nearest rank). `ordered` ascends, not empty."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
