"""A mechanism of the tests, on both sides: the client's token is its name. And the steps that scripts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.network.listener import ListenerSasl
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep, UpstreamSasl
from tests.proxy.playbook import read_reply, reply, request

if TYPE_CHECKING:
    from tests.proxy.playbook import Book, Party

MECHANISM: Final = "WORD"
TWO_TOKENS: Final = "TWO-WORDS"
MALLORY: Final = b"mallory"
"""The only name that is refused."""
EXIT: Final = "exit"
"""The name for which both sides of the plugin raise `SystemExit`."""
TERMINATING: Final = ListenerSasl(mechanisms=(MECHANISM, TWO_TOKENS), max_lifetime_s=None)
HANDSHAKE, AUTHENTICATE, HEARTBEAT = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT


class WordServer:
    """Accepts every name but one, after the number of tokens that the mechanism has."""

    blocks = False

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def respond(self, token: bytes) -> SaslStep:
        if token == MALLORY:
            raise SaslRefused("another word", user="mallory")
        if token == EXIT.encode():
            raise SystemExit(1)
        self.left -= 1
        return SaslStep(answer=b"more") if self.left else SaslStep(answer=b"done", principal=token.decode())


class WordClient:
    """Sends the name of the settings."""

    def __init__(self, settings: UpstreamSasl) -> None:
        self.user = settings.user or ""

    async def respond(self, challenge: bytes | None) -> bytes | None:
        await trio.lowlevel.checkpoint()
        if self.user == EXIT:
            raise SystemExit(1)
        return self.user.encode() if challenge is None else None


class Words:
    """The plugin."""

    headrace_hooks = HOOK_VERSION

    @hookimpl
    def sasl_server_exchange(self, mechanism: str) -> WordServer | None:
        tokens = {MECHANISM: 1, TWO_TOKENS: 2}.get(mechanism)
        return None if tokens is None else WordServer(tokens)

    @hookimpl
    def sasl_client_exchange(self, settings: UpstreamSasl) -> WordClient | None:
        return WordClient(settings) if settings.mechanism == MECHANISM else None


def identity(user: str) -> UpstreamSasl:
    """Return a login at brokers."""
    return UpstreamSasl(mechanism=MECHANISM, user=user)


async def authenticate(book: Book, name: str) -> dict[str, object]:
    """Authenticate the client to the proxy; return the answer to its token."""
    await book.client.sends(request(HANDSHAKE, 1, 1, mechanism=MECHANISM))
    assert read_reply(HANDSHAKE, 1, await book.client.receives())["error_code"] == 0
    await book.client.sends(request(AUTHENTICATE, 2, 2, auth_bytes=name.encode()))
    return read_reply(AUTHENTICATE, 2, await book.client.receives())


async def beat(book: Book) -> None:
    """Exchange an ordinary request of the client."""
    answer = reply(HEARTBEAT, 4, 9)
    assert await book.round_trip(request(HEARTBEAT, 4, 9), answer) == answer


async def accept_login(broker: Party, user: str, *, lifetime_ms: int = 0) -> None:
    """Be the broker that the proxy authenticates to as ``user``: check the requests, and accept them."""
    handshake = await broker.receives()
    assert handshake[4:6] == HANDSHAKE.to_bytes(2, "big")
    await broker.sends(answer_to(handshake, HANDSHAKE, mechanisms=[MECHANISM]))
    token = await broker.receives()
    assert token[4:6] == AUTHENTICATE.to_bytes(2, "big")
    assert token.endswith(len(user).to_bytes(4, "big") + user.encode()), token
    await broker.sends(answer_to(token, AUTHENTICATE, session_lifetime_ms=lifetime_ms))


def answer_to(frame: bytes, api_key: int, **fields: object) -> bytes:
    """Return the reply v1 to a request of the proxy."""
    return reply(api_key, 1, int.from_bytes(frame[8:12], "big"), **fields)
