"""The memory that all workers see: made by the supervisor before it forks, and divided here among those who use it.

Nothing of it is a file with a name: it goes with the last process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.connection_counts import PART_BYTES, WorkerConnections

if TYPE_CHECKING:
    from types import TracebackType


class ProcessLock:
    """Excludes other processes, for the block of a ``with``. A process that dies gives it back.

    A record lock on a file without a name: unlike a semaphore in shared memory it cannot be left behind locked. It
    takes two system calls, so it is for what happens seldom, and does not exclude threads of one process.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            self._fd = os.dup(file.fileno())

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """One worker of several: its number, how many there are, and its part of what they share."""

    number: int
    workers: int
    connections: WorkerConnections


class SharedMemory:
    """Made once, before the fork; each process then asks for its `place`."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._memory = mmap.mmap(-1, workers * PART_BYTES)

    def place(self, number: int) -> WorkerPlace:
        """What the worker ``number`` has of it."""
        connections = WorkerConnections(self._memory, 0, workers=self.workers, number=number)
        return WorkerPlace(number=number, workers=self.workers, connections=connections)

    def worker_lost(self, number: int) -> None:
        """The worker ``number`` is gone: what it alone wrote speaks for nobody any more."""
        self.place(number).connections.clear()
