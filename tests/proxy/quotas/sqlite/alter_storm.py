"""A process that forks writers, which alter quotas until they are killed.

The module of the tests that kill starts it once (`WriterServer`), since a process that has imported everything forks a
writer in some milliseconds. A writer sends its process id, and then a line for each acknowledged alteration, through a
pipe of its own.

    python -m tests.proxy.quotas.sqlite.alter_storm SOCKET_DESCRIPTOR
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.quotas.sqlite.store import SqliteStore
from headrace.proxy.quotas.store import Alteration, Author
from headrace.quota_callbacks.entities import QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterator

TASKS: Final = 3
"""Calls of each writer at the same time."""
KEYS: Final = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
ROOT: Final = Path(__file__).parents[4]


def entities_of(writer: str, task: int) -> tuple[QuotaEntity, QuotaEntity]:
    """Return the two entities that each call of a task alters."""
    return QuotaEntity(user=f"{writer}-{task}"), QuotaEntity(user=f"{writer}-{task}", client_id="c")


def values_after(number: int) -> dict[str, float]:
    """Return the quotas of both entities after the call ``number``. Every fifth call removes them."""
    return {} if number % 5 == 0 else dict.fromkeys(KEYS, float(number))


class WriterServer:
    """The process that forks writers."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def start(self, path: str, writer: str, calls: int = 0) -> int:
        """Fork a writer that makes so many calls for each task (0: until it is killed). Return its end of the pipe."""
        reading, writing = os.pipe()
        socket.send_fds(self._requests, [f"{calls} {writer} {path}".encode()], [writing])
        os.close(writing)
        return reading


@contextmanager
def writer_server() -> Iterator[WriterServer]:
    """Run the process that forks writers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.proxy.quotas.sqlite.alter_storm", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT) as process:
        theirs.close()
        try:
            yield WriterServer(ours)
        finally:
            ours.close()  # which ends it
            process.wait(60)


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 4096, 1)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            calls, writer, path = request.decode().split(" ", 2)
            os.write(descriptors[0], f"{os.getpid()}\n".encode())
            trio.run(storm, path, writer, int(calls), descriptors[0])
            return
        os.close(descriptors[0])


async def storm(path: str, writer: str, calls: int, pipe: int) -> None:
    store = SqliteStore(path, timeout_s=60)
    await store.open()
    async with trio.open_nursery() as nursery:
        for task in range(TASKS):
            nursery.start_soon(alter, store, writer, task, calls, pipe)
    await store.close()


async def alter(store: SqliteStore, writer: str, task: int, calls: int, pipe: int) -> None:
    """Alter the entities of a task, and acknowledge each call."""
    author = Author(principal=writer, address="storm")
    for number in range(1, calls + 1) if calls else count(1):
        values = values_after(number) or dict.fromkeys(KEYS)
        await store.alter([Alteration(entity=each, values=values) for each in entities_of(writer, task)], author)
        os.write(pipe, f"{task} {number}\n".encode())


if __name__ == "__main__":
    main()
