"""Certificates with arbitrary subjects, written as DER by hand: no library writes all that Java reads.

The signatures are not valid; nothing here that reads certificates verifies them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

UTF8, PRINTABLE, TELETEX, IA5, GENERAL, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E
NUMERIC, VISIBLE, UNIVERSAL, INTEGER, OCTETS, NULL = 0x12, 0x1A, 0x1C, 0x02, 0x04, 0x05
SEQUENCE, SET = 0x30, 0x31

CN, COUNTRY, LOCALITY, STATE, STREET, ORG, OU = (f"2.5.4.{number}" for number in (3, 6, 7, 8, 9, 10, 11))
UID, DC = "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
EMAIL, SERIAL_NUMBER, TITLE = "1.2.840.113549.1.9.1", "2.5.4.5", "2.5.4.12"
KEYWORDS: Final = (CN, COUNTRY, LOCALITY, STATE, STREET, ORG, OU, UID, DC)

Attribute = tuple[str, int, bytes]
"""A type as numbers with dots, the tag of the value, and its content."""

_ECDSA_WITH_SHA256: Final = "1.2.840.10045.4.3.2"
_SUBJECT_ALTERNATIVE_NAME: Final = "2.5.29.17"


def der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    if len(content) < 0x80:
        return bytes([tag, len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size)]) + size + content


def oid(text: str) -> bytes:
    first, second, *others = map(int, text.split("."))
    found = b""
    for number in (40 * first + second, *others):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        found += bytes(reversed(digits))
    return der(0x06, found)


def name(*relative_names: Sequence[Attribute]) -> bytes:
    """A name with relative names in the order of the certificate, which is the reverse of the text's."""
    return der(
        SEQUENCE,
        *(
            der(SET, *(der(SEQUENCE, oid(type_), der(tag, value)) for type_, tag, value in attributes))
            for attributes in relative_names
        ),
    )


@cache
def _public_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def certificate(subject: bytes, *, version: bool = True) -> bytes:
    """A certificate with this subject, a whole DER element; without a version it is one of X.509 version 1.

    One of version 3 has a critical alternative name, which Java requires if the subject is empty.
    """
    algorithm = der(SEQUENCE, oid(_ECDSA_WITH_SHA256))
    validity = der(SEQUENCE, der(0x17, b"250101000000Z"), der(0x17, b"350101000000Z"))
    alternative = der(OCTETS, der(SEQUENCE, der(0x82, b"client.example")))
    extensions = der(
        0xA3, der(SEQUENCE, der(SEQUENCE, oid(_SUBJECT_ALTERNATIVE_NAME), der(0x01, b"\xff"), alternative))
    )
    issuer = name([(CN, UTF8, b"the issuer")], [(ORG, UTF8, b"not the subject")])
    signed = der(
        SEQUENCE,
        *([der(0xA0, der(INTEGER, b"\2"))] if version else []),
        der(INTEGER, b"\x12\x34"),
        *(algorithm, issuer, validity, subject, _public_key()),
        *([extensions] if version else []),
    )
    signature = der(0x03, b"\0", der(SEQUENCE, der(INTEGER, b"\1"), der(INTEGER, b"\1")))
    return der(SEQUENCE, signed, algorithm, signature)
