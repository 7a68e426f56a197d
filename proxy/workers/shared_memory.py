"""Memory shared by all workers: created by the supervisor before it forks, and divided here into its parts.

The parts are the connection counts, the bucket state, and a file for the crash report of each worker. The memory is
anonymous, without a file name, so the kernel frees it when the last process exits.
"""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Final

from headrace.proxy.network.connection_counts import PART_BYTES, WorkerConnections
from headrace.proxy.server.worker_place import WorkerPlace
from headrace.quota_callbacks.buckets.shared.buckets import ROWS, SharedBuckets

if TYPE_CHECKING:
    from types import TracebackType

MAX_SAMPLES: Final = 200
"""Number of samples of a window that are shared.

If a window has more, a worker that has not read a bucket for 200 samples misses the older ones.
"""
MAX_CRASH_REPORT_BYTES: Final = 16 * 1024
MAX_BUCKET_STATE_BYTES: Final = 2**30
"""Address space for bucket state. With many workers, or windows of many samples, it holds fewer buckets."""


class ProcessLock:
    """A lock between processes, held for a ``with`` block. The kernel releases it when its holder dies.

    It is a record lock on an anonymous file; a semaphore in shared memory would stay locked when its holder dies.
    Acquiring and releasing it are system calls, so it is for rare operations. It does not exclude threads of the same
    process.
    """

    def __init__(self) -> None:
        self._fd = _anonymous_file("headrace-lock")

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


class CrashReport:
    """An anonymous file for the stacks of a worker's threads, which Python writes there on a fatal signal.

    Written to standard error, they would be mixed with lines of the log, and wait for its reader.
    """

    def __init__(self) -> None:
        self._fd = _anonymous_file("headrace-crash-report")

    def enable(self) -> None:
        """Have the stacks of this process written to the file."""
        faulthandler.enable(self._fd)

    def take(self) -> str | None:
        """Return the content, ``None`` if there is none, and make the file empty for the next worker."""
        text = os.pread(self._fd, MAX_CRASH_REPORT_BYTES, 0).decode(errors="replace")
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        return text or None


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedMemory:
    """All of the shared memory. Created once, before the fork; each worker then calls `place`.

    The kernel provides physical memory only for the pages that are used.
    """

    def __init__(self, workers: int, samples: int) -> None:
        """Create it; ``samples`` is the largest number of samples of any window that quotas are measured over."""
        self.workers = workers
        samples = min(samples, MAX_SAMPLES)
        rows = ROWS
        while SharedBuckets.size_of(workers, rows, samples) > MAX_BUCKET_STATE_BYTES:
            rows //= 2
        size = SharedBuckets.size_of(workers, rows, samples)
        self._memory = mmap.mmap(-1, workers * PART_BYTES + size)
        self._bucket_state = memoryview(self._memory)[workers * PART_BYTES :]
        self._lock = ProcessLock()
        self.crash_reports = tuple(CrashReport() for _ in range(workers))
        SharedBuckets.create(self._bucket_state, workers=workers, rows=rows, samples=samples)

    def place(self, number: int) -> WorkerPlace:
        """Return the view of worker ``number``. Call it in the worker's process, whose clock is `CommonClock`."""
        return WorkerPlace(
            number=number,
            workers=self.workers,
            connections=self._connections(number),
            bucket_state=SharedBuckets(self._bucket_state, worker=number, lock=self._lock),
        )

    def worker_lost(self, number: int) -> None:
        """Clear the connection counts of worker ``number``, which has exited. What it charged to buckets remains."""
        self._connections(number).clear()
        SharedBuckets.worker_lost(self._bucket_state, number)

    def _connections(self, number: int) -> WorkerConnections:
        return WorkerConnections(self._memory, 0, workers=self.workers, number=number)
