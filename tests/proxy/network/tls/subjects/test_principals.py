"""Subjects of certificates beside Java's ``X500Principal``: the same text for each certificate."""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
import time

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.network.tls.subjects.principals import (
    MAX_OID_BYTES,
    MAX_SUBJECT_BYTES,
    MalformedCertificate,
    NoPrincipal,
    distinguished_name,
)
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from testbed.kafka.java import find_java
from testbed.kafka.jvm import start_jvm
from tests.proxy.network.tls.subjects.certificates import (
    BMP,
    CN,
    COUNTRY,
    DC,
    EMAIL,
    GENERAL,
    IA5,
    INTEGER,
    KEYWORDS,
    NULL,
    NUMERIC,
    OCTETS,
    ORG,
    OU,
    PRINTABLE,
    SEQUENCE,
    SERIAL_NUMBER,
    SET,
    TELETEX,
    TITLE,
    UID,
    UNIVERSAL,
    UTF8,
    VISIBLE,
    Attribute,
    certificate,
    der,
    name,
    oid,
)

READS_ALL_AS_UTF8 = find_java().version <= 21
"""Whether this Java reads strings of each type as UTF-8. Java 25 reads them by their type."""
STRINGS = (UTF8, PRINTABLE, TELETEX, IA5, GENERAL, BMP)
OTHERS = (NUMERIC, VISIBLE, UNIVERSAL, INTEGER, OCTETS, NULL, SEQUENCE)


def java_name(encoded: bytes) -> str:
    """The principal's name of a client with this certificate, at a broker without mapping rules."""
    jpype = start_jvm()
    stream = jpype.java.io.ByteArrayInputStream(jpype.JArray(jpype.JByte)(encoded))
    factory = jpype.JClass("java.security.cert.CertificateFactory").getInstance("X.509")
    return str(factory.generateCertificate(stream).getSubjectX500Principal().getName())


def java_refuses(encoded: bytes) -> bool:
    try:
        java_name(encoded)
    except start_jvm().JClass("java.security.cert.CertificateException"):
        return True
    return False


SUBJECTS: dict[str, tuple[bytes, str]] = {
    "usual": (
        name([(COUNTRY, PRINTABLE, b"DE")], [(ORG, UTF8, b"Example Co")], [(OU, UTF8, b"IT")], [(CN, UTF8, b"alice")]),
        "CN=alice,OU=IT,O=Example Co,C=DE",
    ),
    "every keyword": (
        name(*([(type_, UTF8, b"x")] for type_ in KEYWORDS)),
        "DC=x,UID=x,OU=x,O=x,STREET=x,ST=x,L=x,C=x,CN=x",
    ),
    "several values": (name([(UID, UTF8, b"a1"), (CN, UTF8, b"Al")], [(DC, IA5, b"com")]), "DC=com,UID=a1+CN=Al"),
    "values out of order": (name([(OU, UTF8, b"b"), (CN, UTF8, b"a")]), "OU=b+CN=a"),
    "the same type again": (name([(CN, UTF8, b"a")], [(CN, UTF8, b"b")]), "CN=b,CN=a"),
    "all escapes": (name([(CN, UTF8, b'a,b=c+d<e>f#g;h"i\\j')]), r"CN=a\,b\=c\+d\<e\>f\#g\;h\"i\\j"),
    "a leading number sign": (name([(CN, UTF8, b"#1")]), r"CN=\#1"),
    "spaces around": (name([(CN, UTF8, b"  a b  ")]), r"CN=\ \ a b\ \ "),
    "only spaces": (name([(CN, UTF8, b" \r ")]), "CN=\\ \\\r\\ "),
    "other white space": (name([(CN, UTF8, b"\r\n\ta\t\n")]), "CN=\\\r\n\ta\t\n"),
    "escapes at the ends": (name([(CN, UTF8, b" , ")]), r"CN=\ \,\ "),
    "nul": (name([(CN, UTF8, b"a\0b")]), r"CN=a\00b"),
    "an empty value": (name([(CN, UTF8, b"")]), "CN="),
    "not ASCII": (name([(CN, UTF8, "Łukasz 日本 🦊".encode())]), "CN=Łukasz 日本 🦊"),
    "a BMPString, read as UTF-8": (name([(CN, BMP, "Aß".encode("utf-16-be"))]),
                                   "CN=\\00A\\00\N{REPLACEMENT CHARACTER}"),
    "a TeletexString, read as UTF-8": (name([(CN, TELETEX, b"Gr\xfcn")]), "CN=Gr\N{REPLACEMENT CHARACTER}n"),
    "a surrogate in UTF-8": (name([(CN, UTF8, b"a\xed\xa0\x80b")]), "CN=a\N{REPLACEMENT CHARACTER}b"),
    "a surrogate that is cut off": (name([(CN, UTF8, b"\xed\xa0")]), "CN=\N{REPLACEMENT CHARACTER}"),
    "no keyword": (name([(EMAIL, IA5, b"a@b")], [(CN, UTF8, b"a")]), "CN=a,1.2.840.113549.1.9.1=#1603614062"),
    "a keyword that RFC 2253 lacks": (name([(SERIAL_NUMBER, PRINTABLE, b"1"), (TITLE, UTF8, b"Dr")]),
                                      "2.5.4.5=#130131+2.5.4.12=#0c024472"),
    "not a string": (name([(CN, INTEGER, b"\5")]), "CN=#020105"),
    "a long value without keyword": (name([(TITLE, UTF8, b"x" * 200)]), "2.5.4.12=#0c81c8" + "78" * 200),
    "large numbers in a type": (name([("2.999.340282366920938463463374607431768211455", UTF8, b"")]),
                                "2.999.340282366920938463463374607431768211455=#0c00"),
    "types of each root": (name([("0.39.1", NULL, b"")], [("1.0.128", NULL, b"")], [("2.0", NULL, b"")]),
                           "2.0=#0500,1.0.128=#0500,0.39.1=#0500"),
    "an empty relative name": (name([(CN, UTF8, b"a")], [], [(ORG, UTF8, b"b")]), "O=b,,CN=a"),
    "empty": (name(), ""),
}  # fmt: skip


def test_the_names_are_those_of_java() -> None:
    for label, (subject, expected) in SUBJECTS.items():
        encoded = certificate(subject)
        if READS_ALL_AS_UTF8 or "read as UTF-8" not in label:
            assert java_name(encoded) == expected, label
        assert distinguished_name(encoded) == expected, label


def test_a_certificate_without_a_version() -> None:
    encoded = certificate(SUBJECTS["usual"][0], version=False)
    assert distinguished_name(encoded) == java_name(encoded) == SUBJECTS["usual"][1]


texts = st.text(st.sampled_from([*',=+<>#;"\\ \r\n\t\0aZ0é*@', "\x85", "\u2028", "日", "🦊", "\ufeff"]), max_size=12)
contents = (
    texts.map(str.encode)
    | texts.map(lambda text: text.encode("utf-16-be"))
    | texts.map(lambda text: text.encode("utf-8") + b"\xed\xbf\xbf\xf0\x90\x80")
    | st.binary(max_size=200)
    | st.lists(st.sampled_from([b"\xe0", b"\xed", b"\xf0", b"\xf4", b"\x80", b"\x9f", b"\xa0", b"\xc3", b"a"])).map(
        b"".join
    )
)
types = st.sampled_from(KEYWORDS) | st.builds(
    lambda first, others: ".".join(map(str, (*first, *others))),
    st.tuples(st.sampled_from([0, 1]), st.integers(0, 39)) | st.tuples(st.just(2), st.integers(0, 1000)),
    st.lists(st.integers(0, 2**64), max_size=4),
)
attributes = st.tuples(types, st.sampled_from(STRINGS if READS_ALL_AS_UTF8 else (UTF8,)), contents) | st.tuples(
    types, st.sampled_from(OTHERS), st.binary(max_size=20)
)


@given(st.lists(st.lists(attributes, max_size=3), max_size=4))
def test_random_names_are_those_of_java(relative_names: list[list[Attribute]]) -> None:
    encoded = certificate(name(*relative_names))
    expected = java_name(encoded)
    if len(expected) > MAX_PRINCIPAL_CHARACTERS:
        with pytest.raises(NoPrincipal):
            distinguished_name(encoded)
    else:
        assert distinguished_name(encoded) == expected


def test_certificates_of_a_library() -> None:
    """As an authority makes them, and as `ssl` shows them."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name.from_rfc4514_string("CN=alice\\, the first,OU=R&D+UID=a1,O=Grün,C=DE")
    began = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder(
        issuer_name=subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=began,
        not_valid_after=began + dt.timedelta(days=9),
    )
    encoded = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    assert distinguished_name(encoded) == java_name(encoded)
    issued = trustme.CA().issue_cert("client.example", common_name="alice")
    encoded = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
    assert distinguished_name(encoded) == java_name(encoded)
    assert distinguished_name(encoded).startswith("CN=alice,OU=")


# --- certificates that are not valid, or too large ---


def _attribute(*contents: bytes) -> bytes:
    return certificate(der(SEQUENCE, der(SET, der(SEQUENCE, *contents))))


def test_malformed_subjects_are_refused_here_and_by_java() -> None:
    value = der(UTF8, b"a")
    malformed = {
        "a subject that is a set": certificate(der(SET)),
        "a relative name that is a sequence": certificate(der(SEQUENCE, der(SEQUENCE))),
        "an attribute that is a set": certificate(der(SEQUENCE, der(SET, der(SET, oid(CN), value)))),
        "no value": _attribute(oid(CN)),
        "two values": _attribute(oid(CN), value, value),
        "no type": _attribute(value, value),
        "an empty type": _attribute(der(0x06), value),
        "a type that is cut off": _attribute(der(0x06, b"\x55\x84"), value),
        "a type with a padded number": _attribute(der(0x06, b"\x55\x80\x01"), value),
        "a value that is longer than the attribute": _attribute(oid(CN), b"\x0c\x05a"),
    }
    for label, encoded in malformed.items():
        with pytest.raises(MalformedCertificate):
            distinguished_name(encoded)
        assert java_refuses(encoded), label


def test_encodings_that_are_not_der_are_refused() -> None:
    """Longer lengths than needed, an indefinite one, and a tag of two bytes. Java reads some of them."""
    values = (
        b"\x0c\x81\x01a",
        b"\x0c\x82\x00\x80" + b"a" * 128,
        b"\x2c\x80" + der(UTF8, b"a") + b"\0\0",
        b"\x1f\x01a",
    )
    for value in values:
        encoded = _attribute(oid(CN), value)
        with pytest.raises(MalformedCertificate):
            distinguished_name(encoded)


def test_a_certificate_that_is_cut_off() -> None:
    encoded = certificate(SUBJECTS["all escapes"][0])
    for size in range(len(encoded)):
        with pytest.raises(MalformedCertificate):
            distinguished_name(encoded[:size])


def test_long_names_are_refused() -> None:
    longest = MAX_PRINCIPAL_CHARACTERS - len("CN=")
    assert len(distinguished_name(certificate(name([(CN, UTF8, b"a" * longest)])))) == MAX_PRINCIPAL_CHARACTERS
    for subject in (name([(CN, UTF8, b"a" * (longest + 1))]), name([(CN, UTF8, b" " * longest)])):
        with pytest.raises(NoPrincipal, match=f"the most is {MAX_PRINCIPAL_CHARACTERS}"):
            distinguished_name(certificate(subject))
    with pytest.raises(NoPrincipal, match=f"longer than {MAX_SUBJECT_BYTES} bytes"):
        distinguished_name(certificate(name([(CN, UTF8, bytes(MAX_SUBJECT_BYTES))])))
    longest_type = der(0x06, b"\x55" + b"\xff" * (MAX_OID_BYTES - 2) + b"\x7f")
    assert distinguished_name(_attribute(longest_type, der(NULL))).endswith("=#0500")
    with pytest.raises(MalformedCertificate, match=f"longer than {MAX_OID_BYTES} bytes"):
        distinguished_name(_attribute(der(0x06, b"\x55" + b"\xff" * (MAX_OID_BYTES - 1) + b"\x7f"), der(NULL)))


def test_the_most_expensive_subjects_take_little_time() -> None:
    most = MAX_SUBJECT_BYTES - 30
    subjects = {
        "spaces within": name([(CN, UTF8, b"a" + b" " * most + b"a")]),
        "escapes": name([(CN, UTF8, b"," * most)]),
        "hexadecimal digits": name([(TITLE, UTF8, bytes(most))]),
        "invalid UTF-8": name([(CN, UTF8, b"\xed\xa0" * (most // 2))]),
        "many attributes": name(*[[(CN, UTF8, b"")]] * (MAX_SUBJECT_BYTES // 11)),
        "many values": name([(CN, UTF8, b"")] * (most // 9)),
        "long types": der(
            SEQUENCE, *[der(SET, der(SEQUENCE, der(0x06, b"\xff" * (MAX_OID_BYTES - 1) + b"\x7f"), der(NULL)))] * 110
        ),
    }
    for label, subject in subjects.items():
        encoded = certificate(subject)
        began_s = time.thread_time()
        with pytest.raises(NoPrincipal, match="the most is"):
            distinguished_name(encoded)
        assert time.thread_time() - began_s < 0.1, label


@given(st.binary(max_size=60))
def test_any_bytes_are_a_name_or_an_error(data: bytes) -> None:
    for encoded in (
        data,
        certificate(data),
        certificate(der(SEQUENCE, data)),
        certificate(der(SEQUENCE, der(SET, data))),
    ):
        with contextlib.suppress(MalformedCertificate):
            assert len(distinguished_name(encoded)) <= MAX_PRINCIPAL_CHARACTERS


def test_the_version_is_optional_only_in_front() -> None:
    with pytest.raises(MalformedCertificate):
        distinguished_name(der(SEQUENCE, der(SEQUENCE, der(0xA0), der(INTEGER))))


def test_errors_are_the_clients_fault() -> None:
    with pytest.raises(NoPrincipal) as found:
        distinguished_name(b"")
    assert found.value.side == "client"


def test_every_string_type_is_read_as_java_reads_it() -> None:
    value = b"a\xc3\xa9" if READS_ALL_AS_UTF8 else b"a"
    for tag in {*STRINGS, *OTHERS} - (set() if READS_ALL_AS_UTF8 else {BMP}):
        encoded = certificate(name([(CN, tag, value)], [(TITLE, tag, b"a")]))
        assert distinguished_name(encoded) == java_name(encoded)
