"""The keys of a JSON Web Key Set (RFC 7517), and which of them verifies a token.

Keys that cannot verify a signature are left out: those for encryption, those with a shared secret, RSA keys that are
too short, and those of unknown types, which an issuer may have beside others.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from headrace.plugins.sasl_oauth.jwt import JsonObject, read_object
from headrace.plugins.sasl_oauth.options import Algorithm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_KEYS: Final = 256
"""Maximum number of keys that are read. Issuers have two to ten."""
SHORTEST_RSA_BITS: Final = 2048
"""Minimum length of an RSA key, the same as that of jose4j (RFC 7518, section 3.3)."""

_FAMILIES: Final[Mapping[Algorithm, frozenset[str]]] = {
    Algorithm.RS256: frozenset({"RSA"}),
    Algorithm.RS384: frozenset({"RSA"}),
    Algorithm.RS512: frozenset({"RSA"}),
    Algorithm.PS256: frozenset({"RSA"}),
    Algorithm.PS384: frozenset({"RSA"}),
    Algorithm.PS512: frozenset({"RSA"}),
    Algorithm.ES256: frozenset({"P-256"}),
    Algorithm.ES384: frozenset({"P-384"}),
    Algorithm.ES512: frozenset({"P-521"}),
    Algorithm.EDDSA: frozenset({"Ed25519", "Ed448"}),
}
"""The families of keys for each algorithm: the type, or the curve."""


class KeySetError(ValueError):
    """A document is not a key set with at least one key that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationKey:
    """A public key of the issuer."""

    key: RSAKey | ECKey | OKPKey
    family: str
    """``RSA``, or the name of the curve."""
    kid: str | None
    algorithm: str | None
    """The only algorithm that the key is for; ``None``: any that it fits."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of an issuer at one time. May be used by several threads."""

    keys: Sequence[VerificationKey]

    def select(self, kid: str | None, algorithm: Algorithm) -> VerificationKey | None:
        """Return the key for a token with this header, or ``None``.

        Without a kid it is the first key that fits, as for a broker (jose4j's ``VerificationJwkSelector``): a client
        must not be able to make the proxy try many keys.
        """
        families = _FAMILIES[algorithm]
        for key in self.keys:
            if kid in (None, key.kid) and key.family in families and key.algorithm in (None, algorithm.value):
                return key
        return None

    def has(self, kid: str) -> bool:
        """Return whether there is a key with this kid."""
        return any(key.kid == kid for key in self.keys)


def read_key_set(document: bytes) -> KeySet:
    """Return the keys in a JSON Web Key Set. Raises `KeySetError`."""
    try:
        members = read_object(document).get("keys")
    except ValueError as error:
        raise KeySetError(f"the key set is {error}") from None
    if not isinstance(members, list):
        raise KeySetError("the key set has no list 'keys'")
    found = [key for each in members[:MOST_KEYS] if isinstance(each, dict) and (key := _key(each)) is not None]
    if not found:
        raise KeySetError("the key set has no key that can verify a signature")
    return KeySet(tuple(found))


def _key(member: dict[str, object]) -> VerificationKey | None:
    kid, algorithm = member.get("kid"), member.get("alg")
    if member.get("use", "sig") != "sig" or not isinstance(kid, str | None) or not isinstance(algorithm, str | None):
        return None
    try:
        key = _import(member)
    except (JoseError, ValueError, KeyError, TypeError, OverflowError, UnsupportedAlgorithm):
        return None
    if key is None:
        return None
    family = "RSA" if isinstance(key, RSAKey) else key.curve_name
    return VerificationKey(key=key, family=family, kid=kid, algorithm=algorithm)


def _import(member: dict[str, object]) -> RSAKey | ECKey | OKPKey | None:
    """Return the public key in ``member``; ``None`` for a type that verifies no signature."""
    match member:
        case {"kty": "RSA", "n": str(modulus), "e": str(exponent)}:
            if _bits(modulus) < SHORTEST_RSA_BITS:  # joserfc would only warn
                return None
            return RSAKey.import_key({"kty": "RSA", "n": modulus, "e": exponent})
        case {"kty": "EC", "crv": str(curve), "x": str(x), "y": str(y)}:
            return ECKey.import_key({"kty": "EC", "crv": curve, "x": x, "y": y})
        case {"kty": "OKP", "crv": "Ed25519" | "Ed448" as curve, "x": str(x)}:
            return OKPKey.import_key({"kty": "OKP", "crv": str(curve), "x": x})
        case _:
            return None


def _bits(modulus: str) -> int:
    return int.from_bytes(urlsafe_b64decode(modulus + "=" * (-len(modulus) % 4))).bit_length()


def key_id(header: JsonObject) -> str | None:
    """Return the kid in a token's header. Raises `ValueError` if it is not a string."""
    kid = header.get("kid")
    if not isinstance(kid, str | None):
        raise ValueError("the kid is not a string")  # noqa: TRY004
    return kid
