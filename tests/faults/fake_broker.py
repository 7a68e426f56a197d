"""A broker of a few lines, for what a real one cannot be made to do: lie, stop in the middle, answer twice, hang.

It answers ApiVersions, Metadata and Heartbeat as a broker does. A request whose client id has a behaviour is handed to
that instead, in the thread of its connection.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from tests.faults import messages
from tests.faults.raw_client import RESET_ON_CLOSE, limit_buffers

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

API_VERSIONS_BODY = struct.pack(">hi", 0, 3) + b"".join(
    struct.pack(">hhh", api_key, 0, highest)
    for api_key, highest in ((messages.METADATA, 2), (messages.HEARTBEAT, 1), (messages.API_VERSIONS, 0))
)
HEARTBEAT_REPLY = struct.pack(">ih", 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as it came; headers of version 1 are read, and the body is what follows the client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: bytes


class Conversation:
    """One connection of the fake broker."""

    def __init__(self, broker: FakeBroker, sock: socket.socket) -> None:
        self.broker = broker
        self.sock = sock

    def next(self) -> Asked:
        """The next request. Raises EOFError at the connection's end."""
        (size,) = struct.unpack(">i", self._receive(4))
        payload = self._receive(size)
        api_key, version, correlation_id, length = struct.unpack_from(">hhih", payload)
        return Asked(
            api_key=api_key,
            api_version=version,
            correlation_id=correlation_id,
            client_id=payload[10 : 10 + length].decode(),
            body=payload[10 + length :],
        )

    def reply(self, asked: Asked, body: bytes) -> None:
        self.send(reply(asked, body))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reset(self) -> None:
        """End the connection with RST."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.sock.close()

    def wait_for_end(self) -> None:
        """Read nothing more of interest until the proxy closes."""
        while self.sock.recv(1 << 16):
            pass

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            some = self.sock.recv(count - len(data))
            if not some:
                raise EOFError
            data += some
        return bytes(data)


def reply(asked: Asked, body: bytes) -> bytes:
    """The frame of a reply with header 0."""
    return messages.frame(struct.pack(">i", asked.correlation_id) + body)


class FakeBroker:
    """Listens on a port of 127.0.0.1, a free one unless given, until the `with` block ends.

    `behaviours` are by client id; when one returns, its connection is closed. `others` are the addresses of further
    brokers that Metadata names, by node id; the fake broker itself is node 0. With `context` it speaks TLS.
    `buffer_bytes`: see `limit_buffers`.
    """

    def __init__(
        self,
        behaviours: Mapping[str, Callable[[Conversation, Asked], None]],
        *,
        others: Mapping[int, int] | None = None,
        port: int = 0,
        buffer_bytes: int = 0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._behaviours = behaviours
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        if buffer_bytes:
            limit_buffers(self._listener, buffer_bytes)
        self.port: int = self._listener.getsockname()[1]
        self._addresses = {0: self.port, **(others or {})}
        self.stopping = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="fake broker")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.add(sock)
                thread = threading.Thread(target=self._serve, args=(sock,), name="fake broker's connection")
                self._threads.append(thread)
                thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError, EOFError), self._secured(plain) as sock:
            conversation = Conversation(self, sock)
            while True:
                asked = conversation.next()
                behaviour = self._behaviours.get(asked.client_id)
                if behaviour is not None:
                    behaviour(conversation, asked)
                    return
                conversation.reply(asked, self.usual_reply(asked))

    def _secured(self, sock: socket.socket) -> socket.socket:
        return sock if self._context is None else self._context.wrap_socket(sock, server_side=True)

    def usual_reply(self, asked: Asked) -> bytes:
        """What a broker would answer."""
        if asked.api_key == messages.API_VERSIONS:
            return API_VERSIONS_BODY
        if asked.api_key == messages.METADATA:
            return self._metadata()
        return HEARTBEAT_REPLY

    def _metadata(self) -> bytes:
        body = struct.pack(">i", len(self._addresses))
        for node_id, port in self._addresses.items():
            body += struct.pack(">i", node_id) + messages.string("127.0.0.1") + struct.pack(">ih", port, -1)
        return body + messages.string("fake") + struct.pack(">ii", 0, 0)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self._accepting.join(10)
        self._listener.close()
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in [self._accepting, *self._threads])


class FullBacklog:
    """A port that accepts no connections: its backlog is full, so the kernel lets connects wait."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port: int = self._listener.getsockname()[1]
        self._fillers: list[socket.socket] = []

    def __enter__(self) -> Self:
        while self._connects():
            assert len(self._fillers) < 16, "a backlog of 0 takes one connection here; this one takes any number"
        return self

    def _connects(self) -> bool:
        filler = socket.socket()
        self._fillers.append(filler)
        filler.settimeout(0.3)
        try:
            filler.connect(("127.0.0.1", self.port))
        except TimeoutError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        for filler in self._fillers:
            filler.close()
        self._listener.close()


def reset_after_ten(conversation: Conversation, asked: Asked) -> None:
    """Answer ten Heartbeats, and reset the connection at the eleventh request."""
    for _ in range(10):
        conversation.reply(asked, HEARTBEAT_REPLY)
        asked = conversation.next()
    conversation.reset()
