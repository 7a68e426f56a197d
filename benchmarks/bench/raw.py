"""Many raw Kafka connections, or requests at exact times, with sockets and epoll: a client library's own CPU time would
dominate the measurement.

Blocking; called in this process, on the clients' core. The requests come from `tests.faults.messages`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import TYPE_CHECKING, Final

from benchmarks.bench.errors import BenchError
from tests.faults import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Address = tuple[str, int]

TIMEOUT_S: Final = 60.0
"""Longer than any reply takes, even on a busy machine."""
OPENING: Final = 100
"""Connections that are opened at the same time; fewer than any listener's backlog."""
VALUE: Final = bytes(100)
API_VERSIONS: Final = messages.request(messages.API_VERSIONS, 0, 1)
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def small_produce(topic: str) -> bytes:
    """Return a Produce request of one record of 100 bytes, with acks=1."""
    body = messages.produce_body(topic, messages.batch(VALUE), acks=1)
    return messages.request(messages.PRODUCE, messages.PRODUCE_VERSION, 1, body)


class Replies:
    """The replies in the bytes of one connection, which are counted."""

    __slots__ = ("_rest", "latest")

    def __init__(self) -> None:
        self._rest = b""
        self.latest = b""
        """The latest complete reply, without its length and correlation id."""

    def feed(self, data: bytes) -> int:
        """Add received bytes, and return the number of replies that they complete."""
        data = self._rest + data if self._rest else data
        at = count = 0
        while len(data) - at >= 4 and len(data) - at - 4 >= (size := int.from_bytes(data[at : at + 4], "big")):
            self.latest = data[at + 8 : at + 4 + size]
            at += 4 + size
            count += 1
        self._rest = data[at:]
        return count


def connect(address: Address) -> socket.socket:
    """Return a connection with TCP_NODELAY."""
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_some(connection: socket.socket) -> bytes:
    """Return received bytes. Raises BenchError if the other side has closed the connection."""
    data = connection.recv(1 << 16)
    if not data:
        raise BenchError(f"a connection to {connection.getpeername()} was ended")
    return data


def receive_reply(connection: socket.socket) -> bytes:
    """Wait for one reply, and return it without its length and correlation id."""
    replies = Replies()
    while not replies.feed(receive_some(connection)):
        pass
    return replies.latest


def check_produced(reply: bytes) -> None:
    """Raise BenchError if a Produce reply has an error code."""
    if error := messages.read_produce_reply(reply).error_code:
        raise BenchError(f"Produce was answered with error {error}")


@contextlib.contextmanager
def open_connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Open connections, and send ApiVersions on each, so that a proxy connects upstream; reset them at exit."""
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        while len(opened) < count:
            some = [stack.enter_context(connect(address)) for _ in range(min(OPENING, count - len(opened)))]
            for connection in some:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
                connection.sendall(API_VERSIONS)
            for connection in some:
                receive_reply(connection)
            opened += some
        yield opened


def ask_in_turns(connections: list[socket.socket], request: bytes, requests: int) -> None:
    """Keep one `request` in flight on each connection until `requests` replies have been received.

    Raises BenchError if a request fails, or no reply is received for TIMEOUT_S.
    """
    by_descriptor = {connection.fileno(): (connection, Replies()) for connection in connections[:requests]}
    with select.epoll() as poll:
        for descriptor, (connection, _) in by_descriptor.items():
            poll.register(descriptor, select.EPOLLIN)
            connection.sendall(request)
        sent, done = len(by_descriptor), 0
        while done < requests:
            for descriptor, _ in _wait(poll):
                connection, replies = by_descriptor[descriptor]
                if not replies.feed(receive_some(connection)):
                    continue
                check_produced(replies.latest)
                done += 1
                if sent < requests:
                    connection.sendall(request)
                    sent += 1


def connect_in_turns(address: Address, total: int, at_a_time: int) -> None:
    """Open a connection, send ApiVersions, and close it, `total` times, `at_a_time` concurrently."""
    open_now: dict[int, tuple[socket.socket, Replies]] = {}
    begun = done = 0
    with contextlib.ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        stack.callback(_close_all, open_now)
        while done < total:
            while begun < total and len(open_now) < at_a_time:
                connection = connect(address)
                open_now[connection.fileno()] = connection, Replies()
                poll.register(connection, select.EPOLLIN)
                connection.sendall(API_VERSIONS)
                begun += 1
            for descriptor, _ in _wait(poll):
                connection, replies = open_now[descriptor]
                if replies.feed(receive_some(connection)):
                    del open_now[descriptor]
                    connection.close()
                    done += 1


def _close_all(connections: dict[int, tuple[socket.socket, Replies]]) -> None:
    for connection, _ in connections.values():
        connection.close()


def latencies_s(
    address: Address, request: bytes, per_second: float, count: int, check: Callable[[bytes], None] = check_produced
) -> list[float]:
    """Send `count` requests at a fixed rate without waiting for replies, and return their latencies, ascending.

    A latency is measured from the time at which the request was due, so that a stall affects all requests that it
    delays.
    """
    took: list[float] = []
    replies = Replies()
    with connect(address) as connection:
        connection.sendall(request)  # makes the proxy connect upstream
        check(receive_reply(connection))
        begin_s = time.perf_counter()
        sent = 0
        while len(took) < count:
            now_s = time.perf_counter()
            while sent < count and begin_s + sent / per_second <= now_s:
                connection.sendall(request)
                sent += 1
            wait_s = max(0.0, begin_s + sent / per_second - time.perf_counter()) if sent < count else TIMEOUT_S
            if not select.select([connection], [], [], wait_s)[0]:
                if sent == count:
                    raise BenchError(f"no reply from {address} for {TIMEOUT_S:g} s")
                continue
            whole = replies.feed(receive_some(connection))
            now_s = time.perf_counter()
            took += [now_s - begin_s - (len(took) + number) / per_second for number in range(whole)]
        check(replies.latest)
    return sorted(took)


def _wait(poll: select.epoll) -> list[tuple[int, int]]:
    events = poll.poll(TIMEOUT_S)
    if not events:
        raise BenchError(f"no reply for {TIMEOUT_S:g} s")
    return events
