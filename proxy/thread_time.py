"""The thread time that a relay has spent between a read and the end of the write after it.

What others did while it waited is not its own. A task that waited has been scheduled again, which trio counts; the
same count tells its own tests whether a call was a checkpoint.
"""

from __future__ import annotations

from time import thread_time_ns
from typing import Final

import trio

ONE_OF: Final = 7
"""Of so many wake-ups one is measured, and stands for all: asking for the thread's time is a system call, and three of
them were 7 % of a small request. A prime, since requests and replies take turns."""


class Spells:
    """Chooses the wake-ups that are measured. One for the process."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def begin(self) -> ThreadSpell | None:
        """Measure from here, or not."""
        self._turn = (self._turn + 1) % ONE_OF
        return None if self._turn else ThreadSpell()


class ThreadSpell:
    """One wake-up of a relay. Costs about a microsecond."""

    __slots__ = ("_begin_ns", "_done_ns", "_scheduled", "_task")

    def __init__(self) -> None:
        self._task = trio.lowlevel.current_task()
        self._scheduled = self._task._schedule_points  # noqa: SLF001 -- as trio.testing.assert_checkpoints has it
        self._begin_ns = thread_time_ns()
        self._done_ns = 0

    def done(self) -> None:
        """The part without waits is over."""
        self._done_ns = thread_time_ns()

    def own_ns(self) -> int:
        """Nanoseconds to here if nobody else has run, else to `done`; for the others that were not measured, too."""
        alone = self._task._schedule_points == self._scheduled  # noqa: SLF001
        return ONE_OF * ((thread_time_ns() if alone else self._done_ns) - self._begin_ns)
