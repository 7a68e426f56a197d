"""One connection through the proxy's own server, poller and sockets, request by request in one thread, for
`benchmarks.instructions`: the counts are the same on every machine, regardless of other load.

The client and the broker are simulated inside the proxy's wait: whenever it would wait for events, they continue until
it is the proxy's turn again, after the data that they send has arrived completely. So the proxy never receives a
partial message by chance, and the number of its waits is fixed. Its clocks are fake.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from headrace.config.loading import loads
from headrace.proxy.connection.client_connection import ClientConnection
from headrace.proxy.connection.state import thread_time
from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.server.server import Server
from headrace.quota_callbacks.requests import Address, Connection

if TYPE_CHECKING:
    import select
    from collections.abc import AsyncIterator, Iterator

CONFIG: Final = """
upstream.bootstrap_servers = ["127.0.0.1:9092"]
listen.address = "127.0.0.1:19192"
listen.advertised_host = "127.0.0.1"
"""
PIECE_BYTES: Final = 64 * 1024
"""A large reply is sent in pieces of this size, one at each wait of the proxy."""
ROOM_BYTES: Final = 1 << 20
"""Initial buffer size of the proxy's sockets, so that sent data arrives at once."""
LARGEST_FRAME_BYTES: Final = 1 << 21
STALLED_S: Final = 20.0
NO_ROOM_S: Final = 0.2
CLOCK_BEGIN_S: Final = 1000.0
CLOCK_STEP_NS: Final = 10_000
"""Time by which each reading of the thread's clock advances it."""
_INT32 = struct.Struct(">i")
_NATIVE_INT = struct.Struct("i")


class Meter(Protocol):
    """A measurement from just before the first request is sent until the last reply has been received."""

    def begin(self) -> None:
        """Begin: the first request is about to be sent."""

    def end(self) -> None:
        """End: the last reply has been received."""


class Clock:
    """The proxy's fake clock, which is advanced explicitly."""

    def __init__(self) -> None:
        self.now_s = CLOCK_BEGIN_S

    def __call__(self) -> float:
        return self.now_s


class CountedSocket(socket.socket):
    """The proxy's end of a connection; its system calls are counted in `calls`."""

    calls: defaultdict[str, int]

    def recv_into(self, *args: Any) -> int:
        self.calls["recv"] += 1
        return super().recv_into(*args)

    def setsockopt(self, *args: Any) -> None:
        self.calls["setsockopt"] += 1
        super().setsockopt(*args)

    def send(self, *args: Any) -> int:
        self.calls["send"] += 1
        return super().send(*args)

    def sendmsg(self, *args: Any) -> int:
        self.calls["send"] += 1
        return super().sendmsg(*args)


class PlayedEpoll:
    """The proxy's epoll: counts its calls, and runs the simulated peers instead of waiting."""

    def __init__(self, epoll: select.epoll, peers: Peers, calls: defaultdict[str, int]) -> None:
        self._epoll = epoll
        self._peers = peers
        self._calls = calls

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self._calls["epoll_wait"] += 1
        if timeout == 0:
            return self._epoll.poll(0, most)
        deadline_s = time.monotonic() + STALLED_S
        while self._peers.play():
            if found := self._epoll.poll(0, most):
                return found
            if time.monotonic() > deadline_s:
                raise TimeoutError("the proxy waits, and so do its peers")
        return []

    def register(self, fd: int, events: int) -> None:
        self._calls["epoll_ctl"] += 1
        self._epoll.register(fd, events)

    def unregister(self, fd: int) -> None:
        self._calls["epoll_ctl"] += 1
        self._epoll.unregister(fd)

    def close(self) -> None:
        self._epoll.close()


class Peer:
    """The client or the broker: its socket, and the received part of the current frame."""

    def __init__(self, calls: defaultdict[str, int]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._socket = socket.create_connection(listener.getsockname())
            self.proxys = CountedSocket(fileno=listener.accept()[0].detach())
        self.proxys.calls = calls
        for wake_at in (ROOM_BYTES, 1):  # enlarges the buffer; unlike SO_RCVBUF, this requires no privileges
            self.proxys.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_at)
        self._buffer = bytearray(LARGEST_FRAME_BYTES)
        self._view = memoryview(self._buffer)
        self._count = 0

    def send(self, data: bytes | memoryview) -> None:
        """Send data, and wait until the proxy can read all of it, or the socket's buffer is full."""
        due = self._unread + len(data)
        self._socket.sendall(data)
        deadline_s = time.monotonic() + NO_ROOM_S
        while self._unread != due and time.monotonic() < deadline_s:
            pass

    @property
    def _unread(self) -> int:
        """Return the number of sent bytes that the proxy has not read."""
        return int(_NATIVE_INT.unpack(fcntl.ioctl(self.proxys, termios.FIONREAD, bytes(4)))[0])

    def receive(self) -> None:
        """Receive all available data."""
        while True:
            try:
                received = self._socket.recv_into(self._view[self._count :], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not received:
                raise EOFError("the proxy has closed the connection")
            self._count += received

    @property
    def has_received(self) -> bool:
        """Return whether the frame is complete."""
        return self._count >= _INT32.size and self._count == _INT32.size + _INT32.unpack_from(self._buffer)[0]

    def take(self) -> memoryview:
        """Return the frame, valid until more is received, and begin the next one."""
        frame = self._view[: self._count]
        self._count = 0
        return frame

    def close(self) -> None:
        """Close this end; the other end belongs to the proxy."""
        self._socket.close()


class Peers:
    """The client and the broker, in lock-step: a request, its reply, the next request."""

    def __init__(self, request: bytes, reply: bytes, clock: Clock, calls: defaultdict[str, int]) -> None:
        self._request = request
        self._reply = bytearray(reply)
        self._clock = clock
        self.client, self.broker = Peer(calls), Peer(calls)
        self._script: Iterator[None] = iter(())

    async def ask(self, requests: int, step_s: float, meter: Meter | None = None) -> None:
        """Send a number of requests, one after the other; advance the clock by ``step_s`` for each."""
        done = trio.Event()
        self._script = self._play(requests, step_s, meter, done)
        await done.wait()

    def play(self) -> bool:
        """Continue until it is the proxy's turn; return ``False`` when all requests have been answered."""
        self.client.receive()
        self.broker.receive()
        return next(self._script, self) is None

    def close(self) -> None:
        """Close both connections."""
        self.client.close()
        self.broker.close()

    def _play(self, requests: int, step_s: float, meter: Meter | None, done: trio.Event) -> Iterator[None]:
        client, broker = self.client, self.broker
        if meter is not None:
            meter.begin()
        for _ in range(requests):
            self._clock.now_s += step_s
            client.send(self._request)
            while not broker.has_received:
                yield
            self._reply[4:8] = broker.take()[8:12]
            reply = memoryview(self._reply)
            for at in range(0, len(reply), PIECE_BYTES):
                broker.send(reply[at : at + PIECE_BYTES])
                yield
            while not client.has_received:
                yield
            client.take()
        if meter is not None:
            meter.end()
        done.set()


class OneBroker:
    """What connects to the simulated broker."""

    serves_anonymous = True

    def __init__(self, upstream: PlainSocket) -> None:
        self._upstream = upstream

    async def dial(
        self,
        _node_id: int | None,
        _client: Address | None = None,
        *,
        waits: bool = False,  # noqa: ARG002 -- as Upstream
    ) -> tuple[PlainSocket, Address]:
        await trio.lowlevel.checkpoint()
        return self._upstream, Address(host="127.0.0.1", port=9092)


class Stage:
    """The running connection, for a `Meter`."""

    def __init__(self, peers: Peers, calls: defaultdict[str, int]) -> None:
        self.ask = peers.ask
        self.calls = calls


@contextlib.asynccontextmanager
async def open_stage(request: bytes, reply: bytes, config: str) -> AsyncIterator[Stage]:
    """Run a server with one connection, whose client sends ``request`` and whose broker answers with ``reply``, with
    the request's correlation id."""
    server = Server(loads('data_plane = "python"\n' + CONFIG + config))
    shared = server.shared
    calls: defaultdict[str, int] = defaultdict(int)
    clock = Clock()
    peers = Peers(request, reply, clock, calls)
    shared.clock = clock
    shared.thread_time = thread_time.ThreadTimeSampler(lambda: thread_time.ONE_OF)
    with _counted(calls), shared.poller.attach():
        if not shared.poller.attached:
            raise RuntimeError("no poller: nothing can be counted here")
        shared.poller._epoll = PlayedEpoll(shared.poller._epoll, peers, calls)  # type: ignore[assignment]  # noqa: SLF001
        (listener,) = shared.listeners
        listener.upstream = OneBroker(PlainSocket(peers.broker.proxys, UpstreamFault, shared.poller))  # type: ignore[assignment]
        info = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1))
        client_socket = PlainSocket(peers.client.proxys, ClientFault, shared.poller)
        connection = ClientConnection(shared, listener, info, client_socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.serve)
            yield Stage(peers, calls)
            nursery.cancel_scope.cancel()
    shared.pipes.close()
    shared.hooks.close()
    peers.close()


@contextlib.contextmanager
def _counted(calls: defaultdict[str, int]) -> Iterator[None]:
    """Count the system calls that do not go through a socket object, and fake the thread's clock."""
    splice, names = os.splice, vars(thread_time)
    thread_time_ns = names["thread_time_ns"]
    now_ns = 0

    def counted_splice(*args: Any, **options: Any) -> int:
        calls["splice"] += 1
        return splice(*args, **options)

    def counted_clock() -> int:
        nonlocal now_ns
        calls["clock_gettime"] += 1
        now_ns += CLOCK_STEP_NS
        return now_ns

    os.splice, names["thread_time_ns"] = counted_splice, counted_clock
    try:
        yield
    finally:
        os.splice, names["thread_time_ns"] = splice, thread_time_ns
