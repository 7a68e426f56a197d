"""The admin server's socket: a TCP port, or a Unix socket that only the proxy's user can connect to.

Called by `headrace.proxy.admin.server`.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.config.tables.admin import UnixPath
from headrace.proxy.errors import StartupError
from headrace.proxy.network.listening_sockets import advice_for_bind
from headrace.quota_callbacks.files import reason_of
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from headrace.config.tables.admin import AdminAddress

BACKLOG: Final = 1024
"""Connections that wait to be accepted, so that a burst of them does not delay a probe by a retransmission."""
SOCKET_MODE: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSocket:
    """The listening socket and its address."""

    sock: socket.socket
    address: AdminAddress
    file: tuple[int, int] | None = None
    """Device and inode of a Unix socket's file."""

    def remove_file(self) -> None:
        """Remove the file of a Unix socket, unless another one has replaced it."""
        if isinstance(self.address, UnixPath):
            with suppress(OSError):
                if _identity(self.address.path) == self.file:
                    Path(self.address.path).unlink()


def bind_admin(address: AdminAddress) -> AdminSocket:
    """Bind the admin server's socket. Raises `StartupError` with the address and the reason if that fails."""
    return _bind_unix(address) if isinstance(address, UnixPath) else _bind_port(address)


def _bind_port(address: Address) -> AdminSocket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"admin.listen: cannot resolve {address.host}: {error.strerror}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        reason = reason_of(error)
        advice = advice_for_bind(error, address.port, "admin.listen") or "change admin.listen"
        raise StartupError(f"cannot listen on {address} for the admin server: {reason}; {advice}") from error
    return AdminSocket(sock=sock, address=Address(host=address.host, port=sock.getsockname()[1]))


def _bind_unix(address: UnixPath) -> AdminSocket:
    refused = f"cannot listen on {address} for the admin server"
    _remove_stale(address.path, refused)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(sock.fileno(), SOCKET_MODE)  # Linux creates the file with the mode of the socket: never a wider one
        sock.bind(address.path)
        sock.listen(BACKLOG)
        return AdminSocket(sock=sock, address=address, file=_identity(address.path))
    except OSError as error:
        sock.close()
        reason = reason_of(error)
        advice = "create its folder" if error.errno == errno.ENOENT else "change admin.listen"
        raise StartupError(f"{refused}: {reason}; {advice}") from error


def _remove_stale(path: str, refused: str) -> None:
    """Remove the socket of a proxy that has ended without removing it. Raises `StartupError` for any other file."""
    try:
        found = os.lstat(path)
    except OSError:  # there is none, or `bind` states the reason
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise StartupError(f"{refused}: there is a file that is not a socket; remove it, or change admin.listen")
    if found.st_uid != os.geteuid():
        raise StartupError(f"{refused}: there is a socket of user id {found.st_uid}; remove it, or change admin.listen")
    if _is_served(path):
        raise StartupError(f"{refused}: another process listens on it; stop that process, or change admin.listen")
    with suppress(OSError):  # `bind` states the reason
        Path(path).unlink()


def _is_served(path: str) -> bool:
    """Return whether a process listens on a Unix socket, or may do so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # its backlog is full
            return True
    return True


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
