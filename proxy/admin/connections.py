"""The admin server's open connections, and their limits in all and per address.

A new connection is always accepted, so that probes are answered while others keep connections open without use: at a
limit, a connection of the address with the most is closed instead, the one that has waited longest for its client. So
an address with many connections never causes the only connection of another address to be closed. Only an address that
opens connections faster than its rate (`headrace.proxy.admin.turns`) is refused.

With TLS, a connection counts from its first byte on, so that these limits hold for handshakes, too. Called by
`headrace.proxy.admin.server`.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.admin.http import HttpConnection, RefusedConnection
from headrace.proxy.admin.turns import AdminTurns
from headrace.proxy.repeated_lines import RepeatedLines, place_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.config.tables.admin import Admin
    from headrace.proxy.admin.http import Answer
    from headrace.proxy.admin.tls import TlsHandshakes
    from headrace.proxy.counters import AdminCounters

log = structlog.get_logger("headrace.admin")

_PEER: Final = struct.Struct("=3i")
"""Linux: ``struct ucred``, the process id, user id and group id of the other end of a Unix socket."""


class AdminConnections:
    """The open connections. ``settings`` returns the configuration that is in force; ``tls`` is None for plaintext."""

    def __init__(
        self, settings: Callable[[], Admin], counters: AdminCounters, tls: TlsHandshakes | None = None
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._tls = tls
        self._open: set[HttpConnection] = set()
        self._repeated = RepeatedLines()
        self._turns = AdminTurns()

    async def serve(self, listener: trio.SocketListener, answer: Answer) -> None:
        """Accept connections and answer requests until cancelled, then close the listener."""

        async def handle(stream: trio.SocketStream) -> None:
            try:
                client = client_of(stream.socket)
            except OSError:  # reset between accept and getpeername
                await trio.aclose_forcefully(stream)
                return
            if not self._turns.admits(client):
                self._report(client, "connection_rate", "the rate of connections of an address is exceeded")
                await trio.aclose_forcefully(stream)
                return
            if self._tls is None:
                await self.serve_one(stream, client, answer)
            else:
                await self._serve_tls(self._tls, stream, client, answer)

        await trio.serve_listeners(handle, [listener])

    async def _serve_tls(self, tls: TlsHandshakes, stream: trio.SocketStream, client: str, answer: Answer) -> None:
        from headrace.proxy.admin.tls import TlsStream

        sock = socket.socket(fileno=stream.socket.detach())
        try:
            encrypted = TlsStream(sock)
        except OSError:  # reset between accept and setsockopt
            sock.close()
            return
        timeout_s = self._settings().request_timeout_s
        handshake = partial(tls.serve, encrypted, client, self._turns.handshakes, timeout_s)
        await self.serve_one(encrypted, client, answer, handshake)

    async def serve_one(
        self,
        stream: trio.abc.HalfCloseableStream,
        client: str,
        answer: Answer,
        handshake: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """Answer the requests of one connection, and close it. ``handshake`` is as for `HttpConnection`."""
        connection = HttpConnection(
            stream,
            client,
            timeout_s=self._settings().request_timeout_s,
            counters=self._counters,
            turns=self._turns,
            handshake=handshake,
        )
        self._make_room(connection.address)
        self._open.add(connection)
        self._counters.connections += 1
        try:
            await connection.serve(answer)
        except RefusedConnection as error:
            self._report(client, error.rule, str(error))
        except Exception as error:
            if self._repeated.due("internal error", place_of(error)) is not None:
                log.exception("internal error; the admin connection was closed", client=client, exc_info=error)
        finally:
            self._counters.connections -= 1
            self._open.discard(connection)

    def _make_room(self, address: str) -> None:
        """Close a connection if one more would exceed a limit: one of the same address if it has too many."""
        settings = self._settings()
        same = [each for each in self._open if each.address == address]
        if len(same) >= settings.max_connections_per_ip:
            self._close_one(same, "max_connections_per_ip")
        elif len(self._open) >= settings.max_connections:
            self._close_one(list(self._open), "max_connections")

    def _close_one(self, connections: list[HttpConnection], limit: str) -> None:
        counts = Counter(each.address for each in connections)
        closed = min(connections, key=lambda each: (-counts[each.address], each.phase, each.since_s))
        closed.close()
        self._open.discard(closed)
        self._report(closed.client, limit, f"admin.{limit} is reached")

    def _report(self, client: str, rule: str, reason: str) -> None:
        self._counters.refuse(rule)
        left_out = self._repeated.due(rule, reason)
        if left_out is not None:
            log.warning("admin connection closed", client=client, reason=reason, left_out=left_out or None)


def client_of(sock: trio.socket.SocketType) -> str:
    """Return the address of a socket's client; of a Unix socket the user id."""
    if sock.family == socket.AF_UNIX:
        _, user, _ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return f"uid {user}"
    host: str = sock.getpeername()[0]
    return host
