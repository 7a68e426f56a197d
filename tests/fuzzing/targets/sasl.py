"""Targets: the users that SASL tokens name."""

from __future__ import annotations

from typing import Final

from headrace.plugins.sasl_identity.names import oauth_name, plain_name, scram_name, token_id
from headrace.plugins.sasl_identity.observers import OAuthIdentity, PlainIdentity, ScramIdentity, UnseenIdentity
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from tests.fuzzing.choices import Choices

PARTS: Final = (
    b"", b"\0", b"alice", b"n,,", b"n=", b",r=", b"=2C", b"=3D", b"tokenauth=true", b"m=x,", b",", b"=", b"\x01",
    b"auth=",
    b"Bearer ", b"eyJhbGciOiJub25lIn0", b".", b"eyJzdWIiOiJhbGljZSJ9", b"v=", b"e=", b"p=tls-unique,,", b"\xff",
    b"W1tbW1tbW1s",
)  # fmt: skip
LONGEST_PART: Final = 16 * 1024
"""Length in bytes that a token can have."""


def _token(choices: Choices) -> bytes:
    if choices.flag():
        return choices.take(choices.number() % LONGEST_PART)
    return b"".join(
        PARTS[decision % len(PARTS)] if (decision := choices.byte()) < 230 else choices.take(4)
        for _ in range(choices.byte() % 12)
    )


def _check(name: str | None) -> None:
    assert name is None or 0 < len(name) <= MAX_PRINCIPAL_CHARACTERS


def names(data: bytes) -> None:
    """Read the user's name from a token of each mechanism."""
    choices = Choices(data)
    token = _token(choices)
    for name in (plain_name(token), scram_name(token), token_id(token), oauth_name(token, "sub")):
        _check(name)
    assert scram_name(token) is None or token_id(token) is None


def observers(data: bytes) -> None:
    """Observe whole exchanges: no principal before an answer of the broker."""
    choices = Choices(data)
    fallback = choices.pick((None, "fallback"))
    observer = choices.pick(
        (
            PlainIdentity(fallback),
            ScramIdentity(fallback),
            OAuthIdentity(fallback, "sub"),
            UnseenIdentity(fallback, lambda: None, ends_empty=choices.flag()),
        )
    )
    assert observer.principal is None
    for _ in range(choices.byte() % 5):
        token, answer = _token(choices), _token(choices)
        if not isinstance(observer, UnseenIdentity):
            _check(observer.claimed_user(token))
        known = observer.principal
        known_token = observer.token_id if isinstance(observer, ScramIdentity) else None
        observer.exchanged(token, answer)
        _check(observer.principal)
        if isinstance(observer, ScramIdentity):
            _check(observer.token_id)
            if (known, known_token) == (None, None) != (observer.principal, observer.token_id):
                assert answer.startswith(b"v=")
        if isinstance(observer, OAuthIdentity) and known is None and observer.principal is not None:
            assert not answer
        if choices.flag():
            observer.served()
            _check(observer.principal)
