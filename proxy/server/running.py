"""Starting the event loop of a process: its clock, and unwrapping of the errors that prevent the start.

Called by the command line and by workers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import trio

from headrace.proxy.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class CommonClock(trio.abc.Clock):
    """The system's monotonic clock without an offset, so that times of all processes of a machine can be compared.

    trio's own clock begins at a random number in each process.
    """

    def start_clock(self) -> None:
        """Do nothing: the system's clock is always running."""

    def current_time(self) -> float:
        """Return the time in seconds."""
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return the seconds from now until ``deadline``."""
        return deadline - time.monotonic()


def running_clock() -> Callable[[], float]:
    """Return the function with which to read the running loop's time, in seconds.

    It is called several times for each request, so it has as few layers as possible.
    """
    clock = trio.lowlevel.current_clock()
    return time.monotonic if isinstance(clock, CommonClock) else clock.current_time


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Call ``trio.run`` with the `CommonClock`; raise a `StartupError` without the groups that nurseries wrap it in."""
    try:
        return trio.run(main, clock=CommonClock())
    except BaseExceptionGroup as group:
        if group.split(StartupError)[1] is not None:
            raise
        raise startup_error_of(group) from group


def startup_error_of(group: BaseExceptionGroup[BaseException]) -> StartupError:
    """Return the first `StartupError` in ``group``, which must contain one."""
    for error in group.exceptions:
        if isinstance(error, StartupError):
            return error
        if isinstance(error, BaseExceptionGroup) and error.subgroup(StartupError) is not None:
            return startup_error_of(error)
    raise AssertionError("no start-up error") from group
