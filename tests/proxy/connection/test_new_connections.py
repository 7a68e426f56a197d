"""Connections that are opened while their entity has to wait, through the proxy's own relays, on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.admin.operations import Operations
from headrace.proxy.connection.client_connection import ClientConnection
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.verdicts import Refuse, Throttle
from tests.proxy.connection.test_paced import Costs, produce, second_client
from tests.proxy.playbook import MemorySocket, Party, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request

PRODUCE, HEARTBEAT, API_VERSIONS = ApiKey.PRODUCE, ApiKey.HEARTBEAT, ApiKey.API_VERSIONS
ENTITY = QuotaEntity(client_id="c")
BYTES = [(QuotaKey.PRODUCER_BYTE_RATE, ENTITY, 1000)]


async def test_a_request_waits_and_others_of_the_connection_do_not(autojump_clock: MockClock) -> None:
    async with open_book(quotas=BYTES) as book, trio.open_nursery() as nursery:
        replied = read_reply(PRODUCE, 7, await book.round_trip(produce(1, 15_000), reply(PRODUCE, 7, 1)))
        assert replied["throttle_time_ms"] == 5000
        second = second_client(book, nursery)
        await trio.sleep(0.002)  # what comes in the same millisecond as the throttle does not wait
        await second.sends(request(HEARTBEAT, 4, 1))
        await book.upstream.wait_for_dial(2)
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 1))
        assert read_reply(HEARTBEAT, 4, await second.receives())["throttle_time_ms"] == 0
        assert trio.current_time() < 0.1
        await second.sends(produce(2, 2000), request(HEARTBEAT, 4, 3))
        assert await book.broker.receives() == produce(2, 2000)
        assert trio.current_time() == pytest.approx(5, abs=0.01)
        await book.broker.sends(reply(PRODUCE, 7, 2))
        replied = read_reply(PRODUCE, 7, await second.receives())
        assert replied["throttle_time_ms"] == pytest.approx(7000, abs=10), "it is charged, and mutes its connection"
        kinds = [(each.kind.value, each.quota, each.throttle_ms) for each in book.shared.decisions]
        assert kinds[0] == ("throttled", "producer_byte_rate", 5000)
        assert kinds[1][:2] == ("held", "producer_byte_rate")
        assert kinds[1][2] == pytest.approx(5000, abs=10)
        assert len(kinds) == 3
        nursery.cancel_scope.cancel()


async def test_the_switch_releases_who_waits(autojump_clock: MockClock) -> None:
    async with open_book(quotas=BYTES) as book, trio.open_nursery() as nursery:
        await book.round_trip(produce(1, 500_000), reply(PRODUCE, 7, 1))
        ours, theirs = MemorySocket.pair()
        info = Connection(connection_id=2, peer=Address(host="198.51.100.8", port=5000))
        second = ClientConnection(book.shared, book.listener, info, ours)  # type: ignore[arg-type]
        nursery.start_soon(second.serve)
        await Party(theirs).sends(produce(2))
        await trio.sleep(3)
        assert len(book.upstream.brokers) == 1, "it waits"
        operations = Operations(book.shared, [book.connection, second.state])
        operations.enforce(False, "test")
        await book.upstream.wait_for_dial(2)
        assert await book.broker.receives() == produce(2)
        assert trio.current_time() < 5
        operations.enforce(True, "test")
        third = second_client(book, nursery)
        await third.sends(produce(3))
        await book.upstream.wait_for_dial(3)
        assert trio.current_time() < 5, "the wait has been ended, too"
        nursery.cancel_scope.cancel()


async def test_a_mutation_of_an_old_client_waits(autojump_clock: MockClock) -> None:
    def create(number: int) -> bytes:
        topic = {"name": f"t{number}", "num_partitions": 4, "replication_factor": 1}
        return request(ApiKey.CREATE_TOPICS, 4, number, topics=[topic], timeout_ms=1000)

    quotas = [(QuotaKey.CONTROLLER_MUTATION_RATE, ENTITY, 1)]
    windows = {QuotaKey.CONTROLLER_MUTATION_RATE: Window(samples=2, seconds=1)}
    async with open_book(quotas=quotas, windows=windows) as book, trio.open_nursery() as nursery:
        await book.client.sends(create(1))
        await book.upstream.wait_for_dial(1)
        await answer_mutation(book.broker, create(1), 1)
        await book.client.receives()
        second = second_client(book, nursery)
        await trio.sleep(0.002)  # what comes in the same millisecond as the throttle does not wait
        await second.sends(create(2))
        await book.upstream.wait_for_dial(2)
        await answer_mutation(book.broker, create(2), 2)
        assert trio.current_time() == pytest.approx(2, abs=0.05), "4 of 2 tokens were taken, one comes back a second"
        await second.receives()
        nursery.cancel_scope.cancel()


async def answer_mutation(broker: Party, frame: bytes, number: int) -> None:
    """Answer the proxy's look-ups of topics until ``frame`` comes, and then that."""
    while (received := await broker.receives()) != frame:
        api_key, version, correlation_id = received[4:6], received[6:8], received[8:12]
        key, number_of = int.from_bytes(api_key, "big"), int.from_bytes(correlation_id, "big")
        await broker.sends(reply(key, int.from_bytes(version, "big"), number_of))
    await broker.sends(reply(ApiKey.CREATE_TOPICS, 4, number, topics=[{"name": f"t{number}", "error_code": 0}]))


async def test_thread_time_waits_at_the_next_request(autojump_clock: MockClock) -> None:
    quotas = [(QuotaKey.REQUEST_PERCENTAGE, ENTITY, 1)]
    async with open_book(plugins={"costs": Costs(250)}, quotas=quotas) as book, trio.open_nursery() as nursery:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        second = second_client(book, nursery)
        await trio.sleep(0.002)  # what comes in the same millisecond as the throttle does not wait
        await second.sends(request(HEARTBEAT, 4, 2))
        await book.upstream.wait_for_dial(2)
        await book.broker.receives()
        assert trio.current_time() == pytest.approx(11, abs=0.05), "for what the rate remembers, not for a second"
        nursery.cancel_scope.cancel()


async def test_a_client_learns_the_versions_at_once_and_then_waits(autojump_clock: MockClock) -> None:
    quotas = [(QuotaKey.REQUEST_PERCENTAGE, ENTITY, 1)]
    async with open_book(plugins={"costs": Costs(250)}, quotas=quotas) as book, trio.open_nursery() as nursery:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        second = second_client(book, nursery)
        await trio.sleep(0.002)  # what comes in the same millisecond as the throttle does not wait
        await second.sends(request(API_VERSIONS, 0, 1))
        await book.upstream.wait_for_dial(2)
        await book.broker.receives()
        assert trio.current_time() == pytest.approx(0, abs=0.05)
        await book.broker.sends(reply(API_VERSIONS, 0, 1))
        await second.receives()
        await second.sends(request(HEARTBEAT, 4, 2))
        await book.broker.receives()
        assert trio.current_time() >= 11
        nursery.cancel_scope.cancel()


class AsksAgain:
    """A plugin that holds each request twice, and then returns `last`."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, last: Throttle | Refuse | None) -> None:
        self.last = last
        self.asked_s: list[float] = []
        self.held_ms: list[int] = []

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | Refuse | None:
        self.asked_s.append(now_ms / 1000)
        self.held_ms.append(request.hold_ms)
        if len(self.asked_s) <= 2:
            return Throttle(throttle_ms=1000, hold=True, ask_again=True)
        return self.last


class Counts:
    """A plugin that counts its calls."""

    headrace_hooks = HOOK_VERSION
    calls = 0

    @hookimpl
    def request_received(self) -> Throttle:
        self.calls += 1
        return Throttle(throttle_ms=3000)


async def test_only_who_holds_is_asked_again(autojump_clock: MockClock) -> None:
    asks, counts = AsksAgain(None), Counts()
    async with open_book(plugins={"asks": asks, "counts": counts}) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert asks.asked_s == pytest.approx([0, 1, 2], abs=0.01)
        assert asks.held_ms == [0, 1000, 2000], "of both holds"
        assert counts.calls == 1
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == pytest.approx(1000, abs=10), "counted from then"
        assert [each.kind.value for each in book.shared.decisions] == ["held", "throttled"]


async def test_of_two_throttles_besides_a_hold_the_one_that_ends_last_applies(autojump_clock: MockClock) -> None:
    """At 0 s a throttle of 3 s, at 1 s one of 1 s by a callback that held before, while another one holds again."""
    answers = iter([Throttle(throttle_ms=1000, hold=True, ask_again=True), Throttle(throttle_ms=1000)])

    class Changes:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_received(self) -> Throttle | None:
            return next(answers, None)

    plugins = {"asks": AsksAgain(None), "changes": Changes(), "counts": Counts()}
    async with open_book(plugins=plugins) as book:
        answer = await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert trio.current_time() == pytest.approx(2, abs=0.01)
        assert read_reply(HEARTBEAT, 4, answer)["throttle_time_ms"] == pytest.approx(1000, abs=10), "of 3 s since 0 s"


async def test_a_throttle_besides_a_hold_ends_with_enforcement(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"asks": AsksAgain(None), "counts": Counts()}) as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await trio.sleep(0.5)
        book.shared.enforcement.switch(enabled=False, by="test")
        book.connection.mute.release()
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == request(HEARTBEAT, 4, 1)
        assert book.connection.mute.until_s <= trio.current_time()


async def test_a_request_can_be_refused_after_its_hold(autojump_clock: MockClock) -> None:
    asks = AsksAgain(Refuse(error_code=7))
    async with open_book(plugins={"asks": asks}) as book:
        await book.client.sends(request(HEARTBEAT, 4, 1), request(HEARTBEAT, 4, 2))
        assert read_reply(HEARTBEAT, 4, await book.client.receives())["error_code"] == 7
        assert trio.current_time() == pytest.approx(2, abs=0.01)


async def test_asking_again_without_a_hold_is_a_mistake_of_the_plugin(autojump_clock: MockClock) -> None:
    class Mistaken:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_received(self) -> Throttle:
            return Throttle(throttle_ms=1000, ask_again=True)

    async with open_book(plugins={"mistaken": Mistaken()}) as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        assert book.shared.hooks.failures == {"mistaken": 1}


async def test_api_versions_is_charged_once_the_broker_is_known_to_serve_anybody(autojump_clock: MockClock) -> None:
    """The connection was opened before that was known, and sends no other request."""
    quotas = [(QuotaKey.REQUEST_PERCENTAGE, ENTITY, 1)]
    async with open_book(plugins={"costs": Costs(250)}, quotas=quotas) as book:
        book.forget_acceptance()
        book.upstream.serves_anonymous = True
        await book.round_trip(request(API_VERSIONS, 0, 1), reply(API_VERSIONS, 0, 1))
        assert [each.quota for each in book.shared.decisions] == ["request_percentage"]
