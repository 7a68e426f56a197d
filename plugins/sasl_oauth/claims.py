"""The rules for the claims of a token whose signature has been verified. Pure; the wall clock's time is an argument.

They are those of a broker (``BrokerJwtValidator`` with jose4j's ``JwtConsumer``), but stricter in two points: a token
that was issued in the future is refused, and a user's name has a maximum length. The documentation (docs/users.md) has
all differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.plugins.sasl_oauth.jwt import JsonObject, TokenError
from headrace.quota_callbacks.identities import JAVA_WHITESPACE, MAX_PRINCIPAL_CHARACTERS

_LAST_NUMERIC_DATE: Final = 2**63 - 1
"""``NumericDate`` has 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """The rules that the claims of a token must satisfy; `headrace.plugins.sasl_oauth.options` describes each."""

    issuer: str | None = None
    audience: frozenset[str] = frozenset()
    principal_claim: str = "sub"
    scope_claim: str = "scope"
    required_scopes: frozenset[str] = frozenset()
    clock_skew_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The principal of a verified token, and its expiry."""

    principal: str
    expires_s: int
    """Wall time at which the token expires, in seconds since 1970."""


def check_claims(claims: JsonObject, rules: ClaimRules, now_s: float) -> Identity:
    """Return the identity in ``claims``, those of a token with a valid signature. Raises `TokenError`.

    ``now_s`` is the wall time in seconds since 1970.
    """
    expires_s = _check_times(claims, rules.clock_skew_s, int(now_s))
    _check_audience(claims.get("aud"), rules.audience)
    _check_issuer(claims.get("iss"), rules.issuer)
    for name in ("sub", "jti"):
        if not isinstance(claims.get(name), str | None):
            raise TokenError(f"the claim {name} is not a string")
    _check_scopes(claims.get(rules.scope_claim), rules)
    return Identity(principal=_principal(claims, rules.principal_claim), expires_s=expires_s)


def claimed_principal(claims: JsonObject, principal_claim: str) -> str | None:
    """Return the user that unverified ``claims`` name, for the log; ``None`` if they name none."""
    try:
        return _principal(claims, principal_claim)
    except TokenError:
        return None


def _check_times(claims: JsonObject, skew_s: int, now_s: int) -> int:
    """Check the times (``NumericDateValidator``), and return that of the expiry."""
    expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
    valid_from_s = _time(claims, "nbf")
    if expires_s is None:
        raise TokenError("the token has no claim exp")
    if issued_s is None:
        raise TokenError("the token has no claim iat")
    if min(expires_s, issued_s) < 0:
        raise TokenError("the claim exp or iat is negative")
    if now_s - skew_s >= expires_s:
        raise TokenError(f"the token expired {now_s - expires_s} s ago")
    if expires_s < issued_s or (valid_from_s is not None and expires_s < valid_from_s):
        raise TokenError("the token expires before it is valid")
    if valid_from_s is not None and now_s + skew_s < valid_from_s:
        raise TokenError(f"the token is not valid for another {valid_from_s - now_s} s")
    if now_s + skew_s < issued_s:
        raise TokenError(f"the token was issued {issued_s - now_s} s in the future")
    return expires_s


def _time(claims: JsonObject, name: str) -> int | None:
    """Return a claim with a time in whole seconds. A fraction is cut off, as jose4j does."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LAST_NUMERIC_DATE:
        raise TokenError(f"the claim {name} is not a time")
    return int(value)


def _check_audience(value: object, audience: frozenset[str]) -> None:
    if value is None:
        if audience:
            raise TokenError("the token has no claim aud")
        return
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise TokenError("the claim aud is neither a string nor a list of strings")
    if audience.isdisjoint(found):
        expected = "is another one" if audience else "is set, and no audience is configured"
        raise TokenError(f"the token's audience (claim aud) {expected}")


def _check_issuer(value: object, issuer: str | None) -> None:
    if not isinstance(value, str | None):
        raise TokenError("the claim iss is not a string")
    if issuer is not None and value != issuer:
        raise TokenError("the token has no claim iss" if value is None else "the token has another issuer (claim iss)")


def _check_scopes(value: object, rules: ClaimRules) -> None:
    """Check the scopes: one string, as RFC 8693 has it, or a list of strings (``OAuthBearerUtils``)."""
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    scopes = [each.strip(JAVA_WHITESPACE) if isinstance(each, str) else "" for each in found]
    if not all(scopes) or len(set(scopes)) != len(scopes):
        raise TokenError(f"the claim {rules.scope_claim} has an empty scope, or one twice")
    granted = {scope for each in scopes for scope in (each.split(" ") if isinstance(value, str) else (each,))}
    if missing := rules.required_scopes - granted:
        raise TokenError(f"the token lacks the scope {min(missing)}")


def _principal(claims: JsonObject, name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str):
        raise TokenError(f"the token has no claim {name}" if value is None else f"the claim {name} is not a string")
    principal = value.strip(JAVA_WHITESPACE)
    if not 0 < len(principal) <= MAX_PRINCIPAL_CHARACTERS:
        raise TokenError(f"the claim {name} does not have 1 to {MAX_PRINCIPAL_CHARACTERS} characters")
    try:
        principal.encode()
    except UnicodeEncodeError:
        raise TokenError(f"the claim {name} contains half of a surrogate pair") from None
    return principal
