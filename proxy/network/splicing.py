"""Moving large frames between sockets with ``splice``, without entering user space.

Used by the relays. ``splice`` needs a pipe between the sockets; idle pipes are kept and reused.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Final

from headrace.proxy.network.sockets import RETRY

if TYPE_CHECKING:
    from headrace.proxy.network.sockets import Socket

PIPE_BYTES: Final = 1024 * 1024
"""Capacity of a pipe: the default of ``/proc/sys/fs/pipe-max-size``. If it is not granted, half of it is requested,
and so on."""

STEP_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of one step. A fast pair of sockets would never block, and other connections have to run."""

_FLAGS: Final = getattr(os, "SPLICE_F_MOVE", 1) | getattr(os, "SPLICE_F_NONBLOCK", 2)


class Pipes:
    """Idle pipes, at most ``keep`` of them, for the next large frames."""

    def __init__(self, keep: int = 64) -> None:
        self.most = sys.maxsize
        """The most pipes at a time, so that they leave descriptors for sockets."""
        self._keep = keep
        self._open = 0
        self._idle: list[tuple[int, int, int]] = []

    def take(self) -> tuple[int, int, int]:
        """Return an empty pipe: its reading end, its writing end, and its capacity in bytes. Raises ``OSError``."""
        if self._idle:
            return self._idle.pop()
        if self._open >= self.most:
            raise OSError(errno.EMFILE, "no descriptors are left for pipes")
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._open += 1
        return reading, writing, _grow(writing)

    def give_back(self, pipe: tuple[int, int, int], *, empty: bool) -> None:
        """Keep the pipe for reuse, or close it if it is not empty or enough are kept."""
        if empty and len(self._idle) < self._keep:
            self._idle.append(pipe)
            return
        self._close(pipe)

    def close(self) -> None:
        """Close the idle pipes."""
        while self._idle:
            self._close(self._idle.pop())

    def _close(self, pipe: tuple[int, int, int]) -> None:
        self._open -= 1
        os.close(pipe[0])
        os.close(pipe[1])


class Splice:
    """The spliced bytes of one direction of a connection. It has a pipe only while there are bytes in it.

    *Backpressure:* nothing is read from ``source`` until ``target`` has accepted the `held` bytes.
    """

    __slots__ = ("_pipe", "_pipes", "_source", "ended", "held", "target")

    def __init__(self, source: Socket, target: Socket, pipes: Pipes) -> None:
        self._source = source
        self.target = target
        self._pipes = pipes
        self._pipe: tuple[int, int, int] | None = None
        self.held = 0
        """Number of bytes in the pipe, which ``target`` has not accepted yet; see `drain`."""
        self.ended = False
        """Whether the stream of ``source`` has ended."""

    def move(self, count: int) -> int | None:
        """Move up to ``count`` bytes without waiting; return how many were read from ``source``, including `held` ones.

        Return ``None`` if no pipe can be opened now, so that the bytes must be copied. Raises the faults of both
        sockets.
        """
        try:
            pipe = self._pipes.take()
        except OSError:
            return None
        moved = 0
        self._pipe = pipe
        most = min(count, STEP_BYTES)
        while moved < most and not self.held:
            taken = self._fill(pipe[1], min(most - moved, pipe[2]))
            if not taken:
                break
            moved += taken
            self.held = taken
            self._flush(pipe[0])
        if not self.held:
            self._release_pipe()
        return moved

    async def drain(self) -> None:
        """Wait until ``target`` has accepted the held bytes."""
        while self.held and self._pipe is not None:
            await self.target.writable()
            self._flush(self._pipe[0])
        self._release_pipe()

    def close(self) -> None:
        """Release the pipe; held bytes are lost."""
        self._release_pipe()

    def _release_pipe(self) -> None:
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, empty=self.held == 0)
            self._pipe = None

    def _fill(self, writing: int, count: int) -> int:
        source = self._source
        try:
            taken = os.splice(source.fileno(), writing, count, flags=_FLAGS)
        except RETRY:
            source.may_read = False
            return 0
        except OSError as error:
            raise source.fault(error) from error
        source.bytes_received += taken
        self.ended = taken == 0
        return taken

    def _flush(self, reading: int) -> None:
        target = self.target
        while self.held:
            try:
                given = os.splice(reading, target.fileno(), self.held, flags=_FLAGS)
            except RETRY:
                return
            except OSError as error:
                raise target.fault(error) from error
            target.bytes_sent += given
            self.held -= given


def _grow(writing: int) -> int:
    import fcntl

    size = PIPE_BYTES
    while size > 65536:
        try:
            return fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, size)
        except OSError:  # above pipe-max-size, or above the user's limit of pages
            size //= 2
    return 65536
