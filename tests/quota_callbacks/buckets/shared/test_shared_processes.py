"""Processes that share a bucket: no charge is lost or counted twice, and each process exceeds the limit by at most one
request of each other process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.shared.buckets import SharedBuckets
from tests.quota_callbacks.buckets.shared.hammering import ALREADY, FASTER, LIMIT, LONG

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMES = 20_000


class Hammering:
    """The results of ``workers`` processes that run `hammering` at the same time."""

    def __init__(self, folder: Path, workers: int, kind: str) -> None:
        path = folder / "shared"
        path.write_bytes(bytes(SharedBuckets.size_of(workers, 4, LONG.samples)))
        with path.open("r+b") as file:
            memory = bytearray(file.read())
            SharedBuckets.create(memoryview(memory), workers=workers, rows=4, samples=LONG.samples)
            file.seek(0)
            file.write(memory)
        with ExitStack() as stack:
            self._processes = []
            for worker in range(workers):
                command = [
                    sys.executable,
                    "-m",
                    "tests.quota_callbacks.buckets.shared.hammering",
                    path,
                    str(worker),
                    kind,
                    str(TIMES),
                ]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                stack.callback(process.communicate, timeout=60)
                self._processes.append(process)
            self._answers()  # when all have started, since the bucket fills from its first charge on
            self.begin_ms: int = self._ask("begin")[0]["begin_ms"]
            self.results = self._ask("go")
            self.end_ms = time.monotonic_ns() // 1_000_000
            self.left = [answer["left"] for answer in self._ask(str(self.end_ms))]

    def _ask(self, line: str) -> list[dict[str, Any]]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers


@pytest.mark.parametrize("workers", [2, 4])
def test_places_are_taken_once(tmp_path: Path, workers: int) -> None:
    ran = Hammering(tmp_path, workers, "paced")
    burst, paid = LIMIT, LIMIT * (ran.end_ms - ran.begin_ms) / 1000
    debt = ALREADY + workers * TIMES - paid
    assert debt > burst, "it never ran empty"
    assert ran.left == pytest.approx([burst - debt] * workers)
    places = [place for result in ran.results for place in result["places"]]
    assert over(places, ran.begin_ms, burst - ALREADY) <= workers


def over(times_ms: Sequence[int], begin_ms: int, at_first: float) -> float:
    """Return the maximum, over all times, of the number of admitted requests minus that allowed by the limit.

    With one process this is at most 1, since a request is admitted whenever the quota is not yet exceeded.
    """
    return max(
        number - at_first - LIMIT * (at_ms - begin_ms) / 1000 for number, at_ms in enumerate(sorted(times_ms), 1)
    )


@pytest.mark.parametrize("workers", [2, 4])
def test_every_byte_counts_once(tmp_path: Path, workers: int) -> None:
    ran = Hammering(tmp_path, workers, "kafka")
    assert (ran.end_ms - ran.begin_ms) * FASTER < 1000 * LONG.samples, "all of it is in the window"
    assert ran.left == [workers * TIMES] * workers


@pytest.mark.parametrize("workers", [2, 4])
def test_mutations_are_admitted_once(tmp_path: Path, workers: int) -> None:
    ran = Hammering(tmp_path, workers, "strict")
    admitted = [at_ms for result in ran.results for at_ms in result["admitted"]]
    full = LIMIT * Window().samples * Window().seconds
    refilled = LIMIT * (ran.end_ms - ran.begin_ms) / 1000
    assert ran.left == pytest.approx([min(full, full - ALREADY + refilled - len(admitted))] * workers)
    assert len(admitted) < workers * TIMES, "some were refused"
    assert over(admitted, ran.begin_ms, full - ALREADY) <= workers
