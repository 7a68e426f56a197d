"""Targets: authentications that the proxy itself takes part in, by PLAIN and SCRAM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.plugins.sasl_users.exchanges import MAX_TOKEN_BYTES, PlainServerExchange, ScramServerExchange
from headrace.plugins.sasl_users.lookups import KnownUsers
from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.plain import plain_message
from headrace.proxy.sasl.scram import (
    ScramMechanism,
    base64_text,
    exclusive_or,
    scram_keys,
    scram_verifier,
)
from headrace.proxy.sasl.scram_client import MAX_ACCEPTED_ITERATIONS, ScramClient
from headrace.quota_callbacks.sasl import SaslRefused
from tests.fuzzing.choices import Choices

if TYPE_CHECKING:
    from headrace.proxy.sasl.scram import ScramKeys
    from headrace.quota_callbacks.sasl import SaslStep, ServerExchange

PASSWORD: Final = "hidden-word"
SALT: Final = bytes(16)
ITERATIONS: Final = 1
KNOWN: Final = KnownUsers(
    {"alice": {kind: scram_verifier(kind, PASSWORD, SALT, ITERATIONS) for kind in ScramMechanism}}, bytes(32)
)
KEYS: Final = {kind: scram_keys(kind, PASSWORD, SALT, ITERATIONS) for kind in ScramMechanism}
FIRST: Final = b"n,,n=alice,r=abc"
NONCE: Final = "rOprNGfwEbeRWgbNEkqO"
PARTS: Final = (
    *(b"n,,", b"n,", b"y,,", b"p=tls-unique,,", b"a=alice,", b"n=alice", b"n=mallory", b"n=", b",r=abc", b",r="),
    *(b",tokenauth=true", b",x=y", b"m=x,", b"=2C", b"=3D", b",", b"=", b"\0", b"\0alice\0", b"\xff", b"c=biws"),
    *(b",p=", b"AAAA", b"v=", b"e=", b"s=W22ZaJ0SNY7soEsUEjb6gQ==", b",i=4096", b",i=", NONCE.encode()),
)


def _changed(choices: Choices, right: bytes) -> bytes:
    """Return the token that is expected next, the same with a changed byte, or anything else."""
    match choices.byte() % 4:
        case 0:
            return right
        case 1 if right:
            at = choices.number() % len(right)
            return right[:at] + bytes([choices.byte()]) + right[at + 1 :]
        case 2:
            return choices.take(choices.number() % (MAX_TOKEN_BYTES + 2))
    return b"".join(
        PARTS[decision % len(PARTS)] if (decision := choices.byte()) < 230 else choices.take(4)
        for _ in range(choices.byte() % 12)
    )


def _proof(kind: ScramMechanism, server_first: bytes, keys: ScramKeys) -> bytes:
    """Return the last message of a client that has begun by `FIRST`."""
    without = b"c=biws," + server_first.partition(b",")[0]
    signed = b",".join((FIRST[3:], server_first, without))
    proof = exclusive_or(keys.client_key, kind.hmac(kind.hash(keys.client_key), signed))
    return without + b",p=" + base64_text(proof).encode()


def servers(data: bytes) -> None:
    """Authenticate a client: only the right tokens prove who it is, and no refusal contains the password."""
    choices = Choices(data)
    kind = choices.pick((None, *ScramMechanism))
    exchange: ServerExchange = (
        PlainServerExchange(lambda: KNOWN) if kind is None else ScramServerExchange(kind, lambda: KNOWN)
    )
    right = plain_message("alice", PASSWORD) if kind is None else FIRST
    is_proved = True
    for _ in range(1 + choices.byte() % 4):
        token = _changed(choices, right)
        is_proved &= token == right
        step = _step(exchange, token)
        if step is None:
            is_proved = False
        elif step.principal is not None:
            assert step.principal == "alice"
            assert is_proved or _means_the_same(kind, token, right)
        elif kind is not None:
            right = _proof(kind, step.answer, KEYS[kind])


def _step(exchange: ServerExchange, token: bytes) -> SaslStep | None:
    """Return what follows a token; ``None`` if it is refused."""
    try:
        return exchange.respond(token)
    except SaslRefused as error:
        refusal = error
    assert PASSWORD not in str(refusal)
    return None


def _means_the_same(kind: ScramMechanism | None, token: bytes, right: bytes) -> bool:
    """Whether a changed token may prove the same: with an authorization id, or with unused bits of base64."""
    if kind is None:
        return token == b"alice" + right
    return token[: -len(b"x==")] == right[: -len(b"x==")]


def clients(data: bytes) -> None:
    """Read the messages of a broker: what it demands is bounded, and only the right signature is accepted."""
    choices = Choices(data)
    kind = choices.pick(tuple(ScramMechanism))
    client = ScramClient(kind, "alice", nonce=NONCE)
    first = f"r={NONCE}+,s={base64_text(SALT)},i=4096".encode()
    is_accepted = False
    try:
        demanded = client.read_challenge(_changed(choices, first))
        assert 4096 <= demanded.iterations <= MAX_ACCEPTED_ITERATIONS
        client.final(KEYS[kind])
        client.check(_changed(choices, b"v=" + base64_text(bytes(kind.digest_bytes)).encode()))
        is_accepted = True
    except ExchangeError as error:
        refusal = str(error)
    assert not is_accepted, "a signature without the key"
    assert PASSWORD not in refusal
