"""Standard output and standard error that never block: what is written, what is dropped, and what a crash leaves."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.output_queue import WRITE_BYTES, OutputQueue
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

PIPE_BYTES = 4096
DEADLINE_S = 60.0
LARGE = 1 << 30
QUEUED = """
import logging, sys, warnings
from headrace.proxy.output_queue import queued_output
with queued_output(max_lines={lines}, max_bytes=2**20):
    early = logging.StreamHandler()
"""


class Pipe:
    """A small pipe, and the queues that write to it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._queues: list[OutputQueue] = []

    def queue(self, *, max_lines: int = LARGE, max_bytes: int = LARGE) -> OutputQueue:
        self._queues.append(OutputQueue(self.write_end, max_lines=max_lines, max_bytes=max_bytes))
        return self._queues[-1]

    def fill(self) -> None:
        """Fill the pipe, so that the next write to it blocks."""
        os.set_blocking(self.write_end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.write_end, bytes(1))
        os.set_blocking(self.write_end, True)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += os.read(self.read_end, size - len(data))
        return data

    def close_read_end(self) -> None:
        """Replace the end to read by that of another pipe, so that writing to this one fails."""
        other, end = os.pipe()
        os.dup2(other, self.read_end)
        os.close(other)
        os.close(end)

    def close(self) -> None:
        """Let the queues' threads end their work first, since the descriptor may soon be another file's."""
        self.close_read_end()
        assert all(queue.wait_until_written(DEADLINE_S) for queue in self._queues)
        os.close(self.read_end)
        os.close(self.write_end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_everything_is_written_in_order(pipe: Pipe, rng: Random) -> None:
    lines = [b"%d " % number + b"x" * rng.choice((0, 10, 1000, WRITE_BYTES, 20_000)) + b"\n" for number in range(200)]
    queue = pipe.queue()
    for line in lines:
        queue.write(line)
    assert pipe.read(sum(map(len, lines))) == b"".join(lines)
    assert queue.wait_until_written(DEADLINE_S)
    assert queue.dropped == 0


def test_a_pipe_that_another_process_made_non_blocking_is_waited_for(pipe: Pipe) -> None:
    queue = pipe.queue()
    os.set_blocking(pipe.write_end, False)
    data = b"x" * 10 * PIPE_BYTES + b"\n"
    queue.write(data)
    assert pipe.read(len(data)) == data
    assert queue.dropped == 0


@pytest.mark.parametrize(("max_lines", "max_bytes"), [(5, LARGE), (LARGE, 53)])
def test_what_there_is_no_room_for_is_dropped_and_counted(pipe: Pipe, max_lines: int, max_bytes: int) -> None:
    pipe.fill()
    queue = pipe.queue(max_lines=max_lines, max_bytes=max_bytes)
    queue.write(b"taken by\n")
    wait_until(lambda: queue._waiting.empty(), "the thread has taken the first line")
    for number in range(100):
        queue.write(b"line %d ...\n" % number)
    taken = 5 if max_lines == 5 else (53 - 9) // 11
    assert queue.dropped == 100 - taken
    assert queue.full
    assert not queue.wait_until_written(0.0)
    pipe.read(PIPE_BYTES)
    assert queue.wait_until_written(DEADLINE_S)
    assert not queue.full
    assert queue.write(b"again\n") == 6
    assert queue.wait_until_written(DEADLINE_S)
    assert os.read(pipe.read_end, PIPE_BYTES).endswith(b"line %d ...\nagain\n" % (taken - 1))


def test_lines_of_many_threads_are_all_written_or_counted(pipe: Pipe) -> None:
    queue = pipe.queue(max_lines=20)
    threads = [threading.Thread(target=lambda: [queue.write(b"a line\n") for _ in range(500)]) for _ in range(4)]
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: os.read(pipe.read_end, 100), b"")), daemon=True)
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert queue.wait_until_written(DEADLINE_S)
    wait_until(lambda: b"".join(read).count(b"a line\n") + queue.dropped == 2000, "all are accounted for")
    assert queue._bytes == 0


def test_a_reader_that_has_gone_is_not_an_error(pipe: Pipe) -> None:
    queue = pipe.queue()
    pipe.close_read_end()
    for _ in range(5):
        queue.write(b"one\ntwo\n")
    assert queue.wait_until_written(DEADLINE_S)
    assert queue.dropped == 10


def python(program: str, *, lines: int = 1000, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", QUEUED.format(lines=lines) + program],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_at_the_end_what_is_queued_is_written_and_a_traceback_after_it() -> None:
    program = "    for n in range(900): print('line', n, file=sys.stderr)\n    1 / 0\n"
    done = python(program)
    lines = done.stderr.splitlines()
    assert lines[:900] == [f"line {number}" for number in range(900)]
    assert lines[900] == "Traceback (most recent call last):"
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert done.returncode == 1


WRITERS = """
    logging.getLogger("plugin").addHandler(early)
    for _ in range(2000):
        logging.getLogger("plugin").warning("by a handler that was made before")
        print("plugin", file=sys.stderr)
        warnings.warn("a library", stacklevel=1)
        logging.getLogger("library").warning("another library")
        warnings.resetwarnings()
        sys.stderr.buffer.write(b"bytes")
    class Broken:
        def __del__(self): raise ValueError
    for _ in range(2000): Broken()
    print("not blocked")
1 / 0
"""


def test_nothing_that_python_code_writes_waits_for_a_full_pipe(pipe: Pipe) -> None:
    """Neither the block nor the end of the process, even if it is a crash."""
    pipe.fill()
    done = python(WRITERS, lines=10, stderr=pipe.write_end)
    assert done.stdout == "not blocked\n"
    assert done.returncode == 1
