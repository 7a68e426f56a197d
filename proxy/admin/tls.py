"""TLS of the admin server: its certificate, handshakes within bounds, and the streams of its connections.

Any client that can connect can begin a handshake, so a handshake costs little until its turn: nothing is allocated for
a client that has not sent a ClientHello, and the computations take turns that go round the addresses
(`headrace.proxy.admin.turns`). A handshake is part of a connection, so the limits of connections hold for it, and it
has the time of a request. Called by `headrace.proxy.admin.connections`; imported only if the admin server has TLS.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.admin.http import RefusedConnection, discard, refuse_in_plaintext
from headrace.proxy.errors import ClientFault, ClientGone, StartupError
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.contexts import server_context
from headrace.proxy.network.tls.files import TlsFileError
from headrace.proxy.network.tls.hello_socket import NotTls
from headrace.proxy.network.tls.renewal import CERTIFICATES_S, expiries_s, renew
from headrace.proxy.network.tls.subjects.principals import NoPrincipal, distinguished_name
from headrace.proxy.network.tls.tls_socket import TlsSocket
from headrace.proxy.wire.other_protocols import HTTP, other_protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from headrace.config.tables.tls import AdminTls
    from headrace.proxy.counters import AdminCounters
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.handshake_turns import TurnsByAddress

SETTING: Final = "admin.tls"
SEND_BYTES: Final = 16 * 1024
"""The most bytes that are encrypted before the client has to accept them: a record."""
READ_BYTES: Final = 16 * 1024

_HTTP_WITHOUT_TLS: Final = "this port requires TLS: use https instead of http"

_received = memoryview(bytearray(READ_BYTES))
"""The read buffer of all connections. Its content is valid until the next read."""


def admin_context(tls: AdminTls) -> TlsContext:
    """Return the context of the admin server, which has a certificate. Blocks. Raises `StartupError`."""
    try:
        return server_context(tls, SETTING, lambda _: True)
    except TlsFileError as error:
        raise StartupError(str(error)) from error


class TlsHandshakes:
    """The handshakes of the admin server's connections, with its newest certificate."""

    def __init__(self, context: TlsContext, counters: AdminCounters) -> None:
        self._context = context
        self._counters = counters
        self._note_expiry()

    async def renew_regularly(self) -> None:
        """Use a new certificate when the files have changed, until cancelled."""
        while True:
            await renew((self._context,))
            self._note_expiry()
            await trio.sleep(CERTIFICATES_S)

    def _note_expiry(self) -> None:
        self._counters.expiries_s = expiries_s(self._context)

    async def serve(self, stream: TlsStream, client: str, turns: TurnsByAddress, timeout_s: float) -> str | None:
        """Do the handshake; return the subject of the client's certificate, which was verified, if it has shown one.

        Raises `RefusedConnection` if it fails, after the client has been given a chance to read why, and
        ``trio.BrokenResourceError`` if the client closes the connection without a byte.
        """
        try:
            with trio.fail_after(timeout_s):
                return await stream.handshake(self._context, client, turns)
        except trio.TooSlowError:
            reason = f"the TLS handshake was not complete within admin.request_timeout = {timeout_s:g} s"
            raise RefusedConnection("tls", reason) from None
        except ClientGone as error:
            raise trio.BrokenResourceError(str(error)) from error
        except ClientFault as error:
            fault = error
        if not isinstance(fault, NotTls):
            await discard(stream)
            raise RefusedConnection("tls", str(fault)) from fault
        reason = "the client speaks neither TLS nor HTTP"
        if other_protocol(memoryview(fault.first), 0, len(fault.first)) == HTTP:
            await refuse_in_plaintext(stream, _HTTP_WITHOUT_TLS)
            reason = "the client speaks HTTP without TLS; let it use https"
        raise RefusedConnection("plaintext", f"{reason}: {SETTING}.certificate_file is set") from fault


class TlsStream(trio.abc.HalfCloseableStream):
    """A connection with TLS. Before the handshake has succeeded, and after `send_eof`, its bytes are not encrypted.

    So the reason of a failure can be sent to a client without TLS, and the rest of what any client sends be discarded
    without the effort to decrypt it. *Resource handling:* owns the socket. *Error handling:* raises
    ``trio.BrokenResourceError`` if the client closes or resets the connection, `RefusedConnection` if it violates TLS.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Raises `OSError` if the client has reset the connection."""
        self._sock = TlsSocket(sock, ClientGone)
        self._is_encrypted = False

    async def handshake(self, context: TlsContext, client: str, turns: TurnsByAddress) -> str | None:
        """Do the handshake, each computation in a turn of the client's address; return the subject of its certificate.

        Raises `ClientFault` for any failure.
        """
        sock = self._sock
        await sock.receive_hello(context.setting)
        sock.start(context, server_side=True)
        await sock.handshake(lambda: turns.turn(client))
        self._is_encrypted = True
        return _subject(sock.peer_certificate)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for bytes, and return at most ``max_bytes`` or `READ_BYTES`; none at the end of the stream."""
        view = _received[: min(max_bytes or READ_BYTES, READ_BYTES)]
        with _faults_translated():
            while True:
                await self._sock.readable()
                count = (
                    self._sock.receive_into(view) if self._is_encrypted else PlainSocket.receive_into(self._sock, view)
                )
                if count is not None:
                    return bytes(view[:count])

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``, and wait until the system has accepted it."""
        await trio.lowlevel.checkpoint()
        with _faults_translated():
            view = memoryview(data)
            for begin in range(0, len(view), SEND_BYTES):
                parts = [view[begin : begin + SEND_BYTES]]
                if self._is_encrypted:
                    self._sock.send_now(parts)
                else:
                    PlainSocket.send_now(self._sock, parts)
                await self._sock.send()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system may accept bytes."""
        with _faults_translated():
            await self._sock.writable()

    async def send_eof(self) -> None:
        """Send the ends of TLS and of the TCP stream. What is received from now on is not decrypted."""
        await trio.lowlevel.checkpoint()
        self._sock.shut_down_writing()
        self._is_encrypted = False

    async def aclose(self) -> None:
        """Send the end of TLS if that is possible at once, and close the socket."""
        self._sock.close()
        await trio.lowlevel.checkpoint()


def _subject(certificate: bytes | None) -> str | None:
    """Return the subject of the certificate that a client has shown, if it has shown one."""
    if certificate is None:
        return None
    try:
        return distinguished_name(certificate)
    except NoPrincipal as error:
        raise ClientFault(f"TLS: the client's certificate is not accepted: {error}") from error


@contextmanager
def _faults_translated() -> Iterator[None]:
    try:
        yield
    except ClientGone as error:
        raise trio.BrokenResourceError(str(error)) from error
    except ClientFault as error:
        raise RefusedConnection("tls", str(error)) from error
