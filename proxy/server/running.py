"""Starting the event loop: its clock, and unwrapping of the errors that prevent the start.

Called by the command line.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import trio

from headrace.proxy.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class MonotonicClock(trio.abc.Clock):
    """The system's monotonic clock without an offset, from which the native data plane takes its times, too.

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
    return time.monotonic if isinstance(clock, MonotonicClock) else clock.current_time


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Call ``trio.run`` with the `MonotonicClock`; raise a `StartupError` without the groups around it."""
    try:
        return trio.run(main, clock=MonotonicClock())
    except BaseExceptionGroup as group:
        if group.split(StartupError)[1] is not None:
            raise
        raise _startup_error_of(group) from group


def _startup_error_of(group: BaseExceptionGroup[BaseException]) -> StartupError:
    """Return the first `StartupError` in ``group``, which must contain one."""
    for error in group.exceptions:
        if isinstance(error, StartupError):
            return error
        if isinstance(error, BaseExceptionGroup) and error.subgroup(StartupError) is not None:
            return _startup_error_of(error)
    raise AssertionError("no start-up error") from group
