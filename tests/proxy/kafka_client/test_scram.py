"""SCRAM, with the examples of the RFCs and Kafka's own server. Real brokers are in `test_brokers`."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client.connection.scram import MAX_ITERATIONS, ScramExchange
from headrace.proxy.kafka_client.errors import AuthenticationError
from headrace.proxy.kafka_client.settings import Credentials, Mechanism
from testbed.kafka.jvm import kafka_classes

if TYPE_CHECKING:
    import random

RFC_PASSWORD = "pencil"
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SCRAM = "org.apache.kafka.common.security.scram.internals"


def exchange(
    user: str = "user", password: str = RFC_PASSWORD, mechanism: Mechanism = Mechanism.SCRAM_SHA_256
) -> ScramExchange:
    return ScramExchange(Credentials(mechanism=mechanism, user=user, password=password), nonce=NONCE)


def test_the_example_of_rfc_7677() -> None:
    scram = exchange()
    assert scram.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert scram.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    scram.check(SERVER_FINAL)


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    scram = exchange()
    scram.final(SERVER_FIRST)
    with pytest.raises(AuthenticationError, match="did not prove that it knows the password"):
        scram.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticationError, match="refused the authentication: invalid-proof"):
        scram.check(b"e=invalid-proof")


@pytest.mark.parametrize("mechanism", [Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_512])
@pytest.mark.parametrize(("user", "password"), [("a=b,c", "s,e=cret"), ("fiona", "ﬁne ½ Ⅷ\u00a0")])
def test_kafka_agrees_about_names_and_passwords(mechanism: Mechanism, user: str, password: str) -> None:
    """``ScramFormatter`` computes the proof from the same messages; neither applies SASLprep."""
    kafka = kafka_classes("4.4.0")
    kind = kafka.cls(f"{SCRAM}.ScramMechanism").forMechanismName(mechanism.value)
    formatter, messages = kafka.cls(f"{SCRAM}.ScramFormatter")(kind), f"{SCRAM}.ScramMessages"
    scram = exchange(user, password, mechanism)
    first = kafka.cls(f"{messages}$ClientFirstMessage")(scram.first())
    assert str(formatter.username(first.saslName())) == user
    final = kafka.cls(f"{messages}$ClientFinalMessage")(scram.final(SERVER_FIRST))
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = formatter.saltedPassword(password, salt, 4096)
    server_first = kafka.cls(f"{messages}$ServerFirstMessage")(SERVER_FIRST)
    assert bytes(final.proof()) == bytes(formatter.clientProof(salted, first, server_first, final))
    signature = formatter.serverSignature(formatter.serverKey(salted), first, server_first, final)
    scram.check(b"v=" + base64.b64encode(bytes(signature)))


HOSTILE = {
    b"": "not valid",
    b"\xff\xfe": "not valid",
    b"r=short,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096": "does not continue the client's",
    SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""): "does not continue the client's",
    SERVER_FIRST.replace(b"i=4096", b"i=0"): "demands 0 SCRAM iterations",
    SERVER_FIRST.replace(b"i=4096", b"i=999999999"): f"the most are {MAX_ITERATIONS}",
    SERVER_FIRST.replace(b"i=4096", b"i=9999999999999"): "not valid",
    SERVER_FIRST.replace(b"gQ==", b"gQ="): "not valid base64",
    b"e=other-error": "refused the authentication: other-error",
}


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_messages_of_hostile_servers(message: bytes) -> None:
    with pytest.raises(AuthenticationError, match=re.escape(HOSTILE[message])):
        exchange().final(message)


def test_random_bytes_of_a_server_are_an_error(rng: random.Random) -> None:
    for _ in range(300):
        changed = bytearray(SERVER_FIRST[: rng.randrange(len(SERVER_FIRST))] + rng.randbytes(rng.randrange(4)))
        with pytest.raises(AuthenticationError):
            exchange().final(bytes(changed).replace(b"i=", b"j="))


def test_nonces_differ_and_the_password_is_not_shown() -> None:
    credentials = Credentials(mechanism=Mechanism.SCRAM_SHA_512, user="u", password="hidden-word")
    assert ScramExchange(credentials).first() != ScramExchange(credentials).first()
    assert "hidden-word" not in repr(credentials)
