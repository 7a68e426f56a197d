"""Closing connections when all of them together hold more memory than ``limits.max_held_bytes``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.proxy.network.held_bytes import held

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState


class MemoryLimit:
    """Chooses the connections to close. One for the process, created by the server."""

    __slots__ = ("_closing", "_connections")

    def __init__(self, connections: set[ConnectionState], max_bytes: int) -> None:
        self._connections = connections
        self._closing: set[ConnectionState] = set()
        """The connections that are being closed, whose memory is still counted."""
        held.limit, held.on_excess = max_bytes, self._close_some

    def closed(self, connection: ConnectionState) -> None:
        """Note that a connection is closed."""
        self._closing.discard(connection)

    def _close_some(self) -> None:
        """Close the connections that hold most, to free an eighth of the limit.

        Those that the brokers have not accepted come first, then those of the address whose connections hold most.
        """
        if self._closing:
            return
        by_host: Counter[str] = Counter()
        for each in self._connections:
            by_host[each.info.peer.host] += each.memory_bytes
        holders = sorted(
            (each for each in self._connections if each.memory_bytes),
            key=lambda each: (not each.accepted, by_host[each.info.peer.host], each.memory_bytes),
            reverse=True,
        )
        wanted = held.limit // 8
        for each in holders:
            if wanted <= 0:
                return
            wanted -= each.memory_bytes
            self._closing.add(each)
            reason = f"it holds {each.memory_bytes} bytes, and all connections more than limits.max_held_bytes"
            each.end_for_fault("client", f"{reason} = {held.limit}", cause=("memory", each.info.peer.host))
