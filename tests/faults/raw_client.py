"""One TCP connection that sends given bytes unchanged, with a deadline for each wait."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from typing import Self

from tests.faults import messages

TIMEOUT_S = 20.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


_taken: set[tuple[int, str, int]] = set()


def _connect(port: int, timeout_s: float, source: str) -> socket.socket:
    # Without an address of its own the kernel takes the ports in turn; with one it repeats itself soon.
    bound = None if source == "127.0.0.1" else (source, 0)
    return socket.create_connection(("127.0.0.1", port), timeout=timeout_s, source_address=bound)


def _connect_anew(port: int, timeout_s: float, source: str) -> socket.socket:
    """A connection from a port that none to `port` has come from before: the log has their ports."""
    repeated: list[socket.socket] = []
    try:
        while True:
            sock = _connect(port, timeout_s, source)
            name = (port, *sock.getsockname())
            if name not in _taken:
                _taken.add(name)
                return sock
            repeated.append(sock)
    finally:
        for sock in repeated:
            sock.close()


class ConnectionEndedError(AssertionError):
    """The other side ended the connection while an answer was waited for."""


class RawClient:
    """Connects to a port of 127.0.0.1, from there or from another address of the loopback. A context manager.

    `distinct`: from a port that no earlier one came from, which some 20,000 can.
    """

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "raw",
        timeout_s: float = TIMEOUT_S,
        source: str = "127.0.0.1",
        distinct: bool = True,
    ) -> None:
        self.client_id = client_id
        self.sock = _connect_anew(port, timeout_s, source) if distinct else _connect(port, timeout_s, source)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, local_port = self.sock.getsockname()
        self.name = f"{host}:{local_port}"
        """As the proxy's log calls it."""
        self._numbers = itertools.count(1)
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)
        self.bytes_sent += len(data)

    def request(self, api_key: int, version: int, body: bytes = b"") -> int:
        """Send a request; its correlation id."""
        correlation_id = next(self._numbers)
        self.send(messages.request(api_key, version, correlation_id, body, self.client_id))
        return correlation_id

    def call(self, api_key: int, version: int, body: bytes = b"") -> bytes:
        """Send a request and return its reply's body; only for versions whose reply has header 0."""
        correlation_id = self.request(api_key, version, body)
        answered, reply = self.reply()
        assert answered == correlation_id
        return reply

    def reply(self) -> tuple[int, bytes]:
        """The next reply: correlation id and body."""
        (size,) = struct.unpack(">i", self.receive(4))
        payload = self.receive(size)
        (correlation_id,) = struct.unpack_from(">i", payload)
        return correlation_id, payload[4:]

    def receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                some = self.sock.recv(min(count - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise ConnectionEndedError(f"reset after {len(data)} of {count} bytes") from error
            if not some:
                raise ConnectionEndedError(f"closed after {len(data)} of {count} bytes")
            data += some
        self.bytes_received += count
        return bytes(data)

    def rest(self) -> bytes:
        """All that comes until the other side ends the connection."""
        data = bytearray()
        with contextlib.suppress(ConnectionResetError):
            while some := self.sock.recv(1 << 16):
                data += some
        return bytes(data)

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.close()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
