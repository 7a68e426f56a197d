"""TLS on real sockets: every byte arrives in order however it is cut, and each failure says what to change."""

from __future__ import annotations

import random
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.config.tables.tls import ClientCertificates
from headrace.proxy.errors import ClientFault, ClientGone, UpstreamFault
from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.sockets import PlainSocket
from headrace.proxy.network.tls.hello_socket import MAX_RECORD_BYTES
from headrace.proxy.network.tls.records import HEADER_BYTES
from headrace.proxy.network.tls.tls_socket import NoTurn, TlsSocket
from testbed.kafka.certificates import EXPIRED, Authority
from tests.proxy.network.tls.pairs import (
    DEADLINE_S,
    connecting,
    kind,
    listening,
    read,
    shake_hands,
    sockets,
    tcp_pair,
    without_tls_1_3,
)
from tests.security.tls.handshakes import client_hello

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Certificate
    from tests.proxy.network.tls.pairs import EitherSocket

pytestmark = pytest.mark.usefixtures("libraries")


@pytest.mark.parametrize("attached", [True, False], ids=["poller", "trio"])
@pytest.mark.parametrize("most", [1000, 16384, 65536])
async def test_bytes_arrive_in_order(authority: Authority, broker: Certificate, most: int, *, attached: bool) -> None:
    """More than the buffers of the sockets hold, in parts of all sizes, in both directions at the same time."""
    choose = random.Random(most)  # noqa: S311
    data = choose.randbytes(3_000_000)

    async def write(sock: EitherSocket) -> None:
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

        async def read_all(name: str, sock: EitherSocket) -> None:
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
        (b"\x16\3\1\0\3\1\1\xff", "the first record has 3 bytes; at least 4 are required"),
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
    pair: tuple[EitherSocket, EitherSocket], client: TlsContext, server: TlsContext, host: str = "localhost"
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
            without_tls_1_3(listening(broker)),
            "localhost",
            "the broker does not support the proxy's versions of TLS",
            "the client supports no version of TLS that listen.tls.min_version permits",
        ),
        (
            connecting(authority, verify_names=False),
            listening(broker),
            "unknown.example.com",
            "the broker does not know the host name that the proxy has asked for",
            "the client asked for a host name that this listener does not have",
        ),
    ]
    for client, server, host, at_client, at_server in cases:
        async with sockets() as pair:
            reasons = await failures(pair, client, server, host)
        assert at_client in reasons[0], reasons
        assert at_server in reasons[1], reasons


async def test_the_certificate_of_a_client(authority: Authority, broker: Certificate) -> None:
    own = authority.client_certificate("CN=alice").keystore_file
    server = listening(broker, client_ca_file=str(authority.ca_file), client_certificates="required")
    async with sockets() as pair:
        await shake_hands(pair, connecting(authority, certificate_file=str(own)), server)
        pem = own.read_text()
        begin = pem.index("-----BEGIN CERTIFICATE")
        end = pem.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
        assert pair[1].peer_certificate == ssl.PEM_cert_to_DER_cert(pem[begin:end])


async def test_a_changed_record_ends_the_connection(authority: Authority, broker: Certificate) -> None:
    ours, theirs = tcp_pair()
    client = connecting(authority).current
    server = listening(broker, client_certificates=ClientCertificates.NONE)
    sock = kind("server")(theirs, ClientGone)
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
