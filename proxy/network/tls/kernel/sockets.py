"""A TCP connection to a broker with TLS of the kernel (kTLS).

Used by `headrace.proxy.network.upstream` for ``upstream.tls.kernel``. OpenSSL does the handshake on the socket itself,
and gives the keys of both directions to the kernel. From then on, the descriptor is read and written as in plaintext.

Connections with clients never use it: the limits of `headrace.proxy.network.tls.records` need the records.
"""

from __future__ import annotations

import errno
import socket
import ssl
from contextlib import contextmanager, suppress
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.failures import failure_of, outlived_certificate
from headrace.proxy.network.tls.kernel.support import ENABLE_KTLS, TLS_1_3_IN_KERNEL
from headrace.proxy.network.tls.tls_socket import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.wire.heads import Buffer

MOST_TICKETS: Final = 64
"""The most session tickets of a connection. Brokers send one or two."""

# Numbers of <linux/socket.h> and <linux/tls.h>, which Python does not have.
_SOL_TLS: Final = 282
_TLS_TX: Final = 1
_TLS_RX: Final = 2
_RECORD_TYPE: Final = 1
_CRYPTO_INFO_BYTES: Final = 4
"""The kernel is asked for the version and the cipher only, not for the keys."""
_INFO = Struct("128xQ")
"""The number of received bytes in ``struct tcp_info``."""

_ALERT: Final = 21
_HANDSHAKE: Final = 22
_NEW_SESSION_TICKET: Final = 4
_CLOSE_NOTIFY: Final = b"\x01\x00"
_RECORD_BYTES: Final = 16 * 1024


class NotInKernel(Exception):  # noqa: N818 -- it is not an error of the connection
    """The kernel did not get the keys of a connection; another connection, without kernel TLS, may succeed."""


class KernelTlsSocket(PlainSocket):
    """A TCP connection to a broker with TLS of the kernel. Call `start` and `handshake` before anything else.

    *Resource handling*, *error handling* and *cancellation* are those of `PlainSocket`. ``bytes_received`` and
    ``bytes_sent`` count data, and what was received in the handshake. A broker that changes its keys, or wants to
    negotiate again, ends the connection.
    """

    __slots__ = ("_ended", "_in_kernel", "_session", "_setting", "_tickets", "_tls", "is_resumed", "keep_session")

    can_splice = False  # large reads cost less than one ``splice`` for each record, and a record may contain no data

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        super().__init__(sock, fault, poller)
        self._ended = False
        self._in_kernel = False
        self._session: Session | None = None
        self._setting = ""
        self._tickets = 0
        self._tls: ssl.SSLSocket | None = None
        """The handshake, on a descriptor of its own for the same connection."""
        self.is_resumed = False
        self.keep_session: Callable[[object], None] | None = None

    def start(
        self,
        context: TlsContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        session: object | None = None,
    ) -> None:
        """See `headrace.proxy.network.tls.tls_socket.TlsSocket.start`."""
        self._setting = context.setting
        current = context.current  # read once: a thread may replace it
        resumed = session.of_ssl if isinstance(session, Session) and session.context is current else None
        with _for_kernel(current):
            self._tls = current.wrap_socket(
                self._socket.dup(),
                server_side=server_side,
                do_handshake_on_connect=False,
                server_hostname=server_hostname,
                session=resumed,
            )

    async def handshake(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """See `headrace.proxy.network.tls.tls_socket.TlsSocket.handshake`. Raises `NotInKernel`."""
        tls = self._tls
        if tls is None:
            raise AssertionError("the TLS handshake has not begun")
        done = False
        while not done:
            wait = None
            async with turn():
                try:
                    tls.do_handshake()
                    done = True
                except ssl.SSLWantReadError:
                    self.may_read, wait = False, self.readable
                except ssl.SSLWantWriteError:
                    wait = self.writable
                except ssl.SSLError as error:
                    self._count_received()
                    reason = failure_of(error, self._setting, server_side=False)
                    if (error.reason or "").endswith(("PROTOCOL_VERSION", "HANDSHAKE_FAILURE")):
                        raise NotInKernel(reason) from error
                    raise UpstreamFault(reason) from error
                except OSError as error:
                    self._count_received()
                    raise self.fault(error) from error
            if wait is not None:
                await wait()
        self._count_received()
        if not self._has_keys(_TLS_TX) or not self._has_keys(_TLS_RX):
            cipher, version, _ = tls.cipher() or ("?", "?", 0)
            raise NotInKernel(f"the kernel has not got the keys of both directions, with {version} and {cipher}")
        self._in_kernel = self.may_read = True
        self.is_resumed = tls.session_reused is True
        if self.is_resumed and (reason := outlived_certificate(tls.getpeercert(binary_form=True), server_side=False)):
            raise UpstreamFault(reason)
        if tls.session is not None and tls.session.has_ticket:
            self._session = Session(tls.context, tls.session)
        self._tls = None
        tls.close()

    def _has_keys(self, direction: int) -> bool:
        try:
            return any(self._socket.getsockopt(_SOL_TLS, direction, _CRYPTO_INFO_BYTES))
        except OSError:
            return False

    def _count_received(self) -> None:
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        if len(info) == _INFO.size:
            (self.bytes_received,) = _INFO.unpack(info)

    def receive_into(self, view: Buffer) -> int | None:
        """See `PlainSocket.receive_into`. A read ends before a record that has no data, so more may be there."""
        if self._ended:
            return 0
        try:
            count = super().receive_into(view)
        except UpstreamFault as fault:
            if not isinstance(fault.__cause__, OSError) or fault.__cause__.errno != errno.EIO:
                raise
            self._receive_other_record()
            count = 0 if self._ended else None
            self.may_read = True
        if count:
            self.may_read = True
        return count

    def _receive_other_record(self) -> None:
        """Read a record that has no data: the kernel returns it only together with its type."""
        try:
            record, types, _, _ = self._socket.recvmsg(_RECORD_BYTES, socket.CMSG_SPACE(1))
        except OSError as error:
            raise self.fault(error) from error
        kind = types[0][2][0] if types else None
        if kind == _ALERT and record[1:2] == b"\x00":
            self._ended = True
        elif kind == _ALERT:
            raise UpstreamFault(f"TLS: the broker sent the alert {int.from_bytes(record[1:2], 'big')}")
        elif kind == _HANDSHAKE and record[:1] == bytes([_NEW_SESSION_TICKET]) and self._tickets < MOST_TICKETS:
            self._tickets += 1
        else:
            rule = f"which kernel TLS does not support; set {self._setting}.kernel = false"
            raise UpstreamFault(f"TLS: the broker changes its keys, or wants to negotiate again, {rule}")

    def expect(self, count: int) -> None:
        """Do nothing: the kernel reports complete records, and a threshold of bytes could keep it from reading them."""

    def fault(self, error: OSError) -> ConnectionFault:
        """See `PlainSocket.fault`."""
        if error.errno == errno.EBADMSG:
            return UpstreamFault("TLS: a record of the broker was changed on its way")
        return super().fault(error)

    def shut_down_writing(self) -> None:
        """Send TLS's end of the stream, and shut down the writing direction."""
        self._send_end()
        super().shut_down_writing()

    def close(self) -> None:
        """Close the socket as `PlainSocket.close`, and send TLS's end of the stream if that is possible at once."""
        if self._socket.fileno() >= 0:
            if self.keep_session is not None and self._session is not None:
                self.keep_session(self._session)
            self._send_end()
        if self._tls is not None:
            self._tls.close()
        super().close()

    def _send_end(self) -> None:
        if self._in_kernel and not self.unsent_bytes:
            with suppress(OSError):
                self._socket.sendmsg([_CLOSE_NOTIFY], [(_SOL_TLS, _RECORD_TYPE, bytes([_ALERT]))])


@contextmanager
def _for_kernel(context: ssl.SSLContext) -> Iterator[None]:
    """Let connections that are created meanwhile give their keys to the kernel. They keep these settings."""
    options, highest = context.options, context.maximum_version
    context.options |= ENABLE_KTLS
    if not TLS_1_3_IN_KERNEL:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        yield
    finally:
        context.options, context.maximum_version = options, highest
