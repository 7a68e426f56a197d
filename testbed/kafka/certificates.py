"""Certificates for brokers, proxies and clients of tests, and the settings with which each Kafka client uses them.

Called by tests and benchmarks. An `Authority` writes its own certificate, and the certificates that it issues, into a
folder of the caller, each in the formats that Java, OpenSSL and Python read. Nothing else trusts these authorities, and
the password of all encrypted files is the constant `PASSWORD`.
"""

from __future__ import annotations

import datetime as dt
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID
from trustme import KeyType

from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

PASSWORD: Final = "correct-horse-tls"  # noqa: S105 - of test certificates
"""The password of the PKCS#12 files and of `Certificate.encrypted_key_file`."""
LOCAL_HOSTS: Final = (HOST, "localhost")
"""The hosts of a broker's certificate unless a test asks for others."""
THREE_MONTHS: Final = dt.timedelta(days=90)
EXPIRED: Final = dt.timedelta(days=-1)
"""The `valid_for` of a certificate that expired yesterday."""
# Certificates became valid two days ago, so that they are also valid on a machine whose clock is behind.
_VALID_SINCE: Final = dt.timedelta(days=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate and its key, which is not encrypted unless the name of the file says so.

    No file has the authority's own certificate.
    """

    subject: str
    """The subject as in RFC 2253, from which Kafka derives the principal: "CN=alice,OU=Clients,O=Example"."""
    certificate_file: Path
    """The certificate, as PEM."""
    key_file: Path
    """The key, as PEM in the format PKCS#8."""
    encrypted_key_file: Path
    """The private key, encrypted with `PASSWORD`."""
    keystore_file: Path
    """Key and certificate in one PEM file, as Kafka reads it with ``ssl.keystore.type=PEM``."""
    pkcs12_file: Path
    """Key and certificate as PKCS#12, encrypted with `PASSWORD`."""


class Authority:
    """A certificate authority that writes its certificates to `folder`; several authorities can share a folder.

    `name` begins the names of its files and is part of its subject. `key_type` is that of its key and of all keys that
    it creates: keys on elliptic curves are created in a millisecond, RSA keys of 2,048 bits in a tenth of a second.
    """

    def __init__(self, folder: Path, name: str = "authority", *, key_type: KeyType = KeyType.ECDSA) -> None:
        self._folder = folder
        self._name = name
        self._key_type = key_type
        self._ca = trustme.CA(organization_name="Testbed", organization_unit_name=name, key_type=key_type)
        self._certificate = x509.load_pem_x509_certificate(self._ca.cert_pem.bytes())
        self._key = _private_key(self._ca.private_key_pem.bytes())
        self.ca_file = folder / f"{name}.pem"
        """The authority's certificate, as PEM."""
        self.truststore_file = folder / f"{name}.p12"
        """The authority's certificate as a truststore for Java: PKCS#12, encrypted with `PASSWORD`."""
        folder.mkdir(parents=True, exist_ok=True)
        _write(self.ca_file, self._ca.cert_pem.bytes())
        trusted = pkcs12.PKCS12Certificate(self._certificate, name.encode())
        _write(self.truststore_file, pkcs12.serialize_java_truststore([trusted], _encryption()))

    def broker_certificate(
        self,
        name: str = "broker",
        *,
        hosts: Sequence[str] = LOCAL_HOSTS,
        valid_for: dt.timedelta = THREE_MONTHS,
    ) -> Certificate:
        """Issue a certificate for these host names and IP addresses; `name` names its files, and is its CN.

        A certificate of the same name is replaced, as when it is renewed.
        """
        now = dt.datetime.now(dt.UTC)
        issued = self._ca.issue_cert(
            *hosts,
            common_name=name,
            organization_name="Testbed",
            organization_unit_name="Brokers",
            not_before=min(now, now + valid_for) - _VALID_SINCE,
            not_after=now + valid_for,
            key_type=self._key_type,
        )
        return self._written(
            name,
            x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()),
            _private_key(issued.private_key_pem.bytes()),
        )

    def client_certificate(
        self, subject: str, *, name: str = "client", valid_for: dt.timedelta = THREE_MONTHS
    ) -> Certificate:
        """Issue a certificate for a client with this subject, written as in RFC 4514: "CN=alice,OU=Clients,O=Example".

        `name` names its files; a certificate of the same name is replaced. This method builds the certificate itself,
        since trustme supports no attributes of a subject but CN, OU and O.
        """
        now = dt.datetime.now(dt.UTC)
        key = _new_key(self._key_type)
        issued = (
            x509.CertificateBuilder()
            .subject_name(x509.Name.from_rfc4514_string(subject))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + valid_for) - _VALID_SINCE)
            .not_valid_after(now + valid_for)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return self._written(name, issued, key)

    def _written(self, name: str, certificate: x509.Certificate, key: PrivateKey) -> Certificate:
        prefix = f"{self._name}-{name}"
        written = Certificate(
            subject=certificate.subject.rfc4514_string(),
            certificate_file=self._folder / f"{prefix}.pem",
            key_file=self._folder / f"{prefix}.key",
            encrypted_key_file=self._folder / f"{prefix}-encrypted.key",
            keystore_file=self._folder / f"{prefix}-keystore.pem",
            pkcs12_file=self._folder / f"{prefix}.p12",
        )
        as_pem = certificate.public_bytes(Encoding.PEM)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _write(written.certificate_file, as_pem)
        _write(written.key_file, key_pem)
        _write(written.encrypted_key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption()))
        _write(written.keystore_file, key_pem + as_pem)
        packed = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, _encryption())
        _write(written.pkcs12_file, packed)
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The trusted authority and the own certificate of a client of a TLS listener, as settings of each Kafka client.

    The settings are complete except for the protocol (``security.protocol``, SSL or SASL_SSL) and what SASL needs.
    """

    authority: Authority
    """The authority that the client trusts, and no other."""
    certificate: Certificate | None = None
    """The client's own certificate."""
    verify_names: bool = True
    """Whether the broker's certificate must be for the host that the client connects to."""

    def java_properties(self, *, pkcs12: bool = False) -> dict[str, str]:
        """Return the properties of a Java client, with files in the format PEM or PKCS#12."""
        trusted = self.authority.truststore_file if pkcs12 else self.authority.ca_file
        store_type = "PKCS12" if pkcs12 else "PEM"
        settings = {
            "ssl.truststore.type": store_type,
            "ssl.truststore.location": str(trusted),
            "ssl.endpoint.identification.algorithm": "https" if self.verify_names else "",
        }
        if self.certificate is not None:
            own = self.certificate.pkcs12_file if pkcs12 else self.certificate.keystore_file
            settings |= {"ssl.keystore.type": store_type, "ssl.keystore.location": str(own)}
        if pkcs12:
            settings["ssl.truststore.password"] = PASSWORD
        if pkcs12 and self.certificate is not None:
            settings |= {"ssl.keystore.password": PASSWORD, "ssl.key.password": PASSWORD}
        return settings

    def librdkafka_settings(self) -> dict[str, str]:
        """Return the settings of a client that uses librdkafka."""
        settings = {
            "ssl.ca.location": str(self.authority.ca_file),
            "ssl.endpoint.identification.algorithm": "https" if self.verify_names else "none",
        }
        if self.certificate is not None:
            settings |= {
                "ssl.certificate.location": str(self.certificate.certificate_file),
                "ssl.key.location": str(self.certificate.key_file),
            }
        return settings

    def kafka_python_settings(self) -> dict[str, ssl.SSLContext]:
        """Return the arguments of a client of kafka-python."""
        return {"ssl_context": self.ssl_context()}

    def aiokafka_settings(self) -> dict[str, ssl.SSLContext]:
        """Return the arguments of a client of aiokafka."""
        return {"ssl_context": self.ssl_context()}

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context for a client's sockets in Python."""
        context = ssl.create_default_context(cafile=self.authority.ca_file)
        context.check_hostname = self.verify_names
        if self.certificate is not None:
            context.load_cert_chain(self.certificate.certificate_file, self.certificate.key_file)
        return context


def _new_key(key_type: KeyType) -> PrivateKey:
    if key_type is KeyType.RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def _private_key(pem: bytes) -> PrivateKey:
    key = load_pem_private_key(pem, None)
    if not isinstance(key, (ec.EllipticCurvePrivateKey, rsa.RSAPrivateKey)):
        raise TypeError(f"a key of trustme is neither on an elliptic curve nor RSA: {key!r}")
    return key


def _encryption() -> BestAvailableEncryption:
    return BestAvailableEncryption(PASSWORD.encode())


def _write(file: Path, data: bytes) -> None:
    """Replace a file in one step, readable by its owner alone: programs under test read it again when it changes."""
    draft = file.with_name(f"{file.name}.draft")
    draft.touch(mode=0o600)
    draft.write_bytes(data)
    draft.replace(file)
