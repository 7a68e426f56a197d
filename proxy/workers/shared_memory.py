"""The memory that all workers see: made by the supervisor before it forks, and divided here among those who use it.

Nothing of it is a file with a name: it goes with the last process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from headrace.proxy.network.connection_counts import PART_BYTES, WorkerConnections
from headrace.quota_callbacks.buckets.shared.buckets import ROWS, SharedBuckets

if TYPE_CHECKING:
    from types import TracebackType

log = structlog.get_logger("headrace.server")

MOST_SAMPLES: Final = 200
"""Of a window; of one that has more, a worker that has not looked for 200 samples misses the older ones."""
MOST_USAGE_BYTES: Final = 2**30
"""Of address space. With many workers, or windows of many samples, there is room for fewer buckets."""


class ProcessLock:
    """Excludes other processes, for the block of a ``with``. A process that dies gives it back.

    A record lock on a file without a name: unlike a semaphore in shared memory it cannot be left behind locked. It
    takes two system calls, so it is for what happens seldom, and does not exclude threads of one process.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("headrace-lock")
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


@dataclass(slots=True, kw_only=True)
class WorkerPlace:
    """One worker of several: its number, how many there are, and its part of what they share."""

    number: int
    workers: int
    connections: WorkerConnections
    usage: SharedBuckets
    _left_out: int = 0

    def sweep(self) -> None:
        """To be called every few seconds, so that a worker whose own clients bring no producer ids learns those of
        others before they are overwritten: up to 800 new ones a second and worker."""
        self.usage.receive_ids()
        if self.usage.left_out > self._left_out:
            self._left_out = self.usage.left_out
            log.warning("no room in shared memory: these buckets count for one worker alone", buckets=self._left_out)


class SharedMemory:
    """Made once, before the fork; each worker then asks for its `place`. Memory is taken for what is used of it."""

    def __init__(self, workers: int, samples: int) -> None:
        """``samples`` are those of the longest window that quotas are measured over."""
        self.workers = workers
        samples = min(samples, MOST_SAMPLES)
        rows = ROWS
        while SharedBuckets.size_of(workers, rows, samples) > MOST_USAGE_BYTES:
            rows //= 2
        size = SharedBuckets.size_of(workers, rows, samples)
        self._memory = mmap.mmap(-1, workers * PART_BYTES + size)
        self._usage = memoryview(self._memory)[workers * PART_BYTES :]
        self._lock = ProcessLock()
        SharedBuckets.create(self._usage, workers=workers, rows=rows, samples=samples)

    def place(self, number: int) -> WorkerPlace:
        """What the worker ``number`` has of it; to be asked for in its process, whose clock is `CommonClock`."""
        return WorkerPlace(
            number=number,
            workers=self.workers,
            connections=self._connections(number),
            usage=SharedBuckets(self._usage, worker=number, lock=self._lock),
        )

    def worker_lost(self, number: int) -> None:
        """The worker ``number`` is gone: its connections with it. What it has charged stays charged."""
        self._connections(number).clear()
        SharedBuckets.worker_lost(self._usage, number)

    def _connections(self, number: int) -> WorkerConnections:
        return WorkerConnections(self._memory, 0, workers=self.workers, number=number)
