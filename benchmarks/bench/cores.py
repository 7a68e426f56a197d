"""Which core runs what, and what a process has used: Linux's affinity, CPU clocks and resident sizes.

The broker and the clients share one core and the proxy under test has another, so that a relay that computes more is
slower for that and not since it takes the clients' time.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from benchmarks.bench.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T", int, float)

PROCESS_SCHEDULER_CLOCK = 2
"""CPUCLOCK_SCHED: user and system time, in nanoseconds (linux/posix-timers.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """The two cores, by the kernel's numbers."""

    work: int
    """The broker's and the clients'."""
    proxy: int

    def proxy_prefix(self) -> tuple[str, ...]:
        """What to put before a command so that it runs on the proxy's core, its JVM's choices included."""
        return ("taskset", "-c", str(self.proxy))


def take_cores() -> Cores:
    """Choose the cores, and pin this process, and so all that it starts, to that of the work.

    Raises BenchError where there is one core only: nothing could be told from what is measured there.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise BenchError(f"a core for the proxy and one for the rest are needed; this process may use {allowed}")
    cores = Cores(work=allowed[0], proxy=allowed[-1])
    os.sched_setaffinity(0, {cores.work})
    return cores


def pin_process(pid: int, core: int) -> None:
    """Pin all threads of a process that runs already, and of those that it has started: they are measured with it.

    Raises BenchError when it is gone or another user's.
    """
    try:
        for process in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]:
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})
    except (OSError, psutil.Error) as error:
        raise BenchError(f"cannot pin process {pid} to core {core}: {error}") from error


class ProcessMeter:
    """What a process and its children use: the workers of a proxy count with it."""

    __slots__ = ("_process",)

    def __init__(self, pid: int) -> None:
        """Raises BenchError when there is no such process."""
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise BenchError(f"there is no process {pid}") from error

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far, user and system, of all threads, ended ones included.

        /proc/PID/stat tells the same in hundredths of a second, which is a lot of what a short run takes.
        """
        return sum(_of_each(self._pids(), lambda pid: time.clock_gettime(cpu_clock(pid))))

    @property
    def resident_bytes(self) -> int:
        """Resident memory now. Pages that processes share count in each."""
        return sum(_of_each(self._pids(), lambda pid: int(psutil.Process(pid).memory_info().rss)))

    def _pids(self) -> list[int]:
        return [self._process.pid, *(child.pid for child in self._process.children(recursive=True))]


def _of_each(pids: list[int], look: Callable[[int], T]) -> list[T]:
    """What is seen at each process but those that have just ended; the first is there, or its error is raised."""
    seen = [look(pids[0])]
    for pid in pids[1:]:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            seen.append(look(pid))
    return seen


def cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, as clock_getcpuclockid(3) makes it."""
    return (~pid << 3) | PROCESS_SCHEDULER_CLOCK
