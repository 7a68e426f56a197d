"""What a request may cost at most: instructions, memory, system calls. A change that makes the path longer fails here,
on every machine alike; one that makes it much shorter does, too, until the bounds are lowered.

``python -m benchmarks.instructions --where`` lists the functions with their instructions.
"""

from __future__ import annotations

import json
import operator
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

Costs: TypeAlias = "dict[tuple[str, bool], Mapping[str, Any]]"

ROOT = Path(__file__).parents[2]
SLACK = 1.1
FEWER = 1.0 if sys.version_info < (3, 12) else 0.95
"""3.12 and 3.13 execute 5 to 15 % fewer instructions for the same code."""
SOME_BLOCKS, SOME_BYTES = 10, 500
"""What the measuring itself may leave; one block that stays of each request is more."""
SMALL_CALLS = {"epoll_wait": 2, "recv": 2, "send": 2}
LOOKUP_CALLS = {**SMALL_CALLS, "clock_gettime": 13 / 7}
"""The work before and after the look-up at the broker is measured, too."""
LARGE_CALLS = {"epoll_wait": 2, "recv": 3, "send": 3, "splice": 2}
"""The head is read and sent, the rest spliced, and a read finds that there is nothing more."""
FETCH_CALLS = {"epoll_wait": 17, "recv": 3, "send": 3, "splice": 47}
"""The reply comes in sixteen pieces."""
MANY_CALLS = {"epoll_wait": 2, "recv": 5, "send": 5, "splice": 2, "clock_gettime": 10 / 7}
"""Batches that are too small to be spliced, where they are walked: 64 KiB at a time."""
MANY_FETCH_CALLS = {"epoll_wait": 16, "recv": 30, "send": 16, "clock_gettime": 32 / 7}
"""A reply in sixteen pieces; after each, a read finds that there is nothing more."""
THREAD_CLOCK = {"clock_gettime": 6 / 7}
"""Two looks in one step of seven, at most six steps, where request time has a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """On Python 3.11; instructions with all four quotas and without any."""

    instructions: tuple[int, int]
    peak_bytes: int
    calls: Mapping[str, float]


MEASURED = {
    "produce, one record": Measured(instructions=(5629, 3452), peak_bytes=3640, calls=SMALL_CALLS),
    "produce, 64 KiB": Measured(instructions=(7420, 4302), peak_bytes=3640, calls=LARGE_CALLS),
    "produce, 16 of 16 KiB": Measured(instructions=(13500, 4562), peak_bytes=3640, calls=MANY_CALLS),
    "fetch, 1 MiB": Measured(instructions=(14778, 14096), peak_bytes=3960, calls=FETCH_CALLS),
    "fetch, 32 of 30 KiB": Measured(instructions=(29547, 28531), peak_bytes=3960, calls=MANY_FETCH_CALLS),
    "api versions": Measured(instructions=(3339, 2923), peak_bytes=3560, calls=SMALL_CALLS),
    "metadata": Measured(instructions=(17841, 10178), peak_bytes=6974, calls=LOOKUP_CALLS),
}
REQUESTS = [(name, quotas) for name in MEASURED for quotas in (True, False)]
each_request = pytest.mark.parametrize(
    ("name", "quotas"), REQUESTS, ids=[f"{name}, {'quotas' if quotas else 'no quotas'}" for name, quotas in REQUESTS]
)


@pytest.fixture(scope="module")
def costs() -> Costs:
    """The lowest of up to five measurements of what is too high: a loop that was kept waiting executes code that
    records it."""
    found = measure("")
    for _ in range(4):
        for name in {each[0] for each, cost in found.items() if cost["instructions"] > most_instructions(*each)}:
            for each, cost in measure(name).items():
                found[each] = min(found[each], cost, key=operator.itemgetter("instructions"))
    return found


def most_instructions(name: str, quotas: bool) -> float:
    return MEASURED[name].instructions[0 if quotas else 1] * FEWER * SLACK


def measure(only: str) -> Costs:
    """In a process of its own, in which no other code allocates or traces."""
    command = [sys.executable, "-m", "benchmarks.instructions", "--json", "--only", only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {(cost["name"], cost["quotas"]): cost for cost in json.loads(done.stdout)}


@each_request
def test_instructions(costs: Costs, name: str, quotas: bool) -> None:
    most = most_instructions(name, quotas)
    assert most / 2 < costs[name, quotas]["instructions"] <= most


@each_request
def test_memory_that_is_held_at_once(costs: Costs, name: str, quotas: bool) -> None:
    assert 0 < costs[name, quotas]["peak_bytes"] <= MEASURED[name].peak_bytes * SLACK


@each_request
def test_nothing_is_left(costs: Costs, name: str, quotas: bool) -> None:
    cost = costs[name, quotas]
    assert cost["blocks_left"] <= SOME_BLOCKS
    assert cost["bytes_left"] <= SOME_BYTES


@each_request
def test_system_calls(costs: Costs, name: str, quotas: bool) -> None:
    most = {**(THREAD_CLOCK if quotas else {}), **MEASURED[name].calls}
    made = costs[name, quotas]["calls"]
    assert made["epoll_wait"] >= 1
    assert {call: count for call, count in made.items() if count > most.get(call, 0)} == {}
