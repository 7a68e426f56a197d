"""One run: starts the paths and warms them up, then runs each workload on each path in turn, in several rounds."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.bench.errors import PathUnavailableError
from benchmarks.bench.figures import CPU_S, P99_MS, RATE, THREAD_SHARE, Sample
from benchmarks.bench.tls import TlsSides
from benchmarks.bench.workloads import BUSY, FETCH, LATENCY, PRODUCE, SMALL, Scene, prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.paths import BrokerPath, Front
    from benchmarks.bench.workloads import Sizes, Workload

    OnProgress = Callable[[str], None]

STEADY: Final = 0.9
"""A path is warmed up when a pass costs at least this fraction of the pass before."""
MOST_PASSES: Final = 6
"""Maximum number of warm-up passes; Kroxylicious' CPU usage is steady after three or four."""
WARMING: Final = (PRODUCE, FETCH, SMALL, LATENCY, BUSY)
"""The workloads of the warm-up; the others send few requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The paths, workloads, rounds and sizes of a run."""

    paths: Sequence[BrokerPath]
    workloads: Sequence[Workload]
    rounds: int
    sizes: Sizes


@dataclass(slots=True)
class Runner:
    """What carries out a plan. It calls `on_progress` with a line for each event, and `on_advance` after each run."""

    plan: Plan
    on_progress: OnProgress
    on_advance: Callable[[], None]
    samples: list[Sample] = field(default_factory=list)
    """The samples so far; they remain available if the run is interrupted."""

    def run(self, broker: BenchBroker) -> None:
        """Carry out the plan."""
        scene = Scene(broker=broker, sizes=self.plan.sizes)
        with contextlib.ExitStack() as stack:
            fronts = self._start(broker, stack)
            self.on_progress("writing the records to fetch")
            prepare(scene, reads=any(work.name == FETCH for work in self.plan.workloads))
            self._warm_up(scene, fronts)
            for number in range(1, self.plan.rounds + 1):
                for work in self.plan.workloads:
                    for path, front in in_turn(fronts, number - 1):
                        self._measure(scene, number, work, path, front)

    def _start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> list[tuple[BrokerPath, Front]]:
        fronts = []
        for path in self.plan.paths:
            try:
                fronts.append((path, path.start(broker, stack)))
            except PathUnavailableError as error:
                self.on_progress(f"skipping {path.name}: {error}")
        return fronts

    def _warm_up(self, scene: Scene, fronts: Sequence[tuple[BrokerPath, Front]]) -> None:
        """Warm up the broker, through `first_to_warm`, and the paths with a JVM, until their cost no longer falls."""
        first = first_to_warm([path for path, _ in fronts])
        for path, front in fronts:
            workloads = [work for work in self.plan.workloads if work.name in WARMING and suits(work, front)]
            before: list[float] = []
            for _ in range(MOST_PASSES if workloads and (path.is_jvm or path in first) else 0):
                now = []
                for work in workloads:
                    values = work.run(scene, path, front)
                    self.on_progress(f"warm-up  {in_words(work, path.name, values)}")
                    now.append(cost(values))
                if before and steady(before, now):
                    break
                before = now

    def _measure(self, scene: Scene, number: int, work: Workload, path: BrokerPath, front: Front) -> None:
        try:
            values = work.run(scene, path, front) if suits(work, front) else {}
        except PathUnavailableError as error:  # from a workload that starts its own process
            self.on_progress(f"round {number}  {work.name} without {path.name}: {error}")
            values = {}
        if values:
            self.samples.append(Sample(work=work.name, path=path.name, round=number, values=values))
            self.on_progress(f"round {number}  {in_words(work, path.name, values)}")
        self.on_advance()


def suits(work: Workload, front: Front) -> bool:
    """Return whether a front supports a workload."""
    return front.workloads is None or work.name in front.workloads


def first_to_warm(paths: Sequence[BrokerPath]) -> list[BrokerPath]:
    """Return the paths through which the broker is warmed up: the first one, and the first one with TLS to it."""
    with_tls = [path for path in paths if TlsSides.BROKERS in path.sides]
    return [*paths[:1], *with_tls[:1]]


def in_turn(fronts: Sequence[tuple[BrokerPath, Front]], number: int) -> list[tuple[BrokerPath, Front]]:
    """Return the paths rotated by `number`, so that the first path differs from round to round."""
    first = number % len(fronts) if fronts else 0
    return [*fronts[first:], *fronts[:first]]


def cost(values: dict[str, float]) -> float:
    """Return a cost that falls while a JVM compiles: the proxy's CPU, or without one the client's time; else 1."""
    return values[CPU_S] if CPU_S in values else 1 / values[RATE] if values.get(RATE) else 1.0


def steady(before: Sequence[float], now: Sequence[float]) -> bool:
    """Return whether no workload became much cheaper from one pass to the next."""
    return all(later >= STEADY * earlier for earlier, later in zip(before, now, strict=True))


def in_words(work: Workload, path: str, values: dict[str, float]) -> str:
    """Return a line that describes one run."""
    parts = [f"{work.name:9}{path:18}"]
    if RATE in values:
        parts.append(f"{values[RATE]:9.0f} {work.rate_unit}")
    if P99_MS in values:
        parts.append(f"p50 {values['p50_ms']:.2f}, p99 {values['p99_ms']:.2f}, p99.9 {values['p999_ms']:.2f} ms")
    if CPU_S in values:
        parts.append(f"{values[CPU_S]:6.2f} CPU s")
    if THREAD_SHARE in values:
        parts.append(f"{values[THREAD_SHARE]:.2f} of it by the less busy thread")
    if "connection_bytes" in values:
        parts.append(f"{values['connection_bytes'] / 1024:.1f} KiB each of {values['connections']:.0f}")
    return "  ".join(parts)
