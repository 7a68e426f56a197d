"""Connections to brokers that fail at once: what is said, and that nothing is left of them."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, cast

import pytest

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.tls_socket import Session, TlsSocket
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.quota_callbacks.requests import Address
from tests.faults.raw_client import RESET_ON_CLOSE

if TYPE_CHECKING:
    from headrace.proxy.network.tls.contexts import TlsContext


def reset_connection() -> socket.socket:
    """Return a connection that the peer has reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    theirs.close()
    return ours


@pytest.mark.parametrize("client", [None, Address(host="192.0.2.1", port=5000)])
async def test_a_broker_that_resets_before_the_proxy_header(client: Address | None) -> None:
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    poller = Poller()
    address = Address(host="127.0.0.1", port=9092)
    upstream = Upstream(
        bootstrap_servers=[address], topology=topology, connect_timeout_s=5, poller=poller, proxy_protocol=True
    )
    sock = reset_connection()
    with poller.attach():
        with pytest.raises(UpstreamFault, match=r"127\.0\.0\.1:9092"):
            await upstream._opened(sock, address, client)
        assert sock.fileno() == -1, "it is closed"


class RenewedAtOnce:
    """A `TlsContext` whose files are renewed after each use of its context."""

    setting = "upstream.tls"

    @property
    def current(self) -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def test_certificates_that_are_renewed_during_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python refuses a session with another context than its own."""

    async def skip(*_: object) -> None:
        pass

    monkeypatch.setattr(TlsSocket, "handshake", skip)
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    address = Address(host="127.0.0.1", port=9092)
    tls = cast("TlsContext", RenewedAtOnce())
    upstream = Upstream(bootstrap_servers=[address], topology=topology, connect_timeout_s=5, poller=Poller(), tls=tls)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        secured = TlsSocket(sock, UpstreamFault)
        upstream._sessions[address] = Session(tls.current, cast("ssl.SSLSession", object()))
        await upstream._secure(secured, tls, address)
        assert secured.tls is not None
