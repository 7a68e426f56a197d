"""CPU affinity, CPU time and resident memory of processes on Linux.

The broker and the clients share one core, and the proxy under test has another, so that a proxy's CPU usage does not
reduce the CPU time of the clients.
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
    """The two cores, by their numbers in the kernel."""

    work: int
    """The core of the broker and the clients."""
    proxy: int

    def proxy_prefix(self) -> tuple[str, ...]:
        """Return the prefix of a command that runs it on the proxy's core, so that a JVM, too, adapts to one core."""
        return ("taskset", "-c", str(self.proxy))


def take_cores() -> Cores:
    """Choose the cores, and pin this process and its future children to the core of the broker and the clients.

    Raises BenchError if there is only one core, on which measurements would be meaningless.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise BenchError(f"the benchmark requires two cores; this process may use {allowed}")
    cores = Cores(work=allowed[0], proxy=allowed[-1])
    os.sched_setaffinity(0, {cores.work})
    return cores


def pin_process(pid: int, core: int) -> None:
    """Pin all threads of a running process and of its descendants, which are measured together.

    Raises BenchError if the process has ended or belongs to another user.
    """
    try:
        for process in [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]:
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})
    except (OSError, psutil.Error) as error:
        raise BenchError(f"cannot pin process {pid} to core {core}: {error}") from error


class ProcessMeter:
    """CPU time and memory of a process and its descendants, such as those that a proxy has started."""

    __slots__ = ("_process",)

    def __init__(self, pid: int) -> None:
        """Raises BenchError when there is no such process."""
        try:
            self._process = psutil.Process(pid)
        except psutil.NoSuchProcess as error:
            raise BenchError(f"there is no process {pid}") from error

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far, user and system, of all threads including ended ones.

        /proc/PID/stat only has a resolution of a hundredth of a second, which is too coarse for short runs.
        """
        return sum(_of_each(self._pids(), lambda pid: time.clock_gettime(cpu_clock(pid))))

    @property
    def resident_bytes(self) -> int:
        """The current resident memory. Pages that processes share are counted for each."""
        return sum(_of_each(self._pids(), lambda pid: int(psutil.Process(pid).memory_info().rss)))

    def _pids(self) -> list[int]:
        return [self._process.pid, *(child.pid for child in self._process.children(recursive=True))]


class ThreadMeter:
    """CPU time of one thread of another process."""

    __slots__ = ("_task",)

    def __init__(self, task: Path) -> None:
        """``task`` is the thread's folder in /proc."""
        self._task = task

    @property
    def cpu_s(self) -> float:
        """CPU seconds so far, user and system, in nanoseconds."""
        on_cpu_ns, _, _ = (self._task / "schedstat").read_text().split()
        return int(on_cpu_ns) / 1e9


def thread_meters(pid: int, prefix: str) -> list[ThreadMeter]:
    """Return a meter for each thread of a process whose name begins with ``prefix``."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [ThreadMeter(task) for task in tasks if (task / "comm").read_text().startswith(prefix)]


def _of_each(pids: list[int], read: Callable[[int], T]) -> list[T]:
    """Return the value of each process; ignore processes that have just ended, except for the first."""
    values = [read(pids[0])]
    for pid in pids[1:]:
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            values.append(read(pid))
    return values


def cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, like clock_getcpuclockid(3)."""
    return (~pid << 3) | PROCESS_SCHEDULER_CLOCK
