"""Measuring the thread time that is spent on a connection.

Both relays sample it (`ThreadTimeSampler`): each sample covers one synchronous step, from a read to the write that
follows it. The processing of a request that has to wait in between is sampled by a `Stopwatch`.
"""

from __future__ import annotations

from contextlib import contextmanager
from random import random
from time import thread_time_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONE_OF: Final = 7
"""One step in this many is measured on average, and its thread time is multiplied by this number: reading the time is a
system call, and three such calls were 7 % of the cost of a small request."""


def random_distance() -> int:
    """Return the number of steps until the next one that is measured: 1 to 13, on average `ONE_OF`.

    Random, so that no client can send its expensive requests between those that are measured.
    """
    return 1 + int(random() * (2 * ONE_OF - 1))  # noqa: S311 -- its numbers are not shown to anyone


class ThreadTimeSampler:
    """The selection of the steps that are measured. One for the process."""

    __slots__ = ("_distance", "_left")

    def __init__(self, distance: Callable[[], int] = random_distance) -> None:
        """``distance`` returns the number of steps from a measured one to the next."""
        self._distance = distance
        self._left = distance()

    def begin(self) -> int:
        """Return the thread's time in nanoseconds, to pass to `end`, or 0 if this step is not measured."""
        self._left -= 1
        if self._left:
            return 0
        self._left = self._distance()
        return thread_time_ns()

    def end(self, begin_ns: int) -> int:
        """Return the nanoseconds since ``begin_ns``, scaled up to include the steps that were not measured."""
        return ONE_OF * (thread_time_ns() - begin_ns)


class Stopwatch:
    """The thread time of one task from the creation of this object on, without that of other tasks while this one
    waits.

    Only one stopwatch in `ONE_OF` measures on average; the others return 0.
    """

    __slots__ = ("_began_ns", "_sampler", "_total_ns")

    def __init__(self, sampler: ThreadTimeSampler) -> None:
        self._sampler = sampler
        self._total_ns = 0
        self._began_ns = sampler.begin()

    def pause(self) -> None:
        """Stop measuring, before this task waits and others run."""
        if self._began_ns:
            self._total_ns += self._sampler.end(self._began_ns)

    def resume(self) -> None:
        """Continue measuring after `pause`."""
        if self._began_ns:
            self._began_ns = thread_time_ns()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Measure nothing in the context, in which this task waits."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def take_ns(self) -> int:
        """Return the nanoseconds that were measured, scaled up, and begin anew at 0."""
        self.pause()
        self.resume()
        taken_ns, self._total_ns = self._total_ns, 0
        return taken_ns
