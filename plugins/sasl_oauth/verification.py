"""Verifies a token: its algorithm, its signature by the issuer's keys, and its claims.

Called in a thread, since a signature takes 0.1 ms or more; several threads may call it at once. Keys are only read
here: a token whose key is unknown is refused, and the key set is fetched again in the background.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry, deserialize_compact

from headrace.plugins.sasl_oauth.claims import ClaimRules, Identity, check_claims, claimed_principal
from headrace.plugins.sasl_oauth.jwt import LONGEST_JWT, Jwt, TokenError, read_jwt
from headrace.plugins.sasl_oauth.key_set import KeySet, key_id
from headrace.plugins.sasl_oauth.options import Algorithm

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.plugins.sasl_oauth.key_set import VerificationKey

_KNOWN: Final = frozenset(each.value for each in Algorithm)


class KeySource(Protocol):
    """The source of the current keys. May be used by several threads."""

    @property
    def keys(self) -> KeySet | None:
        """The keys that were fetched last; ``None`` before the first ones."""

    def request_refresh(self) -> None:
        """Note that a token had a key that is unknown. Does not block."""


class _Registry(JWSRegistry):
    """joserfc's algorithms, without its maximum lengths (the token's is checked before) and its warnings."""

    max_header_length = max_payload_length = max_signature_length = LONGEST_JWT

    def get_alg(self, name: str) -> Any:
        """Return the model of the algorithm, without the warning that RFC 9864 has a new name for EdDSA."""
        return self.algorithms[name]


class TokenVerifier:
    """The verification of the tokens of one issuer."""

    __slots__ = ("_algorithms", "_registry", "_rules", "_source")

    def __init__(self, source: KeySource, rules: ClaimRules, algorithms: Collection[Algorithm]) -> None:
        self._source = source
        self._rules = rules
        self._algorithms = frozenset(algorithms)
        self._registry = _Registry(algorithms=[each.value for each in algorithms], strict_check_header=False)

    def verify(self, token: str, now_s: float) -> Identity:
        """Return the identity that ``token`` proves. Raises `TokenError`.

        ``now_s`` is the wall time in seconds since 1970. CPU time, measured with tokens of usual size: 0.12 ms for
        RS256, 0.27 ms for ES256, 0.8 ms for ES384 and ES512, 0.2 ms for EdDSA; 1 ms for a token of 48 KiB.
        """
        found = read_jwt(token)
        try:
            self._check_signature(token, self._key(found))
            return check_claims(found.claims, self._rules, now_s)
        except TokenError as error:
            error.claimed = claimed_principal(found.claims, self._rules.principal_claim)
            raise

    def _key(self, token: Jwt) -> VerificationKey:
        """Return the key for ``token``; ask for newer keys if its kid is unknown."""
        algorithm = self._algorithm(token)
        if "crit" in token.header:
            raise TokenError("the token's header has critical extensions (crit), none of which is known")
        try:
            kid = key_id(token.header)
        except ValueError as error:
            raise TokenError(f"the token's header is wrong: {error}") from None
        keys = self._source.keys
        if keys is None:
            raise TokenError("the issuer's keys have not been fetched yet")
        key = keys.select(kid, algorithm)
        if key is None and kid is not None and not keys.has(kid):
            self._source.request_refresh()
            raise TokenError("the token's key (kid) is unknown; the keys are fetched again")
        if key is None:
            raise TokenError(f"the issuer has no such key for {algorithm.value}")
        return key

    def _algorithm(self, token: Jwt) -> Algorithm:
        name = token.header.get("alg")
        if not isinstance(name, str) or name not in _KNOWN:
            raise TokenError("the token's algorithm is not one with a public key")
        algorithm = Algorithm(name)
        if algorithm not in self._algorithms:
            raise TokenError(f"the token's algorithm {name} is not in algorithms")
        return algorithm

    def _check_signature(self, token: str, key: VerificationKey) -> None:
        try:
            deserialize_compact(token, key.key, registry=self._registry)
        except (JoseError, ValueError, RecursionError):  # the header is decoded again, a few calls deeper
            raise TokenError("the token's signature is wrong") from None
