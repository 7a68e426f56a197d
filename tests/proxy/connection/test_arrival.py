"""Large requests are forwarded as they come, and charged when their last byte has been read."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Interest
from headrace.quota_callbacks.verdicts import Throttle
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.buckets.quota_bucket import QuotaBucket
    from headrace.quota_callbacks.requests import Request
    from tests.proxy.playbook import Book

PRODUCE = ApiKey.PRODUCE
LIMIT = (QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), 1000)
PACED = Quota(value=1000, policy=QuotaPolicy(mode=EnforcementMode.PACED))
SIZE = 30_000


class Arrivals:
    """Notes which requests arrived, and throttles them."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.seen: list[str] = []

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (Interest(api_key=PRODUCE),)

    @hookimpl
    def request_received(self, request: Request) -> None:
        self.seen.append(f"received {request.arrived}")

    @hookimpl
    def request_arrived(self, request: Request) -> Throttle:
        self.seen.append(f"arrived {request.arrived}")
        return Throttle(throttle_ms=700)

    @hookimpl
    def request_abandoned(self, request: Request) -> None:
        self.seen.append(f"abandoned {request.arrived}")


def bucket_of(book: Book, user: str = "ANONYMOUS") -> QuotaBucket:
    """Return the bucket of the produced bytes of the client."""
    assert book.shared.hooks.quotas is not None
    bucket = book.shared.hooks.quotas.bucket(QuotaKey.PRODUCER_BYTE_RATE, user, "c")
    assert bucket is not None
    return bucket


def produce(number: int, acks: int = 1) -> bytes:
    return request(PRODUCE, 7, number, acks=acks, padding=SIZE)


async def test_a_request_in_pieces_arrives_with_its_last_byte(autojump_clock: MockClock) -> None:
    arrivals = Arrivals()
    async with open_book(plugins={"arrivals": arrivals}) as book:
        frame = produce(1)
        await book.client.sends(frame[:-1])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        assert arrivals.seen == ["received False"]
        await book.client.sends(frame[-1:])
        assert await book.broker.receives() == frame
        assert arrivals.seen == ["received False", "arrived True"]
        await book.broker.sends(reply(PRODUCE, 7, 1))
        assert read_reply(PRODUCE, 7, await book.client.receives())["throttle_time_ms"] == 700


async def test_a_whole_request_is_not_asked_about_twice(autojump_clock: MockClock) -> None:
    arrivals = Arrivals()
    async with open_book(plugins={"arrivals": arrivals}) as book:
        await book.round_trip(produce(1), reply(PRODUCE, 7, 1))
    assert arrivals.seen == ["received True"]


@pytest.mark.parametrize("acks", [0, 1])
async def test_of_a_request_that_breaks_off_what_came_is_charged(acks: int, autojump_clock: MockClock) -> None:
    arrivals = Arrivals()
    async with open_book(quotas=[LIMIT], plugins={"arrivals": arrivals}) as book:
        await book.client.sends(produce(1, acks)[:20_004])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        bucket = bucket_of(book)
        assert bucket.observed(int(trio.current_time() * 1000)) == 0
        book.client.socket.close()
        await trio.testing.wait_all_tasks_blocked()
        assert arrivals.seen == ["received False", "abandoned False"]
        now_ms = int(trio.current_time() * 1000)
        assert bucket.observed(now_ms) * 10 == 20_000
        assert bucket.gate_ms - now_ms == 10_000, "new connections wait for it"


@pytest.mark.parametrize("acks", [0, 1])
async def test_also_if_its_batches_are_read(acks: int, autojump_clock: MockClock) -> None:
    """The walk through its body, and not the scanner, knows how much is missing."""
    producer_ids = (QuotaKey.PRODUCER_IDS_RATE, QuotaEntity(user=DEFAULT), 1000)
    async with open_book(quotas=[LIMIT, producer_ids]) as book:
        partition = struct.pack(">iii", 1, 0, SIZE) + bytes(SIZE)
        body = struct.pack(">hhiih", -1, acks, 30_000, 1, 1) + b"t" + partition
        frame = struct.pack(">hhih", PRODUCE, 7, 1, 1) + b"c" + body
        await book.client.sends(struct.pack(">i", len(frame)) + frame[:20_000])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        book.client.socket.close()
        await trio.testing.wait_all_tasks_blocked()
        bucket = bucket_of(book)
        assert bucket.observed(int(trio.current_time() * 1000)) * 10 == 20_000


@pytest.mark.parametrize("user", ["alice", "ANONYMOUS"])
async def test_paced_counts_what_came(user: str, autojump_clock: MockClock) -> None:
    """The announced size is reserved in a quota of the user, who has authenticated, and not in one of a client id."""
    entity = QuotaEntity(client_id="c") if user == "ANONYMOUS" else QuotaEntity(user="alice")
    async with open_book(quotas=[(QuotaKey.PRODUCER_BYTE_RATE, entity, PACED)]) as book:
        book.connection.info.user = user
        await book.client.sends(produce(1)[:20_004])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        bucket = bucket_of(book, user)
        now_ms = int(trio.current_time() * 1000)
        assert (bucket.burst_left(1000, now_ms) < 0) == (user == "alice")
        book.client.socket.close()
        await trio.testing.wait_all_tasks_blocked()
        assert bucket.burst_left(1000, now_ms) == bucket.burst(1000) - 20_000
        assert bucket.observed(now_ms) * 10 == 20_000


async def test_paced_reserves_the_size_of_the_request_before(autojump_clock: MockClock) -> None:
    """A request that has not arrived reserves the size of the last such request, which counts once."""
    async with open_book(quotas=[(QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), PACED)]) as book:
        frame = produce(1)
        await book.client.sends(frame[:100])
        await book.upstream.wait_for_dial(1)
        await trio.testing.wait_all_tasks_blocked()
        bucket = bucket_of(book)
        assert bucket.burst_left(1000, int(trio.current_time() * 1000)) == bucket.burst(1000)
        await book.client.sends(frame[100:])
        await book.broker.receives()
        await trio.testing.wait_all_tasks_blocked()
        owed = bucket.burst(1000) - bucket.burst_left(1000, int(trio.current_time() * 1000))
        assert owed == len(frame) - 4
        for number in (2, 3):
            await trio.sleep(owed / 1000)
            await book.client.sends(produce(number)[:100])
            await trio.testing.wait_all_tasks_blocked()
            now_ms = int(trio.current_time() * 1000)
            assert bucket.burst(1000) - bucket.burst_left(1000, now_ms) == pytest.approx(owed, abs=10)
            await book.client.sends(produce(number)[100:])
            await book.broker.receives()
            await trio.testing.wait_all_tasks_blocked()


async def test_paced_reserves_the_size_of_a_request_that_arrived_at_once(autojump_clock: MockClock) -> None:
    """A smaller one in between does not change what the next request that has not arrived reserves."""
    async with open_book(quotas=[(QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), PACED)]) as book:
        large, small = produce(1), request(PRODUCE, 7, 2, acks=1)
        for frame in (large, small):
            await book.client.sends(frame)
            await book.upstream.wait_for_dial(1)
            assert await book.broker.receives() == frame
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(len(frame) / 1000)
        bucket = bucket_of(book)
        before = bucket.burst_left(1000, int(trio.current_time() * 1000))
        await book.client.sends(produce(3)[:100])
        await trio.testing.wait_all_tasks_blocked()
        left = bucket.burst_left(1000, int(trio.current_time() * 1000))
        assert before - left == len(large) - 4


async def test_what_was_never_sent_is_given_back(autojump_clock: MockClock) -> None:
    """The broker cannot be dialled: the request was charged, and nothing of it left the proxy."""
    async with open_book(quotas=[LIMIT]) as book:
        book.upstream.fault = "cannot connect"
        await book.client.sends(produce(1))
        await book.client.receives_the_end()
        bucket = bucket_of(book)
        now_ms = int(trio.current_time() * 1000)
        assert bucket.observed(now_ms) == 0
        assert bucket.gate_ms <= now_ms, "no new connection waits for it"


async def test_what_was_not_sent_to_a_broker_that_had_closed_is_given_back(autojump_clock: MockClock) -> None:
    """The broker closes during the mute, and cannot be dialled again for the next request."""
    async with open_book(quotas=[LIMIT]) as book:
        await book.round_trip(produce(1), reply(PRODUCE, 7, 1))
        bucket = bucket_of(book)
        charged = bucket.observed(int(trio.current_time() * 1000))
        assert charged > 0
        book.broker.socket.close()
        await trio.testing.wait_all_tasks_blocked()
        book.upstream.fault = "cannot connect"
        await book.client.sends(produce(2))
        await book.client.receives_the_end()
        assert bucket.observed(int(trio.current_time() * 1000)) < charged
