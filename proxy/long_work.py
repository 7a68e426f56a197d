"""Long computations beside a busy event loop: in slices on the loop, or with pauses in a thread.

Used where many buckets are visited or long pages are written. While a thread computes without a pause, every system
call of the loop waits up to 5 ms for the interpreter lock (``sys.getswitchinterval``); if the thread sleeps after each
small piece of work, the loop waits for one piece at most.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import OrderedDict, deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from contextlib import AbstractContextManager

SLICE_S: Final = 1e-3
"""The longest time for which `in_slices` blocks the loop, which is about what one large frame takes."""

PIECE: Final = 64
"""Items between two pauses of a `PausingList`: 0.3 ms to 1 ms of work in its uses."""

PAUSE_S: Final = 200e-6
"""The pause of the export thread of `headrace.plugins.tracing`, where it was measured."""

LONG_STEP_BYTES: Final = 16 * 1024
"""Decoding or editing a message of more bytes is a long step, which takes up to some tens of milliseconds."""

T = TypeVar("T")


class InTurn(Protocol):
    """What runs a generator in slices: `LongSteps.run`."""

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


class FairLock:
    """A lock for which each owner waits for at most one turn of each other owner, however many of its tasks wait."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: OrderedDict[str, deque[trio.Event]] = OrderedDict()
        """An event for each task that waits, by owner; the first owner has the next turn."""

    async def acquire(self, owner: str) -> None:
        """Wait until a task of ``owner`` has the lock; `release` must follow. Always a checkpoint."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._is_taken:
            self._is_taken = True
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        event = trio.Event()
        self._waiting.setdefault(owner, deque()).append(event)
        try:
            await event.wait()
        except BaseException:  # a cancellation, or an interrupt; it is raised again
            if event.is_set():
                self.release()
            else:
                self._leave(owner, event)
            raise

    def release(self) -> None:
        """Give the lock to the owner that has waited for longest; if none waits, it is free."""
        if not self._waiting:
            self._is_taken = False
            return
        owner, events = self._waiting.popitem(last=False)
        events.popleft().set()
        if events:
            self._waiting[owner] = events

    def _leave(self, owner: str, event: trio.Event) -> None:
        self._waiting[owner].remove(event)
        if not self._waiting[owner]:
            del self._waiting[owner]


class LongSteps:
    """The turns of long steps. Those of all connections run one at a time; between any two, the event loop polls for
    events.

    The turns go round the owners of connections (users and addresses), so that none delays the others with many steps.
    """

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = FairLock()

    async def wait_for_turn(self, owner: str) -> None:
        """Wait until this task may begin a long step, which must follow without waiting.

        The lock passes to one task in each turn of the scheduler, and trio polls for events between two turns; so it
        need not be held during the step.
        """
        await self._turn.acquire(owner)
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._turn.release()

    async def run(
        self,
        owner: str,
        steps: Generator[None, None, T],
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> T:
        """Run a generator to its end and return its value, as `in_slices` does, while no other long step runs.

        One computation is finished before the next begins, since each interrupted one would keep what it has decoded.
        """
        with paused():
            await self._turn.acquire(owner)
        try:
            return await in_slices(steps, paused)
        finally:
            self._turn.release()


class PausingList(list[T]):
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
