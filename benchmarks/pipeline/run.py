"""Measures throughput and memory of jobs: ``python -m benchmarks.pipeline.run --lake PATH --small-lake PATH``.

Each job runs pinned to one core and to two, in a separate process (`stage`), and on two cores with the small lake,
which has a quarter of the records: if memory does not grow with the records, it is about the same for both. Records per
CPU second count the time of all processors that Java and all Python workers have used, and not how long it took; so
they are a core's on a busy machine, too. Memory is
the resident memory of the whole process tree, Java and all Python workers, sampled several times per second; shared
pages are counted for each process, so the figure is an upper bound.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep
from typing import Any, Final

import click
import psutil

from benchmarks.pipeline.stage import JOBS

LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured job."""

    job: str
    cores: int
    records: int
    seconds: float
    cpu_seconds: float
    """Processor time of Java and all Python workers together."""
    peak_bytes: int
    """Peak resident memory of all its processes together."""

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Records per CPU second."""
        return self.records / self.cpu_seconds


def measure(job: str, lake: str, cores: list[int], memory: str) -> Run:
    """Run a job and sample its memory. On failure, prints its output and raises CalledProcessError."""
    pinned = ",".join(map(str, cores))
    command = [
        sys.executable,
        "-m",
        "benchmarks.pipeline.stage",
        job,
        "--lake",
        lake,
        "--cores",
        pinned,
        "--memory",
        memory,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            sleep(LOOK_EVERY_S)
        assert process.stdout is not None
        printed = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(**json.loads(printed.splitlines()[-1]), peak_bytes=peak)


def _resident(pid: int) -> int:
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # the process has ended in the meantime
    return total


def as_markdown(runs: list[Run]) -> str:
    """Return a table with a row for each job; ``-`` for runs that were not made."""
    header = [
        "job", "records", "records/CPU s on 1 core", "records/s on 1 core", "on 2 cores", "2 cores / 1", "a core of 2",
        "peak MiB", "records", "peak MiB", "memory ratio",
    ]  # fmt: skip
    rows = [_row(job, [run for run in runs if run.job == job]) for job in dict.fromkeys(run.job for run in runs)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)) + "\n"


def _row(job: str, runs: list[Run]) -> list[str]:
    most = max(run.records for run in runs)
    one = next(run for run in runs if run.cores == 1)
    two = next((run for run in runs if run.cores > 1 and run.records == most), None)
    small = next((run for run in runs if run.records < most), None)
    cells = [job, f"{most:,}", f"{one.cpu_rate:,.0f}", f"{one.rate:,.0f}"]
    cells += ["-"] * 4 if two is None else [
        f"{two.rate:,.0f}", f"{two.rate / one.rate:.2f}", f"{two.rate / two.cores:,.0f}",
        f"{two.peak_bytes / 2**20:,.0f}",
    ]  # fmt: skip
    if small is None or two is None:
        return cells + ["-"] * 3
    return [
        *cells, f"{small.records:,}", f"{small.peak_bytes / 2**20:,.0f}", f"{two.peak_bytes / small.peak_bytes:.2f}",
    ]  # fmt: skip


def _about(memory: str) -> dict[str, Any]:
    return {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version(), "heap": memory}


@click.command()
@click.option("--lake", required=True, metavar="PATH", help="Made by benchmarks.pipeline.generate.")
@click.option("--small-lake", metavar="PATH", help="A lake with a quarter of the records, to compare memory.")
@click.option("--job", "jobs", multiple=True, type=click.Choice(list(JOBS)), help="Run only this job; may be repeated.")
@click.option("--memory", default="2g", show_default=True, metavar="SIZE", help="Of the JVM's heap.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="A folder for pipeline.json and pipeline.md."
)
def command(*, lake: str, small_lake: str | None, jobs: tuple[str, ...], memory: str, output: Path | None) -> None:
    """Measure jobs on one core and on two, and their memory with a small lake and a large one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    plan = [(lake, cores[:1])]
    if len(cores) > 1:
        plan.append((lake, cores))
    if small_lake is not None:
        plan.append((small_lake, cores))
    runs: list[Run] = []
    for job in jobs or JOBS:
        for path, on in plan:
            run = measure(job, path, on, memory)
            print(
                f"{job} on {run.cores} core(s): {run.records:,} records in {run.seconds:.1f} s, {run.rate:,.0f}/s,"
                f" {run.cpu_rate:,.0f} per CPU second, peak {run.peak_bytes / 2**20:,.0f} MiB",
                file=sys.stderr,
            )
            runs.append(run)
    table = as_markdown(runs)
    print(table, end="")
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "pipeline.md").write_text(table, encoding="utf-8")
        rates = [asdict(run) | {"records_a_second": run.rate, "records_a_cpu_second": run.cpu_rate} for run in runs]
        document = {"about": _about(memory), "runs": rates}
        (output / "pipeline.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    command()
