"""The accept loop, and the listening sockets: each listener has one for bootstrapping, and one for each broker id.

Called by the server. `accept_loop` continues after errors that a busy system causes (the client closed before it was
accepted, no file descriptors or buffers left) and raises any other.
"""

from __future__ import annotations

import errno
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog
import trio

from headrace.proxy.errors import StartupError
from headrace.proxy.repeated_lines import RepeatedLines
from headrace.quota_callbacks.files import reason_of
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.proxy.network.overload import Overload

log = structlog.get_logger("headrace.listeners")

ACCEPTS_A_TURN: Final = 16
"""Connections accepted on all ports together before clients are served again."""
PAUSE_AFTER_A_TURN: Final = 3.0
"""The pause after accepting, as a multiple of the time that accepting took. Connected clients keep three quarters of
the time while connections arrive faster than they can be accepted, or while other processes take the processor."""
_CONNECTION_ERRORS: Final = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ECONNRESET}
    | {errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ETIMEDOUT}
    | ({errno.ENONET} if sys.platform == "linux" else set())
)
"""Errors of a connection that was about to be accepted, which accept(2) reports."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
EXHAUSTED_PAUSE_S: Final = 0.1
"""The pause after running out of descriptors or buffers, so that some may be freed; as in ``trio.serve_listeners``."""


FIRST_UNPRIVILEGED_PORT: Final = 1024
"""Linux's default of ``net.ipv4.ip_unprivileged_port_start``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of one listener: the bootstrap port, and port + 1 + n for every broker id n in ``node_ids``."""

    setting: str
    """The table of the configuration that describes the listener: ``listen`` or ``listeners.NAME``."""
    host: str
    port: int
    node_ids: Iterable[int] = ()
    backlog: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSocket:
    """A listening socket, its listener, and the broker that it represents."""

    sock: socket.socket
    setting: str
    """The table that describes its listener."""
    node_id: int | None
    """The broker's id; ``None`` for the bootstrap port."""
    address: Address


Accepted: TypeAlias = "Callable[[socket.socket, Address, ListeningSocket], float]"
"""What to call with the socket and peer of each connection. Returns the seconds to wait before the next one."""


def open_sockets(all_ports: Iterable[Ports]) -> list[ListeningSocket]:
    """Bind the ports of all listeners.

    If a port cannot be bound, all are closed; raises `StartupError` with that port and its purpose.
    """
    sockets: list[ListeningSocket] = []
    try:
        for ports in all_ports:
            sockets.append(_listen(ports, ports.port, None))
            sockets.extend(_listen(ports, ports.port + 1 + node_id, node_id) for node_id in ports.node_ids)
    except BaseException:
        close_sockets(sockets)
        raise
    return sockets


def close_sockets(sockets: Iterable[ListeningSocket]) -> None:
    """Close the listening sockets; their accept loops return."""
    for each in sockets:
        if each.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(each.sock)
            each.sock.close()


def _listen(ports: Ports, port: int, node_id: int | None) -> ListeningSocket:
    host, setting = ports.host, ports.setting
    purpose = "bootstrapping" if node_id is None else f"broker {node_id}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"{setting}.address: cannot resolve {host}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(ports.backlog)
    except OSError as error:
        sock.close()
        advice = advice_for_bind(error, port, f"{setting}.address")
        raise StartupError(
            f"cannot listen on {Address(host=host, port=port)} for {purpose}: {reason_of(error)};"
            f" {advice or f'change {setting}.address or {setting}.node_ids'}"
        ) from error
    return ListeningSocket(sock=sock, setting=setting, node_id=node_id, address=Address(host=host, port=port))


def advice_for_bind(error: OSError, port: int, setting: str) -> str | None:
    """Return what to change if ``bind`` raised ``error`` because the port is privileged; ``None`` for other causes."""
    if error.errno != errno.EACCES or not 0 < port < FIRST_UNPRIVILEGED_PORT:
        return None
    return (
        f"ports below {FIRST_UNPRIVILEGED_PORT} require the capability CAP_NET_BIND_SERVICE (under systemd"
        f" AmbientCapabilities=CAP_NET_BIND_SERVICE); grant it, or set {setting} to port"
        f" {FIRST_UNPRIVILEGED_PORT} or higher"
    )


async def accept_loop(listening: ListeningSocket, accepted: Accepted, turn: trio.Lock, overload: Overload) -> None:
    """Call ``accepted`` for every connection, until the listening socket is closed. Pause while there is ``overload``.

    All loops share ``turn``, so that they wait together, and a flood on many ports takes no more time from clients
    than one on a single port.
    """
    repeated = RepeatedLines()
    while listening.sock.fileno() >= 0:
        try:
            await trio.lowlevel.wait_readable(listening.sock)
            async with turn:
                await overload.wait_until_over()
                began_s = trio.current_time()
                pause_s = _accept_some(listening, accepted, overload)
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
                address = str(listening.address)
                reason = error.strerror
                log.error("cannot accept for now", listener=address, reason=reason, left_out=left_out or None)  # noqa: TRY400
            await trio.sleep(EXHAUSTED_PAUSE_S)


def _accept_some(listening: ListeningSocket, accepted: Accepted, overload: Overload) -> float:
    """Accept what waits, at most one turn. Return the seconds to wait before the next connection is accepted."""
    for _ in range(ACCEPTS_A_TURN):
        if overload.shortage(trio.current_time()) is not None:
            break
        try:
            sock, address = listening.sock.accept()
        except BlockingIOError:
            break
        if pause_s := accepted(sock, Address(host=address[0], port=address[1]), listening):
            return pause_s
    return 0.0
