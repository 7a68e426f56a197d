"""One wait for everything: the sockets of all connections, and what trio itself waits for.

A task that waits for its socket costs a wake-up each time: scheduling, an ``epoll_ctl``, a context switch of
coroutines. Here a socket is registered once, edge-triggered, for what may be read, and who reads it leaves a *step*: a
plain function that does all that can be done without waiting. Room for writing is asked of only while somebody waits
for it: each acknowledgement would wake the process for nothing. The poller stands where trio waits for input and
output: its epoll holds the sockets and trio's own epoll, so one ``epoll_wait`` serves both, and steps run there,
outside every task. A task is woken only when its step says that something has to wait.

trio has no public way to put something in front of its I/O manager; `Poller.attach` reaches for it by its private name,
and where that is not to be had (another trio, no epoll) sockets are waited for by ``trio.lowlevel`` as usual.

Rules for a step: it does not wait, and it reads until the system has no more (``may_read`` is then ``False``), since an
edge is told once.
"""

from __future__ import annotations

import contextlib
import select
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio
from outcome import Error, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

log = structlog.get_logger("headrace.poller")

_IN: Final = getattr(select, "EPOLLIN", 1)
_OUT: Final = getattr(select, "EPOLLOUT", 4)
_HUNG_UP: Final = getattr(select, "EPOLLRDHUP", 0x2000)
_EDGE: Final = getattr(select, "EPOLLET", 1 << 31)
_READING: Final = _IN | _HUNG_UP | _EDGE
_WRITING: Final = _READING | _OUT
_ENDED: Final = ~(_IN | _OUT)
_NOT_OUT: Final = ~_OUT
_NOT_IN: Final = ~(_IN | _HUNG_UP)
EVENTS_AT_ONCE: Final = 256
LONGEST_WAIT_S: Final = 86400.0


class _Stepped:
    """No event for trio, and yet the wait has not run out: trio takes what is false for a time-out."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(())


STEPPED: Final = _Stepped()


class Watched:
    """A socket that may be waited for; the base of channels.

    *Cancellation:* a wait that is cancelled leaves nothing behind.
    """

    __slots__ = ("_fd", "_poller", "_reader", "_step", "_writer", "ending", "may_read", "queued")

    def __init__(self, fd: int, poller: Poller | None) -> None:
        self._fd = fd
        self._poller = poller if poller is not None and poller.attached else None
        self._reader: trio.lowlevel.Task | None = None
        self._writer: trio.lowlevel.Task | None = None
        self._step: Callable[[], bool] | None = None
        self.may_read = False
        """Whether there may be something to read: the poller said so, and no read has found the end of it since."""
        self.ending = False
        """Whether the other side has closed or failed: then a short read is not the last, and no edge tells of it."""
        self.queued = False
        """Whether the poller is to call its step again."""
        if self._poller is not None:
            self._poller.register(fd, self)

    async def readable(self) -> None:
        """Wait until there may be something to read, or the end."""
        if self._poller is None:
            await trio.lowlevel.wait_readable(self._fd)
        elif self.may_read:
            await trio.lowlevel.checkpoint()
        else:
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_reading)

    async def writable(self) -> None:
        """Wait until something can be written; only after the system has refused to take more."""
        if self._poller is None:
            await trio.lowlevel.wait_writable(self._fd)
            return
        self._poller.watch_writing(self._fd, True)
        self._writer = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_writing)

    async def steps(self, step: Callable[[], bool]) -> None:
        """Call ``step`` whenever there may be something to read, until it returns ``False`` or raises."""
        if self._poller is None:
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                if not step():
                    return
        if self.may_read:
            self._poller.call_again(self)
        self._step = step
        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_reading)

    # --- for the poller ---

    def ready(self, events: int) -> None:
        """Something has happened: step, or wake who waits."""
        if events & _NOT_OUT:
            self.may_read = True
            if events & _ENDED:
                self.ending = True
            if self._step is not None:
                if not self.queued:  # else its turn comes anyway
                    self.run_step()
            elif self._reader is not None:
                task, self._reader = self._reader, None
                trio.lowlevel.reschedule(task)
        if self._writer is not None and events & _NOT_IN:
            task, self._writer = self._writer, None
            if self._poller is not None:
                self._poller.watch_writing(self._fd, False)
            trio.lowlevel.reschedule(task)

    def run_step(self) -> None:
        """Step once; wake the task when the step has come to an end."""
        step = self._step
        if step is None:
            return
        try:
            if step():
                if self.may_read and self._poller is not None:
                    self._poller.call_again(self)
                return
            end: Value[None] | Error = Value(None)
        except Exception as error:  # noqa: BLE001 -- raised in the task that has left the step
            end = Error(error)
        task, self._reader, self._step = self._reader, None, None
        if task is not None:  # else the step has cancelled it
            trio.lowlevel.reschedule(task, end)

    def unwatch(self) -> None:
        """It is about to be closed; wakes whoever waits with ``trio.ClosedResourceError``."""
        if self._poller is None:
            trio.lowlevel.notify_closing(self._fd)
            return
        self._poller.unregister(self._fd)
        for task in (self._reader, self._writer):
            if task is not None:
                trio.lowlevel.reschedule(task, Error(trio.ClosedResourceError("another task closed this socket")))
        self._reader = self._writer = self._step = self._poller = None

    def _abort_reading(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._reader = self._step = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _abort_writing(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._writer = None
        if self._poller is not None:
            self._poller.watch_writing(self._fd, False)
        return trio.lowlevel.Abort.SUCCEEDED


class Poller:
    """The epoll of all connections of one loop. While `attached` it takes the place of trio's I/O manager."""

    def __init__(self) -> None:
        self.attached = False
        self._watched: dict[int, Watched] = {}
        self._again: deque[Watched] = deque()
        self._inner: Any = None

    @contextlib.contextmanager
    def attach(self) -> Iterator[None]:
        """Poll for the running loop until the block ends; nothing may be watched any more by then."""
        try:
            runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner  # noqa: SLF001
            inner = runner.io_manager
            inner_epoll = inner._epoll  # noqa: SLF001
            runner.runq, runner.deadlines._heap  # noqa: B018, SLF001
        except AttributeError:
            log.warning("no poller of its own", reason=f"trio {trio.__version__} keeps its I/O manager elsewhere")
            yield
            return
        self._runner: Any = runner
        self._inner = inner
        self._inner_fd: int = inner_epoll.fileno()
        self._epoll = select.epoll()
        self._epoll.register(self._inner_fd, _IN)
        runner.io_manager = self
        self.attached = True
        try:
            yield
        finally:
            self.attached = False
            runner.io_manager = inner
            self._epoll.close()

    def register(self, fd: int, watched: Watched) -> None:
        """Tell ``watched`` from now on what happens to ``fd``. Raises ``OSError``."""
        self._epoll.register(fd, _READING)
        self._watched[fd] = watched

    def watch_writing(self, fd: int, wanted: bool) -> None:
        """Tell of room for writing, too, or no longer. There may be room already: then it is told at once."""
        self._epoll.modify(fd, _WRITING if wanted else _READING)

    def unregister(self, fd: int) -> None:
        """``fd`` is about to be closed."""
        if self._watched.pop(fd, None) is not None and self.attached:
            self._epoll.unregister(fd)

    def call_again(self, watched: Watched) -> None:
        """Its step left something to be read, and others had their turn first."""
        if not watched.queued:
            watched.queued = True
            self._again.append(watched)

    # --- trio's I/O manager ---

    def get_events(self, timeout: float) -> Iterable[tuple[int, int]]:
        """Wait up to ``timeout`` s; step what is ready meanwhile, until there is something for trio to do.

        Returns what trio's own epoll has; empty when the time is up or a step has made a task runnable.
        """
        poll, watched, runner = self._epoll.poll, self._watched, self._runner
        until_s = monotonic() + timeout
        deadlines = runner.deadlines._heap  # noqa: SLF001
        first = deadlines[0] if deadlines else None
        while True:
            again = len(self._again)
            found = poll(0 if again else timeout, EVENTS_AT_ONCE)
            for_trio = False
            for fd, events in found:
                each = watched.get(fd)
                if each is not None:
                    each.ready(events)
                elif fd == self._inner_fd:
                    for_trio = True
            for _ in range(len(self._again)):
                queued = self._again.popleft()
                queued.queued = False
                queued.run_step()
            if for_trio:
                due: Iterable[tuple[int, int]] = self._inner.get_events(0)
                return due
            if not found and not again:
                return ()
            if runner.runq or runner.waiting_for_idle or runner.clock_autojump_threshold < LONGEST_WAIT_S:
                return STEPPED
            if (deadlines[0] if deadlines else None) is not first:  # a step has set one that comes before
                return STEPPED
            timeout = until_s - monotonic()
            if timeout <= 0:
                return STEPPED

    def __getattr__(self, name: str) -> Any:
        """All else is trio's own."""
        return getattr(self._inner, name)
