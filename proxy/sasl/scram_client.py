"""The client's side of SCRAM (RFC 5802; ``ScramSaslClient``)."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.scram import (
    MIN_ITERATIONS,
    NONCE_PATTERN,
    base64_data,
    base64_text,
    escaped_name,
    exclusive_or,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.proxy.sasl.scram import ScramKeys, ScramMechanism

_NO_CHANNEL_BINDING: Final = "n,,"
_NONCE_BYTES: Final = 24

MAX_ACCEPTED_ITERATIONS: Final = 1_000_000
"""Kafka's tools set at most 16,384. A server that demands more than this only wants to keep the client busy: it is half
a second of work."""

_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{NONCE_PATTERN}),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[0-9]{{1,9}})(?:,.*)?"
)
_SERVER_FINAL: Final = re.compile(r"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,.*)?")
_LONGEST_ERROR: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramChallenge:
    """The salt and the number of iterations that the server has sent, for `headrace.proxy.sasl.scram.scram_keys`."""

    salt: bytes
    iterations: int


class ScramClient:
    """One authentication: `first`; `read_challenge` and `final` for the server's first message; `check` for its last.

    ``extensions`` are added to the first message, such as ``tokenauth=true`` for a delegation token (KIP-48).
    """

    __slots__ = ("_extensions", "_mechanism", "_name", "_nonce", "_server_first", "_server_nonce", "_server_signature")

    def __init__(
        self,
        mechanism: ScramMechanism,
        user: str,
        *,
        extensions: Mapping[str, str] | None = None,
        nonce: str | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._name = escaped_name(user)
        self._extensions = "".join(f",{name}={value}" for name, value in (extensions or {}).items())
        self._nonce = nonce or base64_text(secrets.token_bytes(_NONCE_BYTES))
        self._server_first = ""
        self._server_nonce = ""
        self._server_signature = b""

    @property
    def _first_bare(self) -> str:
        return f"n={self._name},r={self._nonce}{self._extensions}"

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"{_NO_CHANNEL_BINDING}{self._first_bare}".encode()

    def read_challenge(self, server_first: bytes) -> ScramChallenge:
        """Return what the server's first message demands.

        Raises `ExchangeError` for a message that is not valid, or demands fewer iterations than `MIN_ITERATIONS` or
        more than `MAX_ACCEPTED_ITERATIONS`.
        """
        text, found = _matched(_SERVER_FIRST, server_first)
        nonce, iterations = found["nonce"], int(found["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ExchangeError("the broker's SCRAM nonce does not continue the client's")
        if not MIN_ITERATIONS <= iterations <= MAX_ACCEPTED_ITERATIONS:
            raise ExchangeError(
                f"the broker demands {iterations} SCRAM iterations; {MIN_ITERATIONS} to {MAX_ACCEPTED_ITERATIONS} are "
                "accepted"
            )
        self._server_first, self._server_nonce = text, nonce
        return ScramChallenge(salt=base64_data(found["salt"]), iterations=iterations)

    def final(self, keys: ScramKeys) -> bytes:
        """Return the client's last message. Call it after `read_challenge`."""
        mechanism = self._mechanism
        without_proof = f"c={base64_text(_NO_CHANNEL_BINDING.encode())},r={self._server_nonce}"
        signed = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = mechanism.hmac(mechanism.hash(keys.client_key), signed)
        self._server_signature = mechanism.hmac(keys.server_key, signed)
        return f"{without_proof},p={base64_text(exclusive_or(keys.client_key, signature))}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise `ExchangeError` unless the server's last message proves that it knows the password."""
        _, found = _matched(_SERVER_FINAL, server_final)
        if not hmac.compare_digest(base64_data(found["signature"]), self._server_signature):
            raise ExchangeError("the broker did not prove that it knows the password: its SCRAM signature is wrong")


def _matched(pattern: re.Pattern[str], message: bytes) -> tuple[str, re.Match[str]]:
    """Return the text and the match of a server's message."""
    text = message.decode("utf-8", "replace")
    if text.startswith("e="):
        raise ExchangeError(f"the broker refused the authentication: {text[2:_LONGEST_ERROR]}")
    found = pattern.fullmatch(text)
    if found is None:
        raise ExchangeError("the broker's SCRAM message is not valid")
    return text, found
