"""A program that floods a proxy: ``python -m tests.security.floods.flood PORT SECONDS SCALE ATTACK...``.

``SCALE``, at most 1, multiplies the numbers of connections and of new ones a second.

It is written to cost little, since it shares two cores with the proxy that it attacks: raw sockets that do not block,
one epoll, and no work for a connection that is silent. At its end it prints what it did, as JSON.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import select
import socket
import struct
import sys
import time
from typing import Final

from tests.faults import messages

RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: close with RST, which leaves no port in TIME_WAIT behind."""
READING: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
POLL_S: Final = 0.01
READ_BYTES: Final = 1 << 16
GIB: Final = 1 << 30
CLIENT_ID: Final = "flood"


def connect(port: int, source: str) -> socket.socket:
    """Begin to connect, without waiting for it."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_BIND_ADDRESS_NO_PORT, 1)
    sock.bind((source, 0))
    sock.connect_ex(("127.0.0.1", port))
    return sock


class Pace:
    """How many times something is due that happens ``rate`` times a second."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._last_s = time.monotonic()
        self._credit = 0.0

    def due(self, now_s: float) -> int:
        """Return how many are due now; what was missed for more than a second is left out."""
        self._credit = min(self._credit + (now_s - self._last_s) * self.rate, max(self.rate, 1.0))
        self._last_s = now_s
        whole = int(self._credit)
        self._credit -= whole
        return whole


class Attack:
    """Keeps ``count`` connections open, opening at most ``rate`` a second; what they do is in subclasses."""

    sources: tuple[str, ...] = ()
    count = 0
    rate = 0.0

    def __init__(self, port: int, epoll: select.epoll, scale: float) -> None:
        self.port = port
        self.count = max(1, round(self.count * scale))
        self.opened = self.ended = self.sent = self.answers = 0
        self._epoll = epoll
        self._pace = Pace(self.rate * scale)
        self._source = itertools.cycle(self.sources)
        self.sockets: dict[int, socket.socket] = {}

    def tick(self, now_s: float) -> None:
        for _ in range(min(self._pace.due(now_s), self.count - len(self.sockets))):
            sock = connect(self.port, next(self._source))
            self.opened += 1
            self.sockets[sock.fileno()] = sock
            self._epoll.register(sock, READING | select.EPOLLOUT)

    def ready(self, fd: int, events: int) -> None:
        """Handle what epoll reports of a connection."""
        sock = self.sockets[fd]
        try:
            if events & select.EPOLLIN and not (data := sock.recv(READ_BYTES)):
                self.close(fd)
            elif events & select.EPOLLIN:
                self.received(sock, data)
            elif events & (select.EPOLLERR | select.EPOLLHUP | select.EPOLLRDHUP):
                self.close(fd)
            elif events & select.EPOLLOUT:
                self._epoll.modify(fd, READING)
                self.connected(sock)
        except BlockingIOError:
            pass
        except OSError:
            self.close(fd)

    def connected(self, sock: socket.socket) -> None:
        """Do what is done once at the beginning."""

    def received(self, sock: socket.socket, data: bytes) -> None:
        """Take a reply."""
        self.answers += 1

    def send(self, sock: socket.socket, data: bytes) -> None:
        try:
            self.sent += sock.send(data)
        except BlockingIOError:
            pass
        except OSError:
            self.close(sock.fileno())

    def close(self, fd: int) -> None:
        """Forget a connection that the proxy has ended."""
        self.ended += 1
        self.sockets.pop(fd).close()


class Idle(Attack):
    """8,000 connections that send nothing."""

    sources = tuple(f"127.0.1.{number}" for number in range(1, 9))
    count, rate = 8000, 900.0


class Storm(Attack):
    """2,000 connections a second from one address, each of which is closed after half a second."""

    sources, rate, kept_s = ("127.0.0.3",), 2000.0, 0.5

    def __init__(self, port: int, epoll: select.epoll, scale: float) -> None:
        super().__init__(port, epoll, scale)
        self._open: collections.deque[tuple[float, socket.socket]] = collections.deque()

    def tick(self, now_s: float) -> None:
        for _ in range(self._pace.due(now_s)):
            self._open.append((now_s + self.kept_s, connect(self.port, self.sources[0])))
            self.opened += 1
        while self._open and self._open[0][0] <= now_s:
            self._open.popleft()[1].close()


class Trickle(Attack):
    """Connections that send the first bytes of a frame in pieces, in turn; ``pieces`` a second together."""

    head = b""
    most_bytes = 0
    """The bytes that are sent on a connection; those behind ``head`` are zeros."""
    piece_bytes = 1
    pieces = 0.0

    def __init__(self, port: int, epoll: select.epoll, scale: float) -> None:
        super().__init__(port, epoll, scale)
        self._pieces = Pace(self.pieces * scale)
        self._turns: collections.deque[tuple[socket.socket, int]] = collections.deque()

    def connected(self, sock: socket.socket) -> None:
        self._turns.append((sock, 0))

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        for _ in range(min(self._pieces.due(now_s), len(self._turns))):
            sock, at = self._turns.popleft()
            if sock.fileno() >= 0 and at < self.most_bytes:
                before = self.sent
                piece = self.head[at : at + self.piece_bytes]
                self.send(sock, piece.ljust(min(self.piece_bytes, self.most_bytes - at), b"\0"))
                self._turns.append((sock, at + self.sent - before))


class SlowHeads(Trickle):
    """300 connections that send the head of a request, a byte a second each."""

    sources, count, rate = ("127.0.0.4",), 300, 50.0
    head = messages.request(messages.PRODUCE, 7, 1, messages.produce_body("flood", bytes(1000), acks=1), "s" * 200)
    most_bytes, pieces = 240, 300.0


class HalfHandshakes(Trickle):
    """Forty connections that send all but the last kilobyte of a SaslHandshake of 500 KB, 3 MB a second together.
    The proxy collects it, since it is below ``limits.max_handshake_bytes``."""

    sources, count, rate = ("127.0.0.9",), 40, 20.0
    head = struct.pack(">ihhi", 500_000, messages.SASL_HANDSHAKE, 1, 1) + messages.string(CLIENT_ID)
    most_bytes, piece_bytes, pieces = 499_000, 10_000, 300.0


class PartialProduces(Trickle):
    """Two connections that announce a Produce of 99 MiB, which is below ``limits.max_frame_bytes``, and send 100 KB of
    it a second, so that ``limits.request_timeout`` does not end them.

    Only two, since the proxy forwards what comes, and a broker sets aside what is announced: those of the tests have
    384 MiB of memory.
    """

    sources, count, rate = ("127.0.0.10",), 2, 1.0
    head = struct.pack(">ihhi", 99 << 20, messages.PRODUCE, 7, 1) + messages.string(CLIENT_ID)
    head += struct.pack(">hhii", -1, 1, 30_000, 1) + messages.string("flood") + struct.pack(">iii", 1, 0, 98 << 20)
    most_bytes, piece_bytes, pieces = 90 << 20, 20_000, 10.0


class Announcements(Attack):
    """A hundred connections a second that announce a request of 1 GiB, of an API that is forwarded or collected."""

    sources, count, rate = ("127.0.0.5",), 200, 100.0
    heads = tuple(
        struct.pack(">ihhi", GIB, api_key, version, 1) + messages.string(CLIENT_ID)
        for api_key, version in (
            (messages.PRODUCE, 7),
            (messages.METADATA, messages.METADATA_VERSION),
            (messages.SASL_HANDSHAKE, 1),
            (messages.API_VERSIONS, 0),
        )
    )

    def connected(self, sock: socket.socket) -> None:
        self.send(sock, self.heads[self.opened % len(self.heads)])


class Handshakes(Attack):
    """Twenty connections that ask ApiVersions and SaslHandshake in turn, 2,000 times a second together."""

    sources, count, rate, requests, most_unanswered = ("127.0.0.6",), 20, 20.0, 2000, 10
    pair = messages.request(messages.API_VERSIONS, 0, 1, b"", CLIENT_ID) + messages.request(
        messages.SASL_HANDSHAKE, 1, 2, messages.string("PLAIN"), CLIENT_ID
    )

    def __init__(self, port: int, epoll: select.epoll, scale: float) -> None:
        super().__init__(port, epoll, scale)
        self._pairs = Pace(self.requests / 2 * scale)
        self._unanswered: dict[int, int] = {}

    def connected(self, sock: socket.socket) -> None:
        self._unanswered[sock.fileno()] = 0

    def received(self, sock: socket.socket, data: bytes) -> None:
        self.answers += 1
        self._unanswered[sock.fileno()] = 0

    def close(self, fd: int) -> None:
        self._unanswered.pop(fd, None)
        super().close(fd)

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        pairs = self._pairs.due(now_s)
        for fd in list(self._unanswered):
            each = min(pairs // max(len(self._unanswered), 1) + 1, self.most_unanswered - self._unanswered[fd])
            if each > 0 and pairs > 0:
                pairs -= each
                self._unanswered[fd] += each
                self.send(self.sockets[fd], self.pair * each)


class Bursts(Attack):
    """Thirty connections a second that send a thousand ApiVersions at once, without waiting for an answer."""

    sources, count, rate = ("127.0.0.8",), 60, 30.0
    burst = messages.request(messages.API_VERSIONS, 0, 1, b"", CLIENT_ID) * 1000

    def connected(self, sock: socket.socket) -> None:
        self.send(sock, self.burst)


class ShortLogins(Attack):
    """Fifty connections a second that ask ApiVersions, for which the proxy connects to a broker, and then reset."""

    sources, count, rate = ("127.0.0.7",), 200, 50.0

    def connected(self, sock: socket.socket) -> None:
        self.send(sock, messages.request(messages.API_VERSIONS, 0, 1, b"", CLIENT_ID))

    def received(self, sock: socket.socket, data: bytes) -> None:
        self.answers += 1
        self.sockets.pop(sock.fileno()).close()


KINDS: Final[tuple[type[Attack], ...]] = (
    *(Idle, SlowHeads, HalfHandshakes, PartialProduces, Announcements),
    *(Storm, Handshakes, Bursts, ShortLogins),
)
ATTACKS: Final = {kind.__name__: kind for kind in KINDS}


def flood(port: int, duration_s: float, scale: float, names: list[str]) -> None:
    """Attack ``port`` for ``duration_s`` seconds."""
    end_s = time.monotonic() + duration_s
    with contextlib.closing(select.epoll()) as epoll:
        attacks = [ATTACKS[name](port, epoll, scale) for name in names]
        while (now_s := time.monotonic()) < end_s:
            for attack in attacks:
                attack.tick(now_s)
            for fd, events in epoll.poll(POLL_S, 1000):
                for attack in attacks:
                    if fd in attack.sockets:
                        attack.ready(fd, events)
                        break
        done = {
            name: {
                "opened": attack.opened,
                "ended": attack.ended,
                "open": len(attack.sockets),
                "sent": attack.sent,
                "answers": attack.answers,
            }
            for name, attack in zip(names, attacks, strict=True)
        }
    print(json.dumps({"cpu_s": round(time.process_time(), 1), **done}))  # noqa: T201 - its result


if __name__ == "__main__":
    flood(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
