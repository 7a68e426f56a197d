"""Reads the user name from a client's SASL message, as Kafka's brokers do. Pure.

``None`` means that the message shows no name. The result for a message that a broker would refuse is arbitrary, since a
name is used only after the broker has accepted it. Passwords and tokens are never part of a result.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final

from headrace.quota_callbacks.identities import JAVA_WHITESPACE, MAX_PRINCIPAL_CHARACTERS

MAX_JWT_CHARACTERS: Final = 64 * 1024
"""The longest token that is decoded, which blocks the event loop for half a millisecond. Real tokens are shorter, since
HTTP servers refuse headers of more than 8 to 16 KiB."""

_TOKEN_AUTHENTICATION: Final = "tokenauth"  # noqa: S105 -- ``ScramLoginModule.TOKEN_AUTH_CONFIG``
_BEARER: Final = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_SEPARATOR: Final = "\x01"


def plain_name(message: bytes) -> str | None:
    """Return the authentication id of RFC 4616's message, ``[authzid] NUL authcid NUL passwd``.

    Source: ``PlainSaslServer``, which refuses an authorization id that differs from it.
    """
    parts = message.split(b"\0")
    return _name(parts[1].decode("utf-8", "replace")) if len(parts) == 3 else None


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
        parts = message.decode("utf-8").split(",")
    except UnicodeDecodeError:
        return None
    at = 3 if len(parts) > 2 and parts[2].startswith("m=") else 2
    if len(parts) < at + 2 or not parts[at].startswith("n=") or not parts[at + 1].startswith("r="):
        return None
    extensions = dict(part.partition("=")[::2] for part in parts[at + 2 :])
    is_token = extensions.get(_TOKEN_AUTHENTICATION, "").lower() == "true"
    name = parts[at][2:].replace("=2C", ",")
    return (None if "=" in name.replace("=3D", "") else _name(name.replace("=3D", "="))), is_token


def oauth_name(message: bytes, claim: str) -> str | None:
    """Return the claim ``claim`` of the JWT in RFC 7628's client message, ``gs2-header %x01 key=value%x01 ... %x01``.

    The token is not verified. None if it is not a signed or unsecured JWT, for instance an opaque token, or if the
    claim is not a string. The last of equal keys is used. Source: ``OAuthBearerClientInitialResponse``.

    White space at the ends is removed from the claim of a signed token (``ClaimValidationUtils.validateSubject``), but
    not of an unsecured one, which has an empty signature (``OAuthBearerUnsecuredJws``).
    """
    if len(message) > MAX_JWT_CHARACTERS:
        return None
    text = message.decode("utf-8", "replace")
    pairs = dict(pair.partition("=")[::2] for pair in text.split(_SEPARATOR)[1:])
    bearer = _BEARER.fullmatch(pairs.get("auth", ""))
    parts = bearer[1].split(".") if bearer is not None else []
    if len(parts) != 3:
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
