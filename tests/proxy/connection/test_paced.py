"""Scripts of paced enforcement: a request is held until its place in the timeline, and unused places are returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.connection.client_connection import ClientConnection
from headrace.proxy.connection.state import thread_time
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import KAFKA_POLICY, EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request
from headrace.quota_callbacks.verdicts import Refuse
from tests.proxy.playbook import Book, MemorySocket, Party, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

PRODUCE, FETCH, HEARTBEAT, METADATA = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.HEARTBEAT, ApiKey.METADATA
ENTITY = QuotaEntity(client_id="c")


def paced(
    limit: float, key: QuotaKey = QuotaKey.PRODUCER_BYTE_RATE, *, burst_s: float = 0, observe: bool = False
) -> list[tuple[QuotaKey, QuotaEntity, Quota]]:
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=burst_s, observe=observe)
    return [(key, ENTITY, Quota(value=limit, policy=policy))]


def produce(number: int, size: int = 1000) -> bytes:
    """Return a Produce that is charged ``size`` bytes: header and body."""
    empty = len(request(PRODUCE, 7, number, acks=1, padding=1)) - 4
    return request(PRODUCE, 7, number, acks=1, padding=size - empty + 1)


class Costs:
    """A cost model with the same number of milliseconds for every request."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, ms: float) -> None:
        self.ms = ms

    @hookimpl
    def request_time_ms(self) -> float:
        return self.ms


def second_client(book: Book, nursery: trio.Nursery) -> Party:
    ours, theirs = MemorySocket.pair()
    info = Connection(connection_id=2, peer=Address(host="198.51.100.8", port=5000))
    nursery.start_soon(ClientConnection(book.shared, book.listener, info, ours).serve)  # type: ignore[arg-type]
    return Party(theirs)


async def test_the_request_itself_waits_and_its_reply_states_no_throttle_time(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000)) as book:
        assert len(produce(1)) == 1004
        first = read_reply(PRODUCE, 7, await book.round_trip(produce(1), reply(PRODUCE, 7, 1)))
        assert (first["throttle_time_ms"], trio.current_time()) == (0, pytest.approx(0, abs=0.001))
        second = read_reply(PRODUCE, 7, await book.round_trip(produce(2), reply(PRODUCE, 7, 2)))
        assert (second["throttle_time_ms"], trio.current_time()) == (0, pytest.approx(1, abs=0.01))
        await book.round_trip(request(HEARTBEAT, 4, 3), reply(HEARTBEAT, 4, 3))
        assert trio.current_time() == pytest.approx(1, abs=0.01)


async def test_pipelined_requests_go_out_at_the_speed_of_the_limit(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000)) as book:
        frames = [produce(number) for number in range(5)]
        await book.client.sends(*frames)
        await book.upstream.wait_for_dial(1)
        for second, frame in enumerate(frames):
            assert await book.broker.receives() == frame
            assert trio.current_time() == pytest.approx(second, abs=0.02)


async def test_a_burst_goes_at_once(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000, burst_s=3)) as book:
        await book.client.sends(*(produce(number) for number in range(5)))
        await book.upstream.wait_for_dial(1)
        at_s = [(await book.broker.receives(), trio.current_time())[1] for _ in range(5)]
        assert at_s == pytest.approx([0, 0, 0, 0, 1], abs=0.02)


async def test_connections_take_turns_and_the_dead_give_their_place_back(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000)) as book, trio.open_nursery() as nursery:
        await book.round_trip(produce(1, 2000), reply(PRODUCE, 7, 1))
        dying = second_client(book, nursery)
        await dying.sends(produce(2, 60_000))
        await trio.testing.wait_all_tasks_blocked()
        dying.socket.shut_down_writing()
        await trio.sleep(1.5)
        await book.client.sends(produce(3))
        await book.broker.receives()
        assert trio.current_time() == pytest.approx(2, abs=0.02), "not behind the 60 s of the one that died"
        nursery.cancel_scope.cancel()


async def test_a_fetch_reserves_what_is_usual_and_settles_what_it_was(autojump_clock: MockClock) -> None:
    def fetched(number: int, size: int) -> bytes:
        rows = [{"topic": "t", "partitions": [{"records": bytes(size)}]}]
        return reply(FETCH, 11, number, responses=rows)

    async with open_book(quotas=paced(1000, QuotaKey.CONSUMER_BYTE_RATE)) as book:
        for number, size, at_s in ((1, 2000, 0), (2, 1000, 2), (3, 1000, 3)):
            await book.round_trip(request(FETCH, 11, number, max_bytes=5000), fetched(number, size))
            assert trio.current_time() == pytest.approx(at_s, abs=0.2), number


async def test_switching_enforcement_off_lets_the_held_go(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1)) as book:
        await book.round_trip(produce(1), reply(PRODUCE, 7, 1))
        await book.client.sends(produce(2))
        await trio.sleep(5)
        book.shared.enforcement.switch(enabled=False, by="test")
        book.connection.mute.release()
        await book.broker.receives()
        assert trio.current_time() < 8


async def test_a_drain_does_not_wait_for_the_held(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1)) as book:
        await book.round_trip(produce(1), reply(PRODUCE, 7, 1))
        await book.client.sends(produce(2))
        await trio.sleep(5)
        book.connection.begin_drain()
        await book.client.receives_the_end()
        assert trio.current_time() < 8
        assert book.broker.receives_nothing()


async def test_a_request_that_was_held_is_not_charged_again_when_pacing_ends(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000)) as book:
        await book.client.sends(produce(1), produce(2))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await trio.sleep(0.1)
        assert book.shared.hooks.quotas is not None
        bucket = book.shared.hooks.quotas.bucket(QuotaKey.PRODUCER_BYTE_RATE, "ANONYMOUS", "c")
        assert isinstance(bucket, RateBucket)
        assert bucket._rate._total == 2000
        book.shared.hooks.update_quota(QuotaKey.PRODUCER_BYTE_RATE, ENTITY, Quota(value=1000.0, policy=KAFKA_POLICY))
        book.shared.hooks.quotas.quotas_changed()
        await book.broker.receives()
        assert not bucket.paced
        assert bucket._rate._total == 2000


async def test_observed_only_nobody_waits(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000, observe=True)) as book:
        for number in range(5):
            await book.round_trip(produce(number), reply(PRODUCE, 7, number))
        assert trio.current_time() == 0
        assert book.shared.counters.observed == {"producer_byte_rate": 4}
        assert book.shared.counters.throttled == {}
        waits = [decision.throttle_ms for decision in book.shared.decisions]
        assert waits == [1000] * 4, "what would have been waited does not pile up"


async def test_a_turn_of_over_thirty_seconds_is_warned_of(
    autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_book(quotas=paced(1000)) as book:
        await book.round_trip(produce(1, 31_000), reply(PRODUCE, 7, 1))
        await book.round_trip(produce(2), reply(PRODUCE, 7, 2))
    output = capsys.readouterr().out
    assert "a paced request is held for longer than clients usually wait" in output
    assert "held_s=31.0" in output


async def test_a_request_without_a_reply_is_reported_as_abandoned(autojump_clock: MockClock) -> None:
    class Watch:
        headrace_hooks = HOOK_VERSION
        abandoned: list[tuple[int, bool]] = []  # noqa: RUF012

        @hookimpl
        def request_abandoned(self, request: Request) -> None:
            self.abandoned.append((request.correlation_id, request.forwarded_s is None))

    watch = Watch()
    async with open_book(plugins={"watch": watch}, quotas=paced(1000)) as book:
        await book.round_trip(produce(1), reply(PRODUCE, 7, 1))
        await book.client.sends(request(HEARTBEAT, 4, 2), produce(3))
        await book.broker.receives()
        await trio.testing.wait_all_tasks_blocked()
        book.client.socket.close()
        await book.broker.receives_the_end()
    assert watch.abandoned == [(2, False), (3, True)]


async def test_another_quotas_throttle_counts_from_behind_the_hold(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paced thread time holds the request; Produce bytes, enforced as in Kafka, mute the client after the hold."""
    monkeypatch.setattr(thread_time, "thread_time_ns", lambda: 1)  # the proxy's own: none, however busy the machine is
    quotas = [
        *paced(1, QuotaKey.REQUEST_PERCENTAGE),
        (QuotaKey.PRODUCER_BYTE_RATE, ENTITY, Quota(value=1000)),
    ]
    async with open_book(plugins={"costs": Costs(20)}, quotas=quotas) as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        begin_s = trio.current_time()
        answer = await book.round_trip(produce(2, 50_000), reply(PRODUCE, 7, 2))
        assert trio.current_time() - begin_s == pytest.approx(2, abs=0.2), "20 ms at one percent"
        assert read_reply(PRODUCE, 7, answer)["throttle_time_ms"] == pytest.approx(38_000, abs=300)
        kinds = [(decision.kind.value, decision.quota) for decision in book.shared.decisions]
        assert kinds == [("held", "request_percentage"), ("throttled", "producer_byte_rate")]


async def test_what_a_refused_request_reserved_is_given_back(autojump_clock: MockClock) -> None:
    class Refusing:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def request_received(self, request: Request) -> Refuse | None:
            return Refuse(error_code=7) if request.correlation_id == 1 else None

    async with open_book(plugins={"refusing": Refusing()}, quotas=paced(1000)) as book:
        await book.client.sends(produce(1, 50_000))
        await book.client.receives()
        await book.round_trip(produce(2), reply(PRODUCE, 7, 2))
        assert trio.current_time() == pytest.approx(0, abs=0.1)


async def test_what_was_reserved_is_given_back_when_enforcement_ends_in_between(autojump_clock: MockClock) -> None:
    async with open_book(quotas=paced(1000, QuotaKey.CONSUMER_BYTE_RATE)) as book:
        fetch = request(FETCH, 11, 1, max_bytes=5000)
        await book.round_trip(
            fetch, reply(FETCH, 11, 1, responses=[{"topic": "t", "partitions": [{"records": bytes(2000)}]}])
        )
        await book.client.sends(request(FETCH, 11, 2, max_bytes=5000))
        await book.broker.receives()
        book.shared.enforcement.switch(enabled=False, by="test")
        await book.broker.sends(reply(FETCH, 11, 2))
        await book.client.receives()
        assert book.shared.hooks.quotas is not None
        (bucket,) = book.shared.hooks.quotas
        assert bucket.burst_left(1000, int(trio.current_time() * 1000)) == pytest.approx(0, abs=50), "nothing is owed"
