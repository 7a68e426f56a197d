"""Closing connections when all of them together hold more memory than ``limits.max_held_bytes``."""

from __future__ import annotations

import ctypes
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.proxy.network.held_bytes import held

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState


_M_MMAP_THRESHOLD: Final = -3  # malloc.h
LARGE_BYTES: Final = 128 * 1024
"""Objects of at least this size are returned to the system when they are freed: the default of glibc."""


def return_large_objects() -> None:
    """Let large objects always be returned to the system when they are freed, instead of being kept for reuse.

    glibc raises its threshold with the size of freed objects, after which messages of 500 KiB leave holes in the heap.
    Has no effect with another C library.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)


class MemoryLimit:
    """Chooses the connections to close. One for the process, created by the server."""

    __slots__ = ("_connections",)

    def __init__(self, connections: set[ConnectionState], max_bytes: int) -> None:
        self._connections = connections
        held.limit, held.on_excess = max_bytes, self._close_some

    def _close_some(self) -> None:
        """Close the connections that hold most, to free an eighth of the limit.

        Those that the brokers have not accepted come first, then those of the address whose connections hold most.
        """
        by_host: Counter[str] = Counter()
        ending = 0
        for each in self._connections:
            if each.ended:
                ending += each.memory_bytes
            else:
                by_host[each.info.peer.host] += each.memory_bytes
        wanted = held.count - ending - held.limit * 7 // 8
        if wanted <= held.limit // 8:  # enough is being freed already
            return
        holders = sorted(
            (each for each in self._connections if each.memory_bytes and not each.ended),
            key=lambda each: (not each.accepted, by_host[each.info.peer.host], each.memory_bytes),
            reverse=True,
        )
        for each in holders:
            if wanted <= 0:
                return
            wanted -= each.memory_bytes
            reason = f"it holds {each.memory_bytes} bytes, and all connections more than limits.max_held_bytes"
            each.end_for_fault("client", f"{reason} = {held.limit}", "memory")
            each.drop_held()
