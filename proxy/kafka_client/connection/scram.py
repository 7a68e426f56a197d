"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512, without I/O (RFC 5802, RFC 7677).

Written with ``hashlib`` alone. Libraries for SCRAM apply SASLprep to names and passwords, and Kafka does not
(``ScramFormatter.normalize``), so a password with, for example, a ligature would not be accepted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING, Final

from headrace.proxy.kafka_client.errors import AuthenticationError
from headrace.proxy.kafka_client.settings import Mechanism

if TYPE_CHECKING:
    from headrace.proxy.kafka_client.settings import Credentials

_HASHES: Final = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}
_NO_CHANNEL_BINDING: Final = "n,,"
_NONCE_BYTES: Final = 24

MAX_ITERATIONS: Final = 1_000_000
"""Kafka's tools set at most 16,384. A server that demands more than this only wants to keep the client busy: it is half
a second of work."""

_SERVER_FIRST: Final = re.compile(
    r"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{1,9})(?:,.*)?"
)
_SERVER_FINAL: Final = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,.*)?")


class ScramExchange:
    """One authentication: `first`, then `final` with the server's first message, then `check` with its last one."""

    __slots__ = ("_first_bare", "_hash", "_nonce", "_password", "_server_signature")

    def __init__(self, credentials: Credentials, *, nonce: str | None = None) -> None:
        self._hash = _HASHES[credentials.mechanism]
        self._password = credentials.password
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        user = credentials.user.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={user},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"{_NO_CHANNEL_BINDING}{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's last message. Takes the time of the iterations that the server demands.

        Raises `AuthenticationError` for a message that is not valid, or demands more than `MAX_ITERATIONS`.
        """
        text, found = _matched(_SERVER_FIRST, server_first)
        nonce, iterations = found["nonce"], int(found["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError("the broker's SCRAM nonce does not continue the client's")
        if not 0 < iterations <= MAX_ITERATIONS:
            raise AuthenticationError(
                f"the broker demands {iterations} SCRAM iterations; the most are {MAX_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password.encode(), _decoded(found["salt"]), iterations)
        binding = base64.b64encode(_NO_CHANNEL_BINDING.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._hmac(stored_key, signed)
        proof = bytes(mine ^ other for mine, other in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise `AuthenticationError` unless the server's last message proves that it knows the password."""
        _, found = _matched(_SERVER_FINAL, server_final)
        if not hmac.compare_digest(_decoded(found["signature"]), self._server_signature):
            raise AuthenticationError(
                "the broker did not prove that it knows the password: its SCRAM signature is wrong"
            )

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self._hash)


def _matched(pattern: re.Pattern[str], message: bytes) -> tuple[str, re.Match[str]]:
    """Return the text and the match of a server's message."""
    text = message.decode("utf-8", "replace")
    if text.startswith("e="):
        raise AuthenticationError(f"the broker refused the authentication: {text[2:200]}")
    found = pattern.fullmatch(text)
    if found is None:
        raise AuthenticationError("the broker's SCRAM message is not valid")
    return text, found


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise AuthenticationError("the broker's SCRAM message is not valid base64") from error
