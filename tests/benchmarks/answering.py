"""A broker that answers every request with one reply, on a thread."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

DEADLINE_S = 20.0


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Answering:
    """Listens on `address`, with `tls` by TLS; counts the connections and the requests that came, and has the names of
    their ciphers."""

    def __init__(self, reply: bytes, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._reply = frame(reply)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self.address: tuple[str, int] = self._listener.getsockname()
        self.connections = 0
        self.requests = 0
        self.ciphers: set[str] = set()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        rest = b""
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(connection)
            if self._tls is not None:
                encrypted = stack.enter_context(self._tls.wrap_socket(connection, server_side=True))
                self.ciphers.add((encrypted.cipher() or ("none",))[0])
                connection = encrypted
            while data := connection.recv(65536):
                rest += data
                while len(rest) >= 4 and len(rest) - 4 >= (size := int.from_bytes(rest[:4], "big")):
                    rest = rest[4 + size :]
                    with self._lock:
                        self.requests += 1
                    connection.sendall(self._reply)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(DEADLINE_S)


@contextlib.contextmanager
def answering(reply: bytes) -> Iterator[Answering]:
    server = Answering(reply)
    thread = threading.Thread(target=server.accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(DEADLINE_S)
