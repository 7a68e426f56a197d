"""OAUTHBEARER's messages, with unsigned tokens."""

from __future__ import annotations

import base64
import json
from typing import Any

FUTURE_S = 4_000_000_000


def bearer(token: str, *, authzid: str = "", extensions: str = "") -> bytes:
    """The client's message of RFC 7628."""
    return f"n,{authzid},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def unsecured(claims: dict[str, Any]) -> str:
    """A token that Kafka's validator of unsecured tokens takes (``alg: none``)."""
    return jwt(json.dumps({"iat": 0, "exp": FUTURE_S, **claims}))


def claims_of(token: str) -> dict[str, Any]:
    """The claims of a token, which is not verified."""
    part = token.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return claims


def jwt(payload: str) -> str:
    """Any payload in the form of a token."""
    return f"{_part(json.dumps({'alg': 'none'}))}.{_part(payload)}."


def _part(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
