"""A process that forks workers, and does nothing else.

Workers share the memory of what was loaded before them, so they are forked; but a process with an event loop, threads
and open connections must not be forked, since its child would have half of each. So the supervisor forks this process
first, before its own loop runs: it has one thread, no loop, and waits in ``select`` for two things: the supervisor, who
asks for another worker, and the end of a worker, which it reports.

The supervisor makes the worker's channel and sends one end along. When the supervisor is gone, however that happened,
its workers learn it by the end of their channels; this process waits for them, kills those that are left after a while,
and ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    Serve = Callable[[int, socket.socket], int]

_WORKER: Final = struct.Struct("=i")
_REPORT: Final = struct.Struct("=iiii")
_FORKED, _ENDED = 0, 1

END_GRACE_S: Final = 15.0
"""For workers whose supervisor is gone: they close their plugins, which may take
`headrace.proxy.server.server.CLOSE_TIMEOUT_S`."""
_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A worker runs."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A worker has ended."""

    worker: int
    pid: int
    status: int
    """The exit status; minus the signal's number if a signal ended it. Of pid 0, which could not be forked: why not
    (``errno``)."""


class ForkServer:
    """The supervisor's side. Made before any loop or thread runs; ``serve`` is what a worker does with its number and
    its end of the channel, and returns its exit status."""

    def __init__(self, serve: Serve) -> None:
        self._sock, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._sock.close()
            _end(lambda: _Forker(theirs, serve).run())
        theirs.close()
        self._sock.setblocking(False)

    def fork(self, worker: int) -> socket.socket:
        """Ask for a worker; the supervisor's end of its channel. Raises ``OSError`` when the fork server is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [_WORKER.pack(worker)], [theirs.fileno()])
        return ours

    async def follow(self, tell: Callable[[Forked | Ended], None]) -> None:
        """Tell what happens to workers, until the fork server is gone."""
        sock = trio.socket.from_stdlib_socket(self._sock)
        received = bytearray()
        while True:
            some = b""
            with suppress(ConnectionError):
                some = await sock.recv(4096)
            if not some:
                return
            received += some
            while len(received) >= _REPORT.size:
                kind, worker, pid, status = _REPORT.unpack_from(received)
                del received[: _REPORT.size]
                if kind == _FORKED:
                    tell(Forked(worker=worker, pid=pid))
                else:
                    tell(Ended(worker=worker, pid=pid, status=status))

    def close(self) -> None:
        """Let it end, with all workers, and wait for that: at most some `END_GRACE_S`. Blocks."""
        self._sock.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class _Forker:
    """The fork server itself."""

    def __init__(self, supervisor: socket.socket, serve: Serve) -> None:
        self._supervisor = supervisor
        self._serve = serve
        self._workers: dict[int, int] = {}
        self._woken, self._waking = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Fork and reap until the supervisor is gone, and then see to it that the workers go, too."""
        listen_to_no_signal()
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        with suppress(OSError):
            while self._step():
                pass
        deadline = time.monotonic() + END_GRACE_S
        while self._workers and time.monotonic() < deadline:
            select.select([self._woken], [], [], _LOOK_EVERY_S)
            self._reap(report=False)
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        return 0

    def _step(self) -> bool:
        watched: list[socket.socket | int] = [self._supervisor, self._woken]
        ready, _, _ = select.select(watched, [], [])
        if self._woken in ready:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._reap(report=True)
        if self._supervisor in ready:
            data, descriptors, _, _ = socket.recv_fds(self._supervisor, _WORKER.size, 1)
            if not data:
                return False
            worker = _WORKER.unpack(data)[0]
            if descriptors:
                self._fork(worker, socket.socket(fileno=descriptors[0]))
            else:  # no room for one more: the kernel has dropped it
                self._supervisor.sendall(_REPORT.pack(_ENDED, worker, 0, errno.EMFILE))
        return True

    def _fork(self, worker: int, channel: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            channel.close()
            self._supervisor.sendall(_REPORT.pack(_ENDED, worker, 0, error.errno or 1))
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._supervisor.close()
            os.close(self._woken)
            os.close(self._waking)
            _end(lambda: self._serve(worker, channel))
        channel.close()
        self._workers[pid] = worker
        self._supervisor.sendall(_REPORT.pack(_FORKED, worker, pid, 0))

    def _reap(self, *, report: bool) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker = self._workers.pop(pid, None)
            if report and worker is not None:
                ended = _REPORT.pack(_ENDED, worker, pid, os.waitstatus_to_exitcode(status))
                self._supervisor.sendall(ended)


def listen_to_no_signal() -> None:
    """Leave it to the supervisor what a signal means that reaches all processes of a terminal or a service.

    By a handler, since what is ignored stays ignored in programs that a plugin may start.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)


def _end(main: Callable[[], int]) -> None:
    """Do ``main`` in a process that was just forked, and end it: what the parent has on its stack is the parent's."""
    status = 1
    try:
        status = main()
    except Exception:  # noqa: BLE001 -- the last resort of a process
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
