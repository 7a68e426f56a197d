"""In which order a run does its workloads, and what it does without a path that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.bench.errors import PathUnavailableError
from benchmarks.bench.paths import BrokerPath, Front
from benchmarks.bench.runner import MOST_PASSES, Plan, Runner, cost, first_to_warm, in_turn, steady
from benchmarks.bench.tls import TlsSides
from benchmarks.bench.workloads import Scene, Workload, scaled

if TYPE_CHECKING:
    import contextlib

    from benchmarks.bench.broker import BenchBroker


class NoBroker:
    """A broker without topics: calls are ignored."""

    def create_topic(self, name: str, *config: str) -> None: ...


@dataclass
class FakePath:
    name: str
    is_jvm: bool = False
    relay_address: tuple[str, int] | None = None
    missing: bool = False
    sides: TlsSides = TlsSides.NONE
    workloads: frozenset[str] | None = None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        if self.missing:
            raise PathUnavailableError(f"{self.name} is not installed")
        return Front(path=self.name, bootstrap=("h", 1), node=("h", 1), meter=None, workloads=self.workloads)


@dataclass
class Journal:
    """The runs of workloads on paths, in order."""

    done: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    advanced: int = 0

    def work(self, name: str) -> Workload:
        def run(scene: Scene, path: BrokerPath, front: Front) -> dict[str, float]:
            self.done.append((name, front.path))
            if front.path == "lost":
                raise PathUnavailableError("it does not start again")
            # The first path is cheaper each time, as long as it is watched; the others never change.
            rate = float(len(self.done)) if front.path == "a" else 1.0
            return {"rate": rate} if front.path != "silent" else {}

        return Workload(name=name, title=name, rate_unit="x", unit="x", run=run)

    def advance(self) -> None:
        self.advanced += 1


def run(journal: Journal, paths: list[FakePath], workloads: list[str], rounds: int) -> Runner:
    plan = Plan(paths=paths, workloads=[journal.work(name) for name in workloads], rounds=rounds, sizes=scaled(0))
    runner = Runner(plan=plan, on_progress=journal.lines.append, on_advance=journal.advance)
    runner.run(cast("BenchBroker", NoBroker()))
    return runner


def test_rounds_are_interleaved_and_another_way_goes_first_in_each() -> None:
    journal = Journal()
    run(journal, [FakePath("a"), FakePath("b"), FakePath("c")], ["connect", "idle"], 2)
    assert journal.done == [(work, path) for work in ("connect", "idle") for path in "abc"] + [
        (work, path) for work in ("connect", "idle") for path in "bca"
    ]
    assert journal.advanced == 12


def test_the_broker_is_warmed_up_through_the_first_way_and_each_jvm_by_itself() -> None:
    journal = Journal()
    runner = run(journal, [FakePath("a"), FakePath("b"), FakePath("j", is_jvm=True)], ["small", "connect"], 1)
    passes = [path for work, path in journal.done if work == "small"][:-3]
    assert passes == ["a"] * MOST_PASSES + ["j"] * 2
    assert len(runner.samples) == 6


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [([1.0], [0.95], True), ([1.0], [0.8], False), ([1.0, 1.0], [2.0, 0.8], False), ([1.0], [1.5], True)],
)
def test_steady_is_what_falls_no_more(before: list[float], now: list[float], expected: bool) -> None:
    assert steady(before, now) is expected


def test_the_cost_of_a_pass() -> None:
    assert cost({"cpu_s": 2.0, "rate": 4.0}) == 2.0
    assert cost({"rate": 4.0}) == 0.25
    assert cost({"p50_ms": 4.0}) == 1.0


def test_a_way_that_cannot_be_had_is_left_out_with_a_line() -> None:
    journal = Journal()
    runner = run(journal, [FakePath("a"), FakePath("b", missing=True)], ["connect"], 1)
    assert "skipping b: b is not installed" in journal.lines
    assert [sample.path for sample in runner.samples] == ["a"]


def test_a_way_that_is_lost_on_the_way_ends_nothing() -> None:
    journal = Journal()
    runner = run(journal, [FakePath("a"), FakePath("lost")], ["idle"], 2)
    assert "round 1  idle without lost: it does not start again" in journal.lines
    assert [(sample.path, sample.round) for sample in runner.samples] == [("a", 1), ("a", 2)]
    assert journal.advanced == 4


def test_a_way_that_has_nothing_to_say_has_no_sample() -> None:
    journal = Journal()
    runner = run(journal, [FakePath("a"), FakePath("silent")], ["idle"], 2)
    assert [(sample.path, sample.round) for sample in runner.samples] == [("a", 1), ("a", 2)]
    assert journal.advanced == 4


def test_a_way_does_only_the_works_that_it_is_good_for() -> None:
    journal = Journal()
    run(journal, [FakePath("a"), FakePath("b", workloads=frozenset({"idle"}))], ["connect", "idle"], 1)
    assert journal.done == [("connect", "a"), ("idle", "a"), ("idle", "b")]
    assert journal.advanced == 4


def test_no_ways_do_nothing() -> None:
    assert in_turn([], 3) == []


def test_the_broker_is_warmed_up_with_tls_and_without() -> None:
    plain, clients, both, brokers = (
        FakePath(sides.name or "", sides=sides)
        for sides in (TlsSides.NONE, TlsSides.CLIENTS, TlsSides.BOTH, TlsSides.BROKERS)
    )
    assert first_to_warm([plain, clients, both, brokers]) == [plain, both]
    assert first_to_warm([plain, clients]) == [plain]
    assert first_to_warm([]) == []
