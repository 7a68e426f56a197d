"""Measuring how long callbacks hold the event loop, since one that blocks it stalls all clients.

All calls on the event loop are measured, those of built-in callbacks as well. `SlowCalls.measured` wraps a callback.
Hooks that return a verdict are called for each request, several callbacks one after the other, and
`headrace.proxy.hooks.calls` reads the clock itself: once before the first, and once after each. Of an async function,
`SlowCalls.measured_steps` measures each step, which ends at a checkpoint.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import structlog

from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

log = structlog.get_logger("headrace.plugins")

NOT_MEASURED: Final = frozenset(
    {
        *("configure", "close", "prepare_metrics", "request_interest", "enforced_quotas", "scoped_callback"),
        *("request_sample_ratio", "options_table"),
    }
)
"""Hooks that are called before clients are served, or in a thread; the steps of ``prepare_metrics`` are measured."""

Result = TypeVar("Result")

VERDICT_HOOKS: Final = frozenset(
    {
        *("request_received", "request_arrived", "batches_received", "response_received"),
        *("records_fetched", "request_abandoned", "request_denied"),
    }
)
"""Hooks whose caller reads the clock itself, and calls `SlowCalls.note`."""

_REMEMBERED: Final = 16
"""Slow calls that are remembered, to subtract their time from a call that has made them."""


class SlowCalls:
    """The calls that take longer than ``plugins.slow_call``: counted, and logged once a minute by plugin and hook."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        """``plugins.slow_call`` in seconds."""
        self.counts: dict[str, int] = {}
        """Number of slow calls, by plugin name."""
        self._latest: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        """When each of the latest slow calls began, and how long it took without slow calls that it has made."""
        self._repeated = RepeatedLines()

    def measured(self, plugin: str, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` with its time measured, unless its hook is not called on the event loop, or its caller
        measures it. A call in another thread than the event loop's, which is the main thread, does not count."""
        if hook in NOT_MEASURED or hook in VERDICT_HOOKS:
            return call

        def measure(*arguments: object) -> Any:
            began_s = monotonic()
            try:
                return call(*arguments)
            finally:
                self._note_if_slow(plugin, hook, began_s)

        return measure

    async def measured_steps(self, plugin: str, hook: str, awaitable: Awaitable[Result]) -> Result:
        """Await what an async function of a plugin returned, with the time of each step measured."""
        return await _Steps(_awaited(awaitable), partial(self._note_if_slow, plugin, hook))

    def _note_if_slow(self, plugin: str, hook: str, began_s: float) -> None:
        ended_s = monotonic()
        if ended_s - began_s > self.limit_s and threading.current_thread() is threading.main_thread():
            self.note(plugin, hook, began_s, ended_s)

    def note(self, plugin: str, hook: str, began_s: float, ended_s: float) -> None:
        """Count and log a call that took longer than `limit_s`, unless other slow calls that it has made account for
        it: a built-in callback asks plugins for tags, limits and costs."""
        took_s = ended_s - began_s - sum(inner_s for inner_began_s, inner_s in self._latest if inner_began_s >= began_s)
        if took_s <= self.limit_s:
            return
        self._latest.append((began_s, took_s))
        self.counts[plugin] = self.counts.get(plugin, 0) + 1
        left_out = self._repeated.due("slow call", plugin, hook)
        if left_out is not None:
            log.warning(
                "a plugin held the event loop",
                plugin=plugin,
                hook=hook,
                took_ms=round(took_s * 1000),
                limit=f"plugins.slow_call = {self.limit_s * 1000:g} ms",
                left_out=left_out or None,
            )


async def _awaited(awaitable: Awaitable[Result]) -> Result:
    return await awaitable


class _Steps(Generic[Result]):
    """A wrapper of a coroutine that calls ``report`` at the end of each step with the time at which the step began."""

    __slots__ = ("_coroutine", "_report")

    def __init__(self, coroutine: Coroutine[Any, Any, Result], report: Callable[[float], None]) -> None:
        self._coroutine = coroutine
        self._report = report

    def __await__(self) -> Generator[Any, Any, Result]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            began_s = monotonic()
            try:
                yielded = step()
            except StopIteration as done:
                result: Result = done.value
                return result
            finally:
                self._report(began_s)
            try:
                step = partial(self._coroutine.send, (yield yielded))
            except BaseException as error:  # noqa: ASYNC103, BLE001 -- passed on to the plugin's coroutine, not taken
                step = partial(self._coroutine.throw, error)
