"""One TCP connection that sends given bytes unchanged, with a deadline for each wait."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Self

from tests.faults import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 40.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


_taken: set[tuple[int, str, int]] = set()
_secured: dict[int, ssl.SSLContext] = {}
"""The ports whose clients speak TLS."""


@contextlib.contextmanager
def speaking_tls(port: int, context: ssl.SSLContext) -> Iterator[None]:
    """Let each client of this port of 127.0.0.1 do a TLS handshake first, until the block ends."""
    _secured[port] = context
    try:
        yield
    finally:
        del _secured[port]


def limit_buffers(sock: socket.socket, buffer_bytes: int) -> None:
    """Give a socket that is not connected yet, or that listens, small buffers of both directions.

    A segment of TCP becomes a quarter of them. With larger ones, as on the loopback, the sender would wait for TCP's
    timers, since a window of less than a segment is not used at once; so it would if the buffers shrank later.
    """
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, buffer_bytes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, min(buffer_bytes // 4, 32_000))


def _connect(port: int, timeout_s: float, source: str, buffer_bytes: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.settimeout(timeout_s)
        if buffer_bytes:
            limit_buffers(sock, buffer_bytes)
        if source != "127.0.0.1":
            # Without an address of its own the kernel takes the ports in turn; with one it repeats itself soon.
            sock.bind((source, 0))
        sock.connect(("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    return sock


def _connect_anew(port: int, timeout_s: float, source: str, buffer_bytes: int) -> socket.socket:
    """A connection from a port that none to `port` has come from before: the log has their ports."""
    repeated: list[socket.socket] = []
    try:
        while True:
            sock = _connect(port, timeout_s, source, buffer_bytes)
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

    `distinct`: from a port that no earlier one came from, which some 20,000 can. `buffer_bytes`: see `limit_buffers`.
    """

    def __init__(
        self,
        port: int,
        *,
        client_id: str = "raw",
        timeout_s: float = TIMEOUT_S,
        source: str = "127.0.0.1",
        distinct: bool = True,
        buffer_bytes: int = 0,
    ) -> None:
        self.client_id = client_id
        connect = _connect_anew if distinct else _connect
        self.sock = connect(port, timeout_s, source, buffer_bytes)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if port in _secured:
            self.sock = _secured[port].wrap_socket(self.sock, server_hostname="localhost")
        host, local_port = self.sock.getsockname()
        self.name = f"{host}:{local_port}"
        """As the proxy's log calls it."""
        self._numbers = itertools.count(1)
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except ssl.SSLError as error:  # the other side has ended the connection
            raise BrokenPipeError(str(error)) from error
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
            except (ConnectionResetError, ssl.SSLError) as error:
                raise ConnectionEndedError(f"reset after {len(data)} of {count} bytes") from error
            if not some:
                raise ConnectionEndedError(f"closed after {len(data)} of {count} bytes")
            data += some
        self.bytes_received += count
        return bytes(data)

    def rest(self) -> bytes:
        """All that comes until the other side ends the connection."""
        data = bytearray()
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
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
