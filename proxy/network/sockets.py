"""The one module that touches sockets on the hot path: raw non-blocking reads and gathered writes.

When something may be read is the poller's to say (`headrace.proxy.network.poller`); large frames pass user space by
(`headrace.proxy.network.splicing`). A TLS channel will have the same methods on an ``ssl.MemoryBIO``, and
``can_splice = False``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from headrace.proxy.network.poller import Watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.wire.heads import Buffer

READ_BYTES: Final = 64 * 1024
"""The most that one read takes. Large frames are spliced past it, so more gains nothing; and it is what a connection
has to keep when the other side takes nothing: 1,000 stuck clients are 64 MiB."""

READ_BUFFER_BYTES: Final = 256 * 1024
"""One buffer for the whole process: what one read takes, behind the longest head that is waited for."""

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
CROWDED_READ_BYTES: Final = 8 * 1024
"""While more than `MAX_WAITING_BYTES` of all connections wait for a receiver that does not take them, or for the end of
a mute, a read takes no more than this: of the next thousand clients that stall, 8 MiB are kept instead of 64."""

MAX_PARTS: Final = 512
"""The system takes 1,024 (``IOV_MAX``) in one call; joining is cheaper than a second call long before that."""

_WORDS: Final = {
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection closed while it was written to",
    errno.ETIMEDOUT: "connection timed out",
    errno.ECONNREFUSED: "connection refused",
}

_MORE: Final = getattr(socket, "MSG_MORE", 0)
_ESTABLISHED: Final = 1
_TCP_STATE = Struct("B")
RETRY: Final = (BlockingIOError, InterruptedError)
HAVE_SPLICE: Final = hasattr(os, "splice")


class Waiting:
    """How many bytes were read and cannot go on yet, of all connections of the process: they share its memory."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


waiting: Final = Waiting()


class Socket(Protocol):
    """What relays need of a connection, whatever it is made of."""

    may_read: bool
    bytes_received: int
    bytes_sent: int

    @property
    def can_splice(self) -> bool:
        """Whether it is a plaintext socket of a system that splices."""

    def fileno(self) -> int:
        """The descriptor, for ``splice``."""

    async def steps(self, step: Callable[[], bool]) -> None:
        """See `headrace.proxy.network.poller.Watched.steps`."""

    async def readable(self) -> None:
        """See `headrace.proxy.network.poller.Watched.readable`."""

    async def writable(self) -> None:
        """See `headrace.proxy.network.poller.Watched.writable`."""

    def receive_into(self, view: Buffer) -> int | None:
        """See `PlainSocket.receive_into`."""

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bytes:
        """See `PlainSocket.send_now`."""

    async def send(self, parts: Sequence[Buffer | bytes]) -> None:
        """See `PlainSocket.send`."""

    def fault(self, error: OSError) -> ConnectionFault:
        """``error`` as the other side's."""

    def hung_up(self) -> bool:
        """Whether the other side is gone."""

    def shut_down_writing(self) -> None:
        """Tell the other side that nothing more comes."""

    def close(self) -> None:
        """Close it."""


class PlainSocket(Watched):
    """A plaintext TCP connection.

    *Resource handling:* owns the socket; `close` may be called twice. *Error handling:* what the system says about the
    other side is raised as ``fault``; the end of the stream is a read of 0 bytes. *Cancellation:* a cancelled `send`
    may have sent a part.
    """

    __slots__ = ("_fault", "_socket", "bytes_received", "bytes_sent")

    can_splice = HAVE_SPLICE

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().__init__(sock.fileno(), poller)
        self._socket = sock
        self._fault = fault
        self.bytes_received = 0
        self.bytes_sent = 0

    def fileno(self) -> int:
        """The descriptor, for ``splice``."""
        return self._fd

    def receive_into(self, view: Buffer) -> int | None:
        """Read once. Return the number of bytes, 0 at the end of the stream, ``None`` when there is nothing now."""
        most = len(view) if waiting.count < MAX_WAITING_BYTES else min(CROWDED_READ_BYTES, len(view))
        try:
            count = self._socket.recv_into(view, most)
        except RETRY:
            self.may_read = False
            return None
        except OSError as error:
            raise self.fault(error) from error
        self.bytes_received += count
        self.may_read = count == most or self.ending
        return count

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bytes:
        """Write as much of ``parts`` as the socket takes in one system call; return a copy of the rest, for `send`.

        ``more``: the rest of the frame follows at once, and may share a packet with it.
        """
        flags = _MORE if more else 0
        try:
            if len(parts) > MAX_PARTS:
                parts = [b"".join(parts)]
            sent = self._socket.send(parts[0], flags) if len(parts) == 1 else self._socket.sendmsg(parts, [], flags)
        except RETRY:
            sent = 0
        except OSError as error:
            raise self.fault(error) from error
        self.bytes_sent += sent
        total = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        return b"" if sent == total else b"".join(parts)[sent:]

    async def send(self, parts: Sequence[Buffer | bytes]) -> None:
        """Write all of ``parts``, in one system call where the socket takes them.

        What it does not take is copied before waiting, since ``parts`` lie in a buffer that others use meanwhile.
        """
        rest = self.send_now(parts)
        if rest:
            waiting.count += len(rest)
            try:
                await self._send_rest(memoryview(rest))
            finally:
                waiting.count -= len(rest)

    async def _send_rest(self, rest: memoryview) -> None:
        while rest:
            await self.writable()
            try:
                sent = self._socket.send(rest)
            except RETRY:
                continue
            except OSError as error:
                raise self.fault(error) from error
            self.bytes_sent += sent
            rest = rest[sent:]

    def fault(self, error: OSError) -> ConnectionFault:
        """``error`` as the other side's."""
        return self._fault(_WORDS.get(error.errno or 0) or (error.strerror or str(error)).lower())

    def hung_up(self) -> bool:
        """Whether the other side has closed or reset, even when unread bytes hide it (``TCP_INFO``'s state)."""
        if not hasattr(socket, "TCP_INFO"):
            return False
        state: int = _TCP_STATE.unpack(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
        return state != _ESTABLISHED

    def shut_down_writing(self) -> None:
        """Tell the other side that nothing more comes."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; wakes whoever waits on it with ``trio.ClosedResourceError``."""
        if self._socket.fileno() >= 0:
            self.unwatch()
            self._socket.close()
