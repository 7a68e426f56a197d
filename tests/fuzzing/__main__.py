"""Fuzz targets for some time: ``python -m tests.fuzzing [--minutes M] [TARGET ...]`` (``make fuzz``).

With atheris inputs are guided by coverage, and several targets run at the same time, each in a process. Without it, on
platforms for which it has no wheel, they are the corpus, mutated at random. Inputs that reach new code are kept in
``.cache/fuzzing``, where the next run begins. The status is 1 if something was found; the inputs are then in
``.cache/fuzzing/found``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from tests.fuzzing.running import CACHE, FOUND, LOGS, corpus, run_new_inputs
from tests.fuzzing.targets import RUNNABLE as TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
MOST_MIB: Final = 1024
"""Memory of a process; more is growth."""
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units: +(\d+)")
_PEAK: Final = re.compile(r"stat::peak_rss_mb: +(\d+)")


def is_guided() -> bool:
    """Return whether inputs are guided by coverage."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(names: list[str], seconds: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Fuzz targets, one after another; yield the name of each, the number of inputs, and a remark."""
    for name in names:
        executed = run_new_inputs(name, TARGETS[name], seed, seconds=seconds)
        yield name, executed, "not guided: atheris is not installed"


def fuzz_guided(names: list[str], seconds: int, seed: int, processes: int) -> Iterator[tuple[str, int, str]]:
    """Fuzz targets as `fuzz` does, guided by coverage, some at the same time; yield each when it has ended."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for name in names:
        (CACHE / "kept" / name).mkdir(parents=True, exist_ok=True)
        seeds = CACHE / "seeds" / name
        seeds.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(corpus(name).values()):
            (seeds / str(number)).write_bytes(content)
    options = {
        "max_total_time": seconds,
        "seed": seed,
        "rss_limit_mb": MOST_MIB,
        "timeout": 20,
        "print_final_stats": 1,
        "verbosity": 0,
    }
    command = [sys.executable, "-m", "tests.fuzzing.guided", str(processes), json.dumps(options), *names]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            name, status = line.split()
            log = (LOGS / name).read_text(encoding="utf-8", errors="backslashreplace")
            executed, peak = _EXECUTED.search(log), _PEAK.search(log)
            if status == "0" and executed is not None and peak is not None:
                yield name, int(executed[1]), f"at most {peak[1]} MiB"
            else:
                (FOUND / f"{name}-ended.txt").write_text(log, encoding="utf-8")
                yield name, 0, f"ended with status {status}: {log[-500:]}"
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all ({', '.join(TARGETS)})")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all targets together")
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1, 2**31))
    arguments = parser.parse_args()
    names = arguments.targets or list(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        parser.error(f"no target {min(unknown)!r}; expected one of {', '.join(TARGETS)}")
    FOUND.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in FOUND.iterdir()}
    print(f"seed {arguments.seed}")  # noqa: T201
    processes = min(len(names), len(os.sched_getaffinity(0))) if is_guided() else 1
    seconds = max(1, round(arguments.minutes * 60 * processes / len(names)))
    run = partial(fuzz_guided, processes=processes) if is_guided() else fuzz
    total = 0
    for name, executed, remark in run(names, seconds, arguments.seed):
        total += executed
        print(f"{name}: {executed:,} inputs, {remark}", flush=True)  # noqa: T201
    findings = sorted(path for path in FOUND.iterdir() if before.get(path) != path.stat().st_mtime_ns)
    print(f"{total:,} inputs, {len(findings)} findings")  # noqa: T201
    for path in findings:
        print(path.relative_to(ROOT))  # noqa: T201
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
