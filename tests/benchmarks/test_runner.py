"""In which order a run does its works, and what it does without a way that cannot be had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.bench.errors import WayUnavailableError
from benchmarks.bench.runner import MOST_PASSES, Plan, Runner, cost, in_turn, steady
from benchmarks.bench.ways import Front, Way
from benchmarks.bench.works import Scene, Work, scaled

if TYPE_CHECKING:
    import contextlib

    from benchmarks.bench.broker import BenchBroker


class NoBroker:
    """Whatever is made in it is forgotten."""

    def create_topic(self, name: str, *config: str) -> None: ...


@dataclass
class FakeWay:
    name: str
    is_jvm: bool = False
    relay_address: tuple[str, int] | None = None
    missing: bool = False
    works: frozenset[str] | None = None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        if self.missing:
            raise WayUnavailableError(f"{self.name} is not installed")
        return Front(way=self.name, bootstrap=("h", 1), node=("h", 1), meter=None, works=self.works)


@dataclass
class Journal:
    """What was done by whom, in order."""

    done: list[tuple[str, str]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    advanced: int = 0

    def work(self, name: str) -> Work:
        def run(scene: Scene, way: Way, front: Front) -> dict[str, float]:
            self.done.append((name, front.way))
            if front.way == "lost":
                raise WayUnavailableError("it does not start again")
            # The first way is cheaper each time, as long as it is watched; the others never change.
            rate = float(len(self.done)) if front.way == "a" else 1.0
            return {"rate": rate} if front.way != "silent" else {}

        return Work(name=name, title=name, rate_unit="x", unit="x", run=run)

    def advance(self) -> None:
        self.advanced += 1


def run(journal: Journal, ways: list[FakeWay], works: list[str], rounds: int) -> Runner:
    plan = Plan(ways=ways, works=[journal.work(name) for name in works], rounds=rounds, sizes=scaled(0))
    runner = Runner(plan=plan, told=journal.told.append, advanced=journal.advance)
    runner.run(cast("BenchBroker", NoBroker()))
    return runner


def test_rounds_are_interleaved_and_another_way_goes_first_in_each() -> None:
    journal = Journal()
    run(journal, [FakeWay("a"), FakeWay("b"), FakeWay("c")], ["connect", "idle"], 2)
    assert journal.done == [(work, way) for work in ("connect", "idle") for way in "abc"] + [
        (work, way) for work in ("connect", "idle") for way in "bca"
    ]
    assert journal.advanced == 12


def test_the_broker_is_warmed_up_through_the_first_way_and_each_jvm_by_itself() -> None:
    journal = Journal()
    runner = run(journal, [FakeWay("a"), FakeWay("b"), FakeWay("j", is_jvm=True)], ["small", "connect"], 1)
    passes = [way for work, way in journal.done if work == "small"][:-3]
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
    runner = run(journal, [FakeWay("a"), FakeWay("b", missing=True)], ["connect"], 1)
    assert "without b: b is not installed" in journal.told
    assert [sample.way for sample in runner.samples] == ["a"]


def test_a_way_that_is_lost_on_the_way_ends_nothing() -> None:
    journal = Journal()
    runner = run(journal, [FakeWay("a"), FakeWay("lost")], ["idle"], 2)
    assert "round 1  idle without lost: it does not start again" in journal.told
    assert [(sample.way, sample.round) for sample in runner.samples] == [("a", 1), ("a", 2)]
    assert journal.advanced == 4


def test_a_way_that_has_nothing_to_say_has_no_sample() -> None:
    journal = Journal()
    runner = run(journal, [FakeWay("a"), FakeWay("silent")], ["idle"], 2)
    assert [(sample.way, sample.round) for sample in runner.samples] == [("a", 1), ("a", 2)]
    assert journal.advanced == 4


def test_a_way_does_only_the_works_that_it_is_good_for() -> None:
    journal = Journal()
    run(journal, [FakeWay("a"), FakeWay("b", works=frozenset({"idle"}))], ["connect", "idle"], 1)
    assert journal.done == [("connect", "a"), ("idle", "a"), ("idle", "b")]
    assert journal.advanced == 4


def test_no_ways_do_nothing() -> None:
    assert in_turn([], 3) == []
