"""The admin server's open connections, and their limits in all and per address.

A new connection is always accepted, so that probes are answered while others keep connections open without use: at a
limit, the connection that has waited longest for its client is closed instead. Called by
`headrace.proxy.admin.server`.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.admin.http import HttpConnection
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config.tables.admin import Admin
    from headrace.proxy.admin.http import Answer
    from headrace.proxy.counters import AdminCounters

log = structlog.get_logger("headrace.admin")

_PEER: Final = struct.Struct("=3i")
"""Linux: ``struct ucred``, the process id, user id and group id of the other end of a Unix socket."""


class AdminConnections:
    """The open connections. ``settings`` returns the configuration that is in force."""

    def __init__(self, settings: Callable[[], Admin], counters: AdminCounters) -> None:
        self._settings = settings
        self._counters = counters
        self._open: set[HttpConnection] = set()
        self._repeated = RepeatedLines()

    async def serve(self, listener: trio.SocketListener, answer: Answer) -> None:
        """Accept connections and answer requests until cancelled, then close the listener."""

        async def handle(stream: trio.SocketStream) -> None:
            try:
                client = client_of(stream.socket)
            except OSError:  # reset between accept and getpeername
                await trio.aclose_forcefully(stream)
                return
            await self.serve_one(stream, client, answer)

        await trio.serve_listeners(handle, [listener])

    async def serve_one(self, stream: trio.abc.Stream, client: str, answer: Answer) -> None:
        """Answer the requests of one connection, and close it."""
        timeout_s = self._settings().request_timeout_s
        connection = HttpConnection(stream, client, timeout_s=timeout_s, counters=self._counters)
        self._make_room(client)
        self._open.add(connection)
        self._counters.connections += 1
        try:
            await connection.serve(answer)
        except Exception as error:
            log.exception("a mistake of headrace in the admin server", client=client, exc_info=error)
        finally:
            self._counters.connections -= 1
            self._open.discard(connection)

    def _make_room(self, client: str) -> None:
        """Close a connection if one more would exceed a limit: one of the same client if it has too many."""
        settings = self._settings()
        same = [each for each in self._open if each.client == client]
        if len(same) >= settings.max_connections_per_ip:
            self._close_one(same, "max_connections_per_ip")
        elif len(self._open) >= settings.max_connections:
            self._close_one(list(self._open), "max_connections")

    def _close_one(self, connections: list[HttpConnection], limit: str) -> None:
        closed = min(connections, key=lambda each: (each.phase, each.since_s))
        closed.close()
        self._open.discard(closed)
        self._counters.refuse(limit)
        left_out = self._repeated.due(limit)
        if left_out is not None:
            reason = f"admin.{limit} is reached"
            log.warning("admin connection closed", client=closed.client, reason=reason, left_out=left_out or None)


def client_of(sock: trio.socket.SocketType) -> str:
    """Return the address of a socket's client; of a Unix socket the user id."""
    if sock.family == socket.AF_UNIX:
        _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return f"uid {user}"
    host: str = sock.getpeername()[0]
    return host
