"""The watchdog: notices that something which should answer regularly, such as a worker, has stopped doing so.

It does not know what it guards, or how that is asked; `headrace.proxy.workers.supervisor` asks its workers over pipes,
and kills the one that is silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TICKS_PER_TIMEOUT: Final = 10
"""Of one tick, at most its intended length counts."""


async def wait_for_silence(
    ask: Callable[[], Awaitable[None]], *, interval_s: Callable[[], float], timeout_s: Callable[[], float]
) -> None:
    """Call ``ask``, which returns when there is an answer, every ``interval_s()`` until it has waited ``timeout_s()``.

    Time in which this process itself did not run does not count: after all processes of a machine or a container were
    paused, those that can answer are not silent.
    """
    while True:
        await trio.sleep(interval_s())
        answered = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ask, ask, answered)
            await _wait(answered, timeout_s())
            nursery.cancel_scope.cancel()
        if not answered.is_set():
            return


async def _wait(answered: trio.Event, limit_s: float) -> None:
    """Wait until ``answered`` is set, for at most ``limit_s`` seconds in which this process runs."""
    silent_s, tick_s = 0.0, limit_s / TICKS_PER_TIMEOUT
    while not answered.is_set() and silent_s < limit_s * (1 - 1e-9):
        began_s = trio.current_time()
        with trio.move_on_after(tick_s):
            await answered.wait()
        silent_s += min(trio.current_time() - began_s, tick_s)


async def _ask(ask: Callable[[], Awaitable[None]], answered: trio.Event) -> None:
    await ask()
    answered.set()
