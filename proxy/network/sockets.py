"""Raw non-blocking reads and gathered writes: the only module that calls sockets on the hot path.

Used by the relays. `headrace.proxy.network.poller` reports when a socket is readable; large frames are moved by
`headrace.proxy.network.splicing`, without entering user space. `headrace.proxy.network.tls.tls_socket` has the same
methods on top of ``ssl.MemoryBIO``, with ``can_splice = False``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol

from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.poller import Watched
from headrace.quota_callbacks.files import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._engine import TlsSession
    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.wire.heads import Buffer

READ_BYTES: Final = 64 * 1024
"""The most bytes of one read. A larger value gains nothing, since large frames are spliced. A connection whose peer
does not read must keep up to this many bytes: 64 MiB for 1,000 stuck clients."""

LARGE_READ_BYTES: Final = 128 * 1024
"""The most bytes of one read within a large frame that is not spliced, as with TLS."""

READ_BUFFER_BYTES: Final = 256 * 1024
"""Size of the read buffer of the process: the longest incomplete head that is kept, and one read behind it."""

MANY_HELD_BYTES: Final = 16 * 1024 * 1024
"""See `CROWDED_READ_BYTES`."""

CROWDED_READ_BYTES: Final = 8 * 1024
"""The most bytes of one read while all connections together hold more than `MANY_HELD_BYTES`. The next 1,000 clients
that stall then take 8 MiB instead of 64."""

MOST_EXPECTED_BYTES: Final = LARGE_READ_BYTES
"""The most bytes that `PlainSocket.expect` waits for: as many as one read returns. If the receive buffer has no room
for them, the system reports the socket readable when the peer's window is closed."""

MAX_PARTS: Final = 512
"""The most parts of one gathered write; more are joined first. The system limit (``IOV_MAX``) is 1,024, but joining is
cheaper than a second call well below it."""

_REASONS: Final = {
    errno.ECONNRESET: "connection reset",
    errno.EPIPE: "connection closed while it was written to",
    errno.ETIMEDOUT: "connection timed out",
    errno.ECONNREFUSED: "connection refused",
}

_exact = memoryview(bytearray(4096))
"""The read buffer of `PlainSocket.receive_exactly`. Its content is valid until the next read."""

_MORE: Final = getattr(socket, "MSG_MORE", 0)
_LOW_WATER: Final = getattr(socket, "SO_RCVLOWAT", None)
_ESTABLISHED: Final = 1
_TCP_STATE = Struct("B")
RETRY: Final = (BlockingIOError, InterruptedError)
HAVE_SPLICE: Final = hasattr(os, "splice")


class Socket(Protocol):
    """The interface of a connection to a client or a broker that the relays use."""

    may_read: bool
    bytes_received: int
    bytes_sent: int
    unsent_bytes: int
    undecrypted_bytes: int

    @property
    def can_splice(self) -> bool:
        """Whether it is a plaintext socket on a system with ``splice``."""

    @property
    def rustls(self) -> TlsSession | None:
        """The state of TLS, if rustls computes it."""

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

    def expect(self, count: int) -> None:
        """See `PlainSocket.expect`."""

    def report_all(self) -> None:
        """See `PlainSocket.report_all`."""

    @property
    def waits_to_read(self) -> bool:
        """See `headrace.proxy.network.poller.Watched.waits_to_read`."""

    def suspend(self) -> None:
        """See `headrace.proxy.network.poller.Watched.suspend`."""

    def resume(self, error: Exception | None = None) -> None:
        """See `headrace.proxy.network.poller.Watched.resume`."""

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bool:
        """See `PlainSocket.send_now`."""

    async def send(self, parts: Sequence[Buffer | bytes]) -> None:
        """See `PlainSocket.send`."""

    def fault(self, error: OSError) -> ConnectionFault:
        """See `PlainSocket.fault`."""

    def hung_up(self) -> bool:
        """See `PlainSocket.hung_up`."""

    def has_unread(self) -> bool:
        """See `PlainSocket.has_unread`."""

    def shut_down_writing(self) -> None:
        """See `PlainSocket.shut_down_writing`."""

    def close(self) -> None:
        """See `PlainSocket.close`."""


class PlainSocket(Watched):
    """A plaintext TCP connection.

    *Resource handling:* owns the socket; `close` may be called twice. *Error handling:* errors of the
    system are raised as the class ``fault``, which is the peer's; the end of the stream is a read of 0 bytes.
    *Cancellation:* a cancelled `send` may have sent a part.
    """

    __slots__ = (
        "_expected",
        "_fault",
        "_socket",
        "_unsent",
        "bytes_received",
        "bytes_sent",
        "undecrypted_bytes",
        "unsent_bytes",
    )

    can_splice = HAVE_SPLICE
    rustls: TlsSession | None = None

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().__init__(sock.fileno(), poller)
        self._socket = sock
        self._fault = fault
        self._expected = 1
        """Number of bytes from which on the socket is reported readable (``SO_RCVLOWAT``)."""
        self.bytes_received = 0
        self.bytes_sent = 0
        self._unsent: deque[memoryview] = deque()
        self.unsent_bytes = 0
        """Number of bytes that are kept because the peer does not accept them."""
        self.undecrypted_bytes = 0
        """Number of bytes that TLS keeps: for a record of which a part has arrived, and of those not decrypted yet; and
        of those that `receive_exactly` has collected."""

    def fileno(self) -> int:
        """The descriptor, for ``splice``."""
        return self._fd

    def receive_into(self, view: Buffer) -> int | None:
        """Read once. Return the number of bytes, 0 at the end of the stream, or ``None`` if nothing can be read now."""
        most = len(view) if held.count < MANY_HELD_BYTES else min(CROWDED_READ_BYTES, len(view))
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

    async def steps(self, step: Callable[[], bool]) -> None:
        """See `headrace.proxy.network.poller.Watched.steps`. What `expect` has set is removed."""
        self.report_all()
        await super().steps(step)

    def expect(self, count: int) -> None:
        """Report the socket readable only when ``count`` bytes have arrived, but at most `MOST_EXPECTED_BYTES`, or the
        stream has ended. ``count`` must not exceed what the peer still sends for a frame.

        Each call replaces the number before; a step calls this, or sets ``may_read``, whenever it has read.
        """
        count = min(max(count, 1), MOST_EXPECTED_BYTES)
        if count != self._expected and _LOW_WATER is not None:
            self._expected = count
            self._socket.setsockopt(socket.SOL_SOCKET, _LOW_WATER, count)

    def suspend(self) -> None:
        """See `headrace.proxy.network.poller.Watched.suspend`."""
        self.report_all()
        super().suspend()

    def report_all(self) -> None:
        """Let the socket be reported readable as soon as anything has arrived; at once if something has."""
        PlainSocket.expect(self, 1)

    async def receive_exactly(self, count: int) -> bytes:
        """Wait for the next ``count`` bytes of the TCP stream, before TLS; return fewer only at its end.

        What was received counts as held until this returns or raises.
        """
        received = bytearray()  # grows with what arrives: a peer may claim more than it sends
        try:
            while len(received) < count:
                await self.readable()
                added = PlainSocket.receive_into(self, _exact[: count - len(received)])
                if added == 0:
                    break
                received += _exact[: added or 0]
                self._count_undecrypted(len(received))
            return bytes(received)
        finally:
            self._count_undecrypted(0)

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bool:
        """Write ``parts`` in one system call, and return whether the socket has accepted all of them.

        Otherwise a copy of the rest is kept, since ``parts`` are views of a buffer that other connections use
        meanwhile, and `send` must be called. ``more``: the rest of the frame follows at once and may share a packet
        with these bytes (``MSG_MORE``).
        """
        if self.unsent_bytes:
            self._keep(b"".join(parts))
            return False
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
        if sent == total:
            return True
        self._keep(b"".join(parts)[sent:])
        return False

    async def send(self, parts: Sequence[Buffer | bytes] = ()) -> None:
        """Write what `send_now` has kept, and then all of ``parts``; wait until the socket has accepted everything."""
        if parts:
            self.send_now(parts)
        while self.unsent_bytes:
            await self.writable()
            self._send_kept()

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._unsent.append(memoryview(rest))
            self.unsent_bytes += len(rest)
            held.add(len(rest))

    def _send_kept(self) -> None:
        """Write what is kept, as far as possible without waiting."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self._socket.send(unsent[0])
            except RETRY:
                return
            except OSError as error:
                raise self.fault(error) from error
            self.bytes_sent += sent
            self._drop_kept(sent)
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]

    def _count_undecrypted(self, count: int) -> None:
        added, self.undecrypted_bytes = count - self.undecrypted_bytes, count
        if added:
            held.add(added)  # which may close this connection

    def _drop_kept(self, count: int) -> None:
        self.unsent_bytes -= count
        held.add(-count)

    def fault(self, error: OSError) -> ConnectionFault:
        """Return the exception to raise for ``error`` of the system, as a fault of the peer."""
        return self._fault(_REASONS.get(error.errno or 0) or reason_of(error))

    def hung_up(self) -> bool:
        """Return whether the peer has closed or reset the connection, even if unread bytes remain (``TCP_INFO``)."""
        if not hasattr(socket, "TCP_INFO"):
            return False
        state: int = _TCP_STATE.unpack(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0]
        return state != _ESTABLISHED

    def has_unread(self) -> bool:
        """Return whether bytes of the peer have arrived that were not read. The end of the stream, or a reset, does not
        count."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def shut_down_writing(self) -> None:
        """Shut down the writing direction, so that the peer reads the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket. Tasks that wait for it get ``trio.ClosedResourceError``. What is kept is lost."""
        self._drop_kept(self.unsent_bytes)
        self._unsent.clear()
        if self._socket.fileno() >= 0:
            self.unwatch()
            self._socket.close()
