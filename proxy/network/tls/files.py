"""Reading certificates and private keys: PEM and PKCS#12. All functions block.

OpenSSL's context loads keys from files only. What was read from PKCS#12 is passed to it by a file in memory, so that no
unencrypted key is written to a disk.
"""

from __future__ import annotations

import os
import ssl
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from headrace.quota_callbacks.files import read_ordinary_file, reason_of
from headrace.quota_callbacks.secret_sources import SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from headrace.quota_callbacks.secret_sources import SecretSource

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""The longest file: the bundle of all public authorities has 250 KiB."""

_PKCS12_SUFFIXES: Final = (".p12", ".pfx")
_PRIVATE_KEY: Final = b"PRIVATE KEY-----"

_REFUSED: Final = {
    "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
    "NO_CERTIFICATE_ASSIGNED": (
        "the private key is of another type than the certificate's, or of the type RSA-PSS, which is not supported"
    ),
    "EE_KEY_TOO_SMALL": "its key is too small, or of a type that OpenSSL does not support",
    "CA_KEY_TOO_SMALL": "a key in its chain is too small, or of a type that OpenSSL does not support",
    "UNKNOWN_CERTIFICATE_TYPE": "keys of its type cannot be used for TLS",
}
"""Explanations of the reasons for which OpenSSL refuses a certificate with its key, by OpenSSL's names."""

FileState = tuple[tuple[int, int, int, int] | None, ...]


class TlsFileError(Exception):
    """A file with a certificate or key cannot be used. ``str()`` names the setting, the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate, as messages and metrics describe it."""

    subject: str
    expires: datetime
    """The end of the certificate's validity, in UTC."""
    serial: str
    file: str

    def __str__(self) -> str:
        return f"{self.subject}, serial {self.serial}, until {self.expires:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Certificate):
    """The proxy's own certificate with its chain, and its private key; ``expires`` is the earliest end in the chain."""

    pem: bytes = field(repr=False)
    """The certificates, the proxy's own first, and the private key without encryption."""

    def load_into(self, context: ssl.SSLContext, setting: str) -> None:
        """Use this identity in ``context``; ``setting`` is the table with its files. Raises `TlsFileError`."""
        try:
            with _in_memory(self.pem) as path:
                context.load_cert_chain(path)
        except OSError as error:  # `ssl.SSLError` is one; there may also be no descriptor for the file in memory
            reason = _REFUSED.get(getattr(error, "reason", None) or "", str(error))
            raise TlsFileError(f'{setting}.certificate_file = "{self.file}": {reason}') from None


class Passwords:
    """The passwords of files. Each is read once, and again after `forget`: its source may be a slow command."""

    def __init__(self) -> None:
        self._known: dict[SecretSource, bytes] = {}

    def forget(self) -> None:
        """Let all passwords be read again."""
        self._known.clear()

    def read(self, source: SecretSource | None, setting: str) -> bytes | None:
        """Return the password of ``setting``, ``None`` without a source. Raises `TlsFileError`."""
        if source is not None and source not in self._known:
            try:
                self._known[source] = source.read().encode()
            except SecretError as error:
                raise TlsFileError(f"{setting}: {error}") from None
        return None if source is None else self._known[source]


def read_identity(
    certificate_file: str, key_file: str | None, password: SecretSource | None, setting: str, passwords: Passwords
) -> Identity:
    """Return the identity in a PKCS#12 file, or in one or two PEM files. Raises `TlsFileError`."""
    key_password = passwords.read(password, f"{setting}.key_password")
    data = _read(certificate_file, f"{setting}.certificate_file")
    where = f'{setting}.certificate_file = "{certificate_file}"'
    if _is_pkcs12(certificate_file):
        chain, key = _identity_in(_read_pkcs12(data, key_password, where), where)
    else:
        chain = _read_pem_certificates(data, where)
        if key_file is not None:
            where = f'{setting}.key_file = "{key_file}"'
            data = _read(key_file, f"{setting}.key_file")
        elif _PRIVATE_KEY not in data:
            raise TlsFileError(f"{where}: it has no private key, and {setting}.key_file is not set")
        key = _read_pem_key(data, key_password, where, setting)
    with _reading(f'{setting}.certificate_file = "{certificate_file}"', "it has a certificate that is malformed"):
        return Identity(
            subject=chain[0].subject.rfc4514_string(),
            expires=min(each.not_valid_after_utc for each in chain),
            serial=f"{chain[0].serial_number:x}",
            pem=b"".join(each.public_bytes(Encoding.PEM) for each in chain) + key,
            file=certificate_file,
        )


def first_to_expire(authorities: Sequence[x509.Certificate], file: str, setting: str) -> Certificate:
    """Return the certificate that expires first, of those in a file of authorities. Raises `TlsFileError`."""
    with _reading(f'{setting} = "{file}"', "it has a certificate that is malformed"):
        first = min(authorities, key=lambda each: each.not_valid_after_utc)
        return Certificate(
            subject=first.subject.rfc4514_string(),
            expires=first.not_valid_after_utc,
            serial=f"{first.serial_number:x}",
            file=file,
        )


def load_authorities(
    context: ssl.SSLContext, file: str, password: SecretSource | None, setting: str, passwords: Passwords
) -> list[x509.Certificate]:
    """Trust the certificates in a PEM or PKCS#12 file, and return them. Raises `TlsFileError`, also if it has none."""
    data = _read(file, setting)
    where = f'{setting} = "{file}"'
    if _is_pkcs12(file):
        store = _read_pkcs12(data, passwords.read(password, f"the password of {setting}"), where)
        found = [each.certificate for each in (store.cert, *store.additional_certs) if each is not None]
        if not found:
            raise TlsFileError(f"{where}: it has no certificate")
    else:
        found = _read_pem_certificates(data, where)
    try:
        context.load_verify_locations(cadata="".join(each.public_bytes(Encoding.PEM).decode() for each in found))
    except ssl.SSLError:
        raise TlsFileError(f"{where}: it has a certificate that OpenSSL cannot read") from None
    return found


def state_of(files: Sequence[str]) -> FileState:
    """Return what changes when one of the files is replaced or written to, or its permissions change; ``None`` for one
    that is missing."""
    return tuple(map(_state, files))


def _state(file: str) -> tuple[int, int, int, int] | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_pkcs12(file: str) -> bool:
    return file.lower().endswith(_PKCS12_SUFFIXES)


def _read(file: str, setting: str) -> bytes:
    try:
        return read_ordinary_file(file, MAX_FILE_BYTES, "certificate or key")
    except OSError as error:
        reason = reason_of(error)
    except ValueError as error:
        reason = str(error)
    raise TlsFileError(f'{setting} = "{file}": cannot be read: {reason}')


@contextmanager
def _reading(where: str, problem: str) -> Iterator[None]:
    """Raise `TlsFileError` instead of what cryptography raises; ``problem`` is what its `ValueError` means."""
    try:
        yield
    except ValueError:
        raise TlsFileError(f"{where}: {problem}") from None
    except (UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise TlsFileError(f"{where}: not supported: {error}") from None


def _read_pem_certificates(data: bytes, where: str) -> list[x509.Certificate]:
    with _reading(where, "it has no certificate in PEM format, or one that is malformed"):
        return x509.load_pem_x509_certificates(data)


def _read_pem_key(data: bytes, password: bytes | None, where: str, setting: str) -> bytes:
    """Return the private key as PEM without encryption. A password that is not needed is ignored."""
    with _reading(where, "not a private key in PEM format, or the password is wrong"):
        try:
            key = load_pem_private_key(data, password)
        except TypeError:
            if password is None:
                raise TlsFileError(f"{where}: the private key is encrypted; set {setting}.key_password") from None
            key = load_pem_private_key(data, None)
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _read_pkcs12(data: bytes, password: bytes | None, where: str) -> pkcs12.PKCS12KeyAndCertificates:
    with _reading(where, "not a PKCS#12 file, or the password is wrong"):
        return pkcs12.load_pkcs12(data, password)


def _identity_in(store: pkcs12.PKCS12KeyAndCertificates, where: str) -> tuple[list[x509.Certificate], bytes]:
    if store.cert is None or store.key is None:
        raise TlsFileError(f"{where}: it has no certificate with a private key")
    chain = [store.cert.certificate, *(each.certificate for each in store.additional_certs)]
    return chain, store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory with ``content``."""
    descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
