"""The client's side of SCRAM, with the examples of the RFCs and Kafka's own server."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.scram import ScramMechanism, scram_keys, scram_verifier
from headrace.proxy.sasl.scram_client import MAX_ACCEPTED_ITERATIONS, ScramClient
from tests.proxy.sasl.kafka_sasl import JavaSaslError, scram_server

if TYPE_CHECKING:
    import random

PASSWORD = "pencil"
NONCE = "rOprNGfwEbeRWgbNEkqO"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KEYS = scram_keys(ScramMechanism.SHA_256, PASSWORD, SALT, 4096)


def client(user: str = "user", mechanism: ScramMechanism = ScramMechanism.SHA_256) -> ScramClient:
    return ScramClient(mechanism, user, nonce=NONCE)


def test_the_example_of_rfc_7677() -> None:
    scram = client()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = scram.read_challenge(SERVER_FIRST)
    assert (challenge.salt, challenge.iterations) == (SALT, 4096)
    assert scram.final(KEYS) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.check(SERVER_FINAL)


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    scram = client()
    scram.read_challenge(SERVER_FIRST)
    scram.final(KEYS)
    with pytest.raises(ExchangeError, match="did not prove that it knows the password"):
        scram.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(ExchangeError, match="refused the authentication: invalid-proof"):
        scram.check(b"e=invalid-proof")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(("user", "password"), [("a=b,c", "s,e=cret"), ("fiona", "ﬁne ½ Ⅷ\u00a0")])
def test_kafkas_server_accepts_it(mechanism: ScramMechanism, user: str, password: str) -> None:
    """Neither side applies SASLprep to passwords."""
    server = scram_server(mechanism, {user: scram_verifier(mechanism, password, SALT, 8192)})
    scram = ScramClient(mechanism, user)
    challenge = scram.read_challenge(server.evaluate(scram.first()) or b"")
    scram.check(
        server.evaluate(scram.final(scram_keys(mechanism, password, challenge.salt, challenge.iterations))) or b""
    )
    assert server.complete
    assert server.user == user


def test_kafkas_server_refuses_a_wrong_password() -> None:
    server = scram_server(ScramMechanism.SHA_512, {"u": scram_verifier(ScramMechanism.SHA_512, "right", SALT, 4096)})
    scram = ScramClient(ScramMechanism.SHA_512, "u")
    challenge = scram.read_challenge(server.evaluate(scram.first()) or b"")
    with pytest.raises(JavaSaslError, match="Invalid client credentials"):
        server.evaluate(scram.final(scram_keys(ScramMechanism.SHA_512, "wrong", challenge.salt, 4096)))


def test_extensions_are_sent_and_signed() -> None:
    scram = ScramClient(ScramMechanism.SHA_256, "id", extensions={"tokenauth": "true"}, nonce=NONCE)
    assert scram.first() == b"n,,n=id,r=rOprNGfwEbeRWgbNEkqO,tokenauth=true"
    plain = client("id")
    for each in (scram, plain):
        each.read_challenge(SERVER_FIRST)
    assert scram.final(KEYS) != plain.final(KEYS)


NAMES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=30)


@given(user=NAMES, password=NAMES, kind=st.sampled_from(ScramMechanism))
def test_scramp_as_the_server_accepts_any_ascii_name_and_password(
    user: str, password: str, kind: ScramMechanism
) -> None:
    made = scramp.ScramMechanism(kind.value)
    salt, stored_key, server_key, iterations = made.make_auth_info(password, iteration_count=4096, salt=SALT)
    server = made.make_server(lambda name: (salt, stored_key, server_key, iterations) if name == user else None)
    scram = ScramClient(kind, user)
    server.set_client_first(scram.first().decode())
    challenge = scram.read_challenge(server.get_server_first().encode())
    server.set_client_final(scram.final(scram_keys(kind, password, challenge.salt, challenge.iterations)).decode())
    scram.check(server.get_server_final().encode())


HOSTILE = {
    b"": "not valid",
    b"\xff\xfe": "not valid",
    b"r=short,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096": "does not continue the client's",
    SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""): "does not continue the client's",
    SERVER_FIRST.replace(b"i=4096", b"i=0"): "demands 0 SCRAM iterations",
    SERVER_FIRST.replace(b"i=4096", b"i=4095"): "demands 4095 SCRAM iterations; 4096 to",
    SERVER_FIRST.replace(b"i=4096", b"i=999999999"): f"to {MAX_ACCEPTED_ITERATIONS} are accepted",
    SERVER_FIRST.replace(b"i=4096", b"i=9999999999999"): "not valid",
    SERVER_FIRST.replace(b"gQ==", b"gQ="): "not base64",
    b"e=other-error": "refused the authentication: other-error",
}


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_messages_of_hostile_servers(message: bytes) -> None:
    with pytest.raises(ExchangeError, match=re.escape(HOSTILE[message])):
        client().read_challenge(message)


def test_random_bytes_of_a_server_are_an_error(rng: random.Random) -> None:
    for _ in range(300):
        changed = bytearray(SERVER_FIRST[: rng.randrange(len(SERVER_FIRST))] + rng.randbytes(rng.randrange(4)))
        with pytest.raises(ExchangeError):
            client().read_challenge(bytes(changed).replace(b"i=", b"j="))


def test_nonces_differ_and_keys_are_not_shown() -> None:
    assert ScramClient(ScramMechanism.SHA_512, "u").first() != ScramClient(ScramMechanism.SHA_512, "u").first()
    assert repr(KEYS) == "ScramKeys()"
