"""TLS on real sockets: every byte arrives in order however it is cut, and each failure says what to change."""

from __future__ import annotations

import random
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.config.tables.tls import ClientCertificates, ListenTls, UpstreamTls
from headrace.proxy.errors import ClientFault, ClientGone, ConnectionFault, UpstreamFault
from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.contexts import TlsContext, client_context, server_context
from headrace.proxy.network.tls.records import HEADER_BYTES
from headrace.proxy.network.tls.tls_socket import MAX_RECORD_BYTES, NoTurn, TlsSocket
from testbed.kafka.certificates import EXPIRED, Authority
from tests.security.handshakes import client_hello

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from testbed.kafka.certificates import Certificate

DEADLINE_S = 20


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Certificate:
    return authority.broker_certificate()


def listening(certificate: Certificate, **settings: object) -> TlsContext:
    tls = ListenTls.model_validate({"certificate_file": str(certificate.keystore_file), **settings})
    return server_context(tls, "listen.tls", lambda name: name != "nobody.example.com")


def connecting(authority: Authority, **settings: object) -> TlsContext:
    tls = UpstreamTls.model_validate({"enabled": True, "ca_file": str(authority.ca_file), **settings})
    return client_context(tls, "upstream.tls")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    return client, accepted


@asynccontextmanager
async def sockets(*, attached: bool = True) -> AsyncIterator[tuple[TlsSocket, TlsSocket]]:
    """The two ends of a connection, as the proxy towards a broker, and as the proxy towards a client."""
    poller = Poller()
    ours, theirs = tcp_pair()
    with trio.fail_after(DEADLINE_S):
        if attached:
            with poller.attach():
                pair = TlsSocket(ours, UpstreamFault, poller), TlsSocket(theirs, ClientGone, poller)
                try:
                    yield pair
                finally:
                    for each in pair:
                        each.close()
        else:
            pair = TlsSocket(ours, UpstreamFault), TlsSocket(theirs, ClientGone)
            yield pair
            for each in pair:
                each.close()


async def shake_hands(
    pair: tuple[TlsSocket, TlsSocket], client: TlsContext, server: TlsContext, host: str = "localhost"
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


async def read(sock: TlsSocket, count: int, most: int = 65536) -> bytes:
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


@pytest.mark.parametrize("attached", [True, False], ids=["poller", "trio"])
@pytest.mark.parametrize("most", [1000, 16384, 65536])
async def test_bytes_arrive_in_order(authority: Authority, broker: Certificate, most: int, *, attached: bool) -> None:
    """More than the buffers of the sockets hold, in parts of all sizes, in both directions at the same time."""
    choose = random.Random(most)  # noqa: S311
    data = choose.randbytes(3_000_000)

    async def write(sock: TlsSocket) -> None:
        at = 0
        while at < len(data):
            parts = []
            for _ in range(choose.randrange(1, 5)):
                size = choose.choice([1, 100, 5000, 16384, 70_000])
                parts.append(memoryview(data)[at : at + size])
                at += size
            await sock.send([each for each in parts if each])

    async with sockets(attached=attached) as (to_broker, to_client):
        await shake_hands((to_broker, to_client), connecting(authority), listening(broker))
        found: dict[str, bytes] = {}

        async def read_all(name: str, sock: TlsSocket) -> None:
            found[name] = await read(sock, len(data), most)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, to_broker)
            nursery.start_soon(write, to_client)
            nursery.start_soon(read_all, "client", to_client)
            nursery.start_soon(read_all, "broker", to_broker)
        assert found == {"client": data, "broker": data}
        assert to_broker.unsent_bytes == to_client.unsent_bytes == 0


async def test_what_the_peer_does_not_read_is_kept_once(authority: Authority, broker: Certificate) -> None:
    async with sockets() as (to_broker, to_client):
        await shake_hands((to_broker, to_client), connecting(authority), listening(broker))
        sent = 0
        while to_broker.send_now([bytes(65536)]):
            sent += 65536
        assert to_broker.unsent_bytes > 0
        assert not to_broker.send_now([b"behind it"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(to_broker.send)
            found = await read(to_client, sent + 65536 + 9)
        assert found == bytes(sent + 65536) + b"behind it"
        assert to_broker.unsent_bytes == 0


async def test_records_with_hardly_any_data_end_the_connection(authority: Authority, broker: Certificate) -> None:
    """Each takes processor time. Short requests in two records each, as Java sends them, are no such records."""
    async with sockets() as (to_broker, to_client):
        await shake_hands((to_broker, to_client), connecting(authority), listening(broker))
        for _ in range(100):
            for _ in range(50):
                await to_broker.send([b"size"])
                await to_broker.send([b"a request"])
            await read(to_client, 50 * 13)
        for _ in range(2000):
            to_broker.send_now([b"1"])
        with pytest.raises(ClientFault, match="too many records without data"):
            await read(to_client, 2000)


async def test_the_first_request_may_come_with_the_end_of_the_handshake(
    authority: Authority, broker: Certificate
) -> None:
    async with sockets() as (to_broker, to_client):
        client, server = connecting(authority), listening(broker)
        to_broker.start(client, server_side=False, server_hostname="localhost")

        async def connect() -> None:
            await to_broker.handshake(NoTurn)
            await to_broker.send([b"the first request"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await to_client.receive_hello(server.setting)
            to_client.start(server, server_side=True)
            await to_client.handshake(NoTurn)
        assert await read(to_client, 17) == b"the first request"


async def test_the_end_of_the_stream(authority: Authority, broker: Certificate) -> None:
    async with sockets() as (to_broker, to_client):
        await shake_hands((to_broker, to_client), connecting(authority), listening(broker))
        await to_broker.send([b"last"])
        to_broker.shut_down_writing()
        assert await read(to_client, 4) == b"last"
        while (found := to_client.receive_into(bytearray(10))) is None:
            await to_client.readable()
        assert found == 0
        await to_client.send([b"still open"])  # TLS 1.3: each direction ends by itself
        assert await read(to_broker, 10) == b"still open"


@pytest.mark.parametrize("cut_at", [1, 4, 5, 6, 100])
async def test_a_client_that_ends_in_its_first_record(broker: Certificate, cut_at: int) -> None:
    hello = client_hello(ssl.create_default_context())[:cut_at]
    ours, theirs = tcp_pair()
    with ours, trio.fail_after(DEADLINE_S):
        ours.sendall(hello)
        ours.shutdown(socket.SHUT_WR)
        sock = TlsSocket(theirs, ClientGone)
        with pytest.raises(ClientGone):
            await sock.receive_hello("listen.tls")
        assert sock.tls is None, "nothing was allocated"
        sock.close()


@pytest.mark.parametrize("way_out", ["complete", "end", "cancelled", "closed"])
async def test_a_part_of_the_first_record_is_held(way_out: str) -> None:
    hello = client_hello(ssl.create_default_context())
    before = held.count
    ours, theirs = tcp_pair()
    sock = TlsSocket(theirs, ClientGone)

    async def receive(scope: trio.CancelScope) -> None:
        with scope, suppress(ClientGone, trio.ClosedResourceError):
            await sock.receive_hello("listen.tls")

    with ours, trio.fail_after(DEADLINE_S):
        scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, scope)
            ours.sendall(hello[:100])
            while sock.bytes_received < 100:
                await trio.lowlevel.checkpoint()
            assert held.count - before == sock.undecrypted_bytes == 100 - HEADER_BYTES
            if way_out == "complete":
                ours.sendall(hello[100:])
            elif way_out == "end":
                ours.shutdown(socket.SHUT_WR)
            elif way_out == "cancelled":
                scope.cancel()
            else:
                sock.close()
    assert sock.undecrypted_bytes == 0
    assert held.count == before
    sock.close()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"\0\0\0\x1f\0\x12\0\3", "speaks plaintext, but this listener requires TLS (listen.tls.certificate_file)"),
        (b"GET / HTTP/1.1\r\n", "speaks HTTP, but this listener (listen.tls) accepts Kafka's protocol with TLS only"),
        (b"\r\n\r\n\0\r\nQUIT\n", "sent a header of the PROXY protocol; add its address to listen.proxy_protocol_from"),
        (b"\x15\3\3\0\2", "speaks plaintext"),
        (b"\x16\3\1\0\4\1\0\x40\1", f"the ClientHello has 16385 bytes; at most {MAX_RECORD_BYTES} are permitted"),
        (b"\x16\3\1\0\3\1\1\xff", "the first record has 3 bytes, and so not the length of the ClientHello"),
        (b"\x16\3\1\xff\xff", f"the first record has 65535 bytes; at most {MAX_RECORD_BYTES} are permitted"),
    ],
)
async def test_what_is_no_handshake(first: bytes, reason: str) -> None:
    ours, theirs = tcp_pair()
    with ours, trio.fail_after(DEADLINE_S):
        ours.sendall(first)
        sock = TlsSocket(theirs, ClientGone)
        with pytest.raises(ClientFault) as caught:
            await sock.receive_hello("listen.tls")
        assert reason in str(caught.value)
        sock.close()


async def failures(
    pair: tuple[TlsSocket, TlsSocket], client: TlsContext, server: TlsContext, host: str = "localhost"
) -> tuple[str, str]:
    """Return how each side describes a handshake that fails: the proxy as a broker's client, and as a server."""
    to_broker, to_client = pair
    reasons = {"broker": "", "client": ""}

    async def serve() -> None:
        try:
            await to_client.receive_hello(server.setting)
            to_client.start(server, server_side=True)
            await to_client.handshake(NoTurn)
            await read(to_client, 1)
        except ClientFault as fault:
            reasons["client"] = str(fault)
        finally:
            to_client.close()

    to_broker.start(client, server_side=False, server_hostname=host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            await to_broker.handshake(NoTurn)
            await read(to_broker, 1)
        except UpstreamFault as fault:
            reasons["broker"] = str(fault)
        finally:
            to_broker.close()
    return reasons["broker"], reasons["client"]


async def test_every_failure_says_what_to_change(authority: Authority, broker: Certificate, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    client_ca = {"client_ca_file": str(authority.ca_file), "client_certificates": "required"}
    strange = stranger.client_certificate("CN=mallory")
    expired = authority.broker_certificate("expired", valid_for=EXPIRED)
    cases: list[tuple[TlsContext, TlsContext, str, str, str]] = [
        (
            connecting(stranger),
            listening(broker),
            "localhost",
            "is not accepted: unable to get local issuer certificate; add its authority to upstream.tls.ca_file",
            "the client does not trust the authority of the proxy's certificate",
        ),
        (
            connecting(authority),
            listening(broker),
            "other.example.com",
            "connect to a name in the certificate, or set upstream.tls.verify_names = false",
            "does not accept the proxy's certificate",
        ),
        (
            connecting(authority),
            listening(expired),
            "localhost",
            "the broker's certificate is not accepted: certificate has expired",
            "says that the proxy's certificate has expired",
        ),
        (
            connecting(authority),
            listening(broker, **client_ca),
            "localhost",
            "the broker requires a certificate of the proxy",
            "the client showed no certificate, which listen.tls.client_certificates requires",
        ),
        (
            connecting(authority, certificate_file=str(strange.keystore_file)),
            listening(broker, **client_ca),
            "localhost",
            "the broker does not trust the authority of the proxy's certificate",
            "the client's certificate is not accepted: unable to get local issuer certificate; add its authority to li",
        ),
        (
            connecting(authority, min_version="1.3"),
            _lowest_only(listening(broker)),
            "localhost",
            "the broker does not support the proxy's versions of TLS",
            "the client supports no version of TLS that listen.tls.min_version permits",
        ),
        (
            connecting(authority, verify_names=False),
            listening(broker),
            "nobody.example.com",
            "the broker does not know the host name that the proxy has asked for",
            "the client asked for a host name that this listener does not have",
        ),
    ]
    for client, server, host, at_client, at_server in cases:
        async with sockets() as pair:
            reasons = await failures(pair, client, server, host)
        assert at_client in reasons[0], reasons
        assert at_server in reasons[1], reasons


def _lowest_only(context: TlsContext) -> TlsContext:
    context.current.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def test_a_session_is_resumed(authority: Authority, broker: Certificate) -> None:
    client, server = connecting(authority), listening(broker)
    kept: list[ssl.SSLSession] = []
    async with sockets() as (to_broker, to_client):
        await shake_hands((to_broker, to_client), client, server)
        to_broker.keep_session = kept.append
        await to_client.send([b"x"])
        assert await read(to_broker, 1) == b"x"  # a ticket has come before it
    assert len(kept) == 1
    async with sockets() as (to_broker, to_client):
        to_broker.start(client, server_side=False, server_hostname="localhost", session=kept[0])

        async def serve() -> None:
            await to_client.receive_hello(server.setting)
            to_client.start(server, server_side=True)
            await to_client.handshake(NoTurn)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await to_broker.handshake(NoTurn)
        assert to_client.tls is not None
        assert to_client.tls.session_reused


@pytest.mark.parametrize("lowest_only", [False, True])
async def test_a_session_of_another_listener_is_no_substitute_for_a_certificate(
    authority: Authority, broker: Certificate, *, lowest_only: bool
) -> None:
    """With the same certificate of the proxy, the same name and the same client."""
    client, open_to_all = connecting(authority), listening(broker)
    required = listening(broker, client_certificates=ClientCertificates.REQUIRED, client_ca_file=str(authority.ca_file))
    if lowest_only:
        _lowest_only(client)
    kept: list[ssl.SSLSession] = []
    async with sockets() as (to_broker, to_client):
        to_broker.keep_session = kept.append
        await shake_hands((to_broker, to_client), client, open_to_all)
        await to_client.send([b"x"])
        assert await read(to_broker, 1) == b"x"
    for server, is_served in ((open_to_all, True), (required, False)):
        async with sockets() as (to_broker, to_client):
            to_broker.start(client, server_side=False, server_hostname="localhost", session=kept[0])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_ignore_faults, to_broker)
                await to_client.receive_hello(server.setting)
                to_client.start(server, server_side=True)
                if is_served:
                    await to_client.handshake(NoTurn)
                    assert to_client.tls is not None
                    assert to_client.tls.session_reused
                else:
                    with pytest.raises(ClientFault, match="certificate"):
                        await to_client.handshake(NoTurn)
                    to_client.close()


async def _ignore_faults(sock: TlsSocket) -> None:
    with suppress(ConnectionFault):
        await sock.handshake(NoTurn)


async def test_a_changed_record_ends_the_connection(authority: Authority, broker: Certificate) -> None:
    ours, theirs = tcp_pair()
    client = connecting(authority).current
    server = listening(broker, client_certificates=ClientCertificates.NONE)
    sock = TlsSocket(theirs, ClientGone)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(incoming, outgoing, server_hostname="localhost")

    def client_side() -> None:
        ours.settimeout(DEADLINE_S)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                ours.sendall(outgoing.read())
                incoming.write(ours.recv(65536))
        tls.write(b"secret")
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        ours.sendall(record)

    with ours, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, client_side)
            await sock.receive_hello("listen.tls")
            sock.start(server, server_side=True)
            await sock.handshake(NoTurn)
            with pytest.raises(ClientFault, match="a record of the client was changed on its way"):
                await read(sock, 1)
        sock.close()


@pytest.mark.parametrize("split_at", [10, 60, 200])
async def test_the_host_name_of_a_hello_in_several_records(
    authority: Authority, broker: Certificate, monkeypatch: pytest.MonkeyPatch, split_at: int
) -> None:
    server, client = listening(broker), connecting(authority)
    send_now = PlainSocket.send_now

    def send_in_two_records(sock: PlainSocket, parts: Sequence[bytes], *, more: bool = False) -> bool:
        monkeypatch.setattr(PlainSocket, "send_now", send_now)  # for all but the ClientHello
        (hello,) = parts
        contents = hello[5 : 5 + split_at], hello[5 + split_at :]
        return send_now(sock, [b"".join(hello[:3] + len(each).to_bytes(2, "big") + each for each in contents)])

    async with sockets() as pair:
        monkeypatch.setattr(PlainSocket, "send_now", send_in_two_records)
        await shake_hands(pair, client, server)
        assert pair[1].server_name == "localhost"


@pytest.mark.parametrize("ends", ["the client", "the proxy"])
async def test_no_session_of_a_client_without_tickets_is_kept(
    authority: Authority, broker: Certificate, ends: str
) -> None:
    server, client = listening(broker), connecting(authority)
    client.current.maximum_version = ssl.TLSVersion.TLSv1_2
    client.current.options |= ssl.OP_NO_TICKET
    for _ in range(5):
        async with sockets() as pair:
            await shake_hands(pair, client, server)
            to_broker, to_client = pair
            assert server.current.session_stats()["number"] == 1, "while the connection is open"
            if ends == "the client":
                to_broker.close()
                await to_client.readable()
                assert to_client.receive_into(bytearray(10)) == 0
            to_client.close()
            to_client.tls = None
    assert server.current.session_stats()["number"] == 0
