"""Splitting one direction of a connection into frames, with as little copying as possible.

`FrameScanner` scans a window of bytes that its caller owns. At the beginning of a frame the caller reads its head
(`headrace.proxy.wire.heads`) and then decides what to do with the frame: `skip` it (forward its bytes unchanged) or
`collect` it (copy it until it is complete). In the middle of a frame, `advance` continues with that decision. The
scanner keeps no bytes of a skipped frame, and at most the caller's limit of a collected one.

    scanner.feed(buffer, end)
    while there is more:
        if scanner.mid_frame: frame = scanner.advance()       # a collected frame that is now complete, or None
        else: head = read_request_head(buffer, scanner.position, scanner.end, ...)
              scanner.skip(size) or scanner.collect(size)
    rest = scanner.tail()                                      # the caller puts it before the next bytes

Called by the relays of `headrace.proxy.connection`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.heads import LENGTH_BYTES

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

_NOTHING = memoryview(b"")


class FrameScanner:
    """The position of one direction of a connection within its frames."""

    __slots__ = ("_collected", "buffer", "collecting", "end", "left", "position")

    def __init__(self) -> None:
        self.buffer: Buffer = _NOTHING
        self.position = 0
        """Index in the window of the first byte that has not been processed."""
        self.end = 0
        """Index in the window after its last byte."""
        self.left = 0
        """Number of bytes of the current frame that have not been processed."""
        self.collecting = False
        """Whether a frame is being collected."""
        self._collected = bytearray()

    @property
    def mid_frame(self) -> bool:
        """Whether the next byte belongs to a frame that is being skipped or collected, and not to a new frame."""
        return self.left > 0

    @property
    def collected_bytes(self) -> int:
        """Number of bytes of the frame that is being collected."""
        return len(self._collected)

    def feed(self, buffer: Buffer, end: int) -> None:
        """Continue with the window ``buffer[0:end]``, which must begin with the `tail` of the last window."""
        self.buffer = buffer
        self.position = 0
        self.end = end

    def skip(self, size: int) -> None:
        """Skip the frame at ``position``: ``size`` bytes, and the length field before them."""
        self._pass(LENGTH_BYTES + size)

    def pass_bytes(self, count: int) -> None:
        """Skip ``count`` bytes of the frame, which may extend beyond this window."""
        self._pass(count)

    def collect(self, size: int, max_bytes: int, setting: str) -> bytes | None:
        """Collect the frame at ``position``. Returns it, with its length field, if the window contains all of it.

        Raises `MalformedFrame` if it is longer than ``max_bytes``, the value of ``setting``.
        """
        whole = LENGTH_BYTES + size
        if whole > max_bytes:
            raise MalformedFrame(
                f"a message of {whole} bytes that has to be read whole is longer than {setting} = {max_bytes}"
            )
        begin = self.position
        if self.end - begin >= whole:
            self.position = begin + whole
            return bytes(self.buffer[begin : begin + whole])
        self.collecting = True
        self._collected = bytearray(self.buffer[begin : self.end])
        self.left = whole - (self.end - begin)
        self.position = self.end
        return None

    def advance(self) -> bytes | None:
        """Continue in the middle of a frame. Returns a collected frame when it has become complete."""
        if not self.collecting:
            left, self.left = self.left, 0
            self._pass(left)
            return None
        count = min(self.left, self.end - self.position)
        self._collected += self.buffer[self.position : self.position + count]
        self.position += count
        self.left -= count
        if self.left:
            return None
        frame = bytes(self._collected)
        self.collecting = False
        self._collected = bytearray()
        return frame

    def discard(self) -> None:
        """Free the bytes of a frame that is being collected, since it will not be completed."""
        self._collected = bytearray()

    def passed_outside(self, count: int) -> None:
        """Account for ``count`` bytes of a skipped frame that were forwarded by splice, outside the window."""
        self.left -= count

    def tail(self) -> bytes:
        """Return the bytes from ``position`` on: an incomplete head, or frames that cannot be processed yet."""
        return bytes(self.buffer[self.position : self.end])

    def _pass(self, count: int) -> None:
        here = min(count, self.end - self.position)
        self.position += here
        self.left = count - here
