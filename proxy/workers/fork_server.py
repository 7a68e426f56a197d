"""A process that forks workers, and does nothing else.

Workers are forked so that they share the memory of the loaded code and configuration. But a process with an event loop,
threads and open connections must not be forked, since the child would inherit their state incompletely. So the
supervisor forks this process first, before its own loop runs. It has one thread and no loop, and waits in ``select``
for requests of the supervisor to fork a worker, and for the exit of workers, which it reports.

The supervisor creates the worker's pipe and sends one end with its request. When the supervisor exits or dies, its
workers notice because their pipes are closed; this process waits for them, kills those that remain after
`END_GRACE_S`, and exits.
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

from headrace.proxy.output_queue import queued_output

if TYPE_CHECKING:
    from collections.abc import Callable

    Serve = Callable[[int, socket.socket], int]

_WORKER: Final = struct.Struct("=i")
_REPORT: Final = struct.Struct("=iiii")
_FORKED, _ENDED = 0, 1

END_GRACE_S: Final = 15.0
"""Seconds that workers may take to exit after the supervisor has exited: they close their plugins, which may take
`headrace.proxy.server.server.CLOSE_TIMEOUT_S`."""
_POLL_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The report that a worker was forked."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The report that a worker has exited or could not be forked."""

    worker: int
    pid: int
    status: int
    """The exit status, or the negative signal number if a signal killed the worker.

    If it could not be forked, ``pid`` is 0 and this is the ``errno``.
    """


class ForkServer:
    """The supervisor's side. It must be created before any loop or thread runs.

    Each worker calls ``serve`` with its number and its end of the pipe, and exits with the status that it returns.
    """

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
        """Request a worker, and return the supervisor's end of its pipe.

        Raises ``OSError`` when the fork server has exited.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._sock, [_WORKER.pack(worker)], [theirs.fileno()])
        return ours

    async def follow(self, on_report: Callable[[Forked | Ended], None]) -> None:
        """Call ``on_report`` with each report of the fork server, until it has exited."""
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
                    on_report(Forked(worker=worker, pid=pid))
                else:
                    on_report(Ended(worker=worker, pid=pid, status=status))

    def close(self) -> None:
        """Let the fork server and all workers exit, and wait for them. Blocks for about `END_GRACE_S` at most."""
        self._sock.close()
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class _Forker:
    """The fork server's own side."""

    def __init__(self, supervisor: socket.socket, serve: Serve) -> None:
        self._supervisor = supervisor
        self._serve = serve
        self._workers: dict[int, int] = {}
        self._wakeup_read, self._wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Fork and reap workers until the supervisor has exited; then wait until the workers exit, or kill them.

        Returns the exit status.
        """
        ignore_stop_signals()
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        with suppress(OSError):
            while self._step():
                pass
        deadline = time.monotonic() + END_GRACE_S
        while self._workers and time.monotonic() < deadline:
            select.select([self._wakeup_read], [], [], _POLL_INTERVAL_S)
            self._reap(report=False)
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        return 0

    def _step(self) -> bool:
        watched: list[socket.socket | int] = [self._supervisor, self._wakeup_read]
        ready, _, _ = select.select(watched, [], [])
        if self._wakeup_read in ready:
            with suppress(BlockingIOError):
                os.read(self._wakeup_read, 4096)
            self._reap(report=True)
        if self._supervisor in ready:
            data, descriptors, _, _ = socket.recv_fds(self._supervisor, _WORKER.size, 1)
            if not data:
                return False
            worker = _WORKER.unpack(data)[0]
            if descriptors:
                self._fork(worker, socket.socket(fileno=descriptors[0]))
            else:  # the kernel dropped the descriptor, since this process has too many open
                self._supervisor.sendall(_REPORT.pack(_ENDED, worker, 0, errno.EMFILE))
        return True

    def _fork(self, worker: int, pipe: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:  # no memory, or too many processes
            pipe.close()
            self._supervisor.sendall(_REPORT.pack(_ENDED, worker, 0, error.errno or 1))
            return
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._supervisor.close()
            os.close(self._wakeup_read)
            os.close(self._wakeup_write)
            _end(lambda: self._serve(worker, pipe))
        pipe.close()
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


def ignore_stop_signals() -> None:
    """Do nothing at SIGTERM, SIGINT and SIGHUP, which may reach all processes of a terminal or a service.

    Only the supervisor acts on them. An empty handler is used instead of SIG_IGN, since programs that a plugin starts
    would inherit SIG_IGN.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)


def _end(main: Callable[[], int]) -> None:
    """Call ``main`` in a process that was just forked, and exit with its status; do not unwind the parent's stack."""
    status = 1
    try:
        status = main()
    except Exception:  # noqa: BLE001 -- the process exits anyway; print why
        with queued_output():  # not longer than its time limit
            traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
