"""Files in Java's properties format: the format as Java reads it, and what becomes of each key."""

from __future__ import annotations

import logging
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.kafka_client.errors import SettingsError
from headrace.proxy.kafka_client.properties import read_settings, settings_of
from headrace.proxy.kafka_client.properties_format import parse_jaas, parse_properties
from headrace.proxy.kafka_client.settings import Credentials, Mechanism
from headrace.quota_callbacks.requests import Address
from testbed.kafka.jvm import start_jvm

if TYPE_CHECKING:
    from pathlib import Path

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SERVERS = {"bootstrap.servers": "one:9092"}


def javas_properties(text: str) -> dict[str, str]:
    java = start_jvm().java
    loaded = java.util.Properties()
    loaded.load(java.io.StringReader(text))
    return {str(key): str(loaded.getProperty(key)) for key in loaded.stringPropertyNames()}


FILES = [
    "a=1\nb = 2\nc:3\nd 4\ne\n\tf\t=\t5 \n=6\n",
    "# comment\n ! another\n\na=b=c:d e\r\nx=y\rz=1",
    "a=one\\\n   two\\\n\n b=three\\\\\nc=\\\\\\\n  d\n#e\\\nf=1",
    "a\\ b\\=c\\:d=\\u00e4\\t\\n\\q\\\\ \\u20AC\\uD83D\\uDE00\n\\u0061=2\n",
    "a=1\na=2\n\\#b=3\n\\!c=4",
    "ends=with a backslash\\",
    *("\\\r", "\\\n", "\\\r\n", "a\\\\\n", "a\\\n", "\\\n\n"),
]


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_java_reads_the_same(text: str) -> None:
    assert parse_properties(text) == javas_properties(text)


@given(st.text(alphabet="ab=: \t\f\\\n\r#!ut.é", max_size=40))
def test_java_reads_the_same_of_random_text(text: str) -> None:
    try:
        expected = javas_properties(text)
    except start_jvm().java.lang.IllegalArgumentException:
        with pytest.raises(SettingsError, match="four hexadecimal digits"):
            parse_properties(text)
        return
    assert parse_properties(text) == expected


def test_jaas_entries() -> None:
    text = f"{SCRAM} required\n  username=\"al\\\"ice\"\tpassword='it\\'s; = x'   tokenauth=true ;  "
    assert parse_jaas(text) == (SCRAM, {"username": 'al"ice', "password": "it's; = x", "tokenauth": "true"})
    assert parse_jaas(f'{PLAIN} required username="" password=";";') == (PLAIN, {"username": "", "password": ";"})


@pytest.mark.parametrize(
    "text",
    [
        *("", "a = b;", "hidden", f"{SCRAM};", f"{SCRAM} required", f"{SCRAM} needed a=b;", f"{SCRAM} required a;"),
        *(f"{SCRAM} required a=;", f"{SCRAM} required a=b; {PLAIN} required a=b;"),
        f'{SCRAM} required password="hidden;',
    ],
)
def test_jaas_entries_that_are_not_valid(text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_jaas(text)
    assert str(raised.value).startswith("sasl.jaas.config")
    assert "hidden" not in str(raised.value)


def test_a_whole_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(
        b"bootstrap.servers=one:9092,two:9093\nclient.id=caf\xe9\nsecurity.protocol=sasl_plaintext\n"
        b"sasl.mechanism=SCRAM-SHA-512\n"
        b"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        b'  username="admin" password="p\\u00e4ss\xfc";\n'
        b"request.timeout.ms=1000\ndefault.api.timeout.ms=2000\nretry.backoff.ms=5\nacks=all\n"
    )
    with caplog.at_level(logging.WARNING, "headrace.kafka_client"):
        settings = read_settings(file)
    assert settings.bootstrap_servers == (Address(host="one", port=9092), Address(host="two", port=9093))
    assert settings.client_id == "café", "Java reads ISO-8859-1"
    assert settings.credentials == Credentials(mechanism=Mechanism.SCRAM_SHA_512, user="admin", password="pässü")
    assert (settings.request_timeout_ms, settings.default_api_timeout_ms, settings.retry_backoff_ms) == (1000, 2000, 5)
    assert settings.tls is None
    assert [each.message for each in caplog.records] == ["acks is ignored: the client does not have this setting"]
    assert read_settings(file, bootstrap_servers="three:1", report=lambda _: None).bootstrap_servers[0].port == 1


SASL = {**SERVERS, "security.protocol": "SASL_PLAINTEXT"}
TLS = {**SERVERS, "security.protocol": "SSL"}
WRONG = [
    ({}, "bootstrap.servers is not set"),
    ({"bootstrap.servers": "one"}, "'one' is not an address; expected host:port"),
    (
        {**SERVERS, "security.protocol": "TLS"},
        "security.protocol = TLS: expected one of PLAINTEXT, SSL, SASL_PLAINTEXT",
    ),
    ({**SERVERS, "request.timeout.ms": "30s"}, "request.timeout.ms = '30s': expected a whole number of milliseconds"),
    ({**SERVERS, "request.timeout.ms": "-1"}, "request_timeout_ms = -1: must be 0 or more"),
    (SASL, "sasl.mechanism is not set; expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    ({**SASL, "sasl.mechanism": "GSSAPI"}, "sasl.mechanism = GSSAPI: the client has PLAIN"),
    ({**SASL, "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is not set"),
    (
        {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SCRAM} required username=a password=b;"},
        "the login module for PLAIN is PlainLoginModule",
    ),
    ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN} required username=a;"}, "has no password"),
    (
        {**SASL, "sasl.mechanism": "SCRAM-SHA-256"}
        | {"sasl.jaas.config": f"{SCRAM} required username=a password=b tokenauth=true;"},
        "does not have the option tokenauth",
    ),
    (
        {**TLS, "ssl.truststore.type": "JKS", "ssl.truststore.location": "x"},
        "ssl.truststore.type = JKS: the client reads",
    ),
    ({**TLS, "ssl.truststore.location": "/nowhere"}, "ssl.truststore.location: cannot read /nowhere"),
    ({**TLS, "ssl.ca.location": "/nowhere"}, "the trusted certificates cannot be read from /nowhere"),
    ({**TLS, "ssl.truststore.certificates": "-----BEGIN"}, "the trusted certificates cannot be read from the text"),
    ({**TLS, "ssl.endpoint.identification.algorithm": "ldaps"}, "algorithm = ldaps: expected https, or nothing"),
]


@pytest.mark.parametrize(("properties", "expected"), WRONG, ids=range(len(WRONG)))
def test_values_that_cannot_be_honoured(properties: dict[str, str], expected: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings_of(properties)
    assert expected in str(raised.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*absent"):
        read_settings(tmp_path / "absent")
    (tmp_path / "empty").touch()
    with pytest.raises(SettingsError, match=r"empty: bootstrap\.servers is not set"):
        read_settings(tmp_path / "empty")


def test_stores_that_are_not_pem(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    for content, expected in ((b"\xfe\xed\xfe\xed\0\0", "is a JKS file"), (b"0\x82", "is not a PEM file")):
        store.write_bytes(content)
        for which in ("truststore", "keystore"):
            with pytest.raises(SettingsError, match=f"{expected}: the client reads PEM only"):
                settings_of({**TLS, f"ssl.{which}.location": str(store)})


def test_certificates_and_keys(tmp_path: Path) -> None:
    """A certificate with an encrypted key, and hostname verification on and off."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is needed"
    key, certificate, both = tmp_path / "key.pem", tmp_path / "certificate.pem", tmp_path / "both.pem"
    names = ["-subj", "/CN=test", "-keyout", str(key), "-out", str(certificate), "-passout", "pass:secret-word"]
    subprocess.run([openssl, "req", "-x509", "-newkey", "rsa:2048", *names], check=True, capture_output=True)
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    properties = {
        **TLS,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.key.password": "secret-word",
    }
    context = settings_of(properties).tls
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert [dict(each[0] for each in found["subject"]) for found in context.get_ca_certs()] == [{"commonName": "test"}]
    inline = settings_of({**TLS, "ssl.truststore.certificates": certificate.read_text()}).tls
    assert inline is not None
    assert len(inline.get_ca_certs()) == 1
    unchecked = settings_of({**properties, "ssl.endpoint.identification.algorithm": ""}).tls
    assert unchecked is not None
    assert (unchecked.check_hostname, unchecked.verify_mode) == (False, ssl.CERT_REQUIRED)
    for password in ("wrong-word", ""):
        with pytest.raises(SettingsError, match=r"ssl\.key\.password") as raised:
            settings_of({**properties, "ssl.key.password": password})
        assert "wrong-word" not in str(raised.value)
