"""The interface of a connection with TLS, which is the same for each library that implements TLS.

`headrace.proxy.network.tls.tls_socket.TlsSocket` implements it with OpenSSL,
`headrace.proxy.network.tls.rustls_socket.RustlsSocket` with rustls, and
`headrace.proxy.network.tls.kernel.sockets.KernelTlsSocket` for brokers with the kernel. The listeners, the connections
to brokers and the admin server use nothing else of TLS, so that another implementation replaces it in the places that
create the sockets and the contexts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.proxy.network.sockets import Socket

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from headrace.proxy.network.tls.contexts import TlsContext


@runtime_checkable
class SecuredSocket(Socket, Protocol):
    """A TCP connection with TLS. `handshake` precedes everything that reads or writes data."""

    keep_session: Callable[[object], None] | None

    def start(
        self,
        context: TlsContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        session: object | None = None,
    ) -> None:
        """See `headrace.proxy.network.tls.tls_socket.TlsSocket.start`."""

    async def handshake(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        """See `headrace.proxy.network.tls.tls_socket.TlsSocket.handshake`."""


@runtime_checkable
class SecuredClientSocket(SecuredSocket, Protocol):
    """A connection of a client with TLS. `receive_hello` precedes `start`."""

    server_name: str | None

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate that the client has shown and that had to be valid, in DER form."""

    @property
    def is_resumed(self) -> bool:
        """Whether the handshake has resumed an earlier session, without certificates."""

    async def receive_hello(self, setting: str) -> None:
        """See `headrace.proxy.network.tls.hello_socket.HelloSocket.receive_hello`."""
