"""Requests that arrive slowly: little work for each byte, and a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.proxy.connection import request_relay
from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.connection.state.timeouts import PROGRESS_BYTES, end_if_overdue
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from tests.proxy.mutation_script import WINDOWS, create, quota
from tests.proxy.playbook import open_book, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.wire.heads import RequestHead
    from tests.proxy.playbook import Book

HEARTBEAT, PRODUCE, METADATA = ApiKey.HEARTBEAT, ApiKey.PRODUCE, ApiKey.METADATA
TIMEOUT_S = 30.0
SWEEP_S = 5.0
SLOW = "client: a request arrives too slowly: limits.request_timeout = 30 s"


async def dribble(book: Book, data: bytes, every_s: float) -> float:
    """Send ``data`` in pieces of one byte; return after how many seconds the connection was ended, or all was sent."""
    began_s = swept_s = trio.current_time()
    for at in range(len(data)):
        await book.client.sends(data[at : at + 1])
        await trio.sleep(every_s)
        if trio.current_time() - swept_s >= SWEEP_S:
            swept_s = trio.current_time()
            end_if_overdue(book.connection, swept_s)
        if book.connection.reason is not None:
            break
    return trio.current_time() - began_s


@pytest.mark.parametrize("sent", [3, 12], ids=["length", "head"])
async def test_a_head_that_comes_byte_by_byte_is_cut_off(sent: int, autojump_clock: MockClock) -> None:
    async with open_book() as book:
        frame = request(HEARTBEAT, 4, 1, client_id="c" * 100)
        await book.client.sends(frame[:sent])
        assert TIMEOUT_S < await dribble(book, frame[sent:], 1.0) <= TIMEOUT_S + 2 * SWEEP_S
        assert book.connection.reason == SLOW
        await book.client.receives_the_end()


async def test_a_body_that_comes_byte_by_byte_is_cut_off(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        frame = request(PRODUCE, 7, 1, acks=1, padding=100_000)
        await book.client.sends(frame[:1000])
        await book.upstream.wait_for_dial(1)
        assert TIMEOUT_S < await dribble(book, frame[1000:], 1.0) <= TIMEOUT_S + 2 * SWEEP_S
        assert book.connection.reason == SLOW


async def test_a_body_that_fills_the_queue_in_flight_is_cut_off(autojump_clock: MockClock) -> None:
    """The client is not read beyond this request, which is read to its end."""
    limits = Limits(max_frame_bytes=10**6, max_collected_bytes=10**6, max_in_flight_requests=2)
    async with open_book(limits=limits) as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        frame = request(PRODUCE, 7, 3, acks=1, padding=100_000)
        await book.client.sends(request(HEARTBEAT, 4, 2) + frame[:1000])
        await trio.testing.wait_all_tasks_blocked()
        assert book.connection.must_hold
        assert TIMEOUT_S < await dribble(book, frame[1000:], 1.0) <= TIMEOUT_S + 2 * SWEEP_S
        assert book.connection.reason == SLOW


async def test_a_slow_upload_that_makes_progress_is_not_cut_off(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        frame = request(PRODUCE, 7, 1, acks=1, padding=10 * PROGRESS_BYTES)
        for at in range(0, len(frame), PROGRESS_BYTES):
            await book.client.sends(frame[at : at + PROGRESS_BYTES])
            await trio.sleep(TIMEOUT_S - 1)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is None
        assert await book.broker.receives() == frame


async def test_progress_counts_although_the_relay_waits_for_more(autojump_clock: MockClock) -> None:
    """A relay waits for the rest of a long request in one piece. What has arrived is read for the check."""
    async with open_book() as book:
        frame = request(PRODUCE, 7, 1, acks=1, padding=10 * PROGRESS_BYTES)
        a_second = PROGRESS_BYTES // 10
        for at in range(0, len(frame), a_second):
            await book.client.sends(frame[at : at + a_second])
            await trio.sleep(1)
            if at // a_second % int(SWEEP_S) == 0:
                end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is None
        assert await book.broker.receives() == frame


async def test_a_tls_record_that_does_not_come_to_its_end_is_cut_off(autojump_clock: MockClock) -> None:
    """As a request of which a part has arrived, although there is no byte of it that could be decrypted."""
    async with open_book() as book:
        await book.round_trip(request(HEARTBEAT, 4, 1), reply(HEARTBEAT, 4, 1))
        book.connection.client.undecrypted_bytes = 1
        began_s = trio.current_time()
        while book.connection.reason is None and trio.current_time() - began_s < 2 * TIMEOUT_S:
            await trio.sleep(SWEEP_S)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason == SLOW
        assert TIMEOUT_S < trio.current_time() - began_s <= TIMEOUT_S + 2 * SWEEP_S
        await book.client.receives_the_end()


async def test_a_tls_record_behind_a_request_that_waits_for_a_reply_is_not_cut_off(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(100), windows=WINDOWS) as book:
        sent = create(5, ("t", 1))
        await book.client.sends(sent + request(HEARTBEAT, 4, 2))  # forwarded after the reply to the mutation
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == sent
        book.connection.client.undecrypted_bytes = 1
        for _ in range(4):
            await trio.sleep(TIMEOUT_S)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is None


async def test_between_requests_a_client_may_wait(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        for number in range(5):
            await book.round_trip(request(HEARTBEAT, 4, number), reply(HEARTBEAT, 4, number))
            await trio.sleep(100)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is None


async def test_time_in_which_the_client_is_muted_does_not_count(autojump_clock: MockClock) -> None:
    quota = (QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), 1000)
    async with open_book(quotas=[quota]) as book:
        second = request(HEARTBEAT, 4, 2)
        first = request(PRODUCE, 7, 1, acks=1, padding=100_000)
        await book.client.sends(first + second[:20])
        await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == first
        await book.broker.sends(reply(PRODUCE, 7, 1))
        await book.client.receives()
        for _ in range(10):
            await trio.sleep(5)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason is None
        await book.client.sends(second[20:])
        await trio.sleep(200)
        assert await book.broker.receives() == second


async def test_of_a_promise_that_is_not_kept_only_what_came_is_charged(autojump_clock: MockClock) -> None:
    """A paced quota would otherwise make others wait for the announced size."""
    paced = Quota(value=1000, policy=QuotaPolicy(mode=EnforcementMode.PACED))
    async with open_book(quotas=[(QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), paced)]) as book:
        await book.client.sends(request(PRODUCE, 7, 1, acks=1, padding=900_000)[:100])
        await book.upstream.wait_for_dial(1)
        for _ in range(8):
            await trio.sleep(SWEEP_S)
            end_if_overdue(book.connection, trio.current_time())
        assert book.connection.reason == SLOW
        await book.client.receives_the_end()
        assert book.shared.hooks.quotas is not None
        bucket = book.shared.hooks.quotas.bucket(QuotaKey.PRODUCER_BYTE_RATE, "ANONYMOUS", "c")
        assert bucket is not None
        assert bucket.burst_left(1000, int(trio.current_time() * 1000)) == bucket.burst(1000) - 96


async def test_the_work_for_a_head_does_not_grow_with_its_pieces(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0
    read = request_relay.read_request_head

    def count(buffer: bytearray, position: int, end: int, max_frame_bytes: int) -> RequestHead | None:
        nonlocal attempts
        attempts += 1
        return read(buffer, position, end, max_frame_bytes)

    monkeypatch.setattr(request_relay, "read_request_head", count)
    async with open_book() as book:
        frame = request(METADATA, 12, 1, client_id="c" * 4000)
        for at in range(len(frame)):
            await book.client.sends(frame[at : at + 1])
            await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == frame
    assert attempts < 300


async def test_a_client_that_the_broker_does_not_accept_in_time_is_cut_off(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        book.forget_acceptance()
        end_if_overdue(book.connection, trio.current_time() + 59)
        assert book.connection.reason is None
        end_if_overdue(book.connection, trio.current_time() + 61)
        assert (
            book.connection.reason == "client: the broker did not accept the client within limits.login_timeout = 60 s"
        )


async def test_the_broker_is_blamed_where_the_proxys_own_login_takes_too_long(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        book.forget_acceptance()
        book.connection.note_broker_login_began(trio.current_time())
        end_if_overdue(book.connection, trio.current_time() + 61)
        assert (
            book.connection.reason
            == "upstream: the broker did not accept the client within limits.login_timeout = 60 s"
        )
