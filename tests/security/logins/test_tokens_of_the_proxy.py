"""Delegation tokens are of the principal that a broker sees. Nobody gets those of the proxy's own identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.network.listener import BrokerIdentities
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.connection.opening.words import TERMINATING, Words, accept_login, authenticate, identity
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

APIS = (
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
)
NOT_ALLOWED = 64
VERSION = 2
OWN = identity("proxy")
PLUGINS = {"words": Words()}


@pytest.mark.parametrize("api_key", APIS)
async def test_they_are_refused_where_all_users_share_the_proxys_identity(
    autojump_clock: MockClock, api_key: ApiKey
) -> None:
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN) as book:
        assert (await authenticate(book, "alice"))["error_code"] == 0
        await book.client.sends(request(api_key, VERSION))
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "proxy")
        assert read_reply(api_key, VERSION, await book.client.receives())["error_code"] == NOT_ALLOWED


@pytest.mark.parametrize("api_key", APIS)
async def test_they_pass_for_an_identity_of_the_users_own(autojump_clock: MockClock, api_key: ApiKey) -> None:
    identities = BrokerIdentities({"alice": identity("alice-there")}, {})
    async with open_book(plugins=PLUGINS, sasl=TERMINATING, login=OWN, identities=identities) as book:
        assert (await authenticate(book, "alice"))["error_code"] == 0
        asked, answered = request(api_key, VERSION), reply(api_key, VERSION)
        await book.client.sends(asked)
        await book.upstream.wait_for_dial(1)
        await accept_login(book.broker, "alice-there")
        assert await book.broker.receives() == asked
        await book.broker.sends(answered)
        assert await book.client.receives() == answered


@pytest.mark.parametrize("api_key", APIS)
async def test_they_pass_where_the_proxy_has_no_identity(autojump_clock: MockClock, api_key: ApiKey) -> None:
    async with open_book() as book:
        asked, answered = request(api_key, VERSION), reply(api_key, VERSION)
        assert await book.round_trip(asked, answered) == answered
