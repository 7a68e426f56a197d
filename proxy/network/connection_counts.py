"""The number of open client connections, in total, by address and by user, for ``limits.max_connections``,
``limits.max_connections_per_ip`` and ``limits.max_connections_per_user``.

Called by `admission`, which counts its own connections. With several workers, each also writes its counts into its own
part of memory that all of them share, and reads the parts of the others. There are no locks: each part has one writer.
Two workers that accept at the same instant do not see each other's connection, so a limit may be exceeded by one
connection per worker.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

_COUNT: Final = struct.Struct("=Q")
_KEY: Final = struct.Struct("=Q")
_ROW: Final = struct.Struct("=QQ")
_FREE: Final = bytes(_KEY.size)
ROWS_A_GROUP: Final = 32
"""Rows of one group. The hash of an address or user selects its group. If the group is full, because 32 of them at a
worker have the same group, further ones in it are counted by that worker alone."""
GROUPS: Final = 4096
"""Groups of one worker. With 10,000 addresses a group has 2.4 rows in use on average. Pages that were never written
use no memory."""
_GROUP_BYTES: Final = ROWS_A_GROUP * _ROW.size
PART_BYTES: Final = mmap.PAGESIZE + GROUPS * _GROUP_BYTES
"""Size of one worker's part: whole pages; the first holds the number of all its connections."""


class WorkerConnections:
    """The connection counts of all workers, in shared memory. This process writes the part of worker ``number``."""

    __slots__ = ("_begin", "_memory", "_number", "_parts")

    def __init__(self, memory: mmap.mmap, begin: int, *, workers: int, number: int) -> None:
        self._memory = memory
        self._parts = tuple(begin + each * PART_BYTES for each in range(workers))
        self._begin = self._parts[number]
        self._number = number

    def clear(self) -> None:
        """Reset this part to zero, after the worker that wrote it has ended."""
        if hasattr(mmap, "MADV_REMOVE"):  # reads as zeros afterwards, and frees the pages
            self._memory.madvise(mmap.MADV_REMOVE, self._begin, PART_BYTES)
        else:
            self._memory[self._begin : self._begin + PART_BYTES] = bytes(PART_BYTES)

    def publish(self, host: str, from_host: int, total: int) -> None:
        """Set the number of this worker's connections to ``total``, and of those from ``host`` to ``from_host``."""
        _COUNT.pack_into(self._memory, self._begin, total)
        self._set(host, from_host)

    def publish_user(self, user: str, count: int) -> None:
        """Set the number of this worker's connections of ``user``."""
        self._set((user,), count)

    def _set(self, counted: Hashable, count: int) -> None:
        key, group = _key_and_group(counted)
        row = self._row(self._begin + group, key)
        if row is None and count:
            row = self._row(self._begin + group, _FREE)
        if row is not None:
            self._memory[row : row + _ROW.size] = (key if count else _FREE) + _COUNT.pack(count)

    def of_others(self) -> int:
        """Return the number of connections of the other workers."""
        count = 0
        for begin in self._parts:
            if begin != self._begin:
                count += _COUNT.unpack_from(self._memory, begin)[0]
        return count

    def of_others_from(self, host: str) -> int:
        """Return the number of connections of the other workers from ``host``."""
        return self._of_others(host)

    def of_others_of(self, user: str) -> int:
        """Return the number of connections of the other workers of ``user``."""
        return self._of_others((user,))

    def _of_others(self, counted: Hashable) -> int:
        key, group = _key_and_group(counted)
        count = 0
        for begin in self._parts:
            if begin != self._begin and (row := self._row(begin + group, key)) is not None:
                count += _ROW.unpack_from(self._memory, row)[1]
        return count

    def _row(self, group: int, key: bytes) -> int | None:
        end = group + _GROUP_BYTES
        found = self._memory.find(key, group, end)
        while found >= 0 and (found - group) % _ROW.size:  # a match that is not at the start of a row
            found = self._memory.find(key, found + 1, end)
        return None if found < 0 else found


def _key_and_group(counted: Hashable) -> tuple[bytes, int]:
    """Return the key of an address, or of a user as a tuple of its name, and its group's offset.

    All processes forked from one have the same hash seed.
    """
    number = hash(counted) & 0xFFFF_FFFF_FFFF_FFFF or 1
    return _KEY.pack(number), mmap.PAGESIZE + number % GROUPS * _GROUP_BYTES


class ConnectionCounts:
    """The number of open connections of this process, and with ``shared`` of the other workers."""

    __slots__ = ("_by_host", "_by_user", "_open", "_shared")

    def __init__(self, shared: WorkerConnections | None = None) -> None:
        self._open = 0
        self._by_host: dict[str, int] = {}
        self._by_user: dict[str, int] = {}
        self._shared = shared

    def add(self, host: str) -> None:
        """Count one more connection from ``host``."""
        self._count(host, 1)

    def remove(self, host: str) -> None:
        """Count one connection less from ``host``."""
        self._count(host, -1)

    def add_user(self, user: str) -> None:
        """Count one more connection of ``user``."""
        self._count_user(user, 1)

    def remove_user(self, user: str) -> None:
        """Count one connection less of ``user``."""
        self._count_user(user, -1)

    def of_user(self, user: str) -> int:
        """Return the number of open connections of ``user``, at all workers."""
        shared = self._shared
        return self._by_user.get(user, 0) + (shared.of_others_of(user) if shared is not None else 0)

    def _count_user(self, user: str, change: int) -> None:
        count = _changed(self._by_user, user, change)
        if self._shared is not None:
            self._shared.publish_user(user, count)

    def _count(self, host: str, change: int) -> None:
        self._open += change
        from_host = _changed(self._by_host, host, change)
        if self._shared is not None:
            self._shared.publish(host, from_host, self._open)

    def limit_reached(self, host: str, *, most: int, most_from_host: int) -> str | None:
        """Return the name of the limit that one more connection from ``host`` would exceed, or ``None``.

        ``most`` is ``limits.max_connections``, ``most_from_host`` is ``limits.max_connections_per_ip`` (0: no limit).
        """
        shared = self._shared
        if self._open + (shared.of_others() if shared is not None else 0) >= most:
            return "max_connections"
        if most_from_host:
            from_host = self._by_host.get(host, 0)
            if from_host + (shared.of_others_from(host) if shared is not None else 0) >= most_from_host:
                return "max_connections_per_ip"
        return None


def _changed(counts: dict[str, int], name: str, change: int) -> int:
    """Change one of the counts, and return its new value; one that becomes 0 is removed."""
    count = counts.get(name, 0) + change
    if count:
        counts[name] = count
    else:
        del counts[name]
    return count
