"""Reads the user name from a client's SASL message, as Kafka's brokers do. Pure.

``None`` means that the message shows no name. The result for a message that a broker would refuse is arbitrary, since a
name is used only after the broker has accepted it. Passwords and tokens are never part of a result.

A message may have 512 KiB and comes from clients that have not authenticated. So it is never split into all its parts,
and only a token that is short enough is parsed.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from headrace.quota_callbacks.identities import JAVA_WHITESPACE, MAX_PRINCIPAL_CHARACTERS

MAX_JWT_CHARACTERS: Final = 64 * 1024
"""The longest token that is decoded, which blocks the event loop for half a millisecond. Real tokens are shorter, since
HTTP servers refuse headers of more than 8 to 16 KiB."""

_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105 -- ``ScramLoginModule.TOKEN_AUTH_CONFIG``
_SEPARATOR: Final = "\x01"
_UTF8_BYTES: Final = 4
"""The most that a character takes in UTF-8."""
_ESCAPED: Final = 3
"""Characters of ``=2C`` and ``=3D``, which stand for one."""


def plain_name(message: bytes) -> str | None:
    """Return the authentication id of RFC 4616's message, ``[authzid] NUL authcid NUL passwd``.

    Source: ``PlainSaslServer``, which refuses an authorization id that differs from it.
    """
    parts = message.split(b"\0", 3)
    if len(parts) != 3 or len(parts[1]) > MAX_PRINCIPAL_CHARACTERS * _UTF8_BYTES:
        return None
    return _name(parts[1].decode("utf-8", "replace"))


def scram_name(message: bytes) -> str | None:
    """Return the user of RFC 5802's client-first-message, ``gs2-header [m=...,] n=name,r=nonce[,extensions]``.

    None for a delegation token (KIP-48): its message holds the token's id (`token_id`), whose owner only brokers know.
    Source: ``ScramMessages.ClientFirstMessage``, ``ScramFormatter.username``, ``ScramExtensions``.
    """
    found = _scram_first(message)
    return None if found is None or found[1] else found[0]


def token_id(message: bytes) -> str | None:
    """Return the id of the delegation token (KIP-48) that a client-first-message of SCRAM names in place of a user."""
    found = _scram_first(message)
    return found[0] if found is not None and found[1] else None


def _scram_first(message: bytes) -> tuple[str | None, bool] | None:
    """Return the name in a client-first-message, and whether it is that of a token; ``None`` if it is malformed."""
    try:
        _, _, bare = message.decode("utf-8").split(",", 2)
        if bare.startswith("m="):
            _, bare = bare.split(",", 1)
        named, nonce, *extensions = bare.split(",", 2)
    except ValueError:  # UnicodeDecodeError is one
        return None
    if not named.startswith("n=") or not nonce.startswith("r="):
        return None
    is_token = bool(extensions) and _last_value(",", extensions[0], _TOKEN_AUTHENTICATION).lower() == "true"
    if len(named) > 2 + MAX_PRINCIPAL_CHARACTERS * _ESCAPED:
        return None, is_token
    name = named[2:].replace("=2C", ",")
    return (None if "=" in name.replace("=3D", "") else _name(name.replace("=3D", "="))), is_token


def _last_value(separator: str, pairs: str, key: str) -> str:
    """Return the value of the last ``key=value`` in ``pairs``; an empty string if there is none."""
    found = (separator + pairs).rpartition(f"{separator}{key}=")
    return found[2].partition(separator)[0] if found[1] else ""


def oauth_name(message: bytes, claim: str) -> str | None:
    """Return the claim ``claim`` of the JWT in RFC 7628's client message, ``gs2-header %x01 key=value%x01 ... %x01``.

    The token is not verified. None if it is not a signed or unsecured JWT, for instance an opaque token, or if the
    claim is not a string. The last of equal keys is used. Source: ``OAuthBearerClientInitialResponse``.

    White space at the ends is removed from the claim of a signed token (``ClaimValidationUtils.validateSubject``), but
    not of an unsecured one, which has an empty signature (``OAuthBearerUnsecuredJws``).
    """
    pairs = message.decode("latin-1").partition(_SEPARATOR)[2]
    scheme, _, token = _last_value(_SEPARATOR, pairs, "auth").partition(" ")
    token = token.lstrip()
    parts = token.split(".", 3)
    if scheme.lower() != "bearer" or len(token) > MAX_JWT_CHARACTERS or len(parts) != 3:
        return None
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        payload = json.loads(base64.b64decode(padded.encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        return None
    name = payload.get(claim) if isinstance(payload, dict) else None
    if not isinstance(name, str):
        return None
    return _name(name.strip(JAVA_WHITESPACE) if parts[2] else name)


def _name(name: str) -> str | None:
    return name if 0 < len(name) <= MAX_PRINCIPAL_CHARACTERS else None
