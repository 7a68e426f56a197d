"""Sampling the thread time that relays spend on a connection.

Used by both relays. Each sample covers one synchronous step, from a read to the write that follows it.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import Final

ONE_OF: Final = 7
"""One of this many steps is measured and represents all of them: reading the thread's time is a system call, and three
of them were 7 % of the cost of a small request. A prime number, since steps of requests and replies alternate."""


class ThreadTimeSampler:
    """Selects the steps that are measured. One for the process."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def begin(self) -> int:
        """Return the thread's time in nanoseconds, to pass to `end`, or 0 if this step is not measured."""
        self._turn = (self._turn + 1) % ONE_OF
        return 0 if self._turn else thread_time_ns()

    def end(self, begin_ns: int) -> int:
        """Return the nanoseconds since ``begin_ns``, scaled up to include the steps that were not measured."""
        return ONE_OF * (thread_time_ns() - begin_ns)
