"""What the two relays of a connection have in common: reading into the process's one buffer, and splicing.

A relay reads, scans and hands on in one synchronous step, so that the buffer is free again when the step ends. What
has to wait is kept as `tail` and put in front of the next bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.network.sockets import READ_BYTES
from headrace.proxy.network.splicing import Splice
from headrace.proxy.wire.frames import FrameScanner

if TYPE_CHECKING:
    from headrace.proxy.connection.state import ConnectionState
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.wire.walks.body import BodyWalk

SPLICE_FROM_BYTES: Final = 32 * 1024
"""What is left of a frame is spliced from here on; below, a copy costs less than the two more system calls."""

HEAD_BYTES: Final = 4096
"""What is read behind a frame, or records of one, so large that all but a head could have been spliced: the next ones
will be like it."""

READS_A_STEP: Final = 4
"""Reads before others have their turn, so that one fast client does not starve them."""


class Relay:
    """One direction of a connection."""

    __slots__ = ("now_s", "parts", "read_bytes", "scanner", "shared", "splice", "state", "tail", "walk")

    def __init__(self, state: ConnectionState) -> None:
        self.state = state
        self.shared = state.shared
        self.scanner = FrameScanner(state.limits.max_collected_bytes)
        self.read_bytes = READ_BYTES
        """What the next read takes at most."""
        self.tail = b""
        """What was read and could not be handed on."""
        self.parts: list[memoryview | bytes] = []
        """What goes out with the next write."""
        self.now_s = 0.0
        """When the step began; asking the clock for each frame would be a tenth of its cost."""
        self.walk: BodyWalk | None = None
        """The walk through the body that is passing, where its heads have to be read."""
        self.splice: Splice | None = None

    def put_tail_back(self) -> int:
        """Copy the tail to the front of the buffer; return its length."""
        tail = self.tail
        kept = len(tail)
        if kept:
            self.shared.view[:kept] = tail
        return kept

    def receive(self, source: Socket, kept: int) -> int | None:
        """Read behind the ``kept`` bytes at the front of the buffer. Return where what was read ends, 0 at the end of
        the stream, or ``None`` when nothing is there now."""
        most = self.read_bytes
        if most != READ_BYTES:
            most += self.to_copy()
        count = source.receive_into(self.shared.view[kept : kept + most])
        return kept + count if count else count

    def to_splice(self) -> int:
        """How many of the bytes to come, of a large frame or of the records in it, need not enter user space."""
        walk, scanner = self.walk, self.scanner
        left = walk.skip_left if walk is not None else 0 if scanner.collecting else scanner.left
        return left if left >= SPLICE_FROM_BYTES and self.state.can_splice else 0

    def to_copy(self) -> int:
        """How many of the bytes to come belong to the same piece and are too few to be spliced."""
        left = self.scanner.left if self.walk is None else self.walk.skip_left
        return left if left < SPLICE_FROM_BYTES else 0

    def move(self, source: Socket, target: Socket) -> int | None:
        """Splice what has come of `to_splice`, and step over it: how many bytes, or ``None`` when they have to be
        copied."""
        splice = self.splice
        if splice is None or splice.target is not target:
            splice = self.splice = Splice(source, target, self.shared.pipes)
        moved = splice.move(self.to_splice())
        if moved is None:
            self.read_bytes = READ_BYTES
        elif moved:
            self.state.spliced(moved)
            if self.walk is None:
                self.scanner.passed_outside(moved)
            else:
                self.walk.passed_outside(moved)
        return moved

    def walk_on(self, walk: BodyWalk, at: int, end: int) -> None:
        """Walk through what has come of the body."""
        self.scanner.position = walk.walk(self.shared.view, at, end)
        if walk.longest >= SPLICE_FROM_BYTES and self.state.can_splice:
            self.read_bytes = HEAD_BYTES

    def keep_tail(self, end: int) -> None:
        """Keep what the step could not hand on."""
        self.tail = self.scanner.tail() if self.scanner.position < end else b""

    def close(self) -> None:
        """Give back what the relay holds."""
        if self.splice is not None:
            self.splice.close()
