"""The base class of the two relays of a connection: reading into the shared buffer of the process, and splicing.

A relay reads, scans and forwards in one synchronous step, after which other connections use the buffer. Bytes that
cannot be forwarded yet are kept as `tail` and placed in front of the next ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.sockets import LARGE_READ_BYTES, READ_BYTES
from headrace.proxy.network.splicing import Splice
from headrace.proxy.wire.frames import FrameScanner

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.wire.walks.body import BodyWalk

SPLICE_FROM_BYTES: Final = 32 * 1024
"""The rest of a frame is spliced if it is at least this large. Copying less is cheaper than two more system calls."""

HEAD_BYTES: Final = 4096
"""The size of the read that follows a frame, or records, large enough to be spliced. The next frame is probably as
large, and then only its head has to be read."""

READS_A_STEP: Final = 4
"""Reads in one step, so that a fast client does not starve other connections."""

FRAMES_A_STEP: Final = 32
"""Requests or replies that are scanned in one step: about 1 ms of work. One read can contain thousands."""


class Relay:
    """One direction of a connection."""

    __slots__ = (
        "held",
        "held_here",
        "now_s",
        "parts",
        "read_bytes",
        "scanner",
        "shared",
        "splice",
        "state",
        "tail",
        "waiting_bytes",
        "walk",
        "yields",
    )

    def __init__(self, state: ConnectionState) -> None:
        self.state = state
        self.shared = state.shared
        self.scanner = FrameScanner()
        self.read_bytes = READ_BYTES
        """The most bytes of the next read."""
        self.tail: bytes | bytearray = b""
        """Bytes that were read and could not be forwarded yet."""
        self.held = False
        """Whether the tail may contain complete frames, so that it is scanned before the socket is read again."""
        self.yields = False
        """Whether the tail is held only so that other connections can continue."""
        self.waiting_bytes = 0
        """Number of bytes of complete messages that wait to be forwarded, besides the tail."""
        self.held_here = 0
        """Number of bytes of this relay that are counted in `held`."""
        self.parts: list[memoryview | bytes] = []
        """Bytes to send with the next write."""
        self.now_s = 0.0
        """The time at which the step began; reading the clock for each frame would add a tenth to its cost."""
        self.walk: BodyWalk | None = None
        """The walk through the body of the current frame, if parts of it have to be read."""
        self.splice: Splice | None = None
        state.holders.append(self)

    @property
    def awaits_bytes(self) -> bool:
        """Whether the last bytes that were read end in the middle of a frame."""
        return self.scanner.mid_frame or self.walk is not None or (not self.held and len(self.tail) > 0)

    @property
    def left(self) -> int:
        """Number of bytes of the current frame, the tail included, that have not been scanned; 0 between two frames."""
        return self.scanner.left if self.walk is None else self.walk.left

    def continue_with(self, tail: bytes, left: int) -> None:
        """Continue after a native relay with what it has read and not processed. ``left`` bytes of a frame that it has
        begun are missing; then a side has closed."""
        self.tail, self.held = tail, bool(tail) and not left
        self.scanner.left = left
        self.count_held()

    def put_tail_back(self) -> int:
        """Copy the tail to the front of the buffer; return its length."""
        tail = self.tail
        kept = len(tail)
        if kept:
            self.shared.view[:kept] = tail
        return kept

    def receive(self, source: Socket, kept: int) -> int | None:
        """Read once, behind the ``kept`` bytes at the front of the buffer. Return the end of the bytes in the buffer, 0
        at the end of the stream, or ``None`` if nothing can be read now."""
        most = self.read_bytes
        if most != READ_BYTES:
            most += self.to_copy()
        elif not source.can_splice and self.left >= LARGE_READ_BYTES and self.state.accepted:
            most = LARGE_READ_BYTES
        count = source.receive_into(self.shared.view[kept : kept + most])
        return kept + count if count else count

    def expect_rest(self, source: Socket) -> None:
        """After a read of everything: wait until ``source`` has the rest of the frame, or much of it.

        Records of TLS arrive one by one, and each would cost a step. Before the connection is accepted, everything is
        read at once, since the memory of the system is not counted.
        """
        if not source.can_splice and self.state.accepted:
            source.expect(self.left - len(self.tail))

    def to_splice(self) -> int:
        """Return how many of the next bytes, of a large frame or of its records, can be spliced."""
        walk, scanner = self.walk, self.scanner
        left = walk.skip_left if walk is not None else 0 if scanner.collecting else scanner.left
        return left if left >= SPLICE_FROM_BYTES and self.state.can_splice else 0

    def to_copy(self) -> int:
        """Return how many of the next bytes belong to the same frame or records and are too few to be spliced."""
        left = self.scanner.left if self.walk is None else self.walk.skip_left
        return left if left < SPLICE_FROM_BYTES else 0

    def move(self, source: Socket, target: Socket) -> int | None:
        """Splice those bytes of `to_splice` that have arrived, and skip them in the scanner or walk.

        Return their number, or ``None`` if they have to be copied.
        """
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

    def take(self, end: int) -> bool:
        """Scan what was read and send it; measure the thread time if a callback requires it. Return as `send_now`."""
        info = self.state.info
        began_ns = self.shared.thread_time.begin() if info.measure_thread_time else 0
        self.scan(end)
        sent = self.send_now()
        self.shared.grant_credits()
        if began_ns:
            info.thread_ns += self.shared.thread_time.end(began_ns)
        return sent

    def scan(self, end: int) -> None:
        """Find the frames in the first ``end`` bytes of the buffer, and add what is to be sent to `parts`."""
        raise NotImplementedError

    def send_now(self) -> bool:
        """Send `parts` as far as possible without waiting; return ``False`` if the relay's task must do the rest."""
        raise NotImplementedError

    def walk_on(self, walk: BodyWalk, at: int, end: int) -> None:
        """Walk through the part of the body that has arrived."""
        self.scanner.position = walk.walk(self.shared.view, at, end)
        if walk.longest >= SPLICE_FROM_BYTES and self.state.can_splice:
            self.read_bytes = HEAD_BYTES

    def keep_tail(self) -> None:
        """Keep the bytes that the step could not forward. Needed only if there are or were any (``held_here``)."""
        self.tail = self.scanner.tail()
        self.count_held()

    def count_held(self) -> None:
        """Count the bytes of the tail, of the message that is being collected, and of those that wait."""
        holds = len(self.tail) + self.scanner.collected_bytes + self.waiting_bytes
        change, self.held_here = holds - self.held_here, holds
        self.state.held_bytes += change
        held.add(change)

    def close(self) -> None:
        """Release the relay's resources. Memory is freed here, since the relay is part of reference cycles."""
        if self.splice is not None:
            self.splice.close()
        self.drop_held()

    def drop_held(self) -> None:
        """Free the bytes that the relay holds."""
        self.scanner.discard()
        self.tail, self.parts, self.walk, self.waiting_bytes = b"", [], None, 0
        self.count_held()
