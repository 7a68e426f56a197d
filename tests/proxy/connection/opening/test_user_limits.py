"""Limits per user where the brokers authenticate clients: a connection counts once the broker has accepted the user."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from headrace.plugins.sasl_identity import SaslIdentity
from headrace.proxy.connection.opening.user_admission import admit_user
from headrace.proxy.network.admission import Admission
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from tests.proxy.network.test_connection_rates import UNLIMITED
from tests.proxy.playbook import Book, open_book, reply, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

HANDSHAKE, AUTHENTICATE, HEARTBEAT = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT
FAILED = 58
ALICE = b"\0alice\0secret"


@asynccontextmanager
async def open_limited(*, number: int = 0, rate: int = 0) -> AsyncIterator[tuple[Book, Admission]]:
    async with open_book(plugins={"sasl_identity": SaslIdentity()}) as book:
        limits = replace(UNLIMITED, max_connections_per_user=number, max_connection_rate_per_user=rate)
        admission = Admission(limits, book.shared.counters, Window())
        book.shared.admission = admission
        book.forget_acceptance()
        yield book, admission


async def send_login(book: Book, error: int = 0) -> bytes:
    """Log in by PLAIN up to the broker's last answer, which is returned."""
    answer = reply(HANDSHAKE, 1, 1, mechanisms=["PLAIN"])
    await book.round_trip(request(HANDSHAKE, 1, 1, mechanism="PLAIN"), answer)
    await book.client.sends(request(AUTHENTICATE, 2, 2, auth_bytes=ALICE))
    await book.broker.receives()
    answer = reply(AUTHENTICATE, 2, 2, error_code=error)
    await book.broker.sends(answer)
    return answer


async def test_a_user_that_the_broker_has_accepted_counts(autojump_clock: MockClock) -> None:
    async with open_limited(number=1) as (book, admission):
        answer = await send_login(book)
        assert await book.client.receives() == answer
        assert book.connection.counted_user == "alice"
        refusal = admission.admit_user("alice", 0.0)
        assert refusal is not None


async def test_one_that_it_has_refused_does_not(autojump_clock: MockClock) -> None:
    async with open_limited(number=1) as (book, admission):
        answer = await send_login(book, FAILED)
        assert await book.client.receives() == answer
        assert book.connection.counted_user is None
        assert admission.admit_user("alice", 0.0) is None


async def test_one_connection_too_many_is_closed_before_the_answer(autojump_clock: MockClock) -> None:
    async with open_limited(number=1) as (book, admission):
        admission.admit_user("alice", 0.0)
        await send_login(book)
        await book.client.receives_the_end()
        assert book.client.receives_nothing()
        assert book.connection.reason == "client: user alice: limits.max_connections_per_user = 1 is reached"
        assert book.shared.counters.connections_refused == {"max_connections_per_user": 1}
        assert book.shared.counters.errors == {"client": 1}


async def test_over_the_rate_it_is_closed_after_a_delay_and_not_read_meanwhile(autojump_clock: MockClock) -> None:
    async with open_limited(rate=1) as (book, admission):
        for _ in range(10):
            assert admission.admit_user("alice", trio.current_time()) is None
        begin_s = trio.current_time()
        await send_login(book)
        await book.client.sends(request(HEARTBEAT, 4, 3))
        await trio.sleep(0.5)
        assert not book.client.socket.peer.closed
        await book.client.receives_the_end()
        assert 0.9 <= trio.current_time() - begin_s <= 1.1
        assert book.broker.receives_nothing()


async def test_a_change_of_the_user_counts_for_the_new_one(autojump_clock: MockClock) -> None:
    async with open_limited(number=1) as (book, admission):
        await send_login(book)
        await book.client.receives()
        admit_user(book.connection)
        assert admission.admit_user("bob", 0.0) is None
        admission.leave_user("bob")
        book.connection.info.user = "bob"
        admit_user(book.connection)
        assert book.connection.counted_user == "bob"
        assert admission.admit_user("alice", 0.0) is None
        assert admission.admit_user("bob", 0.0) is not None
