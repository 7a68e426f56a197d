"""Large frames pass from socket to socket by ``splice``, without entering user space, through pipes that are kept."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from headrace.proxy.network.sockets import RETRY

if TYPE_CHECKING:
    from headrace.proxy.network.sockets import Socket

PIPE_BYTES: Final = 1024 * 1024
"""``/proc/sys/fs/pipe-max-size`` for unprivileged users; what cannot be had is asked for by halves."""

STEP_BYTES: Final = 4 * 1024 * 1024
"""What one step moves at most: a fast pair of sockets never blocks, and others want their turn."""

_FLAGS: Final = getattr(os, "SPLICE_F_MOVE", 1) | getattr(os, "SPLICE_F_NONBLOCK", 2)


class Pipes:
    """Empty pipes, kept for the next large frame. At most ``keep`` idle ones."""

    def __init__(self, keep: int = 64) -> None:
        self._keep = keep
        self._idle: list[tuple[int, int, int]] = []

    def take(self) -> tuple[int, int, int]:
        """An empty pipe: its reading end, its writing end, and how many bytes it holds. Raises ``OSError``."""
        if self._idle:
            return self._idle.pop()
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        return reading, writing, _grow(writing)

    def give_back(self, pipe: tuple[int, int, int], *, empty: bool) -> None:
        """Keep the pipe, unless bytes are left in it."""
        if empty and len(self._idle) < self._keep:
            self._idle.append(pipe)
            return
        os.close(pipe[0])
        os.close(pipe[1])

    def close(self) -> None:
        """Close the idle pipes."""
        while self._idle:
            reading, writing, _ = self._idle.pop()
            os.close(reading)
            os.close(writing)


class Splice:
    """Moves bytes of one direction of a connection. Owns a pipe only while bytes are in it.

    *Backpressure:* nothing is taken from ``source`` while ``target`` does not take what is `held`.
    """

    __slots__ = ("_pipe", "_pipes", "_source", "ended", "held", "target")

    def __init__(self, source: Socket, target: Socket, pipes: Pipes) -> None:
        self._source = source
        self.target = target
        self._pipes = pipes
        self._pipe: tuple[int, int, int] | None = None
        self.held = 0
        """Bytes that ``target`` does not take now: `drain` waits for it."""
        self.ended = False
        """Whether ``source`` has ended."""

    def move(self, count: int) -> int | None:
        """Move up to ``count`` bytes without waiting; how many were taken from ``source``, `held` ones among them.

        ``None``: the system has no descriptors for a pipe now, and the bytes have to be copied. Raises the faults of
        both sides.
        """
        try:
            pipe = self._pipes.take()
        except OSError:
            return None
        moved = 0
        self._pipe = pipe
        most = min(count, STEP_BYTES)
        while moved < most and not self.held:
            taken = self._take(pipe[1], min(most - moved, pipe[2]))
            if not taken:
                break
            moved += taken
            self.held = taken
            self._give(pipe[0])
        if not self.held:
            self._put_away()
        return moved

    async def drain(self) -> None:
        """Wait until ``target`` has taken what is held."""
        while self.held and self._pipe is not None:
            await self.target.writable()
            self._give(self._pipe[0])
        self._put_away()

    def close(self) -> None:
        """The connection is over; what is held is lost with it."""
        self._put_away()

    def _put_away(self) -> None:
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, empty=self.held == 0)
            self._pipe = None

    def _take(self, writing: int, count: int) -> int:
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

    def _give(self, reading: int) -> None:
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
        except OSError:  # over pipe-max-size or over the user's share of pages
            size //= 2
    return 65536
