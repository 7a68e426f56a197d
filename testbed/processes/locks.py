"""Locks between processes: `flock` on a file, which the kernel releases however the holder ends.

Used by the jar cache and by the port reservations. Not a lock between threads of one process that share a file
object; every call opens its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from testbed.errors import LockTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLL_S = 0.05


def try_lock(path: Path) -> int | None:
    """Take the lock file at `path` without waiting; the open descriptor holds the lock, None means it is taken.

    Closing the descriptor releases the lock. The file itself stays: to remove it would let two holders lock two files
    of one name. The descriptor is not inherited by child processes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def exclusive(path: Path, *, timeout_s: float) -> Iterator[None]:
    """Hold the lock file at `path` for the length of the block.

    Raises LockTimeoutError when another process keeps it for `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise LockTimeoutError(f"another process has held the lock {path} for {timeout_s:.0f} s; end it and retry")
        time.sleep(POLL_S)
    try:
        yield
    finally:
        os.close(descriptor)
