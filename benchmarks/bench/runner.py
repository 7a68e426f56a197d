"""One run: the ways are started and warmed up, then do the works in turn, round after round."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.bench.errors import WayUnavailableError
from benchmarks.bench.figures import CPU_S, P99_MS, RATE, WORKER_SHARE, Sample
from benchmarks.bench.works import BUSY, FETCH, LATENCY, PRODUCE, SMALL, Scene, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.ways import Front, Way
    from benchmarks.bench.works import Sizes, Work

    Told = Callable[[str], None]

STEADY: Final = 0.9
"""Warmed up is what takes at least this much of what it took in the pass before."""
MOST_PASSES: Final = 6
"""Kroxylicious' CPU is steady after three or four."""
WARMING: Final = (PRODUCE, FETCH, SMALL, LATENCY, BUSY)
"""The works that warm up; the others are few requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done, by what, how often."""

    ways: Sequence[Way]
    works: Sequence[Work]
    rounds: int
    sizes: Sizes


@dataclass(slots=True)
class Runner:
    """Does a plan. `told` is called with a line for whatever happens, `advanced` after each run."""

    plan: Plan
    told: Told
    advanced: Callable[[], None]
    samples: list[Sample] = field(default_factory=list)
    """What was measured so far, also when the run is broken off."""

    def run(self, broker: BenchBroker) -> None:
        """Do all of it."""
        scene = Scene(broker=broker, sizes=self.plan.sizes)
        with contextlib.ExitStack() as stack:
            fronts = self._start(broker, stack)
            self.told("writing what is read")
            prepare(scene, reads=any(work.name == FETCH for work in self.plan.works))
            self._warm_up(scene, fronts)
            for number in range(1, self.plan.rounds + 1):
                for work in self.plan.works:
                    for way, front in in_turn(fronts, number - 1):
                        self._measure(scene, number, work, way, front)

    def _start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> list[tuple[Way, Front]]:
        fronts = []
        for way in self.plan.ways:
            try:
                fronts.append((way, way.start(broker, stack)))
            except WayUnavailableError as error:
                self.told(f"without {way.name}: {error}")
        return fronts

    def _warm_up(self, scene: Scene, fronts: Sequence[tuple[Way, Front]]) -> None:
        """The broker, through the first way, and what is a JVM, until their code is compiled and costs fall no more."""
        works = [work for work in self.plan.works if work.name in WARMING]
        for index, (way, front) in enumerate(fronts):
            before: list[float] = []
            for _ in range(MOST_PASSES if works and (way.is_jvm or index == 0) else 0):
                now = []
                for work in works:
                    values = work.run(scene, way, front)
                    self.told(f"warm-up  {in_words(work, way.name, values)}")
                    now.append(cost(values))
                if before and steady(before, now):
                    break
                before = now

    def _measure(self, scene: Scene, number: int, work: Work, way: Way, front: Front) -> None:
        suits = front.works is None or work.name in front.works
        try:
            values = work.run(scene, way, front) if suits else {}
        except WayUnavailableError as error:  # works that start a process of their own
            self.told(f"round {number}  {work.name} without {way.name}: {error}")
            values = {}
        if values:
            self.samples.append(Sample(work=work.name, way=way.name, round=number, values=values))
            self.told(f"round {number}  {in_words(work, way.name, values)}")
        self.advanced()


def in_turn(fronts: Sequence[tuple[Way, Front]], number: int) -> list[tuple[Way, Front]]:
    """Another way goes first in each round, so that none always follows the same one."""
    first = number % len(fronts) if fronts else 0
    return [*fronts[first:], *fronts[:first]]


def cost(values: dict[str, float]) -> float:
    """What falls while a JVM compiles: the CPU of the proxy, or without one the time that the client took; else 1."""
    return values[CPU_S] if CPU_S in values else 1 / values[RATE] if values.get(RATE) else 1.0


def steady(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether nothing became much cheaper from one pass to the next."""
    return all(later >= STEADY * earlier for earlier, later in zip(before, now, strict=True))


def in_words(work: Work, way: str, values: dict[str, float]) -> str:
    """A line about one run."""
    said = [f"{work.name:9}{way:18}"]
    if RATE in values:
        said.append(f"{values[RATE]:9.0f} {work.rate_unit}")
    if P99_MS in values:
        said.append(f"p50 {values['p50_ms']:.2f}, p99 {values['p99_ms']:.2f}, p99.9 {values['p999_ms']:.2f} ms")
    if CPU_S in values:
        said.append(f"{values[CPU_S]:6.2f} CPU s")
    if WORKER_SHARE in values:
        said.append(f"{values[WORKER_SHARE]:.2f} of it by the worker that did less")
    if "connection_bytes" in values:
        said.append(f"{values['connection_bytes'] / 1024:.1f} KiB each of {values['connections']:.0f}")
    return "  ".join(said)
