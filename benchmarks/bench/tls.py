"""TLS in the benchmark: the sides on which a proxy uses it, the certificates, and the settings of all programs.

Clients and brokers accept one version and one cipher only, so that all proxies use the same.
"""

from __future__ import annotations

import enum
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trustme import KeyType

from testbed.kafka.certificates import Authority, Certificate, ClientTls
from testbed.kafka.properties import Listener

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CIPHER: Final = "TLS_AES_128_GCM_SHA256"
VERSION: Final = "TLSv1.3"
ONE_CIPHER: Final = {"ssl.enabled.protocols": VERSION, "ssl.cipher.suites": CIPHER}
"""Settings of Java's clients and of brokers."""


class TlsSides(enum.Flag):
    """The sides on which a proxy uses TLS."""

    NONE = 0
    CLIENTS = enum.auto()
    BROKERS = enum.auto()
    BOTH = CLIENTS | BROKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files of a run: one authority, and one certificate for the broker and all proxies, with RSA keys."""

    authority: Authority
    certificate: Certificate

    @property
    def client(self) -> ClientTls:
        """What a client of a broker or a proxy needs."""
        return ClientTls(authority=self.authority)

    def listener(self, name: str) -> Listener:
        """Return a listener of the broker with TLS."""
        return Listener(name=name, protocol="SSL", certificate=self.certificate, properties=ONE_CIPHER)

    def headrace_config(self, sides: TlsSides) -> str:
        """Return the tables of Headrace's configuration."""
        text = ""
        if TlsSides.CLIENTS in sides:
            files = (self.certificate.certificate_file, self.certificate.key_file)
            text += '[listen.tls]\ncertificate_file = "{}"\nkey_file = "{}"\n'.format(*files)
        if TlsSides.BROKERS in sides:
            text += f'[upstream.tls]\nenabled = true\nca_file = "{self.authority.ca_file}"\n'
        return text


def tls_files(folder: Path) -> TlsFiles:
    """Create the certificates of a run in `folder`."""
    authority = Authority(folder, key_type=KeyType.RSA)
    return TlsFiles(authority=authority, certificate=authority.broker_certificate())


def java_properties(tls: ClientTls | None) -> Mapping[str, str]:
    """Return the properties of Kafka's tools; none without TLS."""
    return {"security.protocol": "SSL", **ONE_CIPHER, **tls.java_properties()} if tls is not None else {}


def client_context(tls: ClientTls) -> ssl.SSLContext:
    """Return the context of a client in Python, for TLS 1.3 alone."""
    context = tls.ssl_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
