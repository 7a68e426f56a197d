"""Long work beside a busy loop: on the loop in slices, in a thread with pauses.

For what walks many buckets or writes long pages. A thread that computes without a pause makes every system call of the
loop wait up to 5 ms for the interpreter (``sys.getswitchinterval``); one that sleeps after each small piece makes it
wait for that piece.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SLICE_S: Final = 1e-3
"""How long `in_slices` keeps the loop at a time: what one large frame keeps it, too."""

PIECE: Final = 64
"""Items between two pauses of a `PacedList`: 0.3 ms to 1 ms of what is done here with each."""

PAUSE_S: Final = 200e-6
"""As the thread of `headrace.plugins.tracing` pauses, which is where it was measured."""

T = TypeVar("T")

_collector_lock = threading.Lock()
_collector_users = 0
_collector_was_on = False


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Run ``steps`` to its end and return its value; where it yields, others run once `SLICE_S` is used up.

    The generator yields often: every few dozen of µs. Cancellation ends it between two steps.
    """
    end_s = time.perf_counter() + SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value
        if time.perf_counter() >= end_s:
            await trio.lowlevel.checkpoint()
            end_s = time.perf_counter() + SLICE_S


class PacedList(list[T]):
    """A list whose iteration pauses after every `PIECE` items; for threads, never on the loop."""

    def __iter__(self) -> Iterator[T]:
        for at, item in enumerate(super().__iter__(), 1):
            yield item
            if at % PIECE == 0:
                time.sleep(PAUSE_S)


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep Python's garbage collector off while objects are made that soon go again by themselves, thousands at once.

    Else those that live when it comes by count as long-lived, and after a few pages it passes over all objects of the
    process: half a second with 100,000 buckets, in which nothing else runs. From any thread; for a second or so.
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
