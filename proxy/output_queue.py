"""Standard output and standard error that never block: a bounded queue for each, which a thread of its own writes.

A write to a full pipe lasts until its reader continues. `queued_output`, in which the command line runs the proxy,
replaces ``sys.stdout`` and ``sys.stderr``, so this also holds for warnings, for the loggers of libraries, and for what
plugins print.
"""

from __future__ import annotations

import faulthandler
import io
import os
import queue
import select
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from headrace.quota_callbacks.files import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger("headrace.log")

WRITE_BYTES: Final = select.PIPE_BUF
"""Bytes to write in one system call, at most, unless a single line is longer. Both streams may be the same pipe, and up
to this size the kernel does not mix what their threads write."""
END_TIMEOUT_S: Final = 2.0
"""Seconds that the proxy may take at its end to write what is queued."""
_STREAMS: Final = ("stdout", "stderr")


class OutputQueue(io.RawIOBase):
    """A binary stream to a file descriptor, which queues what is written to it for a thread that it starts.

    At most ``max_lines`` writes and ``max_bytes`` in all are queued; further ones are dropped and counted. Methods may
    be called by any thread.
    """

    def __init__(self, descriptor: int, *, max_lines: int, max_bytes: int) -> None:
        super().__init__()
        self.dropped = 0
        """Number of lines that were dropped since the start."""
        self._unreported = 0
        self._reason = ""
        self._descriptor = descriptor
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self._taken: bytes | None = None
        """A line that the thread has taken, but not written, since it was too long to be written with others."""
        self._counting = threading.RLock()  # may be taken again by a destructor that the garbage collector calls
        self._queues = True
        self._thread = threading.Thread(target=self._run, name=f"output-{descriptor}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Write what is queued, and from then on write directly; after ``timeout_s``, continue to queue instead."""
        if self.wait_until_written(timeout_s):
            self._queues = False

    def writable(self) -> bool:
        """Return whether the stream can be written, which it always can."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor to which the thread writes."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the file descriptor is a terminal."""
        return os.isatty(self._descriptor)

    @property
    def full(self) -> bool:
        """Whether the next line of the calling thread would be dropped, even a short one."""
        return not self._has_room(1)

    def _has_room(self, size: int) -> bool:
        if not self._queues or threading.current_thread() is self._thread:  # which reports that lines were dropped
            return True
        return self._waiting.qsize() < self._max_lines and self._bytes + size <= self._max_bytes

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        """Queue ``data``, or drop and count it if there is no room, and return its length."""
        line = bytes(data)
        if not self._queues:
            self._write_all(line)
            return len(line)
        with self._counting:
            if self._has_room(len(line)):
                self._bytes += len(line)
                self._waiting.put(line)
            else:
                self.drop(_lines(line))
        return len(line)

    def drop(self, lines: int = 1, reason: str = "they were logged faster than they could be written") -> None:
        """Count lines that were dropped. A later line reports them."""
        with self._counting:
            self.dropped += lines
            self._unreported += lines
            self._reason = reason

    def wait_until_written(self, timeout_s: float) -> bool:
        """Wait until everything that was queued before is written; return ``False`` if that takes too long."""
        written = threading.Event()
        self._waiting.put(written)
        return written.wait(timeout_s)

    # --- the thread ---

    def _run(self) -> None:
        while True:
            lines, written = self._next()
            data = b"".join(lines)
            if data and self._write_all(data):
                self._report()
            with self._counting:
                self._bytes -= len(data)
            if written is not None:
                written.set()

    def _next(self) -> tuple[list[bytes], threading.Event | None]:
        """Return the next lines, after waiting for the first, and the event to set when they are written."""
        lines: list[bytes] = []
        item = self._taken if self._taken is not None else self._waiting.get()
        size, self._taken = 0, None
        while not isinstance(item, threading.Event):
            size += len(item)
            if lines and size > WRITE_BYTES:
                self._taken = item
                return lines, None
            lines.append(item)
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return lines, None
        return lines, item

    def _write_all(self, data: bytes) -> bool:
        """Write ``data``, however long that takes; return ``False`` if it failed, after counting what was not written.

        A failure is not reported at once, since that would fail, too: the reader has gone, or the disk is full.
        """
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process has made it non-blocking
                select.select([], [self._descriptor], [])
            except OSError as error:
                self.drop(_lines(bytes(left)), f"they could not be written: {reason_of(error)}")
                return False
        return True

    def _report(self) -> None:
        with self._counting:
            lines, self._unreported = self._unreported, 0
        if lines:
            settings = "log.max_queued_lines, log.max_queued_bytes"
            log.warning("log lines were dropped", lines=lines, reason=self._reason, settings=settings)


def _lines(data: bytes) -> int:
    return max(1, data.count(b"\n"))


def _replace_output(max_lines: int, max_bytes: int) -> list[OutputQueue]:
    queues = []
    for name in _STREAMS:
        stream = getattr(sys, name)
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError):  # closed before the start, or replaced by a caller
            continue
        stream.flush()
        output = OutputQueue(descriptor, max_lines=max_lines, max_bytes=max_bytes)
        queues.append(output)
        text = io.TextIOWrapper(output, encoding=stream.encoding, errors=stream.errors, line_buffering=True)  # type: ignore[type-var]
        setattr(sys, name, text)
    return queues


@contextmanager
def queued_output(*, max_lines: int, max_bytes: int) -> Iterator[None]:
    """Replace ``sys.stdout`` and ``sys.stderr``, and queue what is written to them within the block. At its end, write
    what is queued.

    Enter it before other code is imported that may keep one of them, such as a plugin with a handler of `logging`.
    What is not written within `END_TIMEOUT_S` at the end stays queued, and so does what follows: the end of the process
    waits for no reader either. On a fatal signal, the stacks of all threads are written to standard error directly.
    """
    queues = _replace_output(max_lines, max_bytes)
    if (errors := error_queue()) is not None:
        faulthandler.enable(errors.fileno())
    try:
        yield
    finally:
        end_s = time.monotonic() + END_TIMEOUT_S
        for output in queues:
            output.stop(max(0.0, end_s - time.monotonic()))


def _queue_of(name: str) -> OutputQueue | None:
    found = getattr(getattr(sys, name), "buffer", None)
    return found if isinstance(found, OutputQueue) else None


def error_queue() -> OutputQueue | None:
    """Return the queue of standard error, ``None`` before `queued_output`."""
    return _queue_of("stderr")


def dropped_lines() -> int:
    """Return how many lines were dropped, on standard output and standard error."""
    return sum(output.dropped for output in map(_queue_of, _STREAMS) if output is not None)
