"""Handshakes that are begun and not finished: their first bytes, and whether the proxy has ended the connection."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


def client_hello(context: ssl.SSLContext, host: str | None = "localhost") -> bytes:
    """Return what Python's client sends first: a record with a ClientHello, which names ``host``."""
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def is_closed(sock: socket.socket) -> bool:
    """Read what is there, and return whether the end of the stream was among it."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
