"""Clients that begin to authenticate to the proxy and then do something else, to be served or kept otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.connection.state.timeouts import end_if_overdue
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.connection.opening.words import AUTHENTICATE, HANDSHAKE, TERMINATING, TWO_TOKENS, Words, authenticate
from tests.proxy.connection.test_request_time import Costs
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trio.testing import MockClock

    from tests.proxy.playbook import Book

HEARTBEAT: Final = ApiKey.HEARTBEAT
ILLEGAL_SASL_STATE: Final = 34
PLUGINS: Final[Mapping[str, object]] = {"words": Words()}
AGAIN_AFTER_S: Final = 1.1
"""A client may not authenticate again within a second."""


async def begin(book: Book) -> int:
    """Send a SaslHandshake, and return the error code of its answer."""
    await book.client.sends(request(HANDSHAKE, 1, 7, mechanism=TWO_TOKENS))
    code: int = read_reply(HANDSHAKE, 1, await book.client.receives())["error_code"]
    return code


async def test_nothing_else_is_served_in_the_middle_of_a_second_login(autojump_clock: MockClock) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        await authenticate(book, "alice")
        await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        await trio.sleep(AGAIN_AFTER_S)
        assert await begin(book) == 0
        await book.client.sends(request(HEARTBEAT, 4, 8))
        await book.client.receives_the_end()
        assert book.broker.receives_nothing()
        assert book.connection.reason is not None
        assert "Heartbeat in the middle of an authentication" in book.connection.reason


async def test_one_login_cannot_follow_the_other_before_it_has_ended(autojump_clock: MockClock) -> None:
    """Otherwise one connection could make the proxy verify any number of tokens."""
    async with open_book(plugins=PLUGINS, sasl=TERMINATING) as book:
        assert await begin(book) == 0
        await book.client.sends(request(AUTHENTICATE, 2, 2, auth_bytes=b"alice"))
        assert read_reply(AUTHENTICATE, 2, await book.client.receives())["auth_bytes"] == b"more"
        assert await begin(book) == ILLEGAL_SASL_STATE
        await book.client.receives_the_end()


async def test_a_login_too_soon_after_the_last_is_charged(autojump_clock: MockClock) -> None:
    quota = (QuotaKey.REQUEST_PERCENTAGE, QuotaEntity(client_id="c"), 1.0)
    async with open_book(plugins={**PLUGINS, "costs": Costs(500)}, sasl=TERMINATING, quotas=[quota]) as book:
        await authenticate(book, "alice")
        assert book.connection.mute.until_s <= trio.current_time()
        assert await begin(book) == ILLEGAL_SASL_STATE
        assert book.connection.mute.until_s > trio.current_time()


async def test_a_second_login_that_is_not_finished_keeps_no_connection(autojump_clock: MockClock) -> None:
    """``limits.max_connection_age`` interrupts no login."""
    limits = Limits(max_connection_age_s=100.0, login_timeout_s=60.0)
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, limits=limits) as book:
        await authenticate(book, "alice")
        await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        await trio.sleep(AGAIN_AFTER_S)
        assert await begin(book) == 0
        await trio.sleep(limits.login_timeout_s - 1)
        end_if_overdue(book.connection, trio.current_time())
        assert not book.connection.ended
        await trio.sleep(2)
        end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is not None
        assert "limits.login_timeout" in book.connection.reason


async def test_handshakes_are_charged_to_a_client_with_a_certificate(autojump_clock: MockClock) -> None:
    """Where the brokers serve everybody, no login can follow."""
    quota = (QuotaKey.REQUEST_PERCENTAGE, QuotaEntity(client_id="c"), 1.0)
    async with open_book(plugins={"costs": Costs(500)}, quotas=[quota]) as book:
        book.forget_acceptance()
        book.upstream.serves_anonymous = True
        book.connection.note_proved()
        await book.client.sends(*(request(HANDSHAKE, 1, number, mechanism="PLAIN") for number in range(3)))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(reply(HANDSHAKE, 1, 0, error_code=ILLEGAL_SASL_STATE))
        await book.client.receives()
        assert book.connection.mute.until_s > trio.current_time()
