"""``limits.max_connection_age``: an old connection ends when the client loses nothing, and not before."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.connection.state.timeouts import (
    AGE_JITTER,
    BUSY_S,
    PIPELINED_S,
    QUIET_S,
    SHORTEST_INTERVAL_S,
    UNACKNOWLEDGED_S,
    age_of_end_s,
    check_interval_s,
    end_if_overdue,
)
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.playbook import Book, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

PRODUCE, HEARTBEAT = ApiKey.PRODUCE, ApiKey.HEARTBEAT
AGE_S: Final = 100.0


@asynccontextmanager
async def open_old_book() -> AsyncIterator[Book]:
    """A connection that is old in `AGE_S`, and has had a request answered."""
    quota = (QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(client_id="c"), 1000.0)
    async with open_book(limits=Limits(max_connection_age_s=AGE_S), quotas=[quota]) as opened:
        opened.connection.jitter = 0.0
        await opened.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        yield opened


def check(book: Book) -> None:
    end_if_overdue(book.connection, trio.current_time())


def ends(book: Book) -> int:
    return book.shared.counters.connections_aged


async def test_a_quiet_connection_ends_once_it_is_old(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S - 1)
        check(book)
        assert ends(book) == 0
        await trio.sleep(1)
        check(book)
        await book.client.receives_the_end()
        assert ends(book) == 1


async def test_ages_differ_so_that_connections_do_not_end_together(autojump_clock: MockClock) -> None:
    jitters, ages_s = [], []
    for _ in range(50):
        async with open_book(limits=Limits(max_connection_age_s=AGE_S)) as book:
            jitters.append(book.connection.jitter)
            ages_s.append(age_of_end_s(book.connection))
    assert len(set(jitters)) == 50
    assert (1 - AGE_JITTER) * AGE_S <= min(ages_s) < max(ages_s) <= AGE_S


async def test_without_a_limit_no_connection_is_old(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        book.shared.limits = Limits()
        await trio.sleep(500)
        check(book)
        await wait_all_tasks_blocked()
        assert ends(book) == 0
        assert not book.client.socket.peer.closed


async def test_a_client_gets_time_to_read_the_last_reply(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.round_trip(request(HEARTBEAT, 4), reply(HEARTBEAT, 4))
        check(book)
        assert ends(book) == 0
        await trio.sleep(2 * QUIET_S)
        check(book)
        assert ends(book) == 1


async def test_a_long_poll_is_answered_before_the_end(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await wait_all_tasks_blocked()
        await trio.sleep(PIPELINED_S)
        check(book)
        assert ends(book) == 0
        answer = reply(HEARTBEAT, 4, 2)
        await book.broker.receives()
        await book.broker.sends(answer)
        assert await book.client.receives() == answer
        await book.client.receives_the_end()
        assert ends(book) == 1


async def test_what_is_on_its_way_is_answered_before_the_end(autojump_clock: MockClock) -> None:
    """The next request has arrived before the last reply was sent: after it is another moment."""
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await wait_all_tasks_blocked()
        await trio.sleep(BUSY_S)
        check(book)
        await book.client.sends(request(HEARTBEAT, 4, 3))
        await wait_all_tasks_blocked()
        for number in (2, 3):
            await book.broker.receives()
            await book.broker.sends(reply(HEARTBEAT, 4, number))
            assert await book.client.receives() == reply(HEARTBEAT, 4, number)
            assert ends(book) == (number == 3)
        await book.client.receives_the_end()


async def test_half_a_request_is_not_lost(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        frame = request(HEARTBEAT, 4, 2)
        await trio.sleep(AGE_S)
        await book.client.sends(frame[:9])
        await wait_all_tasks_blocked()
        await trio.sleep(BUSY_S)
        check(book)
        assert ends(book) == 0
        await book.client.sends(frame[9:])
        assert await book.broker.receives() == frame
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        assert await book.client.receives() == reply(HEARTBEAT, 4, 2)
        await book.client.receives_the_end()


@pytest.mark.parametrize("count", [1, 30])
async def test_a_client_that_always_sends_ahead_is_drained(autojump_clock: MockClock, count: int) -> None:
    """One byte of the next request, or so many that it has begun to be forwarded."""
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        frame = request(PRODUCE, 9, 2, acks=1, padding=10)
        await book.client.sends(frame[:count])
        await wait_all_tasks_blocked()
        await trio.sleep(PIPELINED_S - 0.1)
        check(book)
        assert ends(book) == 0
        await trio.sleep(0.1)
        check(book)
        assert ends(book) == 1
        if count > 1:  # it is still answered
            await book.client.sends(frame[count:])
            await book.broker.receives()
            await book.broker.sends(reply(PRODUCE, 9, 2))
            assert await book.client.receives() == reply(PRODUCE, 9, 2)
        await book.client.receives_the_end()


async def test_a_client_that_always_has_several_requests_in_flight_is_drained(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(*(request(HEARTBEAT, 4, number) for number in (2, 3)))
        await wait_all_tasks_blocked()
        await trio.sleep(PIPELINED_S - 0.1)
        check(book)
        assert not book.connection.draining
        await trio.sleep(0.1)
        check(book)
        await book.client.sends(request(HEARTBEAT, 4, 4))
        for number in (2, 3):
            await book.broker.receives()
            await book.broker.sends(reply(HEARTBEAT, 4, number))
            assert await book.client.receives() == reply(HEARTBEAT, 4, number)
        await book.client.receives_the_end()
        assert book.broker.receives_nothing(), "the client sends it again on another connection"
        assert ends(book) == 1


async def test_records_without_acks_are_not_drained(autojump_clock: MockClock) -> None:
    """The client would not send them again."""
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(*(request(HEARTBEAT, 4, number) for number in (2, 3)))
        await book.client.sends(request(PRODUCE, 9, 4, acks=0, padding=10))
        await wait_all_tasks_blocked()
        await trio.sleep(PIPELINED_S)
        check(book)
        assert not book.connection.draining
        for number in (2, 3):
            await book.broker.receives()
            await book.broker.sends(reply(HEARTBEAT, 4, number))
            assert await book.client.receives() == reply(HEARTBEAT, 4, number)
        await book.client.receives_the_end()
        await book.broker.receives()  # the Produce


async def test_records_without_acks_do_not_keep_a_connection(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(request(PRODUCE, 9, 2, acks=0, padding=10), request(PRODUCE, 9, 3, acks=0)[:1])
        await wait_all_tasks_blocked()
        await trio.sleep(UNACKNOWLEDGED_S)
        check(book)
        await book.client.receives_the_end()
        assert ends(book) == 1


async def test_a_muted_client_waits_for_the_end_of_its_mute(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        answer = await book.round_trip(request(PRODUCE, 9, 2, acks=1, padding=40_000), reply(PRODUCE, 9, 2))
        assert answer
        until_s = book.connection.mute.until_s
        assert until_s > trio.current_time() + 10
        while trio.current_time() < until_s - 1:
            check(book)
            await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert ends(book) == 0
        await trio.sleep(2)
        check(book)
        await book.client.receives_the_end()
        assert ends(book) == 1


async def test_a_muted_clients_next_request_is_answered_first(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.round_trip(request(PRODUCE, 9, 2, acks=1, padding=40_000), reply(PRODUCE, 9, 2))
        await book.client.sends(request(HEARTBEAT, 4, 3))
        await trio.sleep(PIPELINED_S)
        check(book)
        assert await book.broker.receives() == request(HEARTBEAT, 4, 3)
        await book.broker.sends(reply(HEARTBEAT, 4, 3))
        assert await book.client.receives() == reply(HEARTBEAT, 4, 3)
        await book.client.receives_the_end()


@pytest.mark.parametrize("attribute", ["accepted", "authenticating", "no request"])
async def test_a_login_is_not_interrupted(autojump_clock: MockClock, attribute: str) -> None:
    async with open_old_book() as book:
        if attribute == "accepted":
            book.forget_acceptance()
            book.connection.limits = Limits(login_timeout_s=1000)
        elif attribute == "no request":
            book.connection.current = None  # it may still be in its TLS handshake
        else:
            book.connection.info.authenticating = True
        await trio.sleep(AGE_S + PIPELINED_S)
        check(book)
        await wait_all_tasks_blocked()
        assert ends(book) == 0


async def test_a_reload_spares_connections_that_were_to_end(autojump_clock: MockClock) -> None:
    async with open_old_book() as book:
        await trio.sleep(AGE_S)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await wait_all_tasks_blocked()
        await trio.sleep(BUSY_S)
        check(book)
        book.shared.limits = Limits(max_connection_age_s=10 * AGE_S)
        check(book)
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        assert await book.client.receives() == reply(HEARTBEAT, 4, 2)
        assert await book.round_trip(request(HEARTBEAT, 4, 3), reply(HEARTBEAT, 4, 3))
        assert ends(book) == 0


@pytest.mark.parametrize(("age_s", "interval_s"), [(0.0, 15.0), (1000.0, 15.0), (2.0, 0.2), (0.1, SHORTEST_INTERVAL_S)])
def test_checks_are_as_frequent_as_the_age_requires(age_s: float, interval_s: float) -> None:
    assert check_interval_s(Limits(max_connection_age_s=age_s)) == interval_s
