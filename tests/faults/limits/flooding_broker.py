"""A fake broker for a thousand connections: one thread, answers of any length, and a switch that makes it stop reading.

A real broker sends one reply at a time over a connection and never stops reading; this one is the worst case of both.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from typing import Self

from tests.faults import messages

READ_BYTES = 1 << 18
POLL_S = 0.1
SEGMENT_BYTES = 1448
SOCKET_BUFFER_BYTES = 8192


def keep_small(sock: socket.socket) -> None:
    """Make the kernel hold little of either direction: a thousand connections must not fill its memory for TCP.

    To be called before connecting or listening. The other side's send buffer follows from the segment size.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)


class _Peer:
    """One connection: the received bytes, and the replies that are still to be sent."""

    __slots__ = ("received", "rest", "sock", "unanswered")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.unanswered: list[int] = []
        self.rest = memoryview(b"")


class FloodingBroker:
    """Answers every Heartbeat with `reply_bytes` bytes, Metadata as a broker does, and Produce not at all (acks=0).

    While `deaf` is set it accepts connections and does nothing else.
    """

    def __init__(self, reply_bytes: int = 6) -> None:
        self.deaf = threading.Event()
        self.bytes_read = 0
        self.bytes_sent = 0
        self._body = bytes(reply_bytes)
        self._listener = socket.socket()
        keep_small(self._listener)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flooding broker")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _run(self) -> None:
        while not self._stop.is_set():
            ready = self._selector.select(POLL_S)
            if self.deaf.is_set() and self._stop.wait(POLL_S):
                return
            for key, events in ready:
                if key.data is None:
                    self._accept()
                elif not self.deaf.is_set():
                    self._serve(key.data, events)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                self._selector.register(sock, selectors.EVENT_READ, _Peer(sock))

    def _serve(self, peer: _Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                self._read(peer)
            self._write(peer)
        except (OSError, EOFError):
            self._selector.unregister(peer.sock)
            peer.sock.close()

    def _read(self, peer: _Peer) -> None:
        with contextlib.suppress(BlockingIOError):
            data = peer.sock.recv(READ_BYTES)
            if not data:
                raise EOFError
            self.bytes_read += len(data)
            peer.received += data
        received = peer.received
        while len(received) >= 12:
            size, api_key, _, correlation_id = struct.unpack_from(">ihhi", received)
            if len(received) < 4 + size:
                return
            del received[: 4 + size]
            if api_key == messages.METADATA:
                body = struct.pack(">ii", 1, 0) + messages.string("127.0.0.1") + struct.pack(">ih", self.port, -1)
                body += messages.string("fake") + struct.pack(">ii", 0, 0)
                peer.sock.send(messages.frame(struct.pack(">i", correlation_id) + body))
            elif api_key != messages.PRODUCE:
                peer.unanswered.append(correlation_id)

    def _write(self, peer: _Peer) -> None:
        if not peer.rest and peer.unanswered:
            peer.rest = memoryview(messages.frame(struct.pack(">i", peer.unanswered.pop(0)) + self._body))
        with contextlib.suppress(BlockingIOError):
            sent = peer.sock.send(peer.rest) if peer.rest else 0
            self.bytes_sent += sent
            peer.rest = peer.rest[sent:]
        owes = selectors.EVENT_WRITE if peer.rest or peer.unanswered else 0
        self._selector.modify(peer.sock, selectors.EVENT_READ | owes, peer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the broker's thread did not end"
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
