"""Closing connections to free memory (``limits.max_held_bytes``), or while no further connection can be accepted.

In the second case, such as at ``limits.max_connections``, connections that were not served yet are closed. Otherwise
connections that never authenticate could prevent further ones until ``limits.login_timeout``.
"""

from __future__ import annotations

import ctypes
from collections import Counter, OrderedDict
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
    """The choice of the connections to close. Created by the server."""

    __slots__ = ("_connections",)

    def __init__(self, connections: set[ConnectionState], max_bytes: int) -> None:
        self._connections = connections
        held.limit, held.on_excess = max_bytes, self._close_some

    def relieve(self, short_bytes: int, why: str) -> None:
        """Close connections that together hold ``short_bytes``, so that accepting can resume; do nothing if all
        connections together hold less.

        Without this, one client that holds somewhat less than ``limits.max_held_bytes`` could keep accepting paused.
        """
        if 0 < short_bytes <= held.count:
            self._close_holders(short_bytes, f"accepting is paused, and this connection holds {{}} bytes: {why}")

    def _close_some(self) -> None:
        """Close the connections that hold most, to free an eighth of the limit."""
        ending = sum(each.memory_bytes for each in self._connections if each.ended)
        wanted = held.count - ending - held.limit * 7 // 8
        if wanted <= held.limit // 8:  # enough is being freed already
            return
        why = f"all connections together hold more than limits.max_held_bytes = {held.limit}"
        self._close_holders(wanted, f"this connection holds {{}} bytes, and {why}")

    def _close_holders(self, wanted: int, reason: str) -> None:
        """Close connections until ``wanted`` bytes are freed. ``reason`` has a place for what each one holds.

        Connections are closed in the order of what their user or address holds, the most first. If the connections that
        no broker has accepted hold enough together, these are closed first.
        """
        holders = [each for each in self._connections if each.memory_bytes and not each.ended]
        owners = {each: each.counts_for for each in holders}
        by_owner: Counter[str] = Counter()
        for each, owner in owners.items():
            by_owner[owner] += each.memory_bytes
        frees_enough = sum(each.memory_bytes for each in holders if not each.accepted) >= wanted
        holders.sort(
            key=lambda each: (frees_enough and not each.accepted, by_owner[owners[each]], each.memory_bytes),
            reverse=True,
        )
        for each in holders:
            if wanted <= 0:
                return
            wanted -= each.memory_bytes
            each.end_for_fault("client", reason.format(each.memory_bytes), "memory")
            each.drop_held()


TIME_FOR_REQUEST_S: Final = 2.0
"""A connection is not closed before this time, in which clients usually have authenticated and asked for something."""


class UnservedConnections:
    """The connections that have sent no request, or are not accepted by a broker, by age."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[ConnectionState, float] = OrderedDict()

    def add(self, connection: ConnectionState, now_s: float) -> None:
        """Add a new connection."""
        self._by_age[connection] = now_s

    def discard(self, connection: ConnectionState) -> None:
        """Forget a connection that has ended."""
        self._by_age.pop(connection, None)

    def close_oldest(self, why: str, now_s: float) -> None:
        """End the oldest connection that was not served, if it had time for a request. ``why`` is the reason why no
        further one is accepted."""
        while self._by_age and not _is_unserved(next(iter(self._by_age))):
            self._by_age.popitem(last=False)
        if not self._by_age:
            return
        connection, opened_s = next(iter(self._by_age.items()))
        if (age_s := now_s - opened_s) >= TIME_FOR_REQUEST_S:
            reason = f"{why}, and it has asked for nothing, or no broker has accepted it, in {age_s:.0f} s"
            connection.end_for_fault("client", reason, "unserved")


def _is_unserved(connection: ConnectionState) -> bool:
    return not connection.ended and (connection.current is None or not connection.update_accepted())
