"""Reserves free loopback ports, outside the kernel's ephemeral range.

Called by the cluster for its brokers and by tests that start a proxy, which requires consecutive ports. A port is
reserved by locking the byte at that offset in one file of this machine. Consecutive ports are one lock; the kernel
prevents two processes from holding overlapping locks, and releases them when a process ends in any way. Ports of
programs that do not use this file are detected by trying to bind them.
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
# The range of RFC 6335, for systems without that file.
DEFAULT_EPHEMERAL_RANGE = (49152, 65535)
# Lower ports include the registered ports of databases, web servers and Kafka itself.
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
        """Release the ports; listeners on them should be closed before."""
        if self._reservations is not None:
            self._reservations.release(self.ports)
            self._reservations = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def reserve_ports(size: int = 1) -> PortBlock:
    """Reserve `size` consecutive free ports of 127.0.0.1 until they are released or this process ends.

    Raises PortsExhaustedError if there are not enough consecutive free ports.
    """
    return PortBlock(_reservations(), _reservations().reserve(size), size)


def free_port_block(size: int) -> int:
    """Return the first of `size` consecutive free ports of 127.0.0.1, which stay reserved until this process ends.

    Raises PortsExhaustedError if there are not enough consecutive free ports.
    """
    return _reservations().reserve(size)


def usable_ports() -> range:
    """Return the larger part of LOWEST_PORT to HIGHEST_PORT that is below or above the kernel's ephemeral range."""
    try:
        low, high = (int(word) for word in EPHEMERAL_RANGE_FILE.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        low, high = DEFAULT_EPHEMERAL_RANGE
    return max(range(LOWEST_PORT, low), range(max(high + 1, LOWEST_PORT), HIGHEST_PORT + 1), key=len)


class _Reservations:
    """The reservations of this process in the lock file.

    Record locks belong to a process, and are lost when it closes any descriptor of the file: so the file is opened
    once and stays open. A fork inherits no record locks and creates its own instance.
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
        # A random start avoids collisions with other processes and with ports that were closed a moment ago. The module
        # random is not used, since test runners seed it with the same value in all processes.
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
    """Return whether the ports are unused, even by connections in TIME_WAIT (hence no SO_REUSEADDR)."""
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
