"""Clients that the proxy authenticates by tokens without headers, which follow a SaslHandshake v0 (KIP-43).

And plugins that end the program or return odd lifetimes, and what plugins learn of a login without an answer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.connection.opening.sasl_termination import REFUSAL_DELAY_S
from headrace.proxy.connection.state.authentication import REPEATED_AFTER_S
from headrace.proxy.connection.state.client_sasl import MAX_LIFETIME_S
from headrace.proxy.connection.state.shared_state import Limits
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import ANONYMOUS
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.sasl import SaslStep
from tests.proxy.connection.opening.words import (
    AUTHENTICATE,
    EXIT,
    HANDSHAKE,
    HEARTBEAT,
    MALLORY,
    MECHANISM,
    TERMINATING,
    TWO_TOKENS,
    Words,
    accept_login,
    authenticate,
    beat,
    identity,
)
from tests.proxy.playbook import framed, open_book, read_reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request
    from tests.proxy.playbook import Book

SASL_AUTHENTICATION_FAILED = 58
PLUGINS = {"words": Words()}


async def shake(book: Book, mechanism: str = MECHANISM) -> None:
    await book.client.sends(request(HANDSHAKE, 0, 1, mechanism=mechanism))
    assert read_reply(HANDSHAKE, 0, await book.client.receives())["error_code"] == 0


async def test_one_token(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        await shake(book)
        await book.client.sends(framed(b"alice"))
        assert await book.client.receives() == framed(b"done")
        assert (book.connection.info.user, book.connection.info.mechanism) == ("alice", MECHANISM)
        assert not book.upstream.brokers, "the broker has no part in it"
        await beat(book)


async def test_two_tokens(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        await shake(book, TWO_TOKENS)
        await book.client.sends(framed(b"first"))
        assert await book.client.receives() == framed(b"more")
        assert book.connection.info.user == ANONYMOUS
        await book.client.sends(framed(b"alice"))
        assert await book.client.receives() == framed(b"done")
        assert book.connection.info.user == "alice"
        await beat(book)
        assert book.upstream.waited == [False], "a client that is known waits for no handshakes of others"


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_all_at_once_in_pieces_of_any_size(piece: int, autojump_clock: MockClock) -> None:
    sent = request(HANDSHAKE, 0, 1, mechanism=MECHANISM) + framed(b"alice") + request(HEARTBEAT, 4, 9)
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=identity("proxy")) as book:
        for at in range(0, len(sent), piece):
            await book.client.sends(sent[at : at + piece])
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy")
        assert await book.broker.receives() == request(HEARTBEAT, 4, 9)
        assert read_reply(HANDSHAKE, 0, await book.client.receives())["error_code"] == 0
        assert await book.client.receives() == framed(b"done")


async def test_a_refused_token_is_not_answered(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        await shake(book)
        with capture_logs() as lines:
            began_s = trio.current_time()
            await book.client.sends(framed(MALLORY))
            await book.client.receives_the_end()
        assert trio.current_time() - began_s == pytest.approx(REFUSAL_DELAY_S)
        assert book.shared.counters.logins_refused == {"other": 1}
        [line] = [each for each in lines if each["event"] == "login refused"]
        assert (line["user"], line["mechanism"]) == ("mallory", MECHANISM)
        assert book.connection.info.user == ANONYMOUS
        assert not book.upstream.brokers


@pytest.mark.parametrize("token", [framed(b""), framed(bytes(1001)), b"\xff\xff\xff\xff"])
async def test_a_token_has_a_size(token: bytes, autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, limits=Limits(max_handshake_bytes=1000)) as book:
        await shake(book)
        await book.client.sends(token)
        await book.client.receives_the_end()
        assert book.connection.reason is not None
        assert book.connection.reason.startswith("client: ")
        assert not book.upstream.brokers


async def test_an_ordinary_request_in_place_of_the_token_is_not_served(autojump_clock: MockClock) -> None:
    """It is taken for the token, as by a broker."""
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        await shake(book, TWO_TOKENS)
        await book.client.sends(request(HEARTBEAT, 4, 9))
        assert await book.client.receives() == framed(b"more")
        assert not book.upstream.brokers


async def test_a_plugin_that_ends_the_program_ends_the_login_alone(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        assert (await authenticate(book, EXIT))["error_code"] == SASL_AUTHENTICATION_FAILED
        await book.client.receives_the_end()
        assert book.shared.hooks.failures == {"words": 1}


class Lifetimes:
    """Accepts every client, for a time."""

    headrace_hooks = HOOK_VERSION
    blocks = False

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s

    def respond(self, token: bytes) -> SaslStep:
        return SaslStep(principal=token.decode(), lifetime_s=self.lifetime_s)

    @hookimpl
    def sasl_server_exchange(self) -> Lifetimes:
        return self


@pytest.mark.parametrize(
    ("lifetime_s", "stated_s"), [(-1.0, 0.0), (60.0, 60.0), (2.0**63, MAX_LIFETIME_S), (math.inf, MAX_LIFETIME_S)]
)
async def test_a_session_of_any_lifetime(lifetime_s: float, stated_s: float, autojump_clock: MockClock) -> None:
    async with open_book(plugins={"lifetimes": Lifetimes(lifetime_s)}, sasl=TERMINATING) as book:
        answer = await authenticate(book, "alice")
        assert (answer["error_code"], answer["session_lifetime_ms"]) == (0, stated_s * 1000)


class Completions:
    """Notes the requests that are completed."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.completed: list[Request] = []

    @hookimpl
    def request_completed(self, request: Request) -> None:
        self.completed.append(request)


async def test_plugins_learn_of_a_login_that_ended_the_connection(autojump_clock: MockClock) -> None:
    completions = Completions()
    async with open_book(plugins={**PLUGINS, "completions": completions}, sasl=TERMINATING) as book:
        await book.client.sends(request(AUTHENTICATE, 2, 1, auth_bytes=b"alice"))
        await book.client.receives_the_end()
        [completed] = completions.completed
        assert completed.error == "client: a SaslAuthenticate without a SaslHandshake before it"


async def test_a_second_login_is_by_the_same_mechanism(autojump_clock: MockClock) -> None:
    """Otherwise one whose credentials end could go on by others that do not."""
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        assert (await authenticate(book, "alice"))["error_code"] == 0
        await trio.sleep(REPEATED_AFTER_S)
        await book.client.sends(request(HANDSHAKE, 1, 3, mechanism=TWO_TOKENS))
        assert read_reply(HANDSHAKE, 1, await book.client.receives())["error_code"] == 0
        await book.client.sends(request(AUTHENTICATE, 2, 4, auth_bytes=b"first"))
        answer = read_reply(AUTHENTICATE, 2, await book.client.receives())
        assert answer["error_code"] == SASL_AUTHENTICATION_FAILED
        assert f"'{TWO_TOKENS}' requested by client is not supported for re-auth" in str(answer["error_message"])
        await book.client.receives_the_end()


@pytest.mark.parametrize("api_key", [ApiKey.API_VERSIONS, HEARTBEAT])
async def test_after_the_end_of_a_session_nothing_but_a_login_is_served(
    api_key: int, autojump_clock: MockClock
) -> None:
    async with open_book(plugins={"lifetimes": Lifetimes(60.0)}, sasl=TERMINATING) as book:
        await authenticate(book, "alice")
        await beat(book)
        await trio.sleep(61)
        await book.client.sends(request(api_key, 4 if api_key == HEARTBEAT else 0, 7))
        await book.client.receives_the_end()
        assert "its session has expired" in str(book.connection.reason)
