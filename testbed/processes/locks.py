"""Locks between processes: `flock` on a file, which the kernel releases when the holder ends in any way.

Used by the caches. Every call opens the file anew, so a lock also excludes other threads of the same process.
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
    """Lock the file at `path` without waiting; return the open descriptor that holds the lock, None if it is taken.

    Closing the descriptor releases the lock. The file itself is not removed, since two processes could then lock two
    files of the same name. The descriptor is not inherited by child processes.
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
    """Hold the lock on the file at `path` for the duration of the block.

    Raises LockTimeoutError if another process holds it for `timeout_s` seconds.
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
