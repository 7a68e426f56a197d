"""Raw Kafka connections in large numbers or at exact times: sockets and epoll, since a client library would be what is
measured.

Blocking; called in this process, on the work's core. Requests are those of `tests.faults.messages`.
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
"""No reply takes that long, on however busy a machine."""
OPENING: Final = 100
"""Connections that are opened side by side; less than any listener's backlog."""
VALUE: Final = bytes(100)
API_VERSIONS: Final = messages.request(messages.API_VERSIONS, 0, 1)
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def small_produce(topic: str) -> bytes:
    """A Produce of one record of 100 bytes, with acks=1."""
    body = messages.produce_body(topic, messages.batch(VALUE), acks=1)
    return messages.request(messages.PRODUCE, messages.PRODUCE_VERSION, 1, body)


class Replies:
    """Cuts what one connection receives into replies and counts them."""

    __slots__ = ("_rest", "latest")

    def __init__(self) -> None:
        self._rest = b""
        self.latest = b""
        """The latest whole reply, behind its length and correlation id."""

    def feed(self, data: bytes) -> int:
        """How many replies have become whole."""
        data = self._rest + data if self._rest else data
        at = count = 0
        while len(data) - at >= 4 and len(data) - at - 4 >= (size := int.from_bytes(data[at : at + 4], "big")):
            self.latest = data[at + 8 : at + 4 + size]
            at += 4 + size
            count += 1
        self._rest = data[at:]
        return count


def connect(address: Address) -> socket.socket:
    """A connection without Nagle's delay."""
    connection = socket.create_connection(address, timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_some(connection: socket.socket) -> bytes:
    """Raises BenchError when the other side has ended it."""
    data = connection.recv(1 << 16)
    if not data:
        raise BenchError(f"a connection to {connection.getpeername()} was ended")
    return data


def receive_reply(connection: socket.socket) -> bytes:
    """Wait for one reply, and return it behind its correlation id."""
    replies = Replies()
    while not replies.feed(receive_some(connection)):
        pass
    return replies.latest


def check_produced(reply: bytes) -> None:
    """Raises BenchError when a Produce was refused."""
    if error := messages.read_produce_reply(reply).error_code:
        raise BenchError(f"Produce was answered with error {error}")


@contextlib.contextmanager
def open_connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have each had one ApiVersions answered, so that a proxy has dialled for it. Reset at the end."""
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
    """Send `request` again on each connection as soon as its reply has come, until there were `requests` replies.

    Raises BenchError when one is refused, or no reply comes for TIMEOUT_S.
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
    """Open a connection, ask it for its ApiVersions, and close it, `total` times, `at_a_time` side by side."""
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
    """Send `count` requests at their times, whether replies have come or not; how long each took, ascending.

    From the time at which it was due, so that a stall shows in all requests that it has delayed.
    """
    took: list[float] = []
    replies = Replies()
    with connect(address) as connection:
        connection.sendall(request)  # makes the proxy dial
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
