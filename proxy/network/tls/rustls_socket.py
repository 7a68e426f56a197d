"""A TCP connection with TLS of rustls, which the native data plane can take over and give back.

`headrace._engine.TlsSession` is the state of TLS. While the connection is relayed natively, the thread uses it, and
nothing here is called but `RustlsSocket.fault` and `RustlsSocket.close`. So bytes that were read and not decrypted, or
decrypted and not read, are neither lost nor read twice.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.network.sockets import LARGE_READ_BYTES
from headrace.proxy.network.tls.failures import UNREAD_ANSWERS, failure_of_rustls, outlived_certificate
from headrace.proxy.network.tls.hello_socket import HelloSocket
from headrace.proxy.network.tls.records import SLICE_BYTES
from headrace.proxy.network.tls.tls_socket import MAX_OWN_BYTES, RECORD_OVERHEAD_BYTES, TlsSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from headrace._engine import TlsConfig, TlsSession, TlsSessions
    from headrace.proxy.errors import ConnectionFault
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.wire.heads import Buffer

_received: Final = memoryview(bytearray(LARGE_READ_BYTES + RECORD_OVERHEAD_BYTES))
"""The read buffer of all connections with TLS of rustls. Its content is valid until the next read."""


class BrokerSessions(NamedTuple):
    """The sessions with a broker that `RustlsSocket.start` can resume, and the configuration that they belong to."""

    config: TlsConfig
    kept: TlsSessions


def socket_kind(context: TlsContext) -> type[RustlsSocket | TlsSocket]:
    """Return the class of new connections with the settings of ``context``."""
    return RustlsSocket if context.uses_rustls else TlsSocket


class RustlsSocket(HelloSocket):
    """A TCP connection with TLS. It has the methods and the meaning of `TlsSocket`."""

    __slots__ = ("_ended", "_own_bytes", "_server_side", "_sessions", "keep_session", "rustls")

    def __init__(self, sock: socket.socket, fault: type[ConnectionFault], poller: Poller | None = None) -> None:
        super().__init__(sock, fault, poller)
        self._ended = False
        self._own_bytes = 0
        self._server_side = False
        self._sessions: BrokerSessions | None = None
        self.rustls: TlsSession | None = None
        """The state of TLS; ``None`` before the handshake has begun."""
        self.keep_session: Callable[[object], None] | None = None
        """See `TlsSocket.keep_session`."""

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the peer has shown and that had to be valid, in DER form."""
        return None if self.rustls is None else self.rustls.peer_certificate

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake has resumed an earlier session, without certificates."""
        return self.rustls is not None and self.rustls.is_resumed

    # --- the handshake ---

    def start(
        self,
        context: TlsContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        session: object | None = None,
    ) -> None:
        """See `TlsSocket.start`. Raises ``ValueError`` for a name of a broker that cannot be one.

        If rustls does not support the newest settings, so that new connections use OpenSSL, this one uses the last
        settings that rustls supported.
        """
        self._setting, self._server_side = context.setting, server_side
        config = context.rustls  # read once: a thread may replace it
        if config is None:
            raise AssertionError(f"{context.setting} never had a configuration for rustls")
        if server_side:
            self.rustls = config.accept()
            return
        if not isinstance(session, BrokerSessions) or session.config is not config:
            session = BrokerSessions(config, import_module("headrace._engine").TlsSessions())
        self._sessions = session
        host = server_hostname or ""
        name = host if host.isascii() else host.encode("idna").decode("ascii")
        self.rustls = config.connect(name, session.kept)

    async def handshake(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """Do the handshake. Each computation is done in a ``turn``. Raises the fault of the socket."""
        tls, received = self._tls, self.take_hello()
        while True:
            async with turn():
                tls.decrypt(received, 0)
            records = tls.take_outgoing()
            if records and not super().send_now([records]):
                await self.send()  # of a failure, too: the alert names it
            self._count_undecrypted(tls.held)
            if tls.failure is not None:
                raise self._failed()
            if not tls.is_handshaking:
                break
            received = await self._receive_raw()
            if not received:
                peer = "client" if self._server_side else "broker"
                raise self._broken(f"TLS: the {peer} closed the connection in the handshake")
        if self.is_resumed and (reason := outlived_certificate(self.peer_certificate, server_side=self._server_side)):
            raise self._broken(reason)
        if self._hello_goes_on and self.server_name is None:
            self.server_name = tls.asked_name
        if tls.has_unread or tls.held:  # the first request came with the end of the handshake
            self.may_read = True

    async def _receive_raw(self) -> bytes:
        while True:
            await self.readable()
            count = super().receive_into(_received[:SLICE_BYTES])
            if count is not None:
                return bytes(_received[:count])

    # --- records ---

    def receive_into(self, view: Buffer) -> int | None:
        """Read once, and decrypt as many records as ``view`` has room for.

        Return the number of bytes, 0 at the end of the stream, or ``None`` if nothing can be read now.
        """
        tls, data, most = self._tls, b"", len(view)
        if tls.has_unread:
            data = tls.decrypt(b"", most)
        if not data and not tls.has_unread and not self._ended:
            received = super().receive_into(_received[: min(most + RECORD_OVERHEAD_BYTES, len(_received))])
            if received is None:
                return None
            if received:
                data = tls.decrypt(_received[:received], most)
            else:
                self._ended = True
        self._send_own()
        self._count_undecrypted(tls.held)
        if tls.has_unread or self._ended:
            self.may_read = True
        if data:
            view[: len(data)] = data
            return len(data)
        if tls.failure is not None:
            raise self._failed()
        return 0 if self._ended or tls.has_ended else None  # a part of a record

    def expect(self, count: int) -> None:
        """See `PlainSocket.expect`; ``count`` is a number of decrypted bytes."""
        super().expect(count - (0 if self.rustls is None else self.rustls.held))

    def send_now(self, parts: Sequence[Buffer | bytes], *, more: bool = False) -> bool:
        """Encrypt ``parts`` and write them in one system call; return as `PlainSocket.send_now`."""
        tls = self._tls
        records = tls.encrypt(parts[0] if len(parts) == 1 else b"".join(parts))
        if tls.failure is not None:
            raise self._failed()
        self._own_bytes = 0
        return super().send_now([records], more=more)

    def _send_own(self) -> None:
        """Send the bytes of TLS itself, such as alerts, if there are any, before those of a writer that waits."""
        records = self._tls.take_outgoing()
        if records and not super().send_now([records]):
            self._own_bytes += len(records)
            if self._own_bytes > MAX_OWN_BYTES:
                raise self._broken(UNREAD_ANSWERS)

    def fault(self, error: OSError) -> ConnectionFault:
        """See `PlainSocket.fault`; EPROTO stands for a failure of TLS while the connection was relayed natively."""
        if error.errno == errno.EPROTO and self._tls.failure is not None:
            return self._failed()
        return super().fault(error)

    def has_unread(self) -> bool:
        """Return whether bytes of the peer have arrived that were not read, encrypted or not."""
        return bool(self._tls.held) or super().has_unread()

    def shut_down_writing(self) -> None:
        """Send TLS's end of the stream, and shut down the writing direction."""
        self._send_end()
        super().shut_down_writing()

    def close(self) -> None:
        """Close the socket as `PlainSocket.close`, and send TLS's end of the stream if that is possible at once."""
        if self._socket.fileno() >= 0:
            if self.keep_session is not None and self._sessions is not None:
                self.keep_session(self._sessions)
            self._send_end()
        super().close()
        self._count_undecrypted(0)

    def _send_end(self) -> None:
        if self.rustls is None or self.unsent_bytes:
            return
        self.rustls.end()
        records = self.rustls.take_outgoing()
        if records:
            with suppress(OSError):
                self._socket.send(records)

    def _failed(self) -> ConnectionFault:
        kind, reason = self._tls.failure or ("reason", "")
        return self._broken(failure_of_rustls(kind, reason, self._setting, server_side=self._server_side))

    def _broken(self, reason: str) -> ConnectionFault:
        return ClientFault(reason) if self._server_side else UpstreamFault(reason)

    @property
    def _tls(self) -> TlsSession:
        if self.rustls is None:
            raise AssertionError("the TLS handshake has not begun")
        return self.rustls
