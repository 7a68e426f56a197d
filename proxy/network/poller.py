"""Waiting for the sockets of all connections, and for trio's own events, with one ``epoll_wait``.

A task that waits for a socket has a cost per wake-up: scheduling, an ``epoll_ctl``, a switch of coroutines. Here each
socket is registered once, edge-triggered, for reading, and its reader leaves a *step*: a plain function that does
everything that is possible without waiting. Writability is watched only while a task waits for it, since otherwise each
TCP acknowledgement would wake the process. The poller replaces trio's I/O manager: its epoll holds the sockets and
trio's own epoll, and steps run inside its wait, outside any task. A task is woken only when its step returns ``False``
or raises.

trio has no public interface for this; `Poller.attach` uses private names. Where they do not exist (another version of
trio, no epoll), sockets are waited for with ``trio.lowlevel``.

Rules for a step: it does not wait, it takes about 1 ms at most, and it reads until the system has nothing more
(``may_read`` is then ``False``), since an edge is reported once. A step that leaves ``may_read`` set, or sets it
because it has more to do, is called again when others have had their turn.
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

from headrace.proxy.network.loop_lag import SHORT_TURN_S, LoopLag

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
EVENTS_A_TURN: Final = 16
"""The most events that one ``epoll_wait`` returns, and so the most steps until timers and tasks get their turn. The
system returns ready sockets in turn, and a step takes about 1 ms at most."""

REPEATS_A_TURN: Final = 2
"""The most steps that are called again in one turn of the loop. Sockets with new events come first, so that those that
always have more to do delay the others by little."""

LONGEST_WAIT_S: Final = 86400.0
"""trio's own timeout where no deadline is set. A lower ``clock_autojump_threshold`` means that a mock clock is used."""


class _Stepped:
    """No event for trio, although the wait has not timed out; unlike an empty list it is true. trio takes a false value
    for a timeout."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(())


STEPPED: Final = _Stepped()


class Watched:
    """A socket that can be waited for; the base class of `headrace.proxy.network.sockets.PlainSocket`.

    *Cancellation:* a wait that is cancelled leaves nothing behind.
    """

    __slots__ = ("_fd", "_poller", "_reader", "_step", "_suspended", "_writer", "ending", "may_read", "queued")

    def __init__(self, fd: int, poller: Poller | None) -> None:
        self._fd = fd
        self._poller = poller if poller is not None and poller.attached else None
        self._reader: trio.lowlevel.Task | None = None
        self._writer: trio.lowlevel.Task | None = None
        self._step: Callable[[], bool] | None = None
        self._suspended: Callable[[], bool] | None = None
        """The step of a reader while its socket is suspended."""
        self.may_read = False
        """Whether there may be something to read: the poller has reported an edge, and no later read has emptied the
        socket. A step sets it to be called again."""
        self.ending = False
        """Whether the peer has closed or failed. There is no further edge then, so reading continues after a short
        read, until the end of the stream."""
        self.queued = False
        """Whether the poller will call the step again."""
        if self._poller is not None:
            self._poller.register(fd, self)

    async def readable(self) -> None:
        """Wait until there may be something to read, or the stream has ended."""
        if self.may_read:
            await trio.lowlevel.checkpoint()
        elif self._poller is None:
            await trio.lowlevel.wait_readable(self._fd)
        else:
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort_reading)

    async def writable(self) -> None:
        """Wait until something can be written. Call it only after a write was not accepted in full."""
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
                if self.may_read:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(self._fd)
                if not step():
                    return
        if self.may_read:
            self._poller.call_again(self)
        self._step = step
        self._reader = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort_reading)

    # --- while the socket is suspended ---

    @property
    def waits_to_read(self) -> bool:
        """Whether a task waits in `steps`, so that the socket can be suspended."""
        return self._poller is not None and self._step is not None and self._writer is None

    def suspend(self) -> None:
        """Stop watching the socket, without ending the wait in `steps`. Call it only if `waits_to_read`."""
        if self._poller is None:
            raise AssertionError("a socket without a poller was suspended")
        self._poller.unregister(self._fd)
        self._suspended, self._step = self._step, None
        self.may_read = False

    def resume(self, error: Exception | None = None) -> None:
        """Continue the wait in `steps` after `suspend`: read again, or raise ``error``."""
        if self._poller is None or self._suspended is None:
            return  # it was closed, or the wait was cancelled
        self._poller.register(self._fd, self)
        self._step, self._suspended = self._suspended, None
        if error is None:
            self.may_read = True
            self._poller.call_again(self)
            return
        task, self._reader, self._step = self._reader, None, None
        if task is not None:
            trio.lowlevel.reschedule(task, Error(error))

    # --- for the poller ---

    def ready(self, events: int) -> None:
        """Handle epoll events: call the step, or wake the tasks that wait."""
        if events & _NOT_OUT:
            self.may_read = True
            if events & _ENDED:
                self.ending = True
            if self._step is not None:
                if not self.queued:  # otherwise it is called soon anyway
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
        """Call the step once; wake the task if the step returned ``False`` or raised."""
        step = self._step
        if step is None:
            return
        try:
            if step():
                if self.may_read and self._poller is not None:
                    self._poller.call_again(self)
                return
            end: Value[None] | Error = Value(None)
        except Exception as error:  # noqa: BLE001 -- raised in the task that set the step
            end = Error(error)
        task, self._reader, self._step = self._reader, None, None
        if task is not None:  # otherwise the step has cancelled the task
            trio.lowlevel.reschedule(task, end)

    def unwatch(self) -> None:
        """Stop watching, before the socket is closed. Tasks that wait for it get ``trio.ClosedResourceError``."""
        if self._poller is None:
            trio.lowlevel.notify_closing(self._fd)
            return
        self._poller.unregister(self._fd)
        for task in (self._reader, self._writer):
            if task is not None:
                trio.lowlevel.reschedule(task, Error(trio.ClosedResourceError("another task closed this socket")))
        self._reader = self._writer = self._step = self._suspended = self._poller = None

    def _abort_reading(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._reader = self._step = self._suspended = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _abort_writing(self, _: Callable[[], None]) -> trio.lowlevel.Abort:
        self._writer = None
        if self._poller is not None:
            self._poller.watch_writing(self._fd, False)
        return trio.lowlevel.Abort.SUCCEEDED


class Poller:
    """The epoll of all connections of one event loop. While `attached`, it replaces trio's I/O manager."""

    def __init__(self) -> None:
        self.attached = False
        self._watched: dict[int, Watched] = {}
        self._again: deque[Watched] = deque()
        self._inner: Any = None
        self.lag = LoopLag()
        """The time for which the loop was busy between two polls for events; empty while not attached."""
        self._woke_s = 0.0

    @contextlib.contextmanager
    def attach(self) -> Iterator[None]:
        """Replace the running loop's I/O manager until the block ends. All sockets must be unwatched by then.

        If this version of trio does not have the private names, log a warning and leave it unchanged.
        """
        try:
            runner: Any = trio._core._run.GLOBAL_RUN_CONTEXT.runner  # noqa: SLF001
            inner = runner.io_manager
            inner_epoll = inner._epoll  # noqa: SLF001
            runner.runq, runner.deadlines._heap  # noqa: B018, SLF001
        except AttributeError:
            reason = f"the I/O manager of trio {trio.__version__} has another interface"
            log.warning("sockets are polled by trio, which is slower", reason=reason)
            yield
            return
        self._runner: Any = runner
        self._inner = inner
        self._inner_fd: int = inner_epoll.fileno()
        self._epoll = select.epoll()
        self._epoll.register(self._inner_fd, _IN)
        self._woke_s = monotonic()
        runner.io_manager = self
        self.attached = True
        try:
            yield
        finally:
            self.attached = False
            runner.io_manager = inner
            self._epoll.close()

    def register(self, fd: int, watched: Watched) -> None:
        """Report events of ``fd`` to ``watched`` from now on. Raises ``OSError``."""
        self._epoll.register(fd, _READING)
        self._watched[fd] = watched

    def watch_writing(self, fd: int, wanted: bool) -> None:
        """Start or stop reporting that ``fd`` is writable. If it is writable already, that is reported at once."""
        self._epoll.modify(fd, _WRITING if wanted else _READING)

    def unregister(self, fd: int) -> None:
        """Stop reporting events of ``fd``, before it is closed."""
        if self._watched.pop(fd, None) is not None and self.attached:
            self._epoll.unregister(fd)

    def call_again(self, watched: Watched) -> None:
        """Call the step of ``watched`` again, after others had a chance to run."""
        if not watched.queued:
            watched.queued = True
            self._again.append(watched)

    # --- trio's I/O manager ---

    def get_events(self, timeout: float) -> Iterable[tuple[int, int]]:  # noqa: C901 -- on the path of every request
        """Wait up to ``timeout`` seconds and call the steps of sockets that are ready, until trio has something to do.

        Return the events of trio's own epoll, nothing on a timeout, or `STEPPED` when a step has made a task runnable
        or set an earlier deadline.
        """
        poll, watched, runner = self._epoll.poll, self._watched, self._runner
        now_s = monotonic()
        until_s = now_s + timeout
        deadlines = runner.deadlines._heap  # noqa: SLF001
        first = deadlines[0] if deadlines else None
        while True:
            again = len(self._again)
            if now_s - self._woke_s > SHORT_TURN_S:
                self.lag.add(now_s - self._woke_s)
            found = poll(0 if again else timeout, EVENTS_A_TURN)
            self._woke_s = monotonic()
            for_trio = False
            for fd, events in found:
                each = watched.get(fd)
                if each is not None:
                    each.ready(events)
                elif fd == self._inner_fd:
                    for_trio = True
            if self._again:
                for _ in range(min(len(self._again), REPEATS_A_TURN)):
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
            if (deadlines[0] if deadlines else None) is not first:  # a step has set an earlier deadline
                return STEPPED
            now_s = monotonic()
            timeout = until_s - now_s
            if timeout <= 0:
                return STEPPED

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to trio's I/O manager."""
        return getattr(self._inner, name)
