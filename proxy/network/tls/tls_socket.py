"""A TCP connection with TLS, with the methods of `headrace.proxy.network.sockets.PlainSocket`.

The records pass through memory (`ssl.MemoryBIO`): one system call reads or writes several of them, where a
`ssl.SSLSocket` needs two calls to read each record and one to write it. Measured with 64 KiB messages on loopback, both
cost the same, 29 us; with messages of 1 KiB, reading costs 3.8 us instead of 7.6.
"""

from __future__ import annotations

import ssl
import sys
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.network.sockets import LARGE_READ_BYTES
from headrace.proxy.network.tls.contexts import ServerSide
from headrace.proxy.network.tls.failures import UNREAD_ANSWERS, failure_of, outlived_certificate
from headrace.proxy.network.tls.hello_socket import HelloSocket
from headrace.proxy.network.tls.records import SLICE_BYTES, PeerLimits, RecordEnds

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.wire.heads import Buffer

RECORD_OVERHEAD_BYTES: Final = 4 * 1024
"""Enough for the headers and tags of the records of a read, so that a message of its size is one read."""

MAX_OWN_BYTES: Final = 16 * 1024
"""The most bytes that TLS itself has to send, such as answers to requests for new keys, while the peer does not read
them. A session ticket has 250 bytes, or the size of the client's certificate more."""

DECRYPTING_S: Final = 0.001
"""Time after which a read decrypts nothing more until other connections had their turn, like any step of a relay."""

BUFFER_BYTES: Final = 36 * 1024
"""The memory of a record that has arrived in part: 17 KiB, which OpenSSL allocates for the first byte, and the memory
through which the bytes pass. Measured with 300 connections that had sent a part of a record each."""

_received = memoryview(bytearray(LARGE_READ_BYTES + RECORD_OVERHEAD_BYTES))
"""The read buffer of all TLS connections of the process. Its content is valid until the next read."""


class Session(NamedTuple):
    """A session that `TlsSocket.start` can resume, and the context that it belongs to."""

    context: ssl.SSLContext
    of_ssl: ssl.SSLSession


class TlsSocket(HelloSocket):
    """A TCP connection with TLS. Call `handshake` before anything else.

    *Resource handling*, *error handling* and *cancellation* are those of `PlainSocket`. ``bytes_received`` and
    ``bytes_sent`` count encrypted bytes. The end of the stream without TLS's own end (``close_notify``) is an end like
    any other: frames have lengths, so that a reply that was cut off is noticed.
    """

    __slots__ = (
        "_ended",
        "_has_more",
        "_incoming",
        "_limits",
        "_outgoing",
        "_own_bytes",
        "_pauses",
        "_record_ends",
        "_rest",
        "keep_session",
        "tls",
    )

    can_splice = False

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        super().__init__(sock, fault, poller)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ended = False
        self._has_more = True
        """Whether OpenSSL may have data that were not read: after the handshake, and when a view had no more room."""
        self._own_bytes = 0
        self._record_ends = RecordEnds()
        self._limits = PeerLimits()
        self._rest = memoryview(b"")
        """Encrypted bytes that were read and not passed to OpenSSL yet."""
        self._pauses = False
        """Whether the last read has ended because of `DECRYPTING_S`."""
        self.tls: ssl.SSLObject | None = None
        """The state of TLS; ``None`` before the handshake has begun."""
        self.keep_session: Callable[[object], None] | None = None
        """Called at the end with the session, which `start` of the next connection to the same broker accepts."""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer has shown and that had to be valid, in DER form."""
        if self.tls is None or self.tls.context.verify_mode is ssl.CERT_NONE:
            return None
        return self.tls.getpeercert(binary_form=True)

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake has resumed an earlier session, without certificates."""
        return self.tls is not None and self.tls.session_reused is True

    # --- the handshake ---

    def start(
        self,
        context: TlsContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        session: object | None = None,
    ) -> None:
        """Allocate the state of TLS. ``server_hostname`` and ``session`` are those of a connection to a broker.

        A session of certificates that were replaced since is not resumed.
        """
        self._setting = context.setting
        self._incoming.write(self.take_hello())
        current = context.current  # read once: a thread may replace it
        self.tls = current.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
            session=session.of_ssl if isinstance(session, Session) and session.context is current else None,
        )

    async def handshake(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """Do the handshake. Each computation is done in a ``turn``. Raises the fault of the socket."""
        tls = self._state
        while True:
            done = False
            failure: ssl.SSLError | None = None
            async with turn():
                try:
                    with _invalid_names_ignored():
                        tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLError as error:
                    failure = error
            if self._outgoing.pending and not super().send_now([self._outgoing.read()]):
                await self.send()  # of a failure, too: the alert names it
            if failure is not None:
                raise self._failed(failure) from failure
            if done:
                if self.is_resumed and (
                    reason := outlived_certificate(self.peer_certificate, server_side=self._state.server_side)
                ):
                    raise self._broken(reason)
                if self._hello_goes_on and self.server_name is None and isinstance(tls, ServerSide):
                    self.server_name = tls.asked_name
                if self._incoming.pending or self._rest:  # the first request came with the end of the handshake
                    self.may_read = True
                return
            if not self._rest:
                received = await self._receive_raw(SLICE_BYTES)
                if not received:
                    raise self._failed(None)
                self._rest = memoryview(bytes(received))
            end = self._record_ends.slice_end(self._rest, 0)
            self._incoming.write(self._rest[:end])
            self._keep_rest(self._rest[end:])

    async def _receive_raw(self, most: int) -> memoryview | None:
        """Wait for encrypted bytes and return at most ``most``; ``None`` at the end of the stream."""
        while True:
            await self.readable()
            count = super().receive_into(_received[:most])
            if count is not None:
                return _received[:count] if count else None

    # --- records ---

    def receive_into(self, view: Buffer) -> int | None:
        """Read once, and decrypt as many records as ``view`` has room for.

        Return the number of bytes, 0 at the end of the stream, or ``None`` if nothing can be read now.
        """
        if self._pauses:
            self._pauses, self.may_read = False, True
            return None
        count = self._decrypt(self._rest, view) if self._has_more or self._rest else 0
        if not count and not self._ended and not self._rest:
            most = min(len(view) + RECORD_OVERHEAD_BYTES, len(_received))
            received = super().receive_into(_received[: self._record_ends.to_read(most)])
            if received is None:
                return None
            if received:
                count = self._decrypt(_received[:received], view)
            else:
                self._ended = True
        if self._has_more or self._rest or self._ended:
            self.may_read = True
        if not count:
            return 0 if self._ended else None  # a part of a record
        return count

    def expect(self, count: int) -> None:
        """See `PlainSocket.expect`; ``count`` is a number of decrypted bytes. A record is expected as a whole."""
        ends = self._record_ends
        super().expect(max(ends.missing, count - ends.begun))

    def _decrypt(self, received: memoryview, view: Buffer) -> int:
        """Decrypt what OpenSSL has, and then what was received, as far as there is time and ``view`` has room.

        Return the number of bytes.
        """
        tls: Any = self._state  # with a buffer, `read` returns a number, against its annotation
        incoming, ends, read = self._incoming, self._record_ends, tls.read
        most, last = len(view), len(received)
        count = records = begun = at = step = end = 0
        consumed = incoming.pending
        until_s = monotonic() + DECRYPTING_S
        more = self._has_more
        while True:
            try:
                while count < most and (more or at < end):
                    if not more:
                        consumed += incoming.write(received[at : at + step])
                        at += step
                        begun += ends.records
                    added: int = read(most - count, view[count:] if count else view)
                    if not added:
                        self._ended = True
                        break
                    count += added
                    records += 1
                    more = incoming.pending > 0
            except ssl.SSLWantReadError:
                more = False
            except ssl.SSLError as error:
                if not isinstance(error, ssl.SSLEOFError):
                    self._send_own()
                raise self._failed(error) from error
            if at == last or count == most or self._ended:
                break
            if at == end:
                if at and ends.records > 1 and monotonic() > until_s:  # a single one is soon decrypted
                    self._pauses = True
                    break
                step, end = ends.slices(received, at)
        self._has_more = count == most
        self._keep_rest(received[at:])
        self._send_own()
        self._limits.count_records(begun, self.bytes_received)
        excess = self._limits.count_data(records, consumed - incoming.pending, count)
        if excess is not None:
            raise self._broken(excess)
        return count

    def _keep_rest(self, rest: memoryview) -> None:
        """Keep a copy of what is not decrypted yet, and count what the connection holds."""
        self._rest = memoryview(bytes(rest))
        self._count_undecrypted(len(rest) + (BUFFER_BYTES if self._record_ends.is_incomplete else 0))

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bool:
        """Encrypt ``parts`` and write them in one system call; return as `PlainSocket.send_now`."""
        data = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        write, take, at, end = self._state.write, self._outgoing.read, 0, len(data)
        records: list[Buffer | bytes] = []
        try:
            while at < end:
                at += write(data[at : at + SLICE_BYTES])
                records.append(take())
        except ssl.SSLError as error:  # this side has sent its end, or the peer an alert
            raise self._failed(error) from error
        self._own_bytes = 0
        return super().send_now(records, more=more)

    def _send_own(self) -> None:
        """Send the bytes of TLS itself, such as alerts, if there are any, before those of a writer that waits."""
        data = self._outgoing.read()
        if not data:
            return
        excess = self._limits.count_answer(len(data), self.bytes_received)
        if excess is not None:
            raise self._broken(excess)
        if not super().send_now([data]):
            self._own_bytes += len(data)
            if self._own_bytes > MAX_OWN_BYTES:
                raise self._broken(UNREAD_ANSWERS)

    def has_unread(self) -> bool:
        """Return whether bytes of the peer have arrived that were not read, encrypted or not."""
        return bool(self._incoming.pending or self._rest or self._state.pending()) or super().has_unread()

    def shut_down_writing(self) -> None:
        """Send TLS's end of the stream, and shut down the writing direction."""
        self._send_end()
        super().shut_down_writing()

    def close(self) -> None:
        """Close the socket as `PlainSocket.close`, and send TLS's end of the stream if that is possible at once."""
        if self._socket.fileno() >= 0:
            if self.keep_session is not None and self.tls is not None and self.tls.session is not None:
                self.keep_session(Session(self.tls.context, self.tls.session))
            self._send_end()
        super().close()
        self._record_ends = RecordEnds()
        self._keep_rest(memoryview(b""))

    def _send_end(self) -> None:
        tls = self.tls
        if tls is None or self.unsent_bytes or _is_cached(tls):
            return
        with suppress(ssl.SSLError, ValueError):  # the peer's end is not read; or there was no handshake
            tls.unwrap()
        data = self._outgoing.read()
        if data:
            with suppress(OSError):
                self._socket.send(data)

    def _failed(self, error: ssl.SSLError | None) -> ConnectionFault:
        """Return the fault for a failure of TLS; ``None`` stands for the end of the stream in the handshake."""
        if error is None:
            peer = "client" if self._state.server_side else "broker"
            return self._broken(f"TLS: the {peer} closed the connection in the handshake")
        return self._broken(failure_of(error, self._setting, server_side=self._state.server_side))

    def _broken(self, reason: str) -> ConnectionFault:
        return ClientFault(reason) if self._state.server_side else UpstreamFault(reason)

    @property
    def _state(self) -> ssl.SSLObject:
        if self.tls is None:
            raise AssertionError("the TLS handshake has not begun")
        return self.tls


def _is_cached(tls: ssl.SSLObject) -> bool:
    """Return whether OpenSSL keeps the session of a client beyond this connection, if TLS's end is sent.

    It does so for clients of TLS 1.2 without tickets, up to 20,480 sessions with the clients' certificates, and Python
    has no setting for that. OpenSSL forgets a session whose connection ends without TLS's end.
    """
    if not tls.server_side or tls.session_reused or tls.version() != "TLSv1.2":
        return False
    return tls.session is not None and bool(tls.session.id)


@contextmanager
def _invalid_names_ignored() -> Iterator[None]:
    """Write nothing for a host name (SNI) that is not ASCII, with which the handshake fails.

    Python does not raise this error. It passes it to ``sys.unraisablehook``, which writes it to standard error, so that
    clients could fill the log.
    """
    before = sys.unraisablehook

    def ignore(unraisable: sys.UnraisableHookArgs) -> None:
        if not (issubclass(unraisable.exc_type, UnicodeDecodeError) and isinstance(unraisable.object, bytes)):
            before(unraisable)

    sys.unraisablehook = ignore
    try:
        yield
    finally:
        sys.unraisablehook = before


class NoTurn:
    """A turn that is not waited for: for handshakes that no unknown client has caused."""

    async def __aenter__(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aexit__(self, *_: object) -> None:
        pass
