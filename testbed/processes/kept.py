"""Programs and directories that do not outlive this process: the caller's side of `testbed.processes.keeper`.

Called by the cluster and the tools. Every process has one keeper, started with the first program and ended at exit; a
fork gets a keeper of its own. Safe to use from several threads. Each call takes well under a millisecond, except
`KeptProgram.wait` and `KeptDirectory.remove`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import KeeperError, TestbedTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KEEPER_SCRIPT = Path(__file__).with_name("keeper.py")
# The keeper answers within a millisecond; removing a directory of test data takes a second at the very worst.
REPLY_TIMEOUT_S = 30.0
POLL_S = 0.01
MESSAGE_BYTES = 65536


class KeptProgram:
    """A program that the keeper started. Ended with this process, at the latest."""

    __slots__ = ("_forgotten", "_keeper", "_status", "argv", "pid")

    def __init__(self, keeper: _Keeper, argv: Sequence[str], pid: int) -> None:
        self._keeper = keeper
        self._status: int | None = None
        self._forgotten = False
        self.argv = tuple(argv)
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number if a signal ended the program, or None while it runs."""
        if self._status is None:
            self._status = self._keeper.ask(do="poll", pid=self.pid)["status"]
        return self._status

    def wait(self, timeout_s: float) -> int:
        """Wait for the end and return the exit status. Raises TestbedTimeoutError after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise TestbedTimeoutError(f"{Path(self.argv[0]).name} (pid {self.pid}) still runs after {timeout_s} s")
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the program alone; nothing happens when it has ended."""
        if self._status is None:
            self._keeper.ask(do="signal", pid=self.pid, signal=int(number))

    def kill(self) -> int:
        """Kill it, with what it has started in its process group, wait for its end and return its exit status.

        Also takes away what a program that has ended by itself has left running. May be called again.
        """
        if not self._forgotten:
            self._status = self._keeper.ask(do="kill", pid=self.pid)["status"]
            self._forgotten = True
        return self._status if self._status is not None else -signal.SIGKILL


class KeptDirectory:
    """A directory that is removed with everything in it when this process ends, or earlier by `remove`."""

    __slots__ = ("_keeper", "path")

    def __init__(self, keeper: _Keeper, path: Path) -> None:
        self._keeper = keeper
        self.path = path

    def remove(self) -> None:
        """Kill the programs that were started with this directory, and remove it now."""
        if self.path.exists():
            self._keeper.ask(do="remove_directory", path=str(self.path))


def start_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    directory: KeptDirectory | None = None,
) -> KeptProgram:
    """Start `argv` (a path and its arguments) with the three open descriptors, which stay the caller's to close.

    It is killed before `directory` is removed. Raises KeeperError when it cannot be started.
    """
    keeper = _keeper()
    reply = keeper.ask(
        [stdin, stdout, stderr],
        do="start",
        argv=list(argv),
        environment=dict(environment),
        directory=str(directory.path) if directory else None,
    )
    return KeptProgram(keeper, argv, reply["pid"])


def make_directory(prefix: str) -> KeptDirectory:
    """Make a directory, on disk where the system tells: in $TMPDIR, else in /var/tmp, else where Python puts such.

    Raises KeeperError when it cannot be made.
    """
    parent = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)  # noqa: S108
    keeper = _keeper()
    return KeptDirectory(keeper, Path(keeper.ask(do="make_directory", prefix=prefix, parent=parent)["path"]))


class _Keeper:
    """The connection to this process's keeper."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._broken = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(REPLY_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER_SCRIPT), str(theirs.fileno()), str(self.owner)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return not self._broken and self.owner == os.getpid() and self._process.poll() is None

    def ask(self, descriptors: Sequence[int] = (), **request: Any) -> dict[str, Any]:
        """Send one request and return its reply. Raises KeeperError for a reply that is an error, or no reply."""
        with self._lock:
            self._number += 1
            message = json.dumps({"number": self._number, **request}).encode()
            try:
                socket.send_fds(self._socket, [message], list(descriptors))
                reply = self._reply()
            except OSError as error:
                self._broken = True
                text = f"the process that keeps the testbed's programs is gone, and they with it: {error}"
                raise KeeperError(text) from error
        if "error" in reply:
            raise KeeperError(f"cannot {request['do'].replace('_', ' ')}: {reply['error']}")
        return reply

    def _reply(self) -> dict[str, Any]:
        """Return the reply to the latest request, dropping those to earlier ones whose asker was interrupted."""
        while True:
            message = self._socket.recv(MESSAGE_BYTES)
            if not message:
                raise ConnectionResetError("it has ended")
            reply: dict[str, Any] = json.loads(message)
            if reply["number"] == self._number:
                return reply

    def close(self) -> None:
        """Let the keeper end its programs and itself. A fork of the owner only lets go of its copy of the socket."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait(REPLY_TIMEOUT_S)


_current: _Keeper | None = None
_current_lock = threading.Lock()


def _keeper() -> _Keeper:
    global _current
    with _current_lock:
        if _current is not None and not _current.alive:
            _current.close()
            _current = None
        if _current is None:
            _current = _Keeper()
        return _current


@atexit.register
def _close_at_exit() -> None:
    if _current is not None:
        _current.close()
