"""Connections to brokers that fail at once: what is said, and that nothing is left of them."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from headrace.config.tables.tls import UpstreamTls
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.contexts import client_context
from headrace.proxy.network.tls.tls_socket import Session, TlsSocket
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import _PROXY, UnansweredFault, Upstream, _Caller
from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address
from tests.faults.raw_client import RESET_ON_CLOSE

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Authority


def reset_connection() -> socket.socket:
    """Return a connection that the peer has reset."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    theirs.close()
    return ours


def closed_connection() -> socket.socket:
    """Return a connection that the peer has closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
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
            await upstream._opened(sock, address, _Caller(client))
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
        await upstream._secure(secured, tls, address, _PROXY)
        assert secured.tls is not None


async def test_a_session_whose_handshake_failed_is_not_resumed_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a certificate that the broker has replaced, since the old one has expired."""

    async def fail(*_: object) -> None:
        raise UpstreamFault("TLS: the broker resumed a session whose certificate has expired")

    monkeypatch.setattr(TlsSocket, "handshake", fail)
    poller, address = Poller(), Address(host="127.0.0.1", port=9092)
    upstream = upstream_with_tls(authority, poller, address)
    upstream._sessions[address] = object()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        secured = TlsSocket(sock, UpstreamFault)
        assert upstream.tls is not None
        with pytest.raises(UpstreamFault, match="expired"):
            await upstream._secure(secured, upstream.tls, address, _PROXY)
    assert not upstream._sessions


def upstream_with_tls(authority: Authority, poller: Poller, address: Address, **more: Any) -> Upstream:
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    tls = client_context(UpstreamTls(enabled=True, ca_file=str(authority.ca_file)), "upstream.tls")
    return Upstream(
        bootstrap_servers=[address], topology=topology, connect_timeout_s=60, poller=poller, tls=tls, **more
    )


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example.com"])
async def test_a_host_name_that_is_not_valid(authority: Authority, host: str) -> None:
    """Brokers advertise it, so that it is their fault, both where it is resolved and where TLS asks for it."""
    poller = Poller()
    address = Address(host=host, port=9092)
    upstream = upstream_with_tls(authority, poller, address)
    with poller.attach():
        with pytest.raises(UpstreamFault, match=r"cannot resolve .* it is not a valid host name"):
            await upstream.dial(None)
        with socket.create_server(("127.0.0.1", 0)) as server:
            sock = socket.create_connection(server.getsockname())
            with pytest.raises(UpstreamFault, match="9092: TLS: it is not a valid host name"):
                await upstream._opened(sock, address, _PROXY)
        assert sock.fileno() == -1, "it is closed"


@pytest.mark.parametrize("resets", [False, True])
async def test_a_broker_that_closes_before_a_byte_of_tls_may_have_a_plaintext_listener(
    authority: Authority, *, resets: bool
) -> None:
    poller = Poller()
    address = Address(host="127.0.0.1", port=9092)
    upstream = upstream_with_tls(authority, poller, address, setting="listeners.inside.upstream")
    sock = reset_connection() if resets else closed_connection()
    with poller.attach(), pytest.raises(UpstreamFault) as caught:
        await upstream._opened(sock, address, _PROXY)
    settings = "listeners.inside.upstream.bootstrap_servers and listeners.inside.upstream.tls.enabled"
    assert str(caught.value).endswith(f"a plaintext listener closes like this: check {settings}")


@pytest.mark.parametrize(
    "fault", [None, UpstreamFault("the proxy's login was refused"), UnansweredFault("closed without an answer")]
)
async def test_a_login_that_the_brokers_refuse_is_a_problem(
    fault: UpstreamFault | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although they answer what needs no login."""

    async def request(upstream: Upstream, api_key: ApiKey, *_: object) -> memoryview:
        if api_key == ApiKey.METADATA and fault is not None:
            raise fault
        broker = {"node_id": 0, "host": "broker", "port": 9092, "rack": None}
        cluster = {"brokers": [broker], "cluster_id": "c", "controller_id": 0, "topics": []}
        return memoryview(encode("MetadataResponse", 2, cluster) if api_key == ApiKey.METADATA else b"")

    async def log_in(_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Upstream, "request", request)
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    servers = [Address(host="127.0.0.1", port=9092)]
    upstream = Upstream(
        bootstrap_servers=servers, topology=topology, connect_timeout_s=5, poller=Poller(), log_in=log_in
    )
    problem = "no bootstrap server serves the proxy with its login upstream.sasl"
    assert await upstream.problem() == ("" if fault is None else problem)
    assert upstream.reached is (fault is None)


def upstream_of(**more: Any) -> Upstream:
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3))
    servers = [Address(host="broker", port=9092)]
    return Upstream(bootstrap_servers=servers, topology=topology, connect_timeout_s=6, poller=Poller(), **more)


@pytest.mark.parametrize("first", ["silent", "refuses", "fails"])
async def test_the_second_address_of_a_name_is_tried(
    first: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that drops packets must not use up the time of the other ones."""

    async def addresses(_: Address) -> list[tuple[int, tuple[str, int]]]:
        await trio.lowlevel.checkpoint()
        return [(socket.AF_INET, (host, 9092)) for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3")]

    async def connect(_: Upstream, __: int, target: tuple[str, int], *___: object) -> object:
        await trio.lowlevel.checkpoint()
        if target[0] == "192.0.2.2":
            return target
        if first == "silent":
            await trio.sleep_forever()
        raise OSError("refused") if first == "refuses" else UpstreamFault("TLS: no")

    monkeypatch.setattr("headrace.proxy.network.upstream._addresses_of", addresses)
    monkeypatch.setattr(Upstream, "_connect_to", connect)
    assert await upstream_of()._connect(Address(host="broker", port=9092), _PROXY) == ("192.0.2.2", 9092)
    assert trio.current_time() == pytest.approx(2 if first == "silent" else 0, abs=0.01)


async def test_who_waited_for_a_cancelled_refresh_repeats_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def ask(upstream: Upstream) -> None:
        asked.append(trio.current_time())
        await trio.sleep(10)
        upstream.reached = True

    monkeypatch.setattr(Upstream, "_ask_for_brokers", ask)
    upstream = upstream_of()
    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def refresh_first() -> None:
            with first:
                await upstream.refresh()

        nursery.start_soon(refresh_first)
        await trio.sleep(1)
        nursery.start_soon(upstream.refresh)
        nursery.start_soon(upstream.refresh)
        await trio.sleep(1)
        first.cancel()
    assert asked == pytest.approx([0, 2], abs=0.01)
    assert trio.current_time() == pytest.approx(12, abs=0.01)
