"""Certificates and keys from files: every form that is accepted, errors that name the setting, and replaced files."""

from __future__ import annotations

import errno
import os
import ssl
import time
from base64 import encodebytes
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from headrace.config.tables.tls import ListenTls, UpstreamTls
from headrace.proxy.data_plane.native import is_installed
from headrace.proxy.network.tls import contexts
from headrace.proxy.network.tls.contexts import EXPIRES_SOON, client_context, server_context
from headrace.proxy.network.tls.files import TlsFileError
from headrace.proxy.network.tls.renewal import expiries_s
from headrace.proxy.network.tls.rustls_socket import RustlsSocket, socket_kind
from headrace.proxy.network.tls.tls_socket import TlsSocket
from testbed.kafka.certificates import PASSWORD, Authority
from tests.proxy.network.tls.pairs import connecting, read, rustls_sides, shake_hands, sockets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Certificate

needs_rustls = pytest.mark.skipif(not is_installed(), reason="the extension module is not built")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.broker_certificate()


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n", encoding="ascii")
    return file


def listening(**settings: object) -> TlsContext:
    return server_context(ListenTls.model_validate(settings), "listen.tls", lambda _: True)


def test_every_form_of_a_certificate(certificate: Certificate, password_file: Path) -> None:
    password = {"file": str(password_file)}
    forms: list[dict[str, object]] = [
        {"certificate_file": str(certificate.keystore_file)},
        {"certificate_file": str(certificate.certificate_file), "key_file": str(certificate.key_file)},
        {
            "certificate_file": str(certificate.certificate_file),
            "key_file": str(certificate.encrypted_key_file),
            "key_password": password,
        },
        {
            "certificate_file": str(certificate.certificate_file),
            "key_file": str(certificate.key_file),
            "key_password": password,  # not needed
        },
        {"certificate_file": str(certificate.pkcs12_file), "key_password": password},
    ]
    found = [listening(**form).identity for form in forms]
    assert len({str(each) for each in found}) == 1
    assert all(each is not None and "PRIVATE" not in repr(each) for each in found)


def test_authorities_in_both_forms(authority: Authority, password_file: Path) -> None:
    pem = {"enabled": True, "ca_file": str(authority.ca_file)}
    store = {
        "enabled": True,
        "ca_file": str(authority.truststore_file),
        "ca_password": {"file": str(password_file)},
    }
    for settings in (pem, store):
        context = client_context(UpstreamTls.model_validate(settings), "upstream.tls").current
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert len(context.get_ca_certs()) == 1


def test_without_a_file_the_systems_authorities_count() -> None:
    context = client_context(
        UpstreamTls.model_validate({"enabled": True, "verify_names": False}), "upstream.tls"
    ).current
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert not context.check_hostname


def test_what_is_not_permitted(certificate: Certificate) -> None:
    context = listening(certificate_file=str(certificate.keystore_file), min_version="1.3").current
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    names = [each["name"] for each in listening(certificate_file=str(certificate.keystore_file)).current.get_ciphers()]
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)
    assert not any("CBC" in name or (name.rpartition("-")[2] == "SHA256" and "GCM" not in name) for name in names)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"certificate_file": "/nowhere.pem"}, 'listen.tls.certificate_file = "/nowhere.pem": cannot be read: no such'),
        ({"certificate_file": "{key}"}, 'listen.tls.certificate_file = "{key}": it has no certificate in PEM format'),
        ({"certificate_file": "{chain}"}, "it has no private key, and listen.tls.key_file is not set"),
        (
            {"certificate_file": "{chain}", "key_file": "{encrypted}"},
            'listen.tls.key_file = "{encrypted}": the private key is encrypted; set listen.tls.key_password',
        ),
        (
            {"certificate_file": "{chain}", "key_file": "{encrypted}", "key_password": {"env": "HEADRACE_NO_SUCH"}},
            "listen.tls.key_password: the variable HEADRACE_NO_SUCH: the variable is not set",
        ),
        (
            {"certificate_file": "{p12}", "key_password": {"command": ["echo", "wrong"]}},
            'listen.tls.certificate_file = "{p12}": not a PKCS#12 file, or the password is wrong',
        ),
        (
            {"certificate_file": "{chain}", "key_file": "{chain}"},
            'listen.tls.key_file = "{chain}": not a private key in PEM format, or the password is wrong',
        ),
        ({"certificate_file": "{chain}", "key_file": "{other}"}, "the private key does not belong to the certificate"),
        ({"certificate_file": "{keystore}", "ciphers": "NONSENSE"}, 'listen.tls.ciphers = "NONSENSE": OpenSSL knows'),
        *(
            (
                {"certificate_file": "{keystore}", "ciphers": suites},
                f'listen.tls.ciphers = "{suites}": {name} does not authenticate or does not encrypt',
            )
            for suites, name in (
                ("ECDHE+AESGCM:aNULL@SECLEVEL=0", "ADH-AES256-GCM-SHA384"),
                ("ECDHE+AESGCM:NULL-SHA256@SECLEVEL=0", "NULL-SHA256"),
            )
        ),
        (
            {"certificate_file": "{keystore}", "client_certificates": "required", "client_ca_file": "{key}"},
            'listen.tls.client_ca_file = "{key}": it has no certificate in PEM format',
        ),
    ],
)
def test_every_error_names_the_setting(
    authority: Authority, certificate: Certificate, settings: dict[str, object], problem: str
) -> None:
    files = {
        "key": certificate.key_file,
        "chain": certificate.certificate_file,
        "encrypted": certificate.encrypted_key_file,
        "keystore": certificate.keystore_file,
        "p12": certificate.pkcs12_file,
        "other": authority.broker_certificate("other").key_file,
    }

    def filled(value: object) -> object:
        return value.format(**files) if isinstance(value, str) else value

    with pytest.raises(TlsFileError) as caught:
        listening(**{name: filled(value) for name, value in settings.items()})
    assert str(filled(problem)) in str(caught.value)
    assert PASSWORD not in str(caught.value)


def pem(label: str, content: bytes) -> bytes:
    return f"-----BEGIN {label}-----\n".encode() + encodebytes(content) + f"-----END {label}-----\n".encode()


def write_p521(file: Path) -> None:
    """Replace a certificate and its key by those of a type that OpenSSL has and rustls does not."""
    certificate, key = issued(ec.generate_private_key(ec.SECP521R1()))
    file.write_bytes(pem("CERTIFICATE", certificate) + pem("PRIVATE KEY", key))


def issued(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None) -> tuple[bytes, bytes]:
    """A certificate that is signed with its own key, and the key, as DER; of an elliptic curve by default."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 5, datetime(2025, 1, 1), datetime(2055, 1, 1))  # noqa: DTZ001
    written = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER), written


def files_that_cannot_be_used() -> Iterator[tuple[str, bytes, bytes, str]]:
    """Names, contents of a certificate's and a key's file, and the end of the message."""
    certificate, key = issued()
    small, small_key = issued(rsa.generate_private_key(65537, 1024))  # noqa: S505 -- which is what is tested
    _, other = issued()
    _, longer = issued(rsa.generate_private_key(65537, 2048))
    good, good_key = pem("CERTIFICATE", certificate), pem("PRIVATE KEY", key)
    version = bytes.fromhex("a003020102")
    curve_id, key_id = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06072a8648ce3d0201")
    no_certificate = "it has no certificate in PEM format, or one that is malformed"
    no_key = "not a private key in PEM format, or the password is wrong"
    yield "an empty certificate", b"", good_key, no_certificate
    yield "a certificate in DER", certificate, good_key, no_certificate
    yield "a certificate that is cut off", pem("CERTIFICATE", certificate[:-5]), good_key, no_certificate
    yield "a malformed chain", good + pem("CERTIFICATE", b"malformed"), good_key, no_certificate
    unknown = pem("CERTIFICATE", certificate.replace(version, version[:-1] + b"\7", 1))
    yield "a version that does not exist", unknown, good_key, "not supported: 7 is not a valid X509 version"
    subject = pem("CERTIFICATE", certificate.replace(b"\x0c\x06broker", b"\x0c\x06\xff\xffoker"))
    yield "a subject that is not UTF-8", subject, good_key, "it has a certificate that is malformed"
    yield "an empty key", good, b"", no_key
    yield "a key in DER", good, key, no_key
    yield "an unknown curve", good, pem("PRIVATE KEY", key.replace(curve_id, curve_id[:-1] + b"\x7f")), "not supported"
    yield "an unknown type", good, pem("PRIVATE KEY", key.replace(key_id, key_id[:-1] + b"\x09")), "not supported"
    yield "another key", good, pem("PRIVATE KEY", other), "the private key does not belong to the certificate"
    yield "another type of key", good, pem("PRIVATE KEY", longer), "the private key is of another type"
    yield "a small key", pem("CERTIFICATE", small), pem("PRIVATE KEY", small_key), "its key is too small"
    yield "a small key in the chain", good + pem("CERTIFICATE", small), good_key, "a key in its chain is too small"


def test_files_that_cannot_be_used_are_one_line(tmp_path: Path) -> None:
    """At the start, and at the renewal, which keeps the old context."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    settings = {"certificate_file": str(certificate), "key_file": str(key)}
    for name, chain, key_content, reason in files_that_cannot_be_used():
        for file, label, content in zip((certificate, key), ("CERTIFICATE", "PRIVATE KEY"), issued(), strict=True):
            file.write_bytes(pem(label, content))
        context = listening(**settings)
        before = context.current
        certificate.write_bytes(chain)
        key.write_bytes(key_content)
        with pytest.raises(TlsFileError) as caught:
            listening(**settings)
        message = str(caught.value)
        assert message.startswith(
            (f'listen.tls.certificate_file = "{certificate}": ', f'listen.tls.key_file = "{key}"')
        )
        assert reason in message, name
        assert "\n" not in message
        with capture_logs() as lines:
            assert not context.reload_if_changed(), name
        assert context.current is before
        assert [line["reason"] for line in lines] == [message]


def test_authorities_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    settings = UpstreamTls.model_validate({"enabled": True, "ca_file": str(file)})
    certificate, _ = issued()
    for changed, to, reason in (
        (bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), "not supported: 7 is not a valid X509 version"),
        (b"\x0c\x06broker", b"\x05\x06broker", "it has a certificate that OpenSSL cannot read"),
    ):
        file.write_bytes(pem("CERTIFICATE", certificate.replace(changed, to)))
        with pytest.raises(TlsFileError) as caught:
            client_context(settings, "upstream.tls")
        assert str(caught.value) == f'upstream.tls.ca_file = "{file}": {reason}'


def test_a_store_without_certificates(tmp_path: Path, authority: Authority, certificate: Certificate) -> None:
    file = tmp_path / "empty.p12"
    store = pkcs12.load_pkcs12(certificate.pkcs12_file.read_bytes(), PASSWORD.encode())
    assert store.key is not None
    file.write_bytes(pkcs12.serialize_key_and_certificates(None, store.key, None, None, BestAvailableEncryption(b"x")))  # type: ignore[arg-type]
    with pytest.raises(TlsFileError, match="it has no certificate"):
        listening(certificate_file=str(file), key_password={"command": ["printf", "x"]})
    with pytest.raises(TlsFileError, match=r"upstream.tls.ca_file = .* not a PKCS#12 file, or the password is wrong"):
        client_context(
            UpstreamTls.model_validate({"enabled": True, "ca_file": str(authority.truststore_file)}), "upstream.tls"
        )


def test_replaced_files_are_used_by_the_next_handshakes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.broker_certificate()
    context = listening(certificate_file=str(first.keystore_file))
    before, identity = context.current, context.identity
    assert not context.reload_if_changed()
    assert context.current is before
    authority.broker_certificate()  # the same files
    assert context.reload_if_changed()
    assert context.current is not before
    assert context.identity is not None
    assert identity is not None
    assert context.identity.serial != identity.serial


def counting_command(folder: Path, password: str) -> tuple[list[str], Path]:
    """Return a command that prints a password, and the file that has a line for each run of it.

    It fails while a file named "broken" is beside the other one.
    """
    runs = folder / "runs"
    script = f'echo run >> "{runs}"; test ! -e "{folder}/broken" && printf %s "{password}"'
    return ["/bin/sh", "-c", script], runs


def test_a_command_for_a_password_is_run_when_files_change(
    certificate: Certificate, password_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, runs = counting_command(tmp_path, password_file.read_text().strip())
    key = tmp_path / "key.pem"
    key.write_bytes(certificate.encrypted_key_file.read_bytes())
    context = listening(
        certificate_file=str(certificate.certificate_file), key_file=str(key), key_password={"command": command}
    )
    monkeypatch.setattr(contexts, "KEYS_S", 0.0)
    for _ in range(3):
        assert context.reload_if_changed()
    assert runs.read_text().count("run") == 1, "the keys of sessions are replaced without it"
    key.touch()
    assert context.reload_if_changed()
    assert runs.read_text().count("run") == 2
    now_s = time.monotonic()
    monkeypatch.setattr(contexts, "time", SimpleNamespace(monotonic=lambda: now_s))
    (tmp_path / "broken").touch()
    key.touch()
    with capture_logs() as lines:
        for _ in range(3_600 // 5):
            now_s += 5
            assert not context.reload_if_changed()
    assert len(lines) == 1
    assert 15 < runs.read_text().count("run") - 2 < 25, "after longer and longer pauses"
    (tmp_path / "broken").unlink()
    now_s += 300
    assert context.reload_if_changed()


def test_the_keys_of_sessions_are_replaced_after_a_time(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = listening(certificate_file=str(certificate.keystore_file))
    before, identity = context.current, context.identity
    monkeypatch.setattr(contexts, "KEYS_S", 0.0)
    with capture_logs() as lines:
        assert context.reload_if_changed()
    assert context.current is not before
    assert context.identity == identity
    assert not lines
    monkeypatch.undo()
    assert not context.reload_if_changed()


def test_a_secret_of_kubernetes_is_replaced_by_a_symbolic_link(tmp_path: Path) -> None:
    """The kubelet writes all files of a Secret into a new folder, and renames one link: ``..data``."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    authority = Authority(tmp_path / "authority")

    def write(version: str) -> None:
        issued = authority.broker_certificate()
        folder = mounted / version
        folder.mkdir()
        for name, content in (("tls.crt", issued.certificate_file), ("tls.key", issued.key_file)):
            (folder / name).write_bytes(content.read_bytes())
        (mounted / "..new").symlink_to(version)
        (mounted / "..new").replace(mounted / "..data")

    write("..first")
    for name in ("tls.crt", "tls.key"):
        (mounted / name).symlink_to(f"..data/{name}")
    context = listening(certificate_file=str(mounted / "tls.crt"), key_file=str(mounted / "tls.key"))
    identity = context.identity
    assert not context.reload_if_changed()
    write("..second")
    assert context.reload_if_changed()
    assert context.identity is not None
    assert identity is not None
    assert context.identity.serial != identity.serial


def test_files_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.broker_certificate()
    context = listening(certificate_file=str(certificate.keystore_file))
    before, content = context.current, certificate.keystore_file.read_bytes()
    with capture_logs() as lines:
        certificate.keystore_file.write_bytes(content[:100])
        assert not context.reload_if_changed()
        assert not context.reload_if_changed()
        certificate.keystore_file.unlink()
        assert not context.reload_if_changed()
    assert context.current is before
    assert [line["log_level"] for line in lines] == ["error", "error"], "once for each reason"
    assert "cannot be read" in lines[1]["reason"]
    certificate.keystore_file.write_bytes(content)
    assert context.reload_if_changed()


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("from a library")])
def test_no_failure_of_the_system_or_a_library_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    authority = Authority(tmp_path)
    context = listening(certificate_file=str(authority.broker_certificate().keystore_file))
    before = context.current
    authority.broker_certificate()  # the same files

    def fail(*_: object) -> int:
        raise error

    with monkeypatch.context() as patched, capture_logs() as lines:
        patched.setattr(os, "memfd_create", fail)
        assert not context.reload_if_changed()
    assert context.current is before
    assert str(error) in lines[0]["reason"]
    assert context.reload_if_changed()


@needs_rustls
async def test_a_connection_that_waits_while_rustls_cannot_use_new_files(tmp_path: Path) -> None:
    """It gets the certificate that was in use when it began; later ones get the new one, by OpenSSL."""
    authority = Authority(tmp_path)
    file = authority.broker_certificate().keystore_file
    server, client = listening(certificate_file=str(file)), connecting(authority)
    server.prefer_rustls()
    rustls_sides.add("server")
    try:
        async with sockets() as pair:
            assert socket_kind(server) is type(pair[1]) is RustlsSocket
            write_p521(file)
            assert server.reload_if_changed()
            await shake_hands(pair, client, server)
            await pair[0].send([b"data"])
            assert await read(pair[1], 4) == b"data"
            assert socket_kind(server) is TlsSocket
    finally:
        rustls_sides.clear()
    authority.broker_certificate()  # the same files
    assert server.reload_if_changed()
    assert socket_kind(server) is RustlsSocket


@needs_rustls
def test_a_failure_of_rustls_at_a_renewal_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    context = listening(certificate_file=str(authority.broker_certificate().keystore_file))
    context.prefer_rustls()
    before = context.current, context.rustls
    authority.broker_certificate()  # the same files

    def fail(*_: object) -> None:
        raise RuntimeError("from a library")

    with monkeypatch.context() as patched, capture_logs() as lines:
        patched.setattr(contexts, "rustls_server", fail)
        assert not context.reload_if_changed()
    assert (context.current, context.rustls) == before
    assert [line["reason"] for line in lines] == ["RuntimeError: from a library"]
    assert context.reload_if_changed()
    assert context.rustls is not before[1]


def test_the_end_of_a_certificate_is_logged_once_a_day(certificate: Certificate) -> None:
    context = listening(certificate_file=str(certificate.keystore_file))
    assert context.identity is not None
    end = context.identity.expires
    assert end > datetime.now(UTC)
    with capture_logs() as lines:
        context.check_expiry(end - EXPIRES_SOON - timedelta(seconds=1))
        assert lines == []
        day = (end - EXPIRES_SOON + timedelta(days=1)).replace(hour=1)
        for hours in (0, 1, 23):
            context.check_expiry(day + timedelta(hours=hours))
        context.check_expiry(end + timedelta(days=1))
    assert [line["event"] for line in lines] == [
        "the certificate expires soon",
        "the certificate expires soon",
        "the certificate has expired",
    ]
    assert lines[0]["table"] == "listen.tls"


def test_the_first_end_of_an_authority_is_logged(tmp_path: Path, certificate: Certificate) -> None:
    """If a file has several authorities, the warning is about the one with the earliest end."""
    now = datetime.now(UTC)
    ends = [now + timedelta(days=days) for days in (400, 3, 9)]
    file = tmp_path / "authorities.pem"
    file.write_bytes(b"".join(authority_until(end).public_bytes(Encoding.PEM) for end in ends))
    tls = ListenTls.model_validate(
        {
            "certificate_file": str(certificate.keystore_file),
            "client_certificates": "required",
            "client_ca_file": str(file),
        }
    )
    upstream = UpstreamTls.model_validate({"enabled": True, "ca_file": str(file)})
    for context in (server_context(tls, "listen.tls", lambda _: True), client_context(upstream, "upstream.tls")):
        assert expiries_s(context)["certificate authority"] == int(ends[1].timestamp())
        with capture_logs() as lines:
            for _ in range(2):
                context.check_expiry(now)
        [line] = lines
        assert line["event"] == "the certificate authority expires soon"
        assert (line["table"], line["file"]) == (context.setting, str(file))


def authority_until(end: datetime) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"until {end:%Y-%m-%d}")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(datetime(2026, 1, 1, tzinfo=UTC)).not_valid_after(end)
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(key, SHA256())
