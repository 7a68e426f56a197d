"""The watchdog: who is silent, and who is not although the clock has moved on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.workers.watchdog import TICKS_PER_TIMEOUT, wait_for_silence

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

TIMEOUT_S = 30.0
INTERVAL_S = 10.0


async def watch(ask: Callable[[], Awaitable[None]]) -> None:
    await wait_for_silence(ask, interval_s=lambda: INTERVAL_S, timeout_s=lambda: TIMEOUT_S)


async def test_what_does_not_answer_is_silent_after_the_time(autojump_clock: MockClock) -> None:
    began_s = trio.current_time()
    await watch(trio.sleep_forever)
    assert trio.current_time() - began_s == pytest.approx(INTERVAL_S + TIMEOUT_S)


async def test_what_answers_late_is_not_silent_until_it_stops(autojump_clock: MockClock) -> None:
    asked: list[float] = []

    async def ask() -> None:
        asked.append(trio.current_time())
        await trio.sleep(TIMEOUT_S * 0.99 if len(asked) < 20 else 2 * TIMEOUT_S)

    await watch(ask)
    assert len(asked) == 20
    assert trio.current_time() - asked[-1] == pytest.approx(TIMEOUT_S)


async def test_a_pause_of_the_watchdog_itself_does_not_count(mock_clock: MockClock) -> None:
    """As after SIGSTOP and SIGCONT of all processes: the answer comes, but later than the time."""
    asked, answer = trio.Event(), trio.Event()

    async def ask() -> None:
        asked.set()
        await answer.wait()

    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def watched() -> None:
            await watch(ask)
            ended.set()

        nursery.start_soon(watched)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(INTERVAL_S)
        await asked.wait()
        for _ in range(TICKS_PER_TIMEOUT - 1):
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(100 * TIMEOUT_S)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended.is_set()
        mock_clock.jump(TIMEOUT_S)
        await ended.wait()
        nursery.cancel_scope.cancel()
