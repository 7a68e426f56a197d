"""Targets: SASL/OAUTHBEARER that the proxy verifies itself: the client's messages, its tokens, and their claims.

The keys are fixed, so that an input means the same in every run: a signature of Ed25519 is deterministic.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.plugins.sasl_oauth.access_tokens import read_answer
from headrace.plugins.sasl_oauth.claims import ClaimRules
from headrace.plugins.sasl_oauth.http_requests import Answer
from headrace.plugins.sasl_oauth.key_set import KeySet, KeySetError, read_key_set
from headrace.plugins.sasl_oauth.messages import ACKNOWLEDGEMENT, INVALID_TOKEN, client_message, read_client_message
from headrace.plugins.sasl_oauth.options import Algorithm
from headrace.plugins.sasl_oauth.server_exchange import OAuthServerExchange
from headrace.plugins.sasl_oauth.verification import TokenVerifier
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep
from tests.fuzzing.choices import Choices
from tests.plugins.sasl_identity.sasl_messages import bearer
from tests.plugins.sasl_oauth.issuer import Key, b64, claims, key_set

NOW_S: Final = 1_800_000_000
LONGEST_PART: Final = 16 * 1024
HEADER: Final = b'{"alg":"EdDSA","kid":"a"}'
CLAIMS: Final = json.dumps(claims(NOW_S)).encode()

_PRIVATE: Final = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_KEYS: Final = key_set(Key("a", _PRIVATE))


class _Source:
    """Keys that never change."""

    keys: KeySet | None = read_key_set(_KEYS)

    def request_refresh(self) -> None:
        """Do nothing."""


_VERIFIER: Final = TokenVerifier(
    _Source(), ClaimRules(issuer="https://idp.example.com", audience=frozenset({"kafka"})), tuple(Algorithm)
)


def _signed(header: bytes, payload: bytes) -> str:
    content = f"{b64(header)}.{b64(payload)}"
    return f"{content}.{b64(_PRIVATE.sign(content.encode()))}"


GENUINE: Final = _signed(HEADER, CLAIMS)


def _mutated(choices: Choices, content: bytes) -> bytes:
    """Return ``content`` with some bytes replaced by others."""
    for _ in range(choices.byte() % 4):
        at = choices.number() % (len(content) + 1)
        content = content[:at] + choices.take(choices.byte() % 16) + content[at + choices.byte() % 16 :]
    return content


def _step(exchange: OAuthServerExchange, message: bytes) -> SaslStep | SaslRefused:
    try:
        return exchange.respond(message)
    except SaslRefused as refused:
        return refused


def _respond(message: bytes) -> SaslStep | None:
    """Return the step after a message, ``None`` if it was refused; check what holds for every exchange."""
    exchange = OAuthServerExchange(_VERIFIER, lambda: NOW_S)
    step = _step(exchange, message)
    if isinstance(step, SaslRefused):
        return None
    if step.principal is None:
        assert step.answer == INVALID_TOKEN
        refused = _step(exchange, ACKNOWLEDGEMENT)
        assert isinstance(refused, SaslRefused)
        assert refused.user is None or 0 < len(refused.user) <= MAX_PRINCIPAL_CHARACTERS
        return step
    assert step.answer == b""
    assert 0 < len(step.principal.encode().decode()) <= MAX_PRINCIPAL_CHARACTERS
    assert step.lifetime_s is not None
    assert step.lifetime_s >= 0
    return step


def messages(data: bytes) -> None:
    """Send any message, or the genuine one with changes: whoever is accepted sent a genuine token."""
    choices = Choices(data)
    whole = choices.flag()
    message = choices.take(LONGEST_PART) if whole else _mutated(choices, bearer(GENUINE))
    step = _respond(message)
    if step is not None and step.principal is not None:
        content, _, signature = read_client_message(message).token.rpartition(".")
        genuine, _, right = GENUINE.rpartition(".")
        assert content == genuine
        assert signature[: len(right) - 1] == right[:-1]  # some bits of the last character are not used


def tokens(data: bytes) -> None:
    """Verify tokens with a valid signature and any header and claims."""
    choices = Choices(data)
    header = _mutated(choices, HEADER)
    whole = choices.flag()
    payload = choices.take(LONGEST_PART) if whole else _mutated(choices, CLAIMS)
    if header and payload:
        _respond(bearer(_signed(header, payload)))


def answers(data: bytes) -> None:
    """Read key sets and the answers of token endpoints."""
    choices = Choices(data)
    whole = choices.flag()
    body = choices.take(LONGEST_PART) if whole else _mutated(choices, _KEYS)
    with contextlib.suppress(KeySetError):
        assert read_key_set(body).keys
    body = body if whole else _mutated(choices, b'{"access_token":"a.b.c","token_type":"Bearer","expires_in":300}')
    try:
        token, lifetime_s = read_answer(Answer(status=choices.pick((200, 401)), body=body), NOW_S)
    except ValueError:
        return
    assert 0 < lifetime_s < float("inf")
    assert read_client_message(client_message(token)).token == token
