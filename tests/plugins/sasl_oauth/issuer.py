"""Keys, key sets and tokens of an issuer, signed with cryptography: neither joserfc nor the plugin has a part in it."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

NOW_S: Final = 1_800_000_000
"""The wall time of tests that do not ask Kafka."""

_HASHES: Final = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
_CURVES: Final[dict[str, ec.EllipticCurve]] = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
}
_CURVE_OF: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _number(value: int, size: int | None = None) -> str:
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8))


@dataclass(frozen=True)
class Key:
    """A key pair with its id."""

    kid: str | None
    private: PrivateKey

    def jwk(self, **members: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"use": "sig", **({} if self.kid is None else {"kid": self.kid})}
        match self.private:
            case rsa.RSAPrivateKey():
                numbers = self.private.public_key().public_numbers()
                found |= {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
            case ec.EllipticCurvePrivateKey():
                point = self.private.public_key().public_numbers()
                (curve,) = (name for name, each in _CURVES.items() if each.name == point.curve.name)
                size = (point.curve.key_size + 7) // 8
                found |= {"kty": "EC", "crv": curve, "x": _number(point.x, size), "y": _number(point.y, size)}
            case ed25519.Ed25519PrivateKey():
                raw = self.private.public_key().public_bytes_raw()
                found |= {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}
        return found | members

    def pem(self) -> bytes:
        public = self.private.public_key()
        return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@cache
def rsa_key(kid: str | None = "rsa", bits: int = 2048) -> Key:
    return Key(kid, rsa.generate_private_key(65537, bits))


@cache
def ec_key(kid: str | None = "ec", curve: str = "P-256") -> Key:
    return Key(kid, ec.generate_private_key(_CURVES[curve]))


@cache
def ed_key(kid: str | None = "ed") -> Key:
    return Key(kid, ed25519.Ed25519PrivateKey.generate())


def key_for(algorithm: str) -> Key:
    """A key that the algorithm can use; always the same."""
    if algorithm in _CURVE_OF:
        return ec_key(f"ec-{algorithm}", _CURVE_OF[algorithm])
    return ed_key() if algorithm == "EdDSA" else rsa_key()


def key_set(*members: dict[str, Any] | Key) -> bytes:
    return json.dumps({"keys": [each.jwk() if isinstance(each, Key) else each for each in members]}).encode()


def claims(now_s: float = NOW_S, **changes: Any) -> dict[str, Any]:
    """Usual claims with ``changes``; a claim that is ``...`` is left out."""
    usual = {
        "sub": "alice",
        "iss": "https://idp.example.com",
        "aud": "kafka",
        "iat": int(now_s),
        "exp": int(now_s) + 300,
    }
    return {name: value for name, value in (usual | changes).items() if value is not ...}


def token(payload: dict[str, Any] | str, key: Key | None = None, algorithm: str = "RS256", **header: Any) -> str:
    """A signed token. ``payload`` may be its text; a member of the header that is ``...`` is left out."""
    key = key or key_for(algorithm)
    head = {"alg": algorithm, "typ": "JWT", "kid": key.kid if key.kid is not None else ..., **header}
    return signed(
        json.dumps({name: value for name, value in head.items() if value is not ...}), payload, key, algorithm
    )


def signed(header: str, payload: dict[str, Any] | str, key: Key, algorithm: str) -> str:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    content = f"{b64(header.encode())}.{b64(text.encode('utf-8', 'surrogatepass'))}"
    return f"{content}.{b64(_signature(content.encode(), key.private, algorithm))}"


def shared_secret_token(payload: dict[str, Any], secret: bytes, **header: Any) -> str:
    """A token whose signature is an HMAC (HS256)."""
    content = f"{b64(json.dumps({'alg': 'HS256', **header}).encode())}.{b64(json.dumps(payload).encode())}"
    return f"{content}.{b64(hmac.digest(secret, content.encode(), 'sha256'))}"


def unsigned_token(payload: dict[str, Any], signature: str = "") -> str:
    return f"{b64(json.dumps({'alg': 'none'}).encode())}.{b64(json.dumps(payload).encode())}.{signature}"


def _signature(content: bytes, key: PrivateKey, algorithm: str) -> bytes:
    match key:
        case ed25519.Ed25519PrivateKey():
            return key.sign(content)
        case ec.EllipticCurvePrivateKey():
            r, s = decode_dss_signature(key.sign(content, ec.ECDSA(_HASHES[algorithm[2:]])))
            size = (key.curve.key_size + 7) // 8
            return r.to_bytes(size) + s.to_bytes(size)
        case rsa.RSAPrivateKey():
            algorithm_hash = _HASHES[algorithm[2:]]
            pss = padding.PSS(padding.MGF1(algorithm_hash), algorithm_hash.digest_size)
            return key.sign(content, pss if algorithm.startswith("PS") else padding.PKCS1v15(), algorithm_hash)
