"""The corpus, and new inputs, of every target: no undeclared exception, no slow input, no growth of memory."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.fuzzing.running import (
    CORPUS,
    LONGEST_S,
    SlowInputError,
    checks,
    corpus,
    new_input,
    run_input,
    run_new_inputs,
)
from tests.fuzzing.targets import TARGETS

if TYPE_CHECKING:
    import random

    from tests.fuzzing.targets import Target

ROOT: Final = Path(__file__).parents[2]
SLOW: Final = {"relays": 60, "logins": 60, "admin_http": 60, "environment": 100, "cost_file": 200, "price_sheet": 200}
"""New inputs in ``make test``, for targets whose inputs take a millisecond or more."""
USUAL: Final = 600
MOST_BYTES: Final = 8 * 2**20
"""Memory that an input of 2 KiB may take at its peak: the relays' buffers, and the caches of a new message."""
MINUTES: Final = float(os.environ.get("FUZZ_MINUTES", "120"))


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_new_inputs(name: str, rng: random.Random) -> None:
    known = corpus(name)
    with checks():
        for label, content in known.items():
            try:
                run_input(TARGETS[name], content)
            except BaseException as error:
                error.add_note(f"corpus: {label}")
                raise
    run_new_inputs(TARGETS[name], [*known.values()], rng.getrandbits(32), number=SLOW.get(name, USUAL))


def inputs(name: str, rng: random.Random, number: int) -> list[bytes]:
    """Return the shortest inputs of the corpus, and new ones."""
    known = sorted(corpus(name).values(), key=len)[:3]
    return [*known, *(new_input(rng, known) for _ in range(number))]


def blocks_after(chosen: list[tuple[Target, bytes]]) -> int:
    """Run the inputs, and return the number of blocks of memory that are in use then."""
    with checks():
        for target, content in chosen:
            run_input(target, content)
    gc.collect()
    return sys.getallocatedblocks()


def growth_blocks(chosen: list[tuple[Target, bytes]]) -> int:
    """Run the inputs four times, the first two of which fill caches; return by how many blocks the last two grow."""
    _, before, _, after = (blocks_after(chosen) for _ in range(4))
    return after - before


def test_inputs_leave_no_memory_behind(rng: random.Random) -> None:
    chosen = [(target, content) for name, target in TARGETS.items() for content in inputs(name, rng, 4)]
    assert growth_blocks(chosen) < len(chosen), "after the same inputs, twice"


def test_growth_is_found() -> None:
    kept: list[bytes] = []
    assert growth_blocks([(lambda data: kept.append(data + b"."), bytes(100))] * 100) >= 100


def test_no_input_takes_much_memory(rng: random.Random) -> None:
    """Lengths and counts that an input announces take no memory."""
    for name, target in TARGETS.items():
        chosen = inputs(name, rng, 10)
        with checks():
            for content in chosen:
                run_input(target, content)  # fills caches
            tracemalloc.start()
            try:
                for content in chosen:
                    tracemalloc.reset_peak()
                    before, _ = tracemalloc.get_traced_memory()
                    target(content)
                    _, peak = tracemalloc.get_traced_memory()
                    assert peak - before < MOST_BYTES, f"{name}: {peak - before} bytes for {content.hex()}"
            finally:
                tracemalloc.stop()


def test_a_slow_input_is_found() -> None:
    def endless(_data: bytes) -> None:
        while True:
            with contextlib.suppress(Exception):  # as a mistake would
                sum(range(1000))

    began_s = time.process_time()
    with checks(), pytest.raises(SlowInputError) as found:
        run_input(endless, b"\1\2")
    assert time.process_time() - began_s < LONGEST_S + 1
    assert found.value.__notes__ == ["input of endless: 0102"]


def test_a_corpus_has_each_input_once() -> None:
    assert {path.stem for path in CORPUS.iterdir()} <= TARGETS.keys()
    for name in TARGETS:
        contents = list(corpus(name).values())
        assert len(contents) == len(set(contents)), name


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_for_hours(name: str) -> None:
    minutes = MINUTES / len(TARGETS)
    command = [sys.executable, "-m", "tests.fuzzing", "--minutes", str(minutes), name]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=minutes * 60 + 120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
