"""Certificates and the settings of clients, without a broker; `tests.clients.tls.test_direct` connects with them."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12
from trustme import KeyType

from testbed.kafka.certificates import EXPIRED, PASSWORD, Authority, Certificate, ClientTls
from testbed.kafka.jvm import start_jvm
from testbed.kafka.properties import Listener, Node, Topology, server_properties

if TYPE_CHECKING:
    from pathlib import Path

SUBJECT = "CN=alice,OU=Clients,O=Example,L=Bern,C=CH"


def issued(certificate: Certificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """Shake hands in memory. Raises SSLError if either side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not sides


def server_context(certificate: Certificate, authority: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate_file, certificate.key_file)
    if authority is not None:
        context.load_verify_locations(authority.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize("key_type", [*KeyType], ids=lambda key_type: key_type.name)
def test_both_sides_accept_each_other(tmp_path: Path, key_type: KeyType) -> None:
    authority = Authority(tmp_path, key_type=key_type)
    server = server_context(authority.broker_certificate(), authority)
    client = ClientTls(authority=authority, certificate=authority.client_certificate(SUBJECT)).ssl_context()
    for host in ("127.0.0.1", "localhost"):
        handshake(server, client, host)


def test_a_client_refuses_what_it_should(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path, "stranger")
    trusting = ClientTls(authority=authority)
    elsewhere = authority.broker_certificate("elsewhere", hosts=["broker.elsewhere.example"])
    expired = authority.broker_certificate("expired", valid_for=EXPIRED)
    for certificate, reason in (
        (stranger.broker_certificate(), "unable to get local issuer certificate"),
        (elsewhere, "IP address mismatch"),
        (expired, "certificate has expired"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            handshake(server_context(certificate), trusting.ssl_context(), "127.0.0.1")
    handshake(server_context(elsewhere), trusting.ssl_context(), "broker.elsewhere.example")
    careless = ClientTls(authority=authority, verify_names=False)
    handshake(server_context(elsewhere), careless.ssl_context(), "127.0.0.1")


def test_a_client_certificate_has_the_subject_asked_for(tmp_path: Path) -> None:
    certificate = Authority(tmp_path).client_certificate(SUBJECT)
    assert certificate.subject == SUBJECT
    assert issued(certificate).subject.rfc4514_string() == SUBJECT
    stream = start_jvm().java.io.FileInputStream(str(certificate.certificate_file))
    try:
        read = start_jvm().java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(stream)
        assert read.getSubjectX500Principal().getName() == SUBJECT  # as Kafka's DefaultKafkaPrincipalBuilder has it
    finally:
        stream.close()


def test_the_time_for_which_a_certificate_is_valid(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    now = dt.datetime.now(dt.UTC)
    soon = issued(authority.broker_certificate(valid_for=dt.timedelta(hours=1)))
    assert soon.not_valid_before_utc < now < soon.not_valid_after_utc < now + dt.timedelta(hours=2)
    for expired in (
        authority.broker_certificate(valid_for=EXPIRED),
        authority.client_certificate(SUBJECT, valid_for=EXPIRED),
    ):
        assert issued(expired).not_valid_before_utc < issued(expired).not_valid_after_utc < now


def test_all_files_have_the_same_key_and_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for certificate in (authority.broker_certificate(), authority.client_certificate(SUBJECT)):
        key = load_pem_private_key(certificate.key_file.read_bytes(), None)
        packed = pkcs12.load_pkcs12(certificate.pkcs12_file.read_bytes(), PASSWORD.encode())
        assert packed.cert is not None
        assert packed.cert.certificate == issued(certificate)
        encrypted = load_pem_private_key(certificate.encrypted_key_file.read_bytes(), PASSWORD.encode())
        assert encrypted.public_key() == key.public_key() == issued(certificate).public_key()
        both = certificate.key_file.read_text() + certificate.certificate_file.read_text()
        assert certificate.keystore_file.read_text() == both
        assert both.startswith("-----BEGIN PRIVATE KEY-----")  # PKCS#8, all that Kafka reads
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_a_renewed_certificate_replaces_the_one_before(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.broker_certificate()
    before, files = issued(first), sorted(tmp_path.iterdir())
    assert authority.broker_certificate() == first
    assert issued(first) != before
    assert sorted(tmp_path.iterdir()) == files


def test_java_reads_the_truststore(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    java = start_jvm().java
    store = java.security.KeyStore.getInstance(java.io.File(str(authority.truststore_file)), list(PASSWORD))
    assert [store.isCertificateEntry(alias) for alias in store.aliases()] == [True]


def test_settings_have_a_certificate_only_if_the_client_has(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    without = ClientTls(authority=authority)
    assert not [name for name in without.java_properties() if "keystore" in name]
    assert not [name for name in without.java_properties(pkcs12=True) if "keystore" in name]
    assert set(without.librdkafka_settings()) == {"ssl.ca.location", "ssl.endpoint.identification.algorithm"}
    careless = ClientTls(authority=authority, verify_names=False)
    assert careless.java_properties()["ssl.endpoint.identification.algorithm"] == ""
    assert careless.librdkafka_settings()["ssl.endpoint.identification.algorithm"] == "none"


def test_a_listener_names_its_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.broker_certificate()
    secure = Listener(
        name="SECURE",
        protocol="SSL",
        certificate=certificate,
        client_certificates="required",
        client_authority=authority,
        properties={"ssl.keystore.type": "JKS"},
    )
    topology = Topology(version="4.3.1", brokers=1, voters={0: 3}, listeners=(secure,))
    node = Node(node_id=0, roles=("broker",), ports={"PLAINTEXT": 1, "SECURE": 2})
    settings = server_properties(topology, node, tmp_path)
    prefix = "listener.name.secure.ssl."
    assert {name: value for name, value in settings.items() if name.startswith(prefix)} == {
        f"{prefix}keystore.type": "JKS",  # the listener's own properties win
        f"{prefix}keystore.location": str(certificate.keystore_file),
        f"{prefix}client.auth": "required",
        f"{prefix}truststore.type": "PEM",
        f"{prefix}truststore.location": str(authority.ca_file),
    }
