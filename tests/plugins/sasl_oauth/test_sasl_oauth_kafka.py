"""The exchange with clients beside Kafka's own server: the same tokens are accepted, with the same users."""

from __future__ import annotations

import json
from time import time_ns
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.sasl_oauth.claims import ClaimRules
from headrace.plugins.sasl_oauth.key_set import read_key_set
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, INVALID_TOKEN, LONGEST_MESSAGE_BYTES
from headrace.plugins.sasl_oauth.options import Algorithm
from headrace.plugins.sasl_oauth.server_exchange import OAuthServerExchange
from headrace.plugins.sasl_oauth.verification import TokenVerifier
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.sasl import SaslRefused
from tests.plugins.sasl_identity.sasl_messages import bearer
from tests.plugins.sasl_oauth.issuer import (
    Key,
    b64,
    claims,
    ec_key,
    ed_key,
    key_for,
    key_set,
    rsa_key,
    shared_secret_token,
    signed,
    token,
    unsigned_token,
)
from tests.plugins.sasl_oauth.kafka_oauth import KafkaServer, KafkaValidator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.plugins.sasl_oauth.key_set import KeySet

SKEW_S = 30
ISSUER = "https://idp.example.com"
KEYS = [key_for(each) for each in ("RS256", "ES256", "ES384", "ES512", "EdDSA")]


def wall_s() -> float:
    return time_ns() / 1e9


class FixedKeys:
    """A source whose keys never change."""

    def __init__(self, keys: KeySet) -> None:
        self.keys: KeySet | None = keys

    def request_refresh(self) -> None: ...


class Both:
    """Kafka's server and the plugin's exchange, with the same keys and rules."""

    def __init__(
        self, folder: Any, keys: bytes, *, audience: tuple[str, ...] = ("kafka", "other"), issuer: str | None = ISSUER
    ) -> None:
        file = folder / "keys.json"
        file.write_bytes(keys)
        self.kafka = KafkaValidator(file, audience=audience, issuer=issuer, skew_s=SKEW_S)
        rules = ClaimRules(issuer=issuer, audience=frozenset(audience), clock_skew_s=SKEW_S)
        self.verifier = TokenVerifier(FixedKeys(read_key_set(keys)), rules, tuple(Algorithm))

    def exchange(self) -> OAuthServerExchange:
        return OAuthServerExchange(self.verifier, wall_s)

    def agree(self, message: bytes, case: object = "") -> str | None:
        """Check that both respond alike, and return the accepted user."""
        server = self.kafka.server()
        expected = server.respond(message)
        exchange = self.exchange()
        try:
            step = exchange.respond(message)
        except SaslRefused:
            assert expected is None, case
            return None
        assert step.answer == expected, case
        assert step.principal == server.principal, case
        if step.principal is None:
            refuses_the_acknowledgement(server, exchange)
        return step.principal


def refuses_the_acknowledgement(server: KafkaServer, exchange: OAuthServerExchange) -> None:
    assert server.respond(ACKNOWLEDGEMENT) is None
    with pytest.raises(SaslRefused):
        exchange.respond(ACKNOWLEDGEMENT)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    found = Both(tmp_path_factory.mktemp("keys"), key_set(*KEYS))
    yield found
    found.kafka.close()


def test_every_algorithm_with_a_public_key(both: Both) -> None:
    for algorithm in Algorithm:
        assert both.agree(bearer(token(claims(wall_s()), algorithm=algorithm.value)), algorithm) == "alice"


ACCEPTED: dict[str, dict[str, Any]] = {
    "usual": {},
    "within the skew after its expiry": {"exp": -SKEW_S + 15, "iat": -100},
    "within the skew before it is valid": {"nbf": SKEW_S - 15},
    "with fractions": {"exp": 100.75, "iat": -5.5},
    "in a list of audiences": {"aud": ["somebody", "other"]},
    "scopes in a list": {"scope": ["read", "write"]},
    "scopes in a string": {"scope": "read write"},
    "a scope that is a number": {"scope": 5},
    "null in place of claims": {"nbf": None, "jti": None, "scope": None},
    "a user with spaces": {"sub": " alice "},
    "nested deeply, as real tokens are": {"realm": json.loads("[" * 50 + "]" * 50)},
    "long": {"groups": ["group"] * 3000},
}
REFUSED: dict[str, dict[str, Any]] = {
    "expired": {"exp": -SKEW_S - 15},
    "not yet valid": {"nbf": SKEW_S + 15},
    "valid after its expiry": {"exp": 100, "nbf": 110, "iat": -10},
    "issued after its expiry": {"exp": -10, "iat": 10},
    "no expiry": {"exp": ...},
    "a null expiry": {"exp": None},
    "an expiry in a string": {"exp": "4000000000"},
    "an expiry that is true": {"exp": True},
    "an expiry before 1970": {"exp": -4_000_000_000, "iat": -4_000_000_100},
    "an expiry of 100 digits": {"exp": 10**100},
    "no time of issue": {"iat": ...},
    "a time of issue in a string": {"iat": "1"},
    "another issuer": {"iss": "https://evil.example.com"},
    "an issuer with a slash": {"iss": f"{ISSUER}/"},
    "no issuer": {"iss": ...},
    "a list of issuers": {"iss": [ISSUER]},
    "another audience": {"aud": "somebody"},
    "no audience": {"aud": ...},
    "an empty list of audiences": {"aud": []},
    "audiences that are no strings": {"aud": ["kafka", 5]},
    "an audience in an object": {"aud": {"kafka": 1}},
    "no user": {"sub": ...},
    "an empty user": {"sub": ""},
    "a blank user": {"sub": "\t "},
    "a user that is a number": {"sub": 5},
    "a user in a list": {"sub": ["alice"]},
    "an id that is a number": {"jti": 5},
    "a scope twice": {"scope": ["read", "read "]},
    "an empty scope": {"scope": ""},
    "a blank scope in a list": {"scope": ["read", " "]},
}


def at_present(changes: dict[str, Any]) -> dict[str, Any]:
    """Claims whose times are relative to now, if they are small numbers."""
    now_s = time_ns() // 1_000_000_000
    moved = {
        name: value + now_s
        if name in {"exp", "nbf", "iat"}
        and not isinstance(value, bool)
        and isinstance(value, int | float)
        and abs(value) < 1e6
        else value
        for name, value in changes.items()
    }
    return claims(now_s, **moved)


@pytest.mark.parametrize(("cases", "accepted"), [(ACCEPTED, True), (REFUSED, False)], ids=["accepted", "refused"])
def test_claims(both: Both, cases: dict[str, dict[str, Any]], accepted: bool) -> None:
    for case, changes in cases.items():
        assert (both.agree(bearer(token(at_present(changes))), case) == "alice") is accepted, case


TIMES = st.sampled_from(
    [..., None, 0, -SKEW_S - 20, -SKEW_S + 20, SKEW_S - 20, -500, 500, 500.5, True, "1", [], 4e9, -1e9]
)
NAMES = st.sampled_from(
    [..., None, "", " ", "alice", "kafka", "other", ISSUER, "日本", 5, 1.5, [], ["kafka"], {}, ["x", "x"]]
)


@given(data=st.data())
def test_any_claims(both: Both, data: st.DataObject) -> None:
    changes = {name: data.draw(TIMES, name) for name in ("exp", "nbf")}
    changes["iat"] = data.draw(
        TIMES.filter(lambda at: isinstance(at, bool) or not isinstance(at, int | float) or at <= 0)
    )
    changes |= {
        name: data.draw(NAMES, name)
        for name in data.draw(st.sets(st.sampled_from(["sub", "iss", "aud", "jti", "scope"])))
    }
    both.agree(bearer(token(at_present(changes))), changes)


def test_attacks(both: Both) -> None:
    good = claims(wall_s())
    genuine = token(good)
    header, payload, signature = genuine.split(".")
    stranger = Key("rsa", rsa_key("stranger").private)
    admin = b64(json.dumps(good | {"sub": "admin"}).encode())
    zero_header = b64(b'{"alg":"ES256","kid":"ec-ES256"}')
    pem = rsa_key().pem()
    attacks = {
        "signed by a stranger": token(good, stranger),
        "signed by a stranger, with the key in the header": token(good, stranger, jwk=stranger.jwk()),
        "an unknown kid": token(good, kid="unknown"),
        "another key's kid": token(good, kid="ec-ES256"),
        "alg none": unsigned_token(good),
        "alg none with a signature": unsigned_token(good, signature),
        "the public key as a shared secret": shared_secret_token(good, pem, kid="rsa"),
        "the public key as a shared secret, without a kid": shared_secret_token(good, pem),
        "changed claims": f"{header}.{admin}.{signature}",
        "a changed signature": f"{header}.{payload}.{signature[:-5]}AAAA{signature[-1]}",
        "a signature cut off": f"{header}.{payload}.{signature[:40]}",
        "no signature": f"{header}.{payload}.",
        "two parts": f"{header}.{payload}",
        "five parts": f"{genuine}.{header}.{payload}",
        "an encrypted form": f"{header}.{payload}.{payload}.{payload}.{signature}",
        "opaque": "opaque",
        "equal names": signed(
            '{"alg":"RS256","kid":"rsa"}', json.dumps(good)[:-1] + ', "sub": "admin"}', rsa_key(), "RS256"
        ),
        "equal names in the header": signed('{"alg":"RS256","alg":"RS256","kid":"rsa"}', good, rsa_key(), "RS256"),
        "a critical extension": token(good, crit=["exp2"], exp2=1),
        "an algorithm that is not a string": signed('{"alg":5,"kid":"rsa"}', good, rsa_key(), "RS256"),
        "no algorithm": signed('{"kid":"rsa"}', good, rsa_key(), "RS256"),
        "a payload that is a list": signed('{"alg":"RS256","kid":"rsa"}', "[]", rsa_key(), "RS256"),
        "a payload that is no JSON": signed('{"alg":"RS256","kid":"rsa"}', "{", rsa_key(), "RS256"),
        "ES256 with a signature of zeros": f"{zero_header}.{payload}.{b64(bytes(64))}",
        "the curve of another algorithm": token(good, ec_key("ec-ES384", "P-384"), "ES384", alg="ES256"),
    }
    for case, attack in attacks.items():
        assert both.agree(bearer(attack), case) is None, case
    assert both.agree(bearer(genuine)) == "alice"


def test_the_kid_is_missing_with_several_keys(both: Both) -> None:
    """The first key that fits is taken, whether it has signed or not."""
    good = claims(wall_s())
    assert both.agree(bearer(token(good, rsa_key(), kid=...))) == "alice"
    assert both.agree(bearer(token(good, ed_key(), "EdDSA", kid=...))) == "alice"
    assert both.agree(bearer(token(good, ec_key("ec-ES384", "P-384"), "ES384", kid=...))) == "alice"


def test_two_keys_of_a_type(tmp_path: Any) -> None:
    first, second = rsa_key("first"), rsa_key("second")
    two = Both(tmp_path, key_set(first, second))
    good = claims(wall_s())
    assert two.agree(bearer(token(good, first, kid=...))) == "alice"
    assert two.agree(bearer(token(good, second, kid=...))) is None
    assert two.agree(bearer(token(good, second))) == "alice"
    two.kafka.close()


def test_rules_that_are_not_set(tmp_path: Any) -> None:
    """Any issuer is accepted, and no token that is for an audience."""
    free = Both(tmp_path, key_set(rsa_key()), audience=(), issuer=None)
    for changes, accepted in (
        ({"aud": ...}, True),
        ({"aud": ..., "iss": ...}, True),
        ({}, False),
        ({"aud": []}, False),
    ):
        assert (free.agree(bearer(token(claims(wall_s(), **changes))), changes) == "alice") is accepted, changes
    free.kafka.close()


def test_weak_keys(tmp_path: Any) -> None:
    weak = Both(tmp_path, key_set(rsa_key("weak", 1024), rsa_key()))
    assert weak.agree(bearer(token(claims(wall_s()), rsa_key("weak", 1024)))) is None
    assert weak.agree(bearer(token(claims(wall_s())))) == "alice"
    weak.kafka.close()


MESSAGES: dict[str, tuple[str, bool]] = {
    "usual": ("n,,\x01auth=Bearer {}\x01\x01", True),
    "the scheme in small letters": ("n,,\x01auth=bearer   {}\x01\x01", True),
    "the user as authorization id": ("n,a=alice,\x01auth=Bearer {}\x01\x01", True),
    "another authorization id": ("n,a=bob,\x01auth=Bearer {}\x01\x01", False),
    "an escaped authorization id": ("n,a=al=2Cice,\x01auth=Bearer {}\x01\x01", False),
    "an authorization id with a comma": ("n,a=al,ice,\x01auth=Bearer {}\x01\x01", False),
    "an empty authorization id": ("n,a=,\x01auth=Bearer {}\x01\x01", False),
    "extensions": ("n,,\x01auth=Bearer {}\x01host=a\x01port=5 \t\r\n=\x01\x01", True),
    "an extension before": ("n,,\x01host=a\x01auth=Bearer {}\x01\x01", True),
    "two tokens": ("n,,\x01auth=Bearer x\x01auth=Bearer {}\x01\x01", True),
    "an extension with a digit": ("n,,\x01auth=Bearer {}\x01a1=b\x01\x01", False),
    "an empty extension": ("n,,\x01auth=Bearer {}\x01a=\x01\x01", False),
    "an extension beyond ASCII": ("n,,\x01auth=Bearer {}\x01a=é\x01\x01", False),
    "channel binding": ("y,,\x01auth=Bearer {}\x01\x01", False),
    "another scheme": ("n,,\x01auth=Basic {}\x01\x01", False),
    "no separator at the end": ("n,,\x01auth=Bearer {}\x01", False),
    "a newline at the end": ("n,,\x01auth=Bearer {}\x01\x01\n", False),
    "no token": ("n,,\x01\x01", False),
    "another character in the token": ("n,,\x01auth=Bearer {}+\x01\x01", False),
    "a character that no token has": ("n,,\x01auth=Bearer {}!\x01\x01", False),
    "a space behind the token": ("n,,\x01auth=Bearer {} \x01\x01", False),
    "nothing": ("", False),
    "an acknowledgement": ("\x01", False),
}


def test_messages(both: Both) -> None:
    good = token(claims(wall_s()))
    for case, (form, accepted) in MESSAGES.items():
        assert (both.agree(form.replace("{}", good).encode(), case) == "alice") is accepted, case


def test_messages_that_are_not_utf8(both: Both) -> None:
    both.agree(bearer(token(claims(wall_s()))).replace(b"n,,", b"n,a=\xff,"))
    both.agree(b"\xff\xfe")


def test_what_is_stricter_than_at_a_broker(both: Both) -> None:
    """The differences that docs/users.md names: a broker accepts these tokens."""
    now_s = wall_s()
    nested = json.dumps(claims(now_s))[:-1] + f', "nested": {"[" * 20_000}{"]" * 20_000}}}'
    future = claims(now_s, iat=int(now_s) + SKEW_S + 60)
    for payload in (future, claims(now_s, sub="a" * (MAX_PRINCIPAL_CHARACTERS + 1)), nested):
        message = bearer(token(payload))
        assert both.kafka.server().respond(message) == b""
        assert both.exchange().respond(message).answer == INVALID_TOKEN
    message = bearer(token(claims(now_s, groups=["group"] * 10_000)))
    assert both.kafka.server().respond(message) == b""
    with pytest.raises(SaslRefused, match=f"longer than {LONGEST_MESSAGE_BYTES} bytes"):
        both.exchange().respond(message)


def test_a_second_token_after_an_error(both: Both) -> None:
    """A broker takes it; RFC 7628 has the server fail after the acknowledgement."""
    wrong, right = (bearer(token(claims(wall_s(), iss=issuer))) for issuer in ("https://evil.example.com", ISSUER))
    server, exchange = both.kafka.server(), both.exchange()
    assert server.respond(wrong) == exchange.respond(wrong).answer == INVALID_TOKEN
    assert server.respond(right) == b""
    with pytest.raises(SaslRefused):
        exchange.respond(right)
