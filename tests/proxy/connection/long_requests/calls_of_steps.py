"""Counting how much is done in one step of a task, between two turns of the event loop.

Work is counted in calls of functions, which do not depend on the speed of the machine: 5,000 take 0.5 to 2 ms.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator


class CallsOfSteps(trio.abc.Instrument):
    """The calls in the steps of all tasks but one: ``most`` in one step, and ``total``."""

    def __init__(self, ignored: trio.lowlevel.Task) -> None:
        self.most = self.total = self._count = 0
        self._ignored = ignored

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._count = 0
        if task is not self._ignored:
            sys.setprofile(self._note)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        sys.setprofile(None)
        self.total += self._count
        self.most = max(self.most, self._count)

    def _note(self, _frame: object, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            self._count += 1


@contextmanager
def counted_calls() -> Iterator[CallsOfSteps]:
    """Count the calls of all tasks but this one during the block."""
    calls = CallsOfSteps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(calls)
    try:
        yield calls
    finally:
        trio.lowlevel.remove_instrument(calls)
