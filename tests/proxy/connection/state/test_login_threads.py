"""Logins that wait: addresses take turns, and nothing is lost when a client leaves."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from headrace.proxy.connection.state.login_threads import LoginThreads

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTACKER, HONEST, OTHER = "192.0.2.1", "192.0.2.2", "192.0.2.3"
DEADLINE_S = 20


class Computation:
    """A computation that takes as long as the test wants, and notes the order in which its calls ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._places = threading.Semaphore(0)
        self._done = threading.Semaphore(0)

    def __call__(self, token: bytes) -> str:
        assert self._places.acquire(timeout=DEADLINE_S)
        self.ended.append(token.decode())
        self._done.release()
        return token.decode()

    def let_end(self, count: int = 1) -> None:
        self._places.release(count)

    async def let_next_end(self) -> None:
        """Let one computation end, and wait until the next one has begun."""
        self._places.release()
        assert await trio.to_thread.run_sync(partial(self._done.acquire, timeout=DEADLINE_S))
        await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.fixture
def computation() -> Iterator[Computation]:
    found = Computation()
    yield found
    found.let_end(100)


async def test_a_flood_from_one_address_delays_others_by_one_computation(computation: Computation) -> None:
    threads = LoginThreads(1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(threads.run, ATTACKER, computation, f"attack {number}".encode())
                await trio.testing.wait_all_tasks_blocked(0.001)
            for host, name in [(HONEST, b"honest 1"), (HONEST, b"honest 2"), (OTHER, b"other")]:
                nursery.start_soon(threads.run, host, computation, name)
                await trio.testing.wait_all_tasks_blocked(0.001)
            for _ in range(7):
                await computation.let_next_end()
            computation.let_end(100)
    turns = ["attack 0", "attack 1", "honest 1", "other", "attack 2", "honest 2", "attack 3"]
    assert computation.ended[:7] == turns


async def test_addresses_of_one_ipv6_network_are_one(computation: Computation) -> None:
    threads = LoginThreads(1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for number in range(5):
                host = f"2001:db8::{number + 1}"
                nursery.start_soon(threads.run, host, computation, f"attack {number}".encode())
                await trio.testing.wait_all_tasks_blocked(0.001)
            nursery.start_soon(threads.run, HONEST, computation, b"honest")
            await trio.testing.wait_all_tasks_blocked(0.001)
            computation.let_end(100)
    assert computation.ended.index("honest") == 2


async def test_who_leaves_the_queue_takes_no_turn(computation: Computation) -> None:
    threads = LoginThreads(1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as outer:
            outer.start_soon(threads.run, OTHER, computation, b"first")
            await trio.testing.wait_all_tasks_blocked(0.001)
            async with trio.open_nursery() as leaving:
                leaving.start_soon(threads.run, ATTACKER, computation, b"left")
                await trio.testing.wait_all_tasks_blocked(0.001)
                leaving.cancel_scope.cancel()
            outer.start_soon(threads.run, HONEST, computation, b"second")
            await trio.testing.wait_all_tasks_blocked(0.001)
            computation.let_end(2)
    assert computation.ended == ["first", "second"]


async def test_an_abandoned_computation_keeps_its_place_until_it_ends(computation: Computation) -> None:
    """Otherwise clients that leave at once could start any number of them."""
    threads = LoginThreads(1)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as leaving:
            leaving.start_soon(threads.run, ATTACKER, computation, b"abandoned")
            await trio.testing.wait_all_tasks_blocked(0.001)
            leaving.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(threads.run, HONEST, computation, b"next")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert computation.ended == []
            await computation.let_next_end()
            assert computation.ended == ["abandoned"]
            computation.let_end()
        assert computation.ended == ["abandoned", "next"]


async def test_what_the_computation_raises_frees_its_place() -> None:
    def fail(_: bytes) -> None:
        raise ValueError("refused")

    threads = LoginThreads(1)
    with trio.fail_after(DEADLINE_S):
        for _ in range(3):
            with pytest.raises(ValueError, match="refused"):
                await threads.run(HONEST, fail, b"")
