"""Fuzz targets for some time: ``python -m tests.fuzzing [--minutes M] [TARGET ...]`` (``make fuzz``).

With atheris inputs are guided by coverage, and several targets run at the same time, each in a process. Without it, on
platforms for which it has no wheel, they are the corpus, mutated at random. Inputs that reach new code are kept in
``.cache/fuzzing``, where the next run begins. The status is 1 if something was found; the inputs are then in
``.cache/fuzzing/found``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.fuzzing.running import corpus, longest_input, run_new_inputs
from tests.fuzzing.targets import RUNNABLE as TARGETS

ROOT: Final = Path(__file__).parents[2]
CACHE: Final = ROOT / ".cache" / "fuzzing"
FOUND: Final = CACHE / "found"
MOST_MIB: Final = 1024
"""Memory of a process; more is growth."""
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units: +(\d+)")
_PEAK: Final = re.compile(r"stat::peak_rss_mb: +(\d+)")


def is_guided() -> bool:
    """Return whether inputs are guided by coverage."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(name: str, seconds: int, seed: int) -> tuple[int, str]:
    """Fuzz one target; return the number of inputs, and a remark."""
    if not is_guided():
        return run_new_inputs(name, TARGETS[name], seed, seconds=seconds), "not guided: atheris is not installed"
    seeds, kept = CACHE / "seeds" / name, CACHE / "kept" / name
    for folder in (seeds, kept, FOUND):
        folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(corpus(name).values()):
        (seeds / str(number)).write_bytes(content)
    options = {
        "max_total_time": seconds,
        "seed": seed,
        "max_len": longest_input(name),
        "rss_limit_mb": MOST_MIB,
        "timeout": 20,
        "print_final_stats": 1,
        "verbosity": 0,
    }
    command = [sys.executable, "-m", "tests.fuzzing.guided", name, str(kept), str(seeds)]
    command += [f"-{option}={value}" for option, value in options.items()] + [f"-artifact_prefix={FOUND}/{name}-"]
    environment = {**os.environ, "FUZZ_FOUND": str(FOUND)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    executed, peak = _EXECUTED.search(ended.stderr), _PEAK.search(ended.stderr)
    if ended.returncode or executed is None or peak is None:
        (FOUND / f"{name}-ended.txt").write_text(ended.stderr, encoding="utf-8")
        return 0, f"ended with status {ended.returncode}: {ended.stderr[-500:]}"
    return int(executed[1]), f"at most {peak[1]} MiB"


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
    processes = len(os.sched_getaffinity(0)) if is_guided() else 1
    seconds = max(1, round(arguments.minutes * 60 * min(processes, len(names)) / len(names)))
    total = 0
    with ThreadPoolExecutor(processes) if is_guided() else nullcontext() as pool:
        run = partial(fuzz, seconds=seconds, seed=arguments.seed)
        results = map(run, names) if pool is None else pool.map(run, names)
        for name, (executed, remark) in zip(names, results, strict=True):
            total += executed
            print(f"{name}: {executed:,} inputs, {remark}", flush=True)  # noqa: T201
    findings = sorted(path for path in FOUND.iterdir() if before.get(path) != path.stat().st_mtime_ns)
    print(f"{total:,} inputs, {len(findings)} findings")  # noqa: T201
    for path in findings:
        print(path.relative_to(ROOT))  # noqa: T201
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
