"""Listening sockets, one for bootstrapping and one for each broker id, and the accept loop.

Called by the server. `accept_loop` continues after errors that a busy system causes (the client closed before it was
accepted, no file descriptors or buffers left) and raises any other.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
import trio

from headrace.proxy.errors import StartupError
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

log = structlog.get_logger("headrace.listeners")

ACCEPTS_A_TURN: Final = 16
"""Connections accepted on all ports together before clients are served again."""
PAUSE_AFTER_A_TURN: Final = 3.0
"""The pause after a turn, in durations of that turn. Clients that are connected keep three quarters of the time while
connections arrive faster than they can be accepted, or while other processes take the processor."""
_CONNECTION_ERRORS: Final = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ECONNRESET}
)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
EXHAUSTED_PAUSE_S: Final = 0.1
"""The pause after running out of descriptors or buffers, so that some may be freed; as in ``trio.serve_listeners``."""


FIRST_UNPRIVILEGED_PORT: Final = 1024
"""Linux's default of ``net.ipv4.ip_unprivileged_port_start``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket and the broker that it represents."""

    sock: socket.socket
    node_id: int | None
    """The broker's id; ``None`` for the bootstrap port."""
    address: Address


def open_listeners(
    host: str, port: int, node_ids: Iterable[int], *, backlog: int, shared: bool = False
) -> list[Listener]:
    """Bind the bootstrap port and port + 1 + n for every broker id n.

    With ``shared`` the ports are shared with other workers of this proxy (SO_REUSEPORT), and the system distributes
    connections among them. If a port cannot be bound, all are closed; raises `StartupError` with that port and its
    purpose.
    """
    listeners: list[Listener] = []
    try:
        listeners.append(_listen(host, port, None, backlog, shared))
        listeners.extend(_listen(host, port + 1 + node_id, node_id, backlog, shared) for node_id in node_ids)
    except BaseException:
        close_listeners(listeners)
        raise
    return listeners


def close_listeners(listeners: Iterable[Listener]) -> None:
    """Close the listening sockets; their accept loops return."""
    for listener in listeners:
        if listener.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(listener.sock)
            listener.sock.close()


def _listen(host: str, port: int, node_id: int | None, backlog: int, shared: bool) -> Listener:
    purpose = "bootstrapping" if node_id is None else f"broker {node_id}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"listen.address: cannot resolve {host}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise StartupError(
            f"cannot listen on {Address(host=host, port=port)} for {purpose}: {(error.strerror or str(error)).lower()};"
            f" {advice_for_bind(error, port, 'listen.address') or 'change listen.address or listen.node_ids'}"
        ) from error
    return Listener(sock=sock, node_id=node_id, address=Address(host=host, port=port))


def advice_for_bind(error: OSError, port: int, setting: str) -> str | None:
    """Return what to change if ``bind`` raised ``error`` because the port is privileged; ``None`` for other causes."""
    if error.errno != errno.EACCES or not 0 < port < FIRST_UNPRIVILEGED_PORT:
        return None
    return (
        f"ports below {FIRST_UNPRIVILEGED_PORT} require the capability CAP_NET_BIND_SERVICE (under systemd"
        f" AmbientCapabilities=CAP_NET_BIND_SERVICE); grant it, or set {setting} to port"
        f" {FIRST_UNPRIVILEGED_PORT} or higher"
    )


async def accept_loop(
    listener: Listener, accepted: Callable[[socket.socket, Address, int | None], float], turn: trio.Lock
) -> None:
    """Call ``accepted`` with the socket, peer and broker id of every connection, until the listener is closed.

    ``accepted`` returns the seconds to wait before the next connection. All loops share ``turn``, so that they wait
    together, and a flood on many ports takes no more time from clients than one on a single port.
    """
    repeated = RepeatedLines()
    while listener.sock.fileno() >= 0:
        try:
            await trio.lowlevel.wait_readable(listener.sock)
            async with turn:
                began_s = trio.current_time()
                pause_s = _accept_some(listener, accepted)
                await trio.sleep(max(pause_s, PAUSE_AFTER_A_TURN * (trio.current_time() - began_s)))
        except trio.ClosedResourceError:
            return
        except OSError as error:
            if error.errno in _CONNECTION_ERRORS:
                continue
            if error.errno == errno.EBADF:
                return
            if error.errno not in _EXHAUSTED:
                raise
            if (left_out := repeated.due("cannot accept", error.errno)) is not None:
                listening = str(listener.address)
                reason = error.strerror
                log.error("cannot accept for now", listener=listening, reason=reason, left_out=left_out or None)  # noqa: TRY400
            await trio.sleep(EXHAUSTED_PAUSE_S)


def _accept_some(listener: Listener, accepted: Callable[[socket.socket, Address, int | None], float]) -> float:
    """Accept what waits, at most one turn. Return the seconds to wait before the next connection is accepted."""
    for _ in range(ACCEPTS_A_TURN):
        try:
            sock, address = listener.sock.accept()
        except BlockingIOError:
            break
        if pause_s := accepted(sock, Address(host=address[0], port=address[1]), listener.node_id):
            return pause_s
    return 0.0
