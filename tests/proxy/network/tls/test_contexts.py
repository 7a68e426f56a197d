"""Certificates and keys from files: every form that is accepted, errors that name the setting, and replaced files."""

from __future__ import annotations

import errno
import os
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from structlog.testing import capture_logs

from headrace.config.tables.tls import ListenTls, UpstreamTls
from headrace.proxy.network.tls.contexts import EXPIRES_SOON, client_context, server_context
from headrace.proxy.network.tls.files import TlsFileError, read_authorities
from testbed.kafka.certificates import PASSWORD, Authority

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Certificate


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
    forms = [
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


def test_a_store_without_certificates(tmp_path: Path, authority: Authority, certificate: Certificate) -> None:
    file = tmp_path / "empty.p12"
    store = pkcs12.load_pkcs12(certificate.pkcs12_file.read_bytes(), PASSWORD.encode())
    assert store.key is not None
    file.write_bytes(pkcs12.serialize_key_and_certificates(None, store.key, None, None, BestAvailableEncryption(b"x")))  # type: ignore[arg-type]
    with pytest.raises(TlsFileError, match="it has no certificate"):
        listening(certificate_file=str(file), key_password={"command": ["printf", "x"]})
    with pytest.raises(TlsFileError, match=r"upstream.tls.ca_file = .* not a PKCS#12 file, or the password is wrong"):
        read_authorities(str(authority.truststore_file), None, "upstream.tls.ca_file")


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
