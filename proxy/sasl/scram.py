"""The common part of both sides of SCRAM-SHA-256 and SCRAM-SHA-512: hash functions, keys, names (RFC 5802, RFC 7677).

Written with ``hashlib`` alone. The library scramp applies SASLprep to names and passwords, which Kafka does not
(``ScramFormatter.normalize``): a password with, for example, a ligature would not be accepted. It also refuses the
extensions that Kafka's clients may send, and any authorization id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from headrace.proxy.sasl.errors import ExchangeError

MIN_ITERATIONS: Final = 4096
"""Kafka's minimum (``ScramMechanism.minIterations``), and that of RFC 7677."""
MAX_ITERATIONS: Final = 16_384
"""Kafka's maximum (``ScramMechanism.maxIterations``)."""

NONCE_PATTERN: Final = r"[!-+\--~]+"
BASE64_PATTERN: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"


class ScramMechanism(StrEnum):
    """The mechanisms, by their names in SaslHandshake."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """The name of the hash function in `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def digest_bytes(self) -> int:
        """The size of the keys."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return RFC 5802's ``HMAC(key, data)``."""
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        """Return RFC 5802's ``H(data)``."""
        return hashlib.new(self.hash_name, data).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKeys:
    """What a client computes from a password, a salt and a number of iterations. Secret, and not part of ``repr``."""

    client_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramVerifier:
    """What a server stores of a password. The keys are secret, and not part of ``repr``."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def scram_keys(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """Return the keys. Takes milliseconds (1 µs for an iteration at most), and lets other threads run meanwhile."""
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    return ScramKeys(client_key=mechanism.hmac(salted, b"Client Key"), server_key=mechanism.hmac(salted, b"Server Key"))


def scram_verifier(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramVerifier:
    """Return the verifier of a password; takes as long as `scram_keys`."""
    keys = scram_keys(mechanism, password, salt, iterations)
    stored_key = mechanism.hash(keys.client_key)
    return ScramVerifier(salt=salt, iterations=iterations, stored_key=stored_key, server_key=keys.server_key)


def escaped_name(user: str) -> str:
    """Return a user name as messages contain it (``ScramFormatter.saslName``)."""
    return user.replace("=", "=3D").replace(",", "=2C")


def unescaped_name(name: str) -> str:
    """Return the user name that a message contains (``ScramFormatter.username``). Raises `ExchangeError`."""
    if "=" in name.replace("=2C", " ").replace("=3D", " "):
        raise ExchangeError("the user name is not escaped as SCRAM requires")
    return name.replace("=2C", ",").replace("=3D", "=")


def exclusive_or(one: bytes, other: bytes) -> bytes:
    """Return RFC 5802's ``XOR`` of strings of the same size."""
    return bytes(mine ^ its for mine, its in zip(one, other, strict=True))


def base64_text(data: bytes) -> str:
    """Return data as base64."""
    return base64.b64encode(data).decode()


def base64_data(text: str) -> bytes:
    """Return the data of base64. Raises `ExchangeError`."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ExchangeError("the message has a part that is not base64") from None
