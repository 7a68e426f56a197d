"""The tables ``[listen.tls]``, ``[admin.tls]`` and ``[upstream.tls]``: certificates, and requirements for the peer's.

Names of files are checked here; their content is read when TLS is set up (`headrace.proxy.network.tls.contexts`).
"""
# pydantic reads annotations at run time, so they are not postponed here.

from enum import StrEnum
from typing import Annotated

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.options import TRUE_OR_FALSE, choice, text
from headrace.quota_callbacks.secret_sources import SecretSource, secret_source

_FILE = text("the path of a file")
_CIPHERS = text('cipher suites in OpenSSL\'s notation, such as "ECDHE+AESGCM"', r"[A-Za-z0-9_:+!@=,.\- ]+")


class TlsVersion(StrEnum):
    """The lowest version of TLS that is accepted."""

    TLS_1_2 = "1.2"
    TLS_1_3 = "1.3"


class ClientCertificates(StrEnum):
    """Whether clients must prove who they are by a certificate (Kafka: ``ssl.client.auth``)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class _Tls(Section):
    """The keys that all tables for TLS have."""

    key_file: Annotated[
        str | None,
        _FILE,
        Key("The private key as PEM, if it is not in certificate_file.", restart=True),
    ] = None
    key_password: Annotated[
        SecretSource | None,
        secret_source(),
        Key("The password of the private key or of the PKCS#12 file.", restart=True),
    ] = None
    min_version: Annotated[
        TlsVersion, choice(TlsVersion), Key("The lowest version of TLS that the other side may use.", restart=True)
    ] = TlsVersion.TLS_1_2
    ciphers: Annotated[
        str | None,
        _CIPHERS,
        Key(
            "Cipher suites for TLS 1.2, in OpenSSL's notation. Those of TLS 1.3 are OpenSSL's. The default is ECDHE "
            "with AES-GCM or ChaCha20.",
            restart=True,
        ),
    ] = None


class ServerTls(_Tls):
    """TLS of a server, with its clients: used if ``certificate_file`` is set."""

    certificate_file: Annotated[
        str | None,
        _FILE,
        Key(
            "The proxy's certificate and the chain up to its authority, as PEM, which may contain the key; or a "
            "PKCS#12 file (.p12, .pfx) with both. With it, clients must use TLS. It is read again when it changes.",
            restart=True,
        ),
    ] = None
    client_certificates: Annotated[
        ClientCertificates,
        choice(ClientCertificates),
        Key("Whether clients show a certificate: none, requested or required.", restart=True),
    ] = ClientCertificates.NONE
    client_ca_file: Annotated[
        str | None,
        _FILE,
        Key(
            "The authorities whose client certificates are accepted, as PEM or PKCS#12. Required if clients show "
            "certificates.",
            restart=True,
        ),
    ] = None
    client_ca_password: Annotated[
        SecretSource | None, secret_source(), Key("The password of client_ca_file, if it is PKCS#12.", restart=True)
    ] = None


class ListenTls(ServerTls):
    """TLS with Kafka's clients."""

    client_certificates: Annotated[
        ClientCertificates,
        choice(ClientCertificates),
        Key(
            "Whether clients show a certificate: none, requested or required (Kafka: ssl.client.auth). The user of a "
            "client with one is its subject, unless the client also authenticates by SASL.",
            restart=True,
        ),
    ] = ClientCertificates.NONE
    principal_mapping_rules: Annotated[
        str,
        text('rules as in Kafka\'s ssl.principal.mapping.rules, such as "RULE:^CN=(.*?),.*$/$1/L,DEFAULT"'),
        Key(
            "How the subject of a client's certificate becomes a user: Kafka's ssl.principal.mapping.rules.",
            restart=True,
        ),
    ] = "DEFAULT"


class AdminTls(ServerTls):
    """TLS with the clients of the admin server: probes, Prometheus, and operators."""

    client_certificates: Annotated[
        ClientCertificates,
        choice(ClientCertificates),
        Key(
            "Whether clients of the admin server show a certificate: none, requested (probes may come without one) or "
            "required (also for probes).",
            restart=True,
        ),
    ] = ClientCertificates.NONE
    certificate_authorizes: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key(
            "Whether a client certificate that was verified permits what a token of admin.token_file permits. "
            "Otherwise requests need a token as well.",
            restart=True,
        ),
    ] = True

    @property
    def authorizes(self) -> bool:
        """Whether clients can prove by a certificate, instead of a token, what they may request."""
        return self.client_certificates is not ClientCertificates.NONE and self.certificate_authorizes


class UpstreamTls(_Tls):
    """TLS with brokers."""

    enabled: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key("Whether the brokers' listener uses TLS (SSL or SASL_SSL).", restart=True),
    ] = False
    ca_file: Annotated[
        str | None,
        _FILE,
        Key(
            "The authorities whose broker certificates are accepted, as PEM or PKCS#12. The default is the system's.",
            restart=True,
        ),
    ] = None
    ca_password: Annotated[
        SecretSource | None, secret_source(), Key("The password of ca_file, if it is PKCS#12.", restart=True)
    ] = None
    verify_names: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key(
            "Whether a broker's certificate must be for the host that the proxy connects to (Kafka: "
            "ssl.endpoint.identification.algorithm).",
            restart=True,
        ),
    ] = True
    certificate_file: Annotated[
        str | None,
        _FILE,
        Key(
            "The proxy's own certificate for brokers that require one, with its chain, as PEM or PKCS#12. The file is "
            "read again when it changes.",
            restart=True,
        ),
    ] = None
    kernel: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key(
            'Whether the kernel encrypts and decrypts (Linux, kTLS), if it and OpenSSL can. The line "headrace ready" '
            "and the log state whether they do.",
            restart=True,
        ),
    ] = False
