"""Authentications: what is accepted, what is refused and how, and what is the same for unknown users."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from headrace.plugins.sasl_users.exchanges import MAX_TOKEN_BYTES, PlainServerExchange, ScramServerExchange
from headrace.plugins.sasl_users.lookups import KnownUsers
from headrace.proxy.sasl.plain import plain_message
from headrace.proxy.sasl.scram import ScramMechanism, escaped_name, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep
from tests.plugins.sasl_users.user_files import verifiers
from tests.proxy.sasl.kafka_sasl import scram_client

SHA_256, SHA_512 = ScramMechanism
LONGEST_NAME = "ä=" * (MAX_PRINCIPAL_CHARACTERS // 2)
KNOWN = KnownUsers({"alice": verifiers("secret"), LONGEST_NAME: verifiers("secret")}, bytes(32))


def plain(token: bytes, known: KnownUsers = KNOWN) -> SaslStep:
    return PlainServerExchange(lambda: known).respond(token)


def scram(user: str, password: str, mechanism: ScramMechanism = SHA_256, known: KnownUsers = KNOWN) -> SaslStep:
    exchange, client = ScramServerExchange(mechanism, lambda: known), ScramClient(mechanism, user)
    step = exchange.respond(client.first())
    assert step.principal is None
    challenge = client.read_challenge(step.answer)
    step = exchange.respond(client.final(scram_keys(mechanism, password, challenge.salt, challenge.iterations)))
    client.check(step.answer)
    return step


def refused(work: Any, *arguments: Any) -> SaslRefused:
    with pytest.raises(SaslRefused) as raised:
        work(*arguments)
    return raised.value


@pytest.mark.parametrize("user", ["alice", LONGEST_NAME])
def test_the_right_password_proves_the_user(user: str) -> None:
    assert plain(plain_message(user, "secret")) == SaslStep(principal=user)
    assert plain(user.encode() + plain_message(user, "secret")) == SaslStep(principal=user)
    for mechanism in ScramMechanism:
        step = scram(user, "secret", mechanism)
        assert (step.principal, step.lifetime_s) == (user, None)


def test_kafkas_client_authenticates() -> None:
    client = scram_client(SHA_512, "alice", "secret")
    exchange = ScramServerExchange(SHA_512, lambda: KNOWN)
    challenge = exchange.respond(client.evaluate(b"") or b"").answer
    last = exchange.respond(client.evaluate(challenge) or b"")
    client.evaluate(last.answer)
    assert client.complete
    assert last.principal == "alice"


def test_the_refusal_is_the_same_for_an_unknown_user_and_a_wrong_password() -> None:
    for attempt in (lambda user: plain(plain_message(user, "wrong")), lambda user: scram(user, "wrong")):
        known, unknown = refused(attempt, "alice"), refused(attempt, "mallory")
        assert str(known) == str(unknown) == "invalid user name or password"
        assert (known.user, unknown.user) == ("alice", "mallory")
        assert known.__cause__ is unknown.__cause__ is None


def test_the_first_answer_is_of_the_same_form_for_an_unknown_user() -> None:
    def first(user: str) -> list[str]:
        answer = ScramServerExchange(SHA_256, lambda: KNOWN).respond(ScramClient(SHA_256, user).first()).answer
        nonce, salt, iterations = answer.decode().split(",")
        return [str(len(nonce)), str(len(base64.b64decode(salt[2:]))), iterations]

    assert first("alice") == first("mallory")


def test_the_same_is_computed_for_an_unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[str, int, int]] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        computed.append((name, len(salt), iterations))
        return real(name, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    for user in ("alice", "mallory"):
        refused(plain, plain_message(user, "wrong"))
    assert computed == [("sha256", 16, 4096)] * 2


def test_a_removed_user_is_refused_from_then_on() -> None:
    known = {"now": KNOWN}
    exchange = PlainServerExchange(lambda: known["now"])
    known["now"] = KnownUsers({}, bytes(32))
    assert str(refused(exchange.respond, plain_message("alice", "secret"))) == "invalid user name or password"


def test_no_key_of_the_file_is_a_password_of_an_unknown_user() -> None:
    """The stored key of an unknown name is derived from the file's key; sending it proves nothing."""
    stored = KNOWN.scram_verifier(SHA_256, "mallory").stored_key
    for guess in (stored.hex(), "", "\x01", base64.b64encode(stored).decode()):
        if guess:
            refused(plain, plain_message("mallory", guess))
        refused(scram, "mallory", guess)


TOO_LONG = "x" * (MAX_PRINCIPAL_CHARACTERS + 1)


@pytest.mark.parametrize(
    ("work", "token", "reason"),
    [
        (plain, b"alice", "1 parts, not 3"),
        (plain, bytes(MAX_TOKEN_BYTES + 1), f"a token of {MAX_TOKEN_BYTES + 1} bytes"),
        (plain, plain_message(TOO_LONG, "x"), "a user name of 1025 characters"),
        (None, b"", "the first message is not valid"),
        (None, b"n,,n=alice,r=x,tokenauth=true", "delegation tokens are not supported"),
        (None, bytes(MAX_TOKEN_BYTES + 1), f"a token of {MAX_TOKEN_BYTES + 1} bytes"),
        (None, f"n,,n={TOO_LONG},r=x".encode(), "a user name of 1025 characters"),
    ],
)
def test_tokens_that_are_refused(work: Any, token: bytes, reason: str) -> None:
    error = refused(work or ScramServerExchange(SHA_256, lambda: KNOWN).respond, token)
    assert reason in str(error)
    assert error.user is None


def test_the_longest_name_and_password_fit_into_a_token() -> None:
    name = "\U0001f600" * MAX_PRINCIPAL_CHARACTERS
    assert len(f"{name}\0{name}\0".encode()) + 1024 <= MAX_TOKEN_BYTES
    escaped = escaped_name("=" * MAX_PRINCIPAL_CHARACTERS)
    assert len(f"n,a={escaped},n={escaped},r=".encode()) + 1024 <= MAX_TOKEN_BYTES


def test_an_exchange_ends_with_its_first_refusal_and_with_its_success() -> None:
    exchange = PlainServerExchange(lambda: KNOWN)
    refused(exchange.respond, plain_message("alice", "wrong"))
    assert "after the end" in str(refused(exchange.respond, plain_message("alice", "secret")))
    client, scram_exchange = ScramClient(SHA_256, "alice"), ScramServerExchange(SHA_256, lambda: KNOWN)
    challenge = client.read_challenge(scram_exchange.respond(client.first()).answer)
    final = client.final(scram_keys(SHA_256, "secret", challenge.salt, challenge.iterations))
    refused(scram_exchange.respond, final[:-1])
    assert "after the end" in str(refused(scram_exchange.respond, final))


def test_a_proof_is_not_valid_for_another_exchange() -> None:
    client = ScramClient(SHA_256, "alice")
    one, two = (ScramServerExchange(SHA_256, lambda: KNOWN) for _ in range(2))
    challenge = client.read_challenge(one.respond(client.first()).answer)
    two.respond(client.first())
    final = client.final(scram_keys(SHA_256, "secret", challenge.salt, challenge.iterations))
    assert str(refused(two.respond, final)) == "invalid user name or password"
    assert one.respond(final).principal == "alice"


def test_only_plain_blocks() -> None:
    assert PlainServerExchange(lambda: KNOWN).blocks
    assert not ScramServerExchange(SHA_256, lambda: KNOWN).blocks


def test_what_is_refused_contains_no_password() -> None:
    for token in (b"\0alice\0hidden-word", b"\0\0hidden-word", b"x\0alice\0hidden-word", b"\0alice\0\xffhidden-word"):
        error = refused(plain, token)
        assert "hidden-word" not in f"{error} {error!r} {error.user} {error.__cause__!r}"
