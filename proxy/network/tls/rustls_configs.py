"""The TLS configurations of listeners and upstreams for rustls, made of the same files as those for OpenSSL.

Used by `headrace.proxy.network.tls.contexts`, which has read and checked them, where the native data plane is in use.
"""

from __future__ import annotations

import os
import ssl
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace.config.tables.tls import ClientCertificates, TlsVersion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace._engine import TlsConfig
    from headrace.config.tables.tls import ServerTls, UpstreamTls
    from headrace.proxy.network.tls.files import Identity

_EXTENSION: Final = "headrace._engine"

ExtensionT = TypeVar("ExtensionT", bound=x509.ExtensionType)

_SUITES: Final = {
    "ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_AES_256_GCM_SHA384": "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256": "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256": "TLS_CHACHA20_POLY1305_SHA256",
}
"""The suites of rustls, by OpenSSL's names."""


_HASHED: Final = 8 * "[0-9a-f]" + ".[0-9]*"
"""The files of a folder in which OpenSSL looks for authorities: the hash of a subject, and a number."""


class NotExpressible(Exception):  # noqa: N818 -- it is not an error: OpenSSL is used
    """The settings cannot be expressed for rustls. ``str()`` is the reason."""


def rustls_server(
    tls: ServerTls,
    suites: Iterable[str],
    identity: Identity,
    authorities: Sequence[x509.Certificate],
    accepts_name: Callable[[str], bool],
) -> TlsConfig:
    """Return the configuration of a listener. ``suites`` have OpenSSL's names. Raises `NotExpressible`."""
    requests = tls.client_certificates is not ClientCertificates.NONE
    config: type[TlsConfig] = import_module(_EXTENSION).TlsConfig
    try:
        return config.server(
            _identity(identity),
            suites=_suites(suites),
            tls12=tls.min_version is TlsVersion.TLS_1_2,
            authorities=[_row(each) for each in authorities] if requests else None,
            is_required=tls.client_certificates is ClientCertificates.REQUIRED,
            accepts_name=accepts_name,
        )
    except ValueError as error:
        raise NotExpressible(str(error)) from None


def rustls_client(
    tls: UpstreamTls,
    suites: Iterable[str],
    identity: Identity | None,
    authorities: Sequence[x509.Certificate] | None,
) -> TlsConfig:
    """Return the configuration of connections to brokers; the system's authorities count if ``authorities`` is
    ``None``. Raises `NotExpressible`."""
    trusted = list(_system_authorities()) if authorities is None else authorities
    if not trusted:
        raise NotExpressible("the system's authorities are not in files that can be read")
    config: type[TlsConfig] = import_module(_EXTENSION).TlsConfig
    try:
        return config.client(
            None if identity is None else _identity(identity),
            suites=_suites(suites),
            tls12=tls.min_version is TlsVersion.TLS_1_2,
            authorities=[_row(each) for each in trusted],
            verify_names=tls.verify_names,
        )
    except ValueError as error:
        raise NotExpressible(str(error)) from None


def _suites(names: Iterable[str]) -> list[str]:
    unknown = [name for name in names if name not in _SUITES]
    if unknown:
        raise NotExpressible(f"rustls does not have the cipher suite {unknown[0]}")
    return [_SUITES[name] for name in names]


def _identity(identity: Identity) -> tuple[list[bytes], bytes]:
    chain = [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(identity.pem)]
    key = load_pem_private_key(identity.pem, None)
    return chain, key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def _row(certificate: x509.Certificate) -> tuple[bytes, int, int, int | None, tuple[bool, bool]]:
    """Return a certificate of a trust store as the engine takes it."""
    usages = _extension(certificate, x509.ExtendedKeyUsage)
    is_for_servers, is_for_clients = (
        usages is None or each in usages for each in (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    )
    return (
        certificate.public_bytes(Encoding.DER),
        int(certificate.not_valid_before_utc.timestamp()),
        int(certificate.not_valid_after_utc.timestamp()),
        _most_below(certificate),
        (is_for_servers, is_for_clients),
    )


def _most_below(certificate: x509.Certificate) -> int | None:
    """Return how many authorities may be between this one and the certificate of a peer; ``None`` if it is no
    authority, by the rules of OpenSSL's ``X509_check_ca``."""
    constraints = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        return None
    if constraints is not None:
        is_authority = constraints.ca
    else:
        is_self_issued = certificate.issuer == certificate.subject
        is_authority = usage is not None or (certificate.version is x509.Version.v1 and is_self_issued)
    if not is_authority:
        return None
    limit = None if constraints is None else constraints.path_length
    return sys.maxsize if limit is None else limit


def _extension(certificate: x509.Certificate, kind: type[ExtensionT]) -> ExtensionT | None:
    """Return an extension of a certificate. Raises `NotExpressible` if the extensions cannot be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except ValueError as error:
        raise NotExpressible(f"a certificate of the trust store has extensions that cannot be read: {error}") from None


def _system_authorities() -> Iterable[x509.Certificate]:
    """Return the certificates of the file and of the folders that OpenSSL reads by default, each once."""
    paths = ssl.get_default_verify_paths()
    folders = os.environ.get(paths.openssl_capath_env, paths.openssl_capath).split(os.pathsep)
    files = [Path(os.environ.get(paths.openssl_cafile_env, paths.openssl_cafile))]
    for folder in filter(None, folders):
        files += sorted(Path(folder).glob(_HASHED))
    return dict.fromkeys(certificate for file in files for certificate in _certificates(file))


def _certificates(file: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except (OSError, ValueError):
        return []
