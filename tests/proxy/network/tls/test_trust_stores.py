"""Which certificates a trust store accepts: by OpenSSL and by rustls the same ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace.proxy.errors import ConnectionFault
from headrace.proxy.network.tls.tls_socket import NoTurn
from tests.proxy.network.tls.pairs import connecting, listening, read, sockets

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Authority, Certificate

pytestmark = pytest.mark.usefixtures("libraries")

CLIENTS, SERVERS = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
NOW: Final = datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate, its key, and what has issued it."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    issuer: Issued | None

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def identity(self) -> bytes:
        """The key and the chain, without its self-signed end."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain, each = b"", self
        while each.issuer is not None:
            chain, each = chain + each.pem, each.issuer
        return key + (chain or self.pem)


def issue(
    name: str,
    issuer: Issued | None = None,
    *,
    ca: bool | None = None,
    path_length: int | None = None,
    signs: bool | None = None,
    usage: x509.ObjectIdentifier | None = None,
) -> Issued:
    """Return a certificate for "localhost", by itself without ``issuer``. ``None`` leaves an extension out."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    by = subject if issuer is None else issuer.certificate.subject
    builder = x509.CertificateBuilder(by, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(NOW - timedelta(days=1)).not_valid_after(NOW + timedelta(days=9))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    signing = key if issuer is None else issuer.key
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = builder.add_extension(identifier, critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=path_length), critical=True)
    if signs is not None:
        bits = dict.fromkeys(
            (
                *("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"),
                *("encipher_only", "decipher_only"),
            ),
            False,
        )
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=signs, **bits), critical=True
        )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return Issued(builder.sign(signing, SHA256()), key, issuer)


ROOT: Final = issue("root", ca=True, signs=True)
SHALLOW: Final = issue("shallow", ca=True, path_length=0, signs=True)
PINNED: Final = issue("pinned", ca=False)
BARE: Final = issue("bare")
NO_SIGNER: Final = issue("no signer", ca=True, signs=False)
FOR_CLIENTS, FOR_SERVERS = issue("clients", ca=False, usage=CLIENTS), issue("servers", ca=False, usage=SERVERS)
SERVERS_ROOT: Final = issue("servers root", ca=True, signs=True, usage=SERVERS)
BELOW_ROOT: Final = issue("below", ROOT, ca=True, signs=True)
BELOW_SHALLOW: Final = issue("below", SHALLOW, ca=True, signs=True)

CASES: Final = {
    "of an authority": (ROOT, issue("peer", ROOT), True, True),
    "of an authority below": (ROOT, issue("peer", BELOW_ROOT), True, True),
    "an authority below is trusted by itself": (BELOW_ROOT, issue("peer", BELOW_ROOT), True, True),
    "pinned": (PINNED, PINNED, True, True),
    "issued by one that is pinned": (PINNED, issue("admin", PINNED), False, False),
    "issued by one without extensions": (BARE, issue("admin", BARE), False, False),
    "issued by one that may not sign": (NO_SIGNER, issue("admin", NO_SIGNER), False, False),
    "of an authority with a limit": (SHALLOW, issue("peer", SHALLOW), True, True),
    "below an authority that permits none below": (SHALLOW, issue("peer", BELOW_SHALLOW), False, False),
    "pinned for clients": (FOR_CLIENTS, FOR_CLIENTS, True, False),
    "pinned for servers": (FOR_SERVERS, FOR_SERVERS, False, True),
    "of an authority for clients": (ROOT, issue("peer", ROOT, usage=CLIENTS), True, False),
    "of an authority for servers only": (SERVERS_ROOT, issue("peer", SERVERS_ROOT), False, True),
}
"""A trusted certificate, the peer's, and whether it is accepted of a client, and of a server."""


async def is_accepted(client: TlsContext, server: TlsContext) -> bool:
    accepted = True
    async with sockets() as (to_broker, to_client):

        async def serve() -> None:
            nonlocal accepted
            try:
                await to_client.receive_hello(server.setting)
                to_client.start(server, server_side=True)
                await to_client.handshake(NoTurn)
                await to_client.send([b"x"])
            except ConnectionFault:
                accepted = False
                to_client.close()

        to_broker.start(client, server_side=False, server_hostname="localhost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            try:
                await to_broker.handshake(NoTurn)
                await read(to_broker, 1)
            except (ConnectionFault, AssertionError):
                accepted = False
                with suppress(ConnectionFault):
                    to_broker.close()
    return accepted


@pytest.mark.parametrize("case", CASES)
async def test_certificates_of_clients(case: str, authority: Authority, broker: Certificate, tmp_path: Path) -> None:
    trusted, peer, is_for_clients, _ = CASES[case]
    (tmp_path / "trusted.pem").write_bytes(trusted.pem)
    (tmp_path / "peer.pem").write_bytes(peer.identity)
    server = listening(broker, client_ca_file=str(tmp_path / "trusted.pem"), client_certificates="required")
    client = connecting(authority, certificate_file=str(tmp_path / "peer.pem"))
    assert await is_accepted(client, server) is is_for_clients


@pytest.mark.parametrize("case", CASES)
async def test_certificates_of_servers(case: str, authority: Authority, tmp_path: Path) -> None:
    trusted, peer, _, is_for_servers = CASES[case]
    (tmp_path / "trusted.pem").write_bytes(trusted.pem)
    (tmp_path / "peer.pem").write_bytes(peer.identity)
    client = connecting(authority, ca_file=str(tmp_path / "trusted.pem"))
    assert await is_accepted(client, listening(tmp_path / "peer.pem")) is is_for_servers
