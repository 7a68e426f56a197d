"""Both ends of a connection with TLS on real sockets, as the proxy towards a broker and towards a client."""

from __future__ import annotations

import socket
import ssl
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import trio

from headrace.config.tables.tls import ListenTls, UpstreamTls
from headrace.proxy.errors import ClientGone, ConnectionFault, UpstreamFault
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.contexts import TlsContext, client_context, server_context
from headrace.proxy.network.tls.rustls_socket import RustlsSocket
from headrace.proxy.network.tls.tls_socket import NoTurn, TlsSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from testbed.kafka.certificates import Authority, Certificate
DEADLINE_S = 20

EitherSocket: TypeAlias = TlsSocket | RustlsSocket

rustls_sides: set[str] = set()
"""The sides, of ``client`` and ``server``, whose TLS is computed by rustls; set by the fixture ``libraries``."""


def listening(certificate: Certificate | Path, **settings: object) -> TlsContext:
    file = certificate if isinstance(certificate, Path) else certificate.keystore_file
    tls = ListenTls.model_validate({"certificate_file": str(file), **settings})
    return by_library(server_context(tls, "listen.tls", lambda name: name != "unknown.example.com"), "server")


def connecting(authority: Authority, **settings: object) -> TlsContext:
    tls = UpstreamTls.model_validate({"enabled": True, "ca_file": str(authority.ca_file), **settings})
    return by_library(client_context(tls, "upstream.tls"), "client")


def by_library(context: TlsContext, side: str) -> TlsContext:
    if side in rustls_sides:
        context.prefer_rustls()
        assert context.uses_rustls
    return context


def kind(side: str) -> type[EitherSocket]:
    return RustlsSocket if side in rustls_sides else TlsSocket


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted


@asynccontextmanager
async def sockets(*, attached: bool = True) -> AsyncIterator[tuple[EitherSocket, EitherSocket]]:
    """The two ends of a connection, as the proxy towards a broker, and as the proxy towards a client."""
    poller = Poller()
    ours, theirs = tcp_pair()
    with trio.fail_after(DEADLINE_S):
        if attached:
            with poller.attach():
                pair = kind("client")(ours, UpstreamFault, poller), kind("server")(theirs, ClientGone, poller)
                try:
                    yield pair
                finally:
                    for each in pair:
                        each.close()
        else:
            pair = kind("client")(ours, UpstreamFault), kind("server")(theirs, ClientGone)
            yield pair
            for each in pair:
                each.close()


async def shake_hands(
    pair: tuple[EitherSocket, EitherSocket], client: TlsContext, server: TlsContext, host: str = "localhost"
) -> None:
    to_broker, to_client = pair

    async def serve() -> None:
        await to_client.receive_hello(server.setting)
        to_client.start(server, server_side=True)
        await to_client.handshake(NoTurn)

    to_broker.start(client, server_side=False, server_hostname=host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await to_broker.handshake(NoTurn)


async def read(sock: EitherSocket, count: int, most: int = 65536) -> bytes:
    """Read ``count`` bytes, at most ``most`` at a time."""
    found = bytearray()
    view = memoryview(bytearray(most))
    while len(found) < count:
        if not sock.may_read:
            await sock.readable()
        got = sock.receive_into(view)
        assert got != 0, "the stream has ended"
        found += view[: got or 0]
        await trio.lowlevel.checkpoint()
    return bytes(found)


def without_tls_1_3(context: TlsContext) -> TlsContext:
    """Let a context have TLS 1.2 alone, and return it."""
    context.current.maximum_version = ssl.TLSVersion.TLSv1_2
    if context.uses_rustls:
        context.prefer_rustls()
    return context


async def ignore_faults(sock: EitherSocket) -> None:
    """Shake hands, whatever comes of it."""
    with suppress(ConnectionFault):
        await sock.handshake(NoTurn)
