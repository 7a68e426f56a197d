"""Pausing the acceptance of connections while the process is short of file descriptors or memory.

Called by the accept loops before each connection. Connections that are not accepted wait in the backlogs of the
listening sockets, which costs the process nothing, and are served once there is room again. The admin server, and
whatever else the process opens, is not concerned: descriptors are reserved for it.

A process that has run out of descriptors can no longer connect to brokers for the clients that it has accepted. So not
the descriptors in use are counted, but those that the connections of clients may need.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.counters import Counters

log = structlog.get_logger("headrace.listeners")

DESCRIPTORS_A_CONNECTION: Final = 2
"""The socket to the client and that to the broker."""
PIPES_SHARE: Final = 4
"""The part of all descriptors that is left for pipes, which move large frames: a quarter. Without a pipe, frames are
copied."""
DELAYED_SHARE: Final = 16
"""The part that refused connections may take until they are closed."""
RESERVED: Final = 160
"""Descriptors for the admin server (``admin.max_connections`` is 100 by default), the stores of quotas and buckets,
look-ups of names, and plugins; a quarter of all descriptors if that is less."""

RECHECK_S: Final = 0.1
"""Time between two checks whether accepting may resume, and the longest age of a measurement of the memory."""
SHARE_OF_LIMIT: Final = 0.8
"""The part of the memory limit of the process's control groups that is the default of ``limits.max_memory``."""
ENOUGH: Final = 0.95
"""The part of ``limits.max_memory`` below which accepting resumes, so that it does not pause again at the next
check."""
TRIM_S: Final = 5.0
"""While memory is short, the time between two calls of ``malloc_trim``, and between two calls of
`Overload.on_lasting_shortage`, which closes connections that hold memory."""


def raise_descriptor_limit() -> int:
    """Raise the limit of open files of the process to what it may have, as Java does, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS does not grant its own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def most_pipes(descriptors: int) -> int:
    """Return how many pipes a process with so many ``descriptors`` may have open; each takes two of them."""
    return descriptors // PIPES_SHARE // 2


def most_delayed(descriptors: int) -> int:
    """Return how many refused connections may wait to be closed in a process with so many ``descriptors``."""
    return max(1, descriptors // DELAYED_SHARE)


def connections_with(descriptors: int, opened: int) -> int:
    """Return how many connections of clients can be served with so many ``descriptors``, of which the process has
    ``opened`` some for itself."""
    left = descriptors - opened - descriptors // PIPES_SHARE - most_delayed(descriptors)
    return max(1, (left - min(RESERVED, descriptors // 4)) // DESCRIPTORS_A_CONNECTION)


def open_descriptors() -> int:
    """Return the number of open descriptors of this process; 0 if the system does not report them."""
    try:
        return len(list(Path("/dev/fd").iterdir()))
    except OSError:
        return 0


class Overload:
    """The decision whether connections are accepted now."""

    def __init__(
        self, counters: Counters, *, descriptors: int = sys.maxsize, opened: int = 0, max_memory_bytes: int = 0
    ) -> None:
        """``descriptors`` is the limit of open files, ``opened`` those that are open before a client is served."""
        self.most_connections = connections_with(descriptors, opened)
        """Connections of clients for which there are enough descriptors."""
        self.most_pipes = most_pipes(descriptors)
        self.max_memory_bytes = max_memory_bytes
        """``limits.max_memory`` or its default; 0 is unlimited. Changed on reload."""
        self.on_pause: Callable[[str], None] = lambda _: None
        """Called with the reason, again and again while accepting is paused, to make room."""
        self.on_lasting_shortage: Callable[[int, str], None] = lambda _short_bytes, _reason: None
        """Called every `TRIM_S` while accepting is paused for lack of memory, the first time after `TRIM_S`, with the
        number of bytes that have to be freed, and the reason."""
        self._descriptors = descriptors
        self._counters = counters
        self._memory = Memory()
        self._repeated = RepeatedLines()

    def shortage(self, now_s: float, *, paused: bool = False) -> tuple[str, str] | None:
        """Return what the process is short of, ``descriptors`` or ``memory``, and the reason; ``None`` if of nothing.

        ``paused``: accepting is paused already, and goes on only when there is some room.
        """
        connections = self._counters.connections
        if connections >= self.most_connections:
            reason = f"{connections} connections need up to all of {self._descriptors} open files (RLIMIT_NOFILE)"
            return "descriptors", reason
        # Without connections there is nothing to wait for, whatever takes the memory.
        if not self.max_memory_bytes or not connections:
            return None
        used = self._memory.resident_bytes(now_s)
        if used <= self.max_memory_bytes * (ENOUGH if paused else 1):
            return None
        return "memory", f"{used} bytes of memory are in use: limits.max_memory = {self.max_memory_bytes}"

    def _short_bytes(self, now_s: float) -> int:
        """Return how much memory has to be freed before accepting resumes."""
        return self._memory.resident_bytes(now_s) - int(self.max_memory_bytes * ENOUGH)

    async def wait_until_over(self) -> None:
        """Return once connections may be accepted. A checkpoint only if accepting is paused."""
        shortage = self.shortage(trio.current_time())
        if shortage is None:
            return
        began_s = now_s = trio.current_time()
        trim_s = now_s
        what, reason = shortage
        left_out = self._repeated.due("accepting is paused", what)
        if left_out is not None:
            log.warning("accepting is paused", reason=reason, left_out=left_out or None)
        while shortage is not None:
            what, reason = shortage
            self.on_pause(reason)
            if what == "memory" and now_s >= trim_s:
                if now_s > began_s:
                    self.on_lasting_shortage(self._short_bytes(now_s), reason)
                await trio.to_thread.run_sync(return_freed_memory)
                trim_s = now_s + TRIM_S
            await trio.sleep(RECHECK_S)
            paused_s, now_s = self._counters.accept_paused_s, trio.current_time()
            paused_s[what] = paused_s.get(what, 0.0) + RECHECK_S
            shortage = self.shortage(now_s, paused=True)
        if left_out is not None:
            log.info("accepting has resumed", reason=f"there is room again: {what}", paused_s=round(now_s - began_s, 1))


class Memory:
    """The resident memory of the process, measured at most once in `RECHECK_S`."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # kept open, since there may be no descriptor for it later; not on macOS
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._measured_s = -RECHECK_S
        self._bytes = 0

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def resident_bytes(self, now_s: float) -> int:
        """Return it, in bytes; 0 if the system does not report it."""
        if self._file is not None and now_s - self._measured_s >= RECHECK_S:
            self._measured_s = now_s
            self._bytes = int(os.pread(self._file, 128, 0).split()[1]) * mmap.PAGESIZE
        return self._bytes


def default_max_memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return `SHARE_OF_LIMIT` of the lowest memory limit of the control groups (version 2) that contain this process,
    such as those of a container or of a systemd unit (``MemoryMax``, ``MemoryHigh``); 0 if there is none.

    ``groups`` is where they are mounted, and ``own`` the file that names the one of this process.
    """
    limits = []
    with suppress(OSError):
        lines = own.read_text(errors="surrogateescape").splitlines()
        names = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
        for group in (each for name in names for each in (groups / name, *(groups / name).parents)):
            for file in ("memory.max", "memory.high") if group.is_relative_to(groups) else ():
                with suppress(OSError, ValueError):  # the group at the top has no file, and "max" is no limit
                    limits.append(int((group / file).read_text()))
    return int(min(limits, default=0) * SHARE_OF_LIMIT)


def can_measure_memory() -> bool:
    """Return whether the system reports how much memory the process uses, as Linux does."""
    return Path("/proc/self/statm").exists()


def return_freed_memory() -> None:
    """Return freed memory to the system, which glibc otherwise keeps for reuse. Call it in a thread: it takes time."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
