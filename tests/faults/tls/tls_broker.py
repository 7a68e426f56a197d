"""A scripted broker with TLS and SASL, whose output is cut, changed or withheld at a chosen byte.

It is no real broker: it agrees to any SASL mechanism, accepts any token, and otherwise answers as
`tests.faults.fake_broker.FakeBroker`. Its sessions cannot be resumed, so that each handshake is a full one.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from headrace.quota_callbacks.api_keys import ApiKey
from tests.faults import messages
from tests.faults.tls.faulty_connection import FaultDone, FaultyConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.tls.faulty_connection import Fault


class TlsBroker:
    """Listens on a free port of 127.0.0.1 until the ``with`` block ends.

    `faults` are those of the next connections, one each; without one, a connection is served. `new_context` makes the
    context of a connection, and may be replaced: a context of its own, since one remembers sessions of TLS 1.2.
    """

    def __init__(self, new_context: Callable[[], ssl.SSLContext]) -> None:
        self.new_context = new_context
        self.faults: deque[Fault] = deque()
        self.sent: list[int] = []
        """Number of bytes sent on each connection that has ended."""
        self.open = 0
        """Number of connections."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="TLS broker")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.add(sock)
                self.open += 1
                fault = self.faults.popleft() if self.faults else None
                thread = threading.Thread(target=self._serve, args=(sock, fault), name="TLS broker's connection")
                self._threads.append(thread)
                thread.start()

    def _serve(self, sock: socket.socket, fault: Fault | None) -> None:
        connection = _Connection(sock, self.new_context(), fault)
        with contextlib.suppress(OSError, EOFError, ssl.SSLError, FaultDone):
            connection.serve(self.port)
        self.sent.append(connection.sent)
        self._sockets.discard(sock)
        sock.close()
        self.open -= 1

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(10)
        self._listener.close()
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in [self._accepting, *self._threads])


class _Connection(FaultyConnection):
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, fault: Fault | None) -> None:
        super().__init__(sock, fault)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def serve(self, port: int) -> None:
        self.shake_hands()
        while True:
            api_key, version, correlation_id = struct.unpack_from(">hhi", self.receive_frame())
            body = _answer(api_key, version, port)
            self.send(messages.frame(struct.pack(">i", correlation_id) + body))


def _answer(api_key: int, version: int, port: int) -> bytes:
    if api_key == ApiKey.SASL_HANDSHAKE:
        return struct.pack(">hi", 0, 1) + messages.string("PLAIN")
    if api_key == ApiKey.SASL_AUTHENTICATE:
        return struct.pack(">hhi", 0, -1, 0) + (struct.pack(">q", 0) if version else b"")
    if api_key == ApiKey.API_VERSIONS:
        return struct.pack(">hi", 0, 0)
    broker = struct.pack(">i", 0) + messages.string("127.0.0.1") + struct.pack(">ih", port, -1)
    return struct.pack(">i", 1) + broker + messages.string("scripted") + struct.pack(">ii", 0, 0)
