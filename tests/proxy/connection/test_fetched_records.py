"""The hook ``records_fetched``: called only for a Fetch for which a plugin asks, with the bytes of each topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.connection import reply_relay
from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.wire.messages.codec import decode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Interest
from headrace.quota_callbacks.verdicts import Throttle
from tests.proxy.playbook import open_book, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request

FETCH = ApiKey.FETCH
ROWS = [{"topic": "t", "partitions": [{"partition_index": 0, "records": bytes(5000)}]}]
ENDPOINTS = [{"node_id": 3, "host": "kafka", "port": 9092, "rack": None}]


class Fetches:
    """Asks for the topics of every Fetch, or of none, and throttles for a second."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, *, asks: bool = True, fails: bool = False) -> None:
        self.seen: list[dict[str | bytes, int]] = []
        self._asks = asks
        self._fails = fails

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (Interest(api_key=FETCH),)

    @hookimpl
    def request_received(self, request: Request) -> None:
        request.read_fetched = self._asks

    @hookimpl
    def records_fetched(self, request: Request) -> Throttle | None:
        if self._fails:
            raise LookupError("no such topic")
        self.seen.append(dict(request.fetched_bytes))
        return Throttle(throttle_ms=1000)


@pytest.mark.parametrize("collected", [True, False])
@pytest.mark.parametrize("version", [4, 7, 12])
async def test_the_client_is_muted_after_the_reply(autojump_clock: MockClock, version: int, collected: bool) -> None:
    """The reply states it, unless it is too long to be collected. Nothing else changes in it."""
    plugin, records = Fetches(), bytes(5000 if collected else reply_relay.SETTLED_FETCH_BYTES)
    rows = [{"topic": "t", "partitions": [{"partition_index": 0, "records": records}]}]
    sent, limited = (reply(FETCH, version, 1, responses=rows, throttle_time_ms=ms) for ms in (0, 1000))
    async with open_book(plugins={"fetches": plugin}, limits=Limits()) as book:
        began = trio.current_time()
        assert await book.round_trip(request(FETCH, version, 1), sent) == (limited if collected else sent)
        assert plugin.seen == [{"t": len(records)}]
        assert book.connection.mute.until_s == pytest.approx(began + 1, abs=0.01)


@pytest.mark.parametrize("longest", [0, reply_relay.SETTLED_FETCH_BYTES])
async def test_leader_hints_are_hidden_all_the_same(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(reply_relay, "SETTLED_FETCH_BYTES", longest)
    plugin = Fetches()
    rows: list[dict[str, Any]] = [{"topic_id": bytes(16), "partitions": [{"partition_index": 0, "records": b"abc"}]}]
    async with open_book(plugins={"fetches": plugin}) as book:
        sent = reply(FETCH, 16, 1, responses=rows, node_endpoints=ENDPOINTS)
        received = await book.round_trip(request(FETCH, 16, 1), sent)
        assert decode("FetchResponse", 16, received[9:])["node_endpoints"] == []
        assert plugin.seen == [{bytes(16): 3}]
        assert book.shared.counters.hints_hidden == 1


async def test_it_is_not_called_unless_a_plugin_asks(autojump_clock: MockClock) -> None:
    plugin = Fetches(asks=False)
    async with open_book(plugins={"fetches": plugin}) as book:
        await book.round_trip(request(FETCH, 12, 1), reply(FETCH, 12, 1, responses=ROWS))
        assert plugin.seen == []
        assert book.connection.mute.until_s <= trio.current_time()


async def test_an_exception_throttles_nobody(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"fetches": Fetches(fails=True)}) as book:
        for number in range(2):
            await book.round_trip(request(FETCH, 12, number), reply(FETCH, 12, number, responses=ROWS))
        assert book.shared.hooks.failures == {"fetches": 2}


async def test_it_is_not_called_while_enforcement_is_off(autojump_clock: MockClock) -> None:
    plugin = Fetches()
    async with open_book(plugins={"fetches": plugin}) as book:
        await book.client.sends(request(FETCH, 12, 1))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        book.shared.enforcement.enabled = False
        await book.broker.sends(reply(FETCH, 12, 1, responses=ROWS))
        await book.client.receives()
        assert plugin.seen == []
