"""The supervisor: a small process that starts programs for its caller and ends them when the caller ends in any way.

`testbed.processes.supervised` runs it as a script (with the standard library only, so that it starts in about twenty
milliseconds); no module imports it. It is the parent of every program that it starts, so no program is missed between
its start and its registration, and a process id is not reused before the supervisor has reaped it. When the caller
ends, even by `kill -9`, the socket between the two is closed; then the supervisor kills its programs, removes the
directories it created, and ends. If the supervisor itself is killed, the kernel kills the programs (PR_SET_PDEATHSIG,
which works here because the supervisor has one thread: the signal is tied to the thread that forked).

A program can also be a fork of a *template*: a program of this supervisor that has imported what its forks need, so
that they start without that work (`testbed.processes.template`). A template forks in two steps, so that the program
loses its parent and the kernel gives it to the supervisor, which is a subreaper for that moment.

Requests and replies are JSON, each in one message of a SOCK_SEQPACKET socket, so that an interrupted caller (for
instance by KeyboardInterrupt) has sent a complete request or none; each reply carries its request's number. The
descriptors of a program's standard streams are sent with the request that starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A request carries at most the descriptors of the three standard streams.
MAX_DESCRIPTORS = 3
# Size of the longest request: a JVM's command line with a hundred jars, and an environment. The kernel's limit is
# 200 KiB.
MESSAGE_BYTES = 1 << 18

REMOVAL_ATTEMPTS = 20
REMOVAL_PAUSE_S = 0.05


class Program(NamedTuple):
    """A program, and the directory at whose removal it is killed."""

    pid: int
    directory: str | None
    process: subprocess.Popen[bytes] | None
    """None for a fork of a template."""

    def wait(self) -> int:
        """Wait for the end, and return the exit status, minus the signal's number if a signal ended the program."""
        if self.process is not None:
            return self.process.wait()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Supervisor:
    """The programs and directories of one caller."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        # A program stays here after its end until it is killed: while it is not reaped, its process id and group are
        # not reused.
        self.programs: dict[int, Program] = {}
        self.directories: set[str] = set()
        self.templates: dict[tuple[str, ...], socket.socket] = {}
        # Loaded before the first fork, so that only one call is made between fork and exec.
        self._prctl = getattr(ctypes.CDLL(None), "prctl", None)

    def serve(self, caller: int) -> None:
        """Answer requests until the caller has ended."""
        while self._wait_for_data(caller):
            message, descriptors, _, _ = socket.recv_fds(self.connection, MESSAGE_BYTES, MAX_DESCRIPTORS)
            if not message:
                return
            request = json.loads(message)
            reply = self._answer(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            self.connection.send(json.dumps({"number": request["number"], **reply}).encode())

    def _wait_for_data(self, caller: int) -> bool:
        """Wait for data on the socket, and return True; return False when the process `caller` has ended.

        The process is watched in addition to the socket, since a fork of the caller may hold the socket open.
        """
        watched: list[Any] = [self.connection]
        if caller >= 0:
            watched.append(caller)
        return self.connection in select.select(watched, [], [])[0]

    def _answer(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        try:
            match request["do"]:
                case "start":
                    start = self._fork if request["template"] else self._start
                    return {"pid": start(request, descriptors)}
                case "signal":
                    return {"sent": self._signal(request["pid"], request["signal"])}
                case "poll":
                    return {"status": self._status(request["pid"])}
                case "kill":
                    return {"status": self._kill([request["pid"]])}
                case "make_directory":
                    directory = tempfile.mkdtemp(prefix=request["prefix"], dir=request["parent"])
                    self.directories.add(directory)
                    return {"path": directory}
                case "remove_directory":
                    self._remove(request["path"])
                    return {}
                case unknown:
                    return {"error": f"no such request: {unknown}"}
        except (OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        stdin, stdout, stderr = descriptors
        return self._run(request["argv"], request["environment"], request["directory"], stdin, stdout, stderr)

    def _run(
        self,
        argv: list[str],
        environment: dict[str, str],
        directory: str | None,
        *streams: int,
        passed: Iterable[int] = (),
    ) -> int:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            pass_fds=tuple(passed),
            preexec_fn=self._die_with_supervisor,  # safe: one thread
            start_new_session=True,  # Ctrl-C in the terminal only reaches the caller, which then ends the supervisor
        )
        self.programs[process.pid] = Program(process.pid, directory, process)
        return process.pid

    def _die_with_supervisor(self) -> None:
        if self._prctl is not None:
            self._prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def _fork(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Let a template fork itself, and return the fork's process id."""
        key = tuple(request["template"])
        template = self.templates.get(key) or self._start_template(key, request["environment"])
        message = json.dumps({"argv": request["argv"], "environment": request["environment"]}).encode()
        self._adopt_orphans(1)
        try:
            socket.send_fds(template, [message], descriptors)
            reply = template.recv(MESSAGE_BYTES)
        except ConnectionError:
            reply = b""
        finally:
            self._adopt_orphans(0)
        if not reply:
            self.templates.pop(key).close()
            raise ChildProcessError(f"the template has ended; to see why, run {shlex.join(key)} 0")
        pid: int = json.loads(reply)["pid"]
        self.programs[pid] = Program(pid, request["directory"], None)
        return pid

    def _start_template(self, key: tuple[str, ...], environment: dict[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        null = os.open(os.devnull, os.O_RDWR)
        descriptor = theirs.fileno()
        try:
            self._run([*key, str(descriptor)], environment, None, null, null, null, passed=[descriptor])
        finally:
            theirs.close()
            os.close(null)
        self.templates[key] = ours
        return ours

    def _adopt_orphans(self, adopts: int) -> None:
        """Begin or cease to be the parent of descendants whose parent has ended (``PR_SET_CHILD_SUBREAPER``)."""
        if self._prctl is None or self._prctl(PR_SET_CHILD_SUBREAPER, adopts, 0, 0, 0) != 0:
            raise OSError("programs cannot be forked from a template on this system")

    def _signal(self, pid: int, number: int) -> bool:
        """Send a signal to a program, without effect if it has ended. Return whether the program is in `programs`."""
        if pid not in self.programs:
            return False
        os.kill(pid, number)
        return True

    def _status(self, pid: int) -> int | None:
        """Return the exit status, minus the signal's number if a signal ended it, or None while it runs.

        The program is not reaped. A program that is not in `programs` has been killed and reaped before.
        """
        if pid not in self.programs:
            return -signal.SIGKILL
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _kill(self, pids: Iterable[int]) -> int:
        """Kill programs with their process groups, then wait for them and remove them from `programs`.

        The group contains the processes that the program has started, unless these have changed their group. Returns
        the exit status of the last program.
        """
        programs = [self.programs.pop(pid) for pid in pids if pid in self.programs]
        for program in programs:
            with contextlib.suppress(OSError):
                os.killpg(program.pid, signal.SIGKILL)
        status = -int(signal.SIGKILL)
        for program in programs:
            status = program.wait()
        return status

    def _remove(self, directory: str) -> None:
        self._kill([pid for pid, program in self.programs.items() if program.directory == directory])
        self.directories.discard(directory)
        # The programs' children are killed, too, but not waited for: they may still complete a system call.
        for _ in range(REMOVAL_ATTEMPTS):
            shutil.rmtree(directory, ignore_errors=True)
            if not os.path.exists(directory):  # noqa: PTH110 - importing pathlib takes as long as all other imports together
                return
            time.sleep(REMOVAL_PAUSE_S)

    def end_all(self) -> None:
        """Kill every program, then remove the directories."""
        self._kill(list(self.programs))
        for directory in list(self.directories):
            self._remove(directory)


def main(descriptor: int, caller_pid: int) -> None:
    """Serve the process `caller_pid` at the other end of the socket `descriptor`."""
    # A handler, since the programs would inherit SIG_IGN and then ignore SIGTERM.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: None)
    caller = -1
    with contextlib.suppress(AttributeError, OSError):  # kernels before 5.3, and systems other than Linux
        caller = os.pidfd_open(caller_pid)
    supervisor = Supervisor(socket.socket(fileno=descriptor))
    try:
        with contextlib.suppress(OSError):
            supervisor.serve(caller)
    finally:
        supervisor.end_all()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
