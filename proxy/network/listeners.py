"""Listening sockets: one for bootstrapping, one for each broker id, and the accept loop.

`accept_loop` survives what a busy system does to a listener (a client that is gone before it is accepted, no
descriptors or buffers left) and ends on anything else.
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

ACCEPTS_A_WAKE_UP: Final = 64
_GONE: Final = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ECONNRESET}
)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
EXHAUSTED_PAUSE_S: Final = 0.1
"""As ``trio.serve_listeners``: long enough for others to close something."""


FIRST_UNPRIVILEGED_PORT: Final = 1024
"""By Linux' default of ``net.ipv4.ip_unprivileged_port_start``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket and whom it stands for."""

    sock: socket.socket
    node_id: int | None
    """``None``: the bootstrap port."""
    address: Address


def open_listeners(
    host: str, port: int, node_ids: Iterable[int], *, backlog: int, shared: bool = False
) -> list[Listener]:
    """Bind the bootstrap port and port + 1 + n for every broker id n; ``shared`` with other workers of this proxy
    (SO_REUSEPORT), among whom the system spreads the connections.

    All or none: raises `StartupError` that names the port that cannot be had, and for whom it was meant.
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
    """Stop listening; accept loops end."""
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
    """Return what to do about a privileged port; ``None`` if ``error`` of ``bind`` has another cause."""
    if error.errno != errno.EACCES or not 0 < port < FIRST_UNPRIVILEGED_PORT:
        return None
    return (
        f"ports below {FIRST_UNPRIVILEGED_PORT} take the capability CAP_NET_BIND_SERVICE (under systemd"
        f" AmbientCapabilities=CAP_NET_BIND_SERVICE); grant it, or set {setting} to a port from"
        f" {FIRST_UNPRIVILEGED_PORT}"
    )


async def accept_loop(listener: Listener, accepted: Callable[[socket.socket, Address, int | None], None]) -> None:
    """Hand every connection to ``accepted``, until the listener is closed."""
    repeated = RepeatedLines()
    while True:
        try:
            await trio.lowlevel.wait_readable(listener.sock)
            for _ in range(ACCEPTS_A_WAKE_UP):
                sock, address = listener.sock.accept()
                accepted(sock, Address(host=address[0], port=address[1]), listener.node_id)
        except BlockingIOError:
            continue
        except trio.ClosedResourceError:
            return
        except OSError as error:
            if error.errno in _GONE:
                continue
            if error.errno == errno.EBADF:
                return
            if error.errno not in _EXHAUSTED:
                raise
            if (left_out := repeated.due(error.errno)) is not None:
                listening = str(listener.address)
                reason = error.strerror
                log.error("cannot accept for now", listener=listening, reason=reason, left_out=left_out or None)  # noqa: TRY400
            await trio.sleep(EXHAUSTED_PAUSE_S)
