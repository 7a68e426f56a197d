"""The server's side of SCRAM (RFC 5802; ``ScramSaslServer``, ``ScramMessages``).

A message is accepted if a broker accepts it, with these exceptions:

- A client may state that it could use channel binding if the server could (``y``), and its name may have any characters
  of UTF-8: RFC 5802 allows both.
- A mandatory extension (``m=``) and a changed header (``c=``) are refused, as RFC 5802 requires.
- Extensions of the client's last message are part of what it signs, as RFC 5802 has it.
- The length of the name and the number of extensions are limited.
- Delegation tokens (``tokenauth=true``, KIP-48) are refused: only brokers know them.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.scram import (
    BASE64_PATTERN,
    NONCE_PATTERN,
    base64_data,
    base64_text,
    exclusive_or,
    unescaped_name,
)

if TYPE_CHECKING:
    from headrace.proxy.sasl.scram import ScramMechanism, ScramVerifier

_NONCE_BYTES: Final = 24
_LONGEST_NAME: Final = 3 * 1024
"""Characters of a name with its escapes: a principal has 1,024 at most, and each needs three at most."""
_MOST_EXTENSIONS: Final = 16
"""Kafka's clients send one. A message of thousands would take a millisecond of the event loop."""
_NAME: Final = rf"[^,\0]{{1,{_LONGEST_NAME}}}"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+=[^,\0]+){{0,{_MOST_EXTENSIONS}}}"
_FIRST: Final = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{NONCE_PATTERN})(?P<extensions>{_EXTENSIONS}))"
)
_FINAL: Final = re.compile(
    rf"(?P<signed>c=(?P<header>{BASE64_PATTERN}),r=(?P<nonce>{NONCE_PATTERN}){_EXTENSIONS}),p=(?P<proof>{BASE64_PATTERN})"
)
_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105 -- ``ScramLoginModule.TOKEN_AUTH_CONFIG``


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    """The client's first message."""

    user: str
    header: str
    """The GS2 header of the message (RFC 5802), for channel binding."""
    bare: str
    """The message proper, which is part of what the client signs."""
    nonce: str


def read_client_first(message: bytes) -> ClientFirst:
    """Return what the client's first message contains. Raises `ExchangeError`."""
    found = _FIRST.fullmatch(_text(message))
    if found is None:
        binds = message.startswith(b"p=")
        raise ExchangeError("channel binding is not supported" if binds else "the first message is not valid")
    user = unescaped_name(found["name"])
    if found["authorization_id"] is not None and unescaped_name(found["authorization_id"]) != user:
        raise ExchangeError("the authorization id is not the user name")
    if _extensions(found["extensions"]).get(_TOKEN_AUTHENTICATION, "").lower() == "true":
        raise ExchangeError("delegation tokens are not supported")
    return ClientFirst(user=user, header=found["header"], bare=found["bare"], nonce=found["nonce"])


class ScramServer:
    """One authentication, once the client's first message is known: send `first`, then check the client's last one."""

    __slots__ = ("_client", "_mechanism", "_nonce", "_verifier", "first")

    def __init__(
        self, mechanism: ScramMechanism, client: ClientFirst, verifier: ScramVerifier, *, nonce: str | None = None
    ) -> None:
        self._mechanism = mechanism
        self._client = client
        self._verifier = verifier
        self._nonce = client.nonce + (nonce or base64_text(secrets.token_bytes(_NONCE_BYTES)))
        self.first: Final = f"r={self._nonce},s={base64_text(verifier.salt)},i={verifier.iterations}".encode()
        """The server's first message."""

    def final(self, message: bytes) -> bytes:
        """Return the server's last message. Raises `ExchangeError` if the client's does not prove the password."""
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise ExchangeError("the last message is not valid")
        if found["nonce"] != self._nonce:
            raise ExchangeError("the last message has a wrong nonce")
        if found["header"] != base64_text(self._client.header.encode()):
            raise ExchangeError("the last message has another header than the first one")
        signed = b",".join((self._client.bare.encode(), self.first, found["signed"].encode()))
        if not self._proves(base64_data(found["proof"]), signed):
            raise ExchangeError("the proof is wrong")
        return f"v={base64_text(self._mechanism.hmac(self._verifier.server_key, signed))}".encode()

    def _proves(self, proof: bytes, signed: bytes) -> bool:
        if len(proof) != self._mechanism.digest_bytes:
            return False
        client_key = exclusive_or(proof, self._mechanism.hmac(self._verifier.stored_key, signed))
        return hmac.compare_digest(self._mechanism.hash(client_key), self._verifier.stored_key)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ExchangeError("the message is not UTF-8") from None  # the cause contains the message


def _extensions(text: str) -> dict[str, str]:
    """Return the extensions by name; of equal names the last one counts, as at a broker."""
    return dict(each.partition("=")[::2] for each in text.split(",")[1:])
