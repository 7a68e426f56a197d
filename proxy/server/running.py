"""How a process's event loop is run: by which clock, and what becomes of an error that keeps it from starting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import trio

from headrace.proxy.errors import StartupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class CommonClock(trio.abc.Clock):
    """The system's monotonic clock as it is, so that the times of all processes of one machine can be compared; trio's
    own begins anywhere."""

    def start_clock(self) -> None:
        """It runs."""

    def current_time(self) -> float:
        """Seconds."""
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds from now."""
        return deadline - time.monotonic()


def running_clock() -> Callable[[], float]:
    """What tells the running loop's time, as directly as can be: it is asked several times for each request."""
    clock = trio.lowlevel.current_clock()
    return time.monotonic if isinstance(clock, CommonClock) else clock.current_time


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """``trio.run`` by the `CommonClock`; raises a `StartupError` as it is, however many nurseries have wrapped it."""
    try:
        return trio.run(main, clock=CommonClock())
    except BaseExceptionGroup as group:
        if group.split(StartupError)[1] is not None:
            raise
        raise startup_error_of(group) from group


def startup_error_of(group: BaseExceptionGroup[BaseException]) -> StartupError:
    """The first one in ``group``, which has one."""
    for error in group.exceptions:
        if isinstance(error, StartupError):
            return error
        if isinstance(error, BaseExceptionGroup) and error.subgroup(StartupError) is not None:
            return startup_error_of(error)
    raise AssertionError("no start-up error") from group
