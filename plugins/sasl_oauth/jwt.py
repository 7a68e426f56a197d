"""Decodes a JSON Web Token (RFC 7519) in the compact form of a JWS, without verifying it. Pure.

Stricter than Python's `json`: equal names in one object, NaN and infinite numbers are errors, since another reader
could understand the token differently. Source of the limits: jose4j, which brokers use.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

LONGEST_JWT: Final = 64 * 1024
"""Longest token in characters; a token is a part of a client's message, which is not longer."""

JsonObject: TypeAlias = Mapping[str, object]


class TokenError(ValueError):
    """A token is not accepted. ``str()`` is for the log and contains nothing of the token.

    ``claimed`` is the user that the token names, if it could be read. It is not verified.
    """

    def __init__(self, reason: str, *, claimed: str | None = None) -> None:
        super().__init__(reason)
        self.claimed = claimed


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    """A token's header and claims, neither of which is verified."""

    header: JsonObject
    claims: JsonObject


def read_jwt(token: str) -> Jwt:
    """Return the content of ``token``. Raises `TokenError`."""
    if len(token) > LONGEST_JWT:
        raise TokenError(f"the token is longer than {LONGEST_JWT} characters")
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise TokenError("the token is not a signed JWT: it does not have three parts")
    header, claims, _ = parts
    return Jwt(header=_object(header, "header"), claims=_object(claims, "payload"))


def read_object(document: bytes) -> JsonObject:
    """Return a JSON object. Raises `ValueError`, without bytes of the document, for anything else."""
    try:
        found: object = json.loads(
            document.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004
    return found


def _object(part: str, name: str) -> JsonObject:
    try:
        return read_object(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise TokenError(f"the token's {name} is not a JSON object in base64url") from None


def _distinct(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("equal names")
    return found


def _no_constant(name: str) -> object:
    raise ValueError(name)


def _finite(number: str) -> float:
    value = float(number)
    if value in {float("inf"), float("-inf")}:
        raise ValueError("infinite")
    return value
