"""A process that has imported a program, and forks itself for each run of it, since a short run is mostly imports.

The supervisor (`testbed.processes.supervisor`) starts it and requests the forks. Like an executed program, a fork has
the arguments, environment and standard streams of the request, its own session, and the supervisor as its parent.
Unlike an executed program, it has imported its modules already, and shares their memory with the other forks.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from testbed.processes.supervisor import MAX_DESCRIPTORS, MESSAGE_BYTES, PR_SET_PDEATHSIG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

POLL_S = 0.0005


def serve(descriptor: int, run: Callable[[Sequence[str]], None]) -> None:
    """Answer the supervisor's requests at the socket ``descriptor``; in each fork, call ``run`` with its arguments.

    Returns when the supervisor has ended, and in a fork when ``run`` has returned. It must be called before any thread
    is started.
    """
    supervisor = os.getppid()
    connection = socket.socket(fileno=descriptor)
    while True:
        message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            return
        pid, between = _fork_twice()
        if pid == 0:
            connection.close()
            request = json.loads(message)
            _become(request, streams, between, supervisor)
            run(request["argv"])
            return
        for stream in streams:
            os.close(stream)
        connection.send(json.dumps({"pid": pid}).encode())


def _fork_twice() -> tuple[int, int]:
    """Fork a process that forks a second one and ends.

    Returns the process ids of the second and of the first process; in the second process itself, 0 and that of the
    first.
    """
    receiving, sending = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        pid = os.fork()
        if pid:
            os.write(sending, b"%d" % pid)
            os._exit(0)
        os.close(receiving)
        os.close(sending)
        return 0, between
    os.close(sending)
    os.waitpid(between, 0)
    with os.fdopen(receiving, "rb") as pipe:
        return int(pipe.read()), between


def _become(request: dict[str, Any], streams: Sequence[int], between: int, supervisor: int) -> None:
    """Set up this fork like an executed program: session, standard streams, arguments and environment."""
    while os.getppid() == between:  # until that process has ended
        time.sleep(POLL_S)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # the supervisor was killed meanwhile, so nothing needs this program any more
        os._exit(1)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(number, "w", closefd=False)
        setattr(sys, name, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
