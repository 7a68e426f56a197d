"""The corpus, and new inputs, of every target: no undeclared exception, no slow input, no growth of memory."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from tests.fuzzing.__main__ import is_guided
from tests.fuzzing.running import (
    CORPUS,
    SlowInputError,
    checks,
    corpus,
    new_input,
    run_input,
    run_new_inputs,
)
from tests.fuzzing.targets import NATIVE, RUNNABLE, TARGETS

if TYPE_CHECKING:
    import random

    from tests.fuzzing.targets import Target

ROOT: Final = Path(__file__).parents[2]
QUICK_S: Final = 45.0
"""Processor time of ``make test`` for new inputs, shared by all targets. The whole folder takes a minute."""
MOST_BYTES: Final = 8 * 2**20
"""Memory that an input of 2 KiB may take at its peak: the relays' buffers, and the caches of a new message."""
LONG_MINUTES: Final = 120.0
LONG_INPUTS: Final = 10_000_000
"""Inputs that `LONG_MINUTES` reach at least, in all."""
MINUTES: Final = float(os.environ.get("FUZZ_MINUTES", LONG_MINUTES))
_TOTAL: Final = re.compile(r"^([0-9,]+) inputs, [0-9]+ findings$", re.MULTILINE)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_and_new_inputs(name: str, rng: random.Random) -> None:
    if name not in RUNNABLE:
        pytest.skip(f"{EXTENSION} is not built")
    known = corpus(name)
    with checks():
        for label, content in known.items():
            try:
                run_input(TARGETS[name], content)
            except BaseException as error:
                error.add_note(f"corpus: {label}")
                raise
    assert known
    run_new_inputs(name, TARGETS[name], rng.getrandbits(32), seconds=QUICK_S / len(TARGETS))


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


@pytest.mark.exhaustive
def test_inputs_leave_no_memory_behind(rng: random.Random) -> None:
    chosen = [(target, content) for name, target in RUNNABLE.items() for content in inputs(name, rng, 4)]
    assert growth_blocks(chosen) < len(chosen), "after the same inputs, twice"


def descriptors_after_runs(rng: random.Random) -> list[int]:
    """Run the inputs of relayed connections three times; return the number of open descriptors after each."""
    chosen = [(name, content) for name in sorted(NATIVE) for content in corpus(name).values()]
    counts = []
    with checks():
        for _ in range(3):
            for name, content in rng.sample(chosen, len(chosen)):
                run_input(TARGETS[name], content)
            counts.append(len(list(Path("/proc/self/fd").iterdir())))
    return counts


@pytest.mark.exhaustive
@pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built")
def test_relayed_connections_leave_no_descriptor_behind(rng: random.Random) -> None:
    """Pipes of spliced frames are kept for the next ones, a bounded number of them.

    Counted in a process of its own: this one may have threads of earlier tests, which open descriptors, too.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        _, second, third = pool.submit(descriptors_after_runs, rng).result()
    assert third <= second


@pytest.mark.exhaustive
def test_growth_is_found() -> None:
    kept: list[bytes] = []
    assert growth_blocks([(lambda data: kept.append(data + b"."), bytes(100))] * 100) >= 100


def test_no_input_takes_much_memory(rng: random.Random) -> None:
    """Lengths and counts that an input announces take no memory."""
    for name, target in RUNNABLE.items():
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

    with checks(), pytest.raises(SlowInputError) as found:
        run_input(endless, b"\1\2")
    assert found.value.__notes__ == ["input of endless: 0102"]


def test_a_corpus_has_each_input_once() -> None:
    assert {path.stem for path in CORPUS.iterdir()} <= TARGETS.keys()
    for name in TARGETS:
        contents = list(corpus(name).values())
        assert len(contents) == len(set(contents)), name


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 1800)
def test_for_hours(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten million inputs, guided by coverage. ``FUZZ_MINUTES`` shortens it; then their number is reported alone."""
    assert is_guided(), (
        "atheris is not installed, so that inputs would not be guided by coverage; it has wheels for Linux on x86-64"
        " with Python 3.11 to 3.13, and requirements/dev.txt has their hashes"
    )
    command = [sys.executable, "-m", "tests.fuzzing", "--minutes", str(MINUTES)]
    timeout_s = MINUTES * 60 + 1500
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = _TOTAL.search(ended.stdout)
    assert found is not None, ended.stdout
    executed = int(found[1].replace(",", ""))
    share = executed / (LONG_INPUTS * MINUTES / LONG_MINUTES)
    with capsys.disabled():
        sys.stdout.write(f"\n{ended.stdout}{share:.0%} of ten million inputs in two hours ({MINUTES:g} minutes)\n")
    if MINUTES >= LONG_MINUTES:
        assert executed >= LONG_INPUTS, f"{executed:,} inputs in {MINUTES:g} minutes; expected {LONG_INPUTS:,}"
