"""Programs and directories that do not outlive this process: the caller's side of `testbed.processes.supervisor`.

Called by the cluster and the tools. Every process has one supervisor, started with the first program and ended at exit;
a fork has its own. Thread-safe. Each call takes well under a millisecond, except `SupervisedProgram.wait` and
`SupervisedDirectory.remove`.
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

from testbed.errors import SupervisorError, TestbedTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUPERVISOR_SCRIPT = Path(__file__).with_name("supervisor.py")
# The supervisor answers within a millisecond, and removing a directory of test data takes at most a second. But it
# waits for the end of a program that it kills, and for the imports of a template: a busy machine takes long for these.
REPLY_TIMEOUT_S = 120.0
POLL_S = 0.01
MESSAGE_BYTES = 65536


class SupervisedProgram:
    """A program that the supervisor has started; it ends with this process at the latest."""

    __slots__ = ("_killed", "_status", "_supervisor", "argv", "pid")

    def __init__(self, supervisor: _Supervisor, argv: Sequence[str], pid: int) -> None:
        self._supervisor = supervisor
        self._status: int | None = None
        self._killed = False
        self.argv = tuple(argv)
        self.pid = pid

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number if a signal ended the program, or None while it runs."""
        if self._status is None:
            self._status = self._supervisor.ask(do="poll", pid=self.pid)["status"]
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
        """Send a signal to the program, not to its process group; does nothing if it has ended."""
        if self._status is None:
            self._supervisor.ask(do="signal", pid=self.pid, signal=int(number))

    def kill(self) -> int:
        """Kill the program and its process group, wait for the program's end and return its exit status.

        Also kills processes that a program has left running after its own end. May be called again.
        """
        if not self._killed:
            self._status = self._supervisor.ask(do="kill", pid=self.pid)["status"]
            self._killed = True
        return self._status if self._status is not None else -signal.SIGKILL


class SupervisedDirectory:
    """A directory that is removed with its contents by `remove`, or when this process ends."""

    __slots__ = ("_supervisor", "path")

    def __init__(self, supervisor: _Supervisor, path: Path) -> None:
        self._supervisor = supervisor
        self.path = path

    def remove(self) -> None:
        """Kill the programs that were started with this directory, and remove it."""
        if self.path.exists():
            self._supervisor.ask(do="remove_directory", path=str(self.path))


def start_program(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    directory: SupervisedDirectory | None = None,
    template: Sequence[str] = (),
) -> SupervisedProgram:
    """Start `argv` (a path and its arguments) with the three open descriptors, which the caller has to close.

    The program is killed before `directory` is removed. `template` is the command line of a program that calls
    `testbed.processes.template.serve`; with it, the started program is a fork of the template, which is itself started
    once. Raises SupervisorError if the program cannot be started.
    """
    supervisor = _supervisor()
    reply = supervisor.ask(
        [stdin, stdout, stderr],
        do="start",
        argv=list(argv),
        environment=dict(environment),
        directory=str(directory.path) if directory else None,
        template=list(template),
    )
    return SupervisedProgram(supervisor, argv, reply["pid"])


def make_directory(prefix: str) -> SupervisedDirectory:
    """Create a directory, preferably on disk: in $TMPDIR, else in /var/tmp, else in Python's default.

    Raises SupervisorError if it cannot be created.
    """
    parent = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)  # noqa: S108
    supervisor = _supervisor()
    return SupervisedDirectory(
        supervisor, Path(supervisor.ask(do="make_directory", prefix=prefix, parent=parent)["path"])
    )


class _Supervisor:
    """The connection to this process's supervisor."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._lock = threading.Lock()
        self._number = 0
        self._broken = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(REPLY_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR_SCRIPT), str(theirs.fileno()), str(self.owner)],
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
        """Send a request and return its reply. Raises SupervisorError if the reply is an error or there is none."""
        with self._lock:
            self._number += 1
            message = json.dumps({"number": self._number, **request}).encode()
            try:
                socket.send_fds(self._socket, [message], list(descriptors))
                reply = self._reply()
            except OSError as error:
                self._broken = True
                text = f"the supervisor of the testbed's programs has ended, and so have the programs: {error}"
                raise SupervisorError(text) from error
        if "error" in reply:
            raise SupervisorError(f"cannot {request['do'].replace('_', ' ')}: {reply['error']}")
        return reply

    def _reply(self) -> dict[str, Any]:
        """Return the reply to the latest request; drop replies to earlier requests that were interrupted."""
        while True:
            message = self._socket.recv(MESSAGE_BYTES)
            if not message:
                raise ConnectionResetError("it has ended")
            reply: dict[str, Any] = json.loads(message)
            if reply["number"] == self._number:
                return reply

    def close(self) -> None:
        """Make the supervisor end its programs and itself; in a fork of the owner, only close the socket."""
        self._socket.close()
        if self.owner == os.getpid():
            self._process.wait(REPLY_TIMEOUT_S)


_current: _Supervisor | None = None
_current_lock = threading.Lock()


def _supervisor() -> _Supervisor:
    global _current
    with _current_lock:
        if _current is not None and not _current.alive:
            _current.close()
            _current = None
        if _current is None:
            _current = _Supervisor()
        return _current


@atexit.register
def _close_at_exit() -> None:
    if _current is not None:
        _current.close()
