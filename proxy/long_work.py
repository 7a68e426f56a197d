"""Long computations beside a busy event loop: in slices on the loop, or with pauses in a thread.

Used where many buckets are visited or long pages are written. While a thread computes without a pause, every system
call of the loop waits up to 5 ms for the interpreter lock (``sys.getswitchinterval``); if the thread sleeps after each
small piece of work, the loop waits for one piece at most.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

SLICE_S: Final = 1e-3
"""The longest time for which `in_slices` blocks the loop, which is about what one large frame takes."""

PIECE: Final = 64
"""Items between two pauses of a `PacedList`: 0.3 ms to 1 ms of work in its uses."""

PAUSE_S: Final = 200e-6
"""The pause of the export thread of `headrace.plugins.tracing`, where it was measured."""

LONG_STEP_BYTES: Final = 16 * 1024
"""Decoding or editing a message of more bytes is a long step, which takes up to some tens of milliseconds."""

T = TypeVar("T")


class InTurn(Protocol):
    """Runs a generator in slices: `LongSteps.run`."""

    async def __call__(self, steps: Generator[None, None, T]) -> T:
        """Return the generator's value."""


_collector_lock = threading.Lock()
_collector_users = 0
_collector_was_on = False


async def in_slices(
    steps: Generator[None, None, T], paused: Callable[[], AbstractContextManager[None]] = nullcontext
) -> T:
    """Run the generator ``steps`` to its end and return its value, with a checkpoint every `SLICE_S`.

    The generator must yield often, every few tens of µs. Cancellation ends it at a yield. ``paused`` returns the
    context of each checkpoint, in which other tasks run.
    """
    end_s = time.perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        if time.perf_counter() >= end_s:
            with paused():
                await trio.lowlevel.checkpoint()
            end_s = time.perf_counter() + SLICE_S


def run_one_slice(steps: Generator[None, None, T]) -> T | None:
    """Run the generator ``steps`` for `SLICE_S`, and return its value; ``None`` if it has not come to its end."""
    end_s = time.perf_counter() + SLICE_S
    while time.perf_counter() < end_s:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
    return None


class LongSteps:
    """Lets the long steps of all connections run one at a time, with a look for events between any two of them."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = trio.Lock()

    async def wait_for_turn(self) -> None:
        """Wait until this task may begin a long step, which must follow without waiting.

        The lock passes to one task in each turn of the scheduler, and trio looks for events between two turns; so it
        need not be held during the step.
        """
        async with self._turn:
            await trio.lowlevel.checkpoint()

    async def run(
        self, steps: Generator[None, None, T], paused: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> T:
        """Run a generator to its end and return its value, as `in_slices` does, while no other long step runs."""
        with paused():
            await self._turn.acquire()
        try:
            return await in_slices(steps, paused)
        finally:
            self._turn.release()


class PacedList(list[T]):
    """A list whose iteration sleeps after every `PIECE` items; for use in threads only."""

    def __iter__(self) -> Iterator[T]:
        for at, item in enumerate(super().__iter__(), 1):
            yield item
            if at % PIECE == 0:
                time.sleep(PAUSE_S)


@contextmanager
def collector_off() -> Iterator[None]:
    """Disable Python's garbage collector while thousands of short-lived objects are created.

    Otherwise a collection moves those that are alive into an older generation, and after a few pages triggers a full
    collection: half a second with 100,000 buckets, during which nothing else runs. May be called from any thread, and
    nested; meant for a second or so.
    """
    global _collector_users, _collector_was_on
    with _collector_lock:
        if _collector_users == 0:
            _collector_was_on = gc.isenabled()
            gc.disable()
        _collector_users += 1
    try:
        yield
    finally:
        with _collector_lock:
            _collector_users -= 1
            if _collector_users == 0 and _collector_was_on:
                gc.enable()
