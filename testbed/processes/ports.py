"""Free ports on the loopback that no other process of ours gets, outside the range the kernel hands out by itself.

Called by the cluster for its brokers and by whoever starts a proxy, which needs a run of consecutive ports. A port is
reserved by locking the byte of that number in one file of this machine: a run of ports is one lock, the kernel sees to
it that no two processes hold overlapping runs, and it lets go of the locks however a process ends. Programs that do not
take part are seen by trying to bind.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import socket
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from testbed.errors import PortsExhaustedError

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST = "127.0.0.1"
EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The suggestion of RFC 6335, for systems that do not tell.
DEFAULT_EPHEMERAL_RANGE = (49152, 65535)
# Below lie the registered ports of databases, web servers and Kafka itself.
LOWEST_PORT = 12000
HIGHEST_PORT = 65535


class PortBlock:
    """Consecutive reserved ports, `first` to `first + size - 1`. A context manager; `release` may be called twice."""

    __slots__ = ("_reservations", "first", "size")

    def __init__(self, reservations: _Reservations, first: int, size: int) -> None:
        self._reservations: _Reservations | None = reservations
        self.first = first
        self.size = size

    @property
    def ports(self) -> range:
        """The port numbers."""
        return range(self.first, self.first + self.size)

    def release(self) -> None:
        """Let others have the ports; whatever listens on them should be closed."""
        if self._reservations is not None:
            self._reservations.release(self.ports)
            self._reservations = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def reserve_ports(size: int = 1) -> PortBlock:
    """Reserve `size` consecutive ports of 127.0.0.1 that nothing is bound to, until released or this process ends.

    Raises PortsExhaustedError when no such run is left.
    """
    return PortBlock(_reservations(), _reservations().reserve(size), size)


def free_port_block(size: int) -> int:
    """Return the first of `size` consecutive free ports of 127.0.0.1, which stay reserved until this process ends.

    Raises PortsExhaustedError when no such run is left.
    """
    return _reservations().reserve(size)


def usable_ports() -> range:
    """Return the larger of the two stretches beside the kernel's ephemeral range, from LOWEST_PORT to HIGHEST_PORT."""
    try:
        low, high = (int(word) for word in EPHEMERAL_RANGE_FILE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = DEFAULT_EPHEMERAL_RANGE
    return max(range(LOWEST_PORT, low), range(max(high + 1, LOWEST_PORT), HIGHEST_PORT + 1), key=len)


class _Reservations:
    """This process's hold on the lock file.

    Record locks belong to a process, and are lost when it closes any descriptor of the file: so the file is opened
    once and stays open, and a fork, which inherits no record locks, starts anew.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._reserved: set[int] = set()
        path = Path(tempfile.gettempdir()) / f"headrace-testbed-ports-{os.getuid()}.lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def reserve(self, size: int) -> int:
        usable = usable_ports()
        firsts = range(usable.start, usable.stop - size + 1)
        if size < 1 or not firsts:
            raise PortsExhaustedError(f"cannot reserve {size} ports: the testbed uses {_in_words(usable)}")
        # A random place to begin keeps processes off each other and off ports that were closed a moment ago. Not from
        # the module random, which test runners seed with one value in all processes.
        place = secrets.randbelow(len(firsts))
        with self._lock:
            for first in itertools.chain(firsts[place:], firsts[:place]):
                if self._take(range(first, first + size)):
                    return first
        raise PortsExhaustedError(
            f"no {size} consecutive free ports in {_in_words(usable)}; end other test runs, or narrow the kernel's"
            f" ephemeral range ({EPHEMERAL_RANGE_FILE})"
        )

    def _take(self, ports: range) -> bool:
        if not self._reserved.isdisjoint(ports):
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
        except OSError:
            return False
        if not _all_can_be_bound(ports):
            fcntl.lockf(self._file, fcntl.LOCK_UN, len(ports), ports.start)
            return False
        self._reserved.update(ports)
        return True

    def release(self, ports: range) -> None:
        with self._lock:
            if self.owner == os.getpid():
                fcntl.lockf(self._file, fcntl.LOCK_UN, len(ports), ports.start)
            self._reserved.difference_update(ports)


def _in_words(ports: range) -> str:
    return f"ports {ports.start} to {ports.stop - 1}" if ports else "no ports, since the ephemeral range leaves none"


def _all_can_be_bound(ports: Iterable[int]) -> bool:
    """Whether nothing holds the ports, not even a connection in TIME_WAIT (hence no SO_REUSEADDR)."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


_current: _Reservations | None = None
_current_lock = threading.Lock()


def _reservations() -> _Reservations:
    global _current
    with _current_lock:
        if _current is None or _current.owner != os.getpid():
            _current = _Reservations()
        return _current
