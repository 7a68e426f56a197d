"""The server's side of SCRAM, with the example of the RFC, Kafka's own client, and Kafka's own server as reference."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.scram import ScramMechanism, scram_keys, scram_verifier
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.proxy.sasl.scram_server import ClientFirst, ScramServer, read_client_first
from tests.proxy.sasl.kafka_sasl import JavaSaslError, scram_client, scram_server

if TYPE_CHECKING:
    import random

    from headrace.proxy.sasl.scram import ScramVerifier

SHA_256 = ScramMechanism.SHA_256
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
VERIFIER = scram_verifier(SHA_256, "pencil", SALT, 4096)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)


def rfc_server(header: bytes = b"n,,") -> ScramServer:
    first = read_client_first(header + b"n=user,r=rOprNGfwEbeRWgbNEkqO")
    return ScramServer(SHA_256, first, VERIFIER, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


def test_the_example_of_rfc_7677() -> None:
    server = rfc_server()
    assert server.first == (b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert server.final(CLIENT_FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


REFUSED_FINALS = {
    b"": "not valid",
    b"\xff": "not UTF-8",
    CLIENT_FINAL.partition(b",p=")[0]: "not valid",
    CLIENT_FINAL.replace(b"k0,p", b"k1,p"): "wrong nonce",
    CLIENT_FINAL.replace(b"biws", b"eSws"): "another header",
    CLIENT_FINAL.replace(b"p=dHz", b"p=eHz"): "proof is wrong",
    CLIENT_FINAL.partition(b"p=")[0] + b"p=": "proof is wrong",
    CLIENT_FINAL.partition(b"p=")[0] + b"p=AAAA": "proof is wrong",
    CLIENT_FINAL.replace(b",p=", b",x=y,p="): "proof is wrong",
}


@pytest.mark.parametrize("message", REFUSED_FINALS, ids=range(len(REFUSED_FINALS)))
def test_last_messages_that_are_refused(message: bytes) -> None:
    with pytest.raises(ExchangeError, match=REFUSED_FINALS[message]):
        rfc_server().final(message)


def test_every_changed_bit_of_the_last_message_is_refused() -> None:
    """Except for the end of base64, where two bits have no meaning."""
    for bit in range(8 * (len(CLIENT_FINAL) - len(b"Q="))):
        changed = bytearray(CLIENT_FINAL)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ExchangeError):
            rfc_server().final(bytes(changed))


def logged_in(mechanism: ScramMechanism, user: str, password: str, verifier: ScramVerifier) -> str:
    """Let Kafka's client log in, and return the name it has given."""
    client = scram_client(mechanism, user, password)
    first = read_client_first(client.evaluate(b"") or b"")
    server = ScramServer(mechanism, first, verifier)
    client.evaluate(server.final(client.evaluate(server.first) or b""))
    assert client.complete
    return first.user


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize(("user", "password"), [("alice", "pencil"), ("a=b,c=2C", "s,e=cret"), ("f", "ﬁne ½ Ⅷ\u00a0")])
def test_kafkas_client_is_accepted(mechanism: ScramMechanism, user: str, password: str) -> None:
    assert logged_in(mechanism, user, password, scram_verifier(mechanism, password, SALT, 4096)) == user


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_kafkas_client_is_refused_with_a_wrong_password_and_refuses_a_server_without_it(
    mechanism: ScramMechanism,
) -> None:
    right = scram_verifier(mechanism, "right", SALT, 4096)
    with pytest.raises(ExchangeError, match="the proof is wrong"):
        logged_in(mechanism, "u", "wrong", right)
    stolen = type(right)(salt=SALT, iterations=4096, stored_key=right.stored_key, server_key=bytes(32))
    with pytest.raises(JavaSaslError, match="Invalid server signature"):
        logged_in(mechanism, "u", "right", stolen)


TEXT = st.text(min_size=1, max_size=30).filter(lambda text: "\0" not in text)


@given(user=TEXT, password=TEXT, kind=st.sampled_from(ScramMechanism))
def test_the_client_and_the_server_agree_about_any_name_and_password(
    user: str, password: str, kind: ScramMechanism
) -> None:
    verifier = scram_verifier(kind, password, SALT, 4096)
    client = ScramClient(kind, user, extensions={"x": "a=b"})
    first = read_client_first(client.first())
    assert first.user == user
    server = ScramServer(kind, first, verifier)
    challenge = client.read_challenge(server.first)
    client.check(server.final(client.final(scram_keys(kind, password, challenge.salt, challenge.iterations))))
    wrong = ScramServer(kind, first, scram_verifier(kind, password + "x", SALT, 4096))
    client.read_challenge(wrong.first)
    with pytest.raises(ExchangeError, match="the proof is wrong"):
        wrong.final(client.final(scram_keys(kind, password, SALT, 4096)))


def test_scramp_as_the_client_is_accepted_also_if_it_could_bind_to_the_channel() -> None:
    client = scramp.ScramClient([SHA_256.value], "user", "pencil")
    server = ScramServer(SHA_256, read_client_first(client.get_client_first().encode()), VERIFIER)
    client.set_server_first(server.first.decode())
    client.set_server_final(server.final(client.get_client_final().encode()).decode())
    with pytest.raises(ExchangeError, match="another header"):
        rfc_server(b"y,,").final(CLIENT_FINAL)


# --- the client's first message ---


def refusal(message: bytes) -> str | None:
    try:
        read_client_first(message)
    except ExchangeError as error:
        return str(error)
    return None


def test_what_the_first_message_contains() -> None:
    message = b"n,a=a=3Db=2C,n=a=3Db=2C,r=abc,ext=v"
    assert read_client_first(message) == ClientFirst(
        user="a=b,", header="n,a=a=3Db=2C,", bare="n=a=3Db=2C,r=abc,ext=v", nonce="abc"
    )
    assert read_client_first(b"y,,n=a,r=b,tokenauth=false").user == "a"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"p=tls-unique,,n=a,r=b", "channel binding is not supported"),
        (b"n,a=b,n=a,r=b", "the authorization id is not the user name"),
        (b"n,,n=a,r=b,tokenauth=true", "delegation tokens are not supported"),
        (b"n,,n=a,r=b,tokenauth=false,tokenauth=TRUE", "delegation tokens are not supported"),
        (b"n,,m=x,n=a,r=b", "the first message is not valid"),
        (b"n,,n=a,r=b" + b",x=y" * 17, "the first message is not valid"),
        (b"n,,n=" + b"=2C" * 1025 + b",r=b", "the first message is not valid"),
        (b"n,,n=a\0b,r=b", "the first message is not valid"),
        (b"n,,n=a=3d,r=b", "the user name is not escaped as SCRAM requires"),
        (b"n,,n==3=2CD,r=b", "the user name is not escaped as SCRAM requires"),
        (b"n,a==,n=a,r=b", "the user name is not escaped as SCRAM requires"),
        (b"n,,n=\xff,r=b", "the message is not UTF-8"),
    ],
)
def test_first_messages_that_are_refused(message: bytes, reason: str) -> None:
    assert refusal(message) == reason


PIECES = (
    *(b"n,,", b"n,", b"y,,", b"a=alice,", b"a=bob,", b"n=alice", b"n=", b",r=abc", b"r=", b",x=y", b",x=", b"m=x,"),
    *(b",tokenauth=true", b",a=b=c", b"=2C", b"=3D", b"=2c", b",", b"=", b"\0", b"\n", b" ", b"\x7f", b"\xc3\xa4"),
)


def test_kafkas_server_accepts_the_same_first_messages(rng: random.Random) -> None:
    """But for the exceptions that `headrace.proxy.sasl.scram_server` names. Kafka refuses unknown users only after
    reading."""
    verifiers = {"alice": VERIFIER}
    agreed = {True: 0, False: 0}
    for _ in range(400):
        parts = [b"n,,", b"n=alice", b",r=abc"]
        for _ in range(rng.randrange(3)):
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(PIECES))
        message = b"".join(parts)
        if message.startswith(b"y") or b"m=x" in message or b"\xc3" in message or b"tokenauth" in message:
            continue
        mine, named = refusal(message), None
        if mine is None:
            named = read_client_first(message).user
            verifiers = {named: VERIFIER}
        try:
            scram_server(SHA_256, verifiers).evaluate(message)
            theirs = None
        except JavaSaslError as error:
            theirs = str(error)
        assert (mine is None) == (theirs is None), (message, mine, theirs)
        agreed[mine is None] += 1
    assert min(agreed.values()) > 20
