"""How many client connections are open, in all and from each address: what ``limits.max_connections`` and
``limits.max_connections_per_ip`` are held against.

The server counts its own. Where several workers serve, each also writes what it has into memory that all of them see,
in a part of its own, and looks up what the others have. Nobody locks: each part has one writer. Two workers that accept
in the same instant do not see each other's connection, so a limit is kept within one connection for each worker.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

_COUNT: Final = struct.Struct("=Q")
_KEY: Final = struct.Struct("=Q")
_ROW: Final = struct.Struct("=QQ")
_FREE: Final = bytes(_KEY.size)
ROWS_A_GROUP: Final = 32
"""An address has its row in the group that its hash names: one that is full, which takes 32 addresses of one worker
that happen to share it, leaves an address to be counted by that worker alone."""
GROUPS: Final = 4096
"""With 10,000 addresses 2.4 rows of a group are taken on average. What no address has used is never touched, and
takes no memory."""
_GROUP_BYTES: Final = ROWS_A_GROUP * _ROW.size
PART_BYTES: Final = mmap.PAGESIZE + GROUPS * _GROUP_BYTES
"""Of one worker: whole pages, with the count of all connections in the first."""


class WorkerConnections:
    """The counts that workers show each other. ``number`` is whose part this process writes."""

    __slots__ = ("_begin", "_memory", "_number", "_parts")

    def __init__(self, memory: mmap.mmap, begin: int, *, workers: int, number: int) -> None:
        self._memory = memory
        self._parts = tuple(begin + each * PART_BYTES for each in range(workers))
        self._begin = self._parts[number]
        self._number = number

    def clear(self) -> None:
        """The worker that wrote this part is gone, and its connections with it."""
        if hasattr(mmap, "MADV_REMOVE"):  # zeros, and the pages are given back
            self._memory.madvise(mmap.MADV_REMOVE, self._begin, PART_BYTES)
        else:
            self._memory[self._begin : self._begin + PART_BYTES] = bytes(PART_BYTES)

    def show(self, host: str, from_host: int, in_all: int) -> None:
        """This worker has ``in_all`` connections now, ``from_host`` of them from ``host``."""
        _COUNT.pack_into(self._memory, self._begin, in_all)
        key, group = _place(host)
        row = self._row(self._begin + group, key)
        if row is None and from_host:
            row = self._row(self._begin + group, _FREE)
        if row is not None:
            self._memory[row : row + _ROW.size] = (key if from_host else _FREE) + _COUNT.pack(from_host)

    def elsewhere(self) -> int:
        """Connections of the other workers."""
        count = 0
        for begin in self._parts:
            if begin != self._begin:
                count += _COUNT.unpack_from(self._memory, begin)[0]
        return count

    def elsewhere_from(self, host: str) -> int:
        """Those of them that come from ``host``."""
        key, group = _place(host)
        count = 0
        for begin in self._parts:
            if begin != self._begin and (row := self._row(begin + group, key)) is not None:
                count += _ROW.unpack_from(self._memory, row)[1]
        return count

    def _row(self, group: int, key: bytes) -> int | None:
        end = group + _GROUP_BYTES
        found = self._memory.find(key, group, end)
        while found >= 0 and (found - group) % _ROW.size:  # by chance across two rows
            found = self._memory.find(key, found + 1, end)
        return None if found < 0 else found


def _place(host: str) -> tuple[bytes, int]:
    """What stands for an address, and where its group begins; the same in all processes that one forked."""
    number = hash(host) & 0xFFFF_FFFF_FFFF_FFFF or 1
    return _KEY.pack(number), mmap.PAGESIZE + number % GROUPS * _GROUP_BYTES


class ConnectionCounts:
    """The open connections of this process, and with ``shared`` those of the workers beside it."""

    __slots__ = ("_by_host", "_open", "_shared")

    def __init__(self, shared: WorkerConnections | None = None) -> None:
        self._open = 0
        self._by_host: dict[str, int] = {}
        self._shared = shared

    def add(self, host: str) -> None:
        """One more from ``host``."""
        self._count(host, 1)

    def remove(self, host: str) -> None:
        """One less."""
        self._count(host, -1)

    def _count(self, host: str, change: int) -> None:
        self._open += change
        from_host = self._by_host.get(host, 0) + change
        if from_host:
            self._by_host[host] = from_host
        else:
            del self._by_host[host]
        if self._shared is not None:
            self._shared.show(host, from_host, self._open)

    def limit_reached(self, host: str, *, most: int, most_from_host: int) -> str | None:
        """The limit that one more connection from ``host`` would exceed; 0 for ``most_from_host`` is none."""
        shared = self._shared
        if self._open + (shared.elsewhere() if shared is not None else 0) >= most:
            return "max_connections"
        if most_from_host:
            from_host = self._by_host.get(host, 0)
            if from_host + (shared.elsewhere_from(host) if shared is not None else 0) >= most_from_host:
                return "max_connections_per_ip"
        return None
