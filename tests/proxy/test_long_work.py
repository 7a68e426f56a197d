"""Turns of long computations: they go round the owners of connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from headrace.proxy.long_work import FairLock, LongSteps

if TYPE_CHECKING:
    from collections.abc import Generator


def step(done: list[str], name: str) -> Generator[None, None, None]:
    yield
    done.append(name)


async def test_many_steps_of_one_owner_do_not_delay_another() -> None:
    steps, done = LongSteps(), []
    release = trio.Event()

    async def hold() -> None:
        await steps._turn.acquire("first")
        await release.wait()
        steps._turn.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        for number in range(20):
            nursery.start_soon(steps.run, "many", step(done, f"many-{number}"))
            await wait_all_tasks_blocked()
        nursery.start_soon(steps.run, "one", step(done, "one"))
        await wait_all_tasks_blocked()
        release.set()
    assert done[:3] == ["many-0", "one", "many-1"]
    assert len(done) == 21


@pytest.mark.parametrize("has_turn", [False, True])
async def test_a_task_that_is_cancelled_leaves_its_turn_to_the_next(has_turn: bool) -> None:
    lock, done = FairLock(), []

    async def take(owner: str, scope: trio.CancelScope) -> None:
        with scope:
            await lock.acquire(owner)
            done.append(owner)
            lock.release()

    await lock.acquire("first")
    cancelled = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "cancelled", cancelled)
        await wait_all_tasks_blocked()
        nursery.start_soon(take, "next", trio.CancelScope())
        await wait_all_tasks_blocked()
        if has_turn:  # it gets the turn after it was cancelled, and before it runs
            cancelled.cancel()
            lock.release()
        else:
            cancelled.cancel()
            await wait_all_tasks_blocked()
            lock.release()
    assert done[-1] == "next"
    await lock.acquire("last")
