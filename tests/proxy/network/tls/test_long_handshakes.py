"""Handshakes that are long for good reasons, as with a broker that trusts many authorities, and too long ones."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.errors import ConnectionFault, UpstreamFault
from headrace.proxy.network.tls.tls_socket import NoTurn
from testbed.kafka.certificates import Authority
from tests.proxy.network.tls.pairs import (
    DEADLINE_S,
    connecting,
    kind,
    listening,
    read,
    shake_hands,
    sockets,
    without_tls_1_3,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from testbed.kafka.certificates import Certificate
    from tests.proxy.network.tls.pairs import EitherSocket

AUTHORITIES = 500
"""Their names take 44 KiB. A broker with Java names all that it trusts."""
FITTING, BEYOND_RUSTLS, BEYOND_BOTH = 48 * 1024, 72 * 1024, 108 * 1024
"""Sizes of chains of certificates."""

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
as_client = pytest.mark.parametrize("libraries", ["", "client"], ids=["openssl", "rustls"], indirect=True)


def with_long_chain(authority: Authority, size: int) -> Path:
    """A certificate and its key, and others, which are not needed, of at least ``size`` bytes in all."""
    own = authority.broker_certificate("with-a-chain").keystore_file
    other = authority.broker_certificate("other", hosts=[f"{n}.brokers.example.com" for n in range(20)])
    pem = other.certificate_file.read_bytes()
    count = -(-size // len(ssl.PEM_cert_to_DER_cert(pem.decode())))
    file = own.with_name(f"chain-{size}.pem")
    file.write_bytes(own.read_bytes() + count * pem)
    return file


@pytest.fixture(scope="module")
def truststore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the certificates of many authorities."""
    folder = tmp_path_factory.mktemp("authorities")
    name = "Testbed of many authorities, each of which has a long name, as public ones"
    file = folder / "all.pem"
    file.write_text("".join(Authority(folder, f"{name} {n}").ca_file.read_text() for n in range(AUTHORITIES)))
    return file


@contextmanager
def openssl_server(certificate_file: Path, truststore: Path, version: str) -> Iterator[tuple[str, int]]:
    """A server that asks for a certificate of one of the authorities, as Java does, and sends all their names."""
    command = ["openssl", "s_server", "-accept", "127.0.0.1:0", version]
    command += ["-cert", str(certificate_file), "-cert_chain", str(certificate_file)]
    command += ["-verify", "1", "-CAfile", str(truststore), "-rev"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if line.startswith(b"ACCEPT 127"))
            host, port = line.split()[1].decode().split(":")
            yield host, int(port)
        finally:
            server.kill()


async def shake_hands_with(address: tuple[str, int], authority: Authority) -> EitherSocket:
    with ExitStack() as if_it_fails:
        sock = kind("client")(socket.create_connection(address), UpstreamFault)
        if_it_fails.callback(sock.close)
        sock.start(connecting(authority), server_side=False, server_hostname="localhost")
        await sock.handshake(NoTurn)
        if_it_fails.pop_all()
    return sock


@needs_openssl
@as_client
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_a_broker_that_trusts_many_authorities(
    authority: Authority, broker: Certificate, truststore: Path, version: str
) -> None:
    with openssl_server(broker.keystore_file, truststore, version) as address, trio.fail_after(DEADLINE_S):
        sock = await shake_hands_with(address, authority)
        assert sock.bytes_received > 35_000
        await sock.send([b"desrever\n"])
        assert await read(sock, 9) == b"reversed\n"
        sock.close()


@needs_openssl
@pytest.mark.parametrize("libraries", ["client"], ids=["rustls"], indirect=True)
@pytest.mark.usefixtures("libraries")
async def test_a_handshake_of_long_messages(authority: Authority, truststore: Path) -> None:
    """None of its messages is too long, but all of them are together. OpenSSL has no such limit."""
    file = with_long_chain(authority, 59 * 1024)
    with (
        openssl_server(file, truststore, "-tls1_3") as address,
        trio.fail_after(DEADLINE_S),
        pytest.raises(UpstreamFault, match="TLS: the broker's handshake has more than 100 KiB"),
    ):
        await shake_hands_with(address, authority)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("version", ["1.2", "1.3"])
async def test_long_chains_of_both_sides(authority: Authority, version: str) -> None:
    file = with_long_chain(authority, FITTING)
    client = connecting(authority, certificate_file=str(file))
    server = listening(file, client_ca_file=str(authority.ca_file), client_certificates="required")
    if version == "1.2":
        without_tls_1_3(client if client.rustls is None else server)
    async with sockets() as pair:
        to_broker, to_client = pair
        await shake_hands(pair, client, server)
        assert min(to_broker.bytes_received, to_client.bytes_received) > FITTING
        assert to_client.peer_certificate == to_broker.peer_certificate
        await to_broker.send([b"data"])
        assert await read(to_client, 4) == b"data"


@pytest.mark.parametrize("side", ["broker", "client"])
async def test_too_long_a_chain(authority: Authority, libraries: set[str], side: str) -> None:
    finds = {"broker": "client", "client": "server"}[side]
    file = with_long_chain(authority, BEYOND_RUSTLS if finds in libraries else BEYOND_BOTH)
    own = {"certificate_file": str(file)} if side == "client" else {}
    client = connecting(authority, **own)
    server = listening(
        file if side == "broker" else authority.broker_certificate().keystore_file,
        client_ca_file=str(authority.ca_file),
        client_certificates="required" if side == "client" else "none",
    )
    faults: list[str] = []
    async with sockets() as (to_broker, to_client):

        async def shake(sock: EitherSocket) -> None:
            try:
                await sock.handshake(NoTurn)
            except ConnectionFault as fault:
                faults.append(str(fault))
            sock.close()

        to_broker.start(client, server_side=False, server_hostname="localhost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake, to_broker)
            await to_client.receive_hello(server.setting)
            to_client.start(server, server_side=True)
            nursery.start_soon(shake, to_client)
    assert any(f"a message in the {side}'s handshake is too long" in each for each in faults), faults
