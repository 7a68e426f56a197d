"""The thread time that relays spend on a connection's bytes, by sample.

What is measured is a step of the poller's: from read to write, in which nobody else runs.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import Final

ONE_OF: Final = 7
"""Of so many steps one is measured, and stands for all: asking for the thread's time is a system call, and three of
them were 7 % of a small request. A prime, since requests and replies take turns."""


class ThreadTimeSampler:
    """Chooses the steps that are measured. One for the process."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def begin(self) -> int:
        """What to give to `end`, or 0: this step is not measured."""
        self._turn = (self._turn + 1) % ONE_OF
        return 0 if self._turn else thread_time_ns()

    def end(self, begin_ns: int) -> int:
        """Nanoseconds since then, for the steps that were not measured, too."""
        return ONE_OF * (thread_time_ns() - begin_ns)
