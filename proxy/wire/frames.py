"""Splitting one direction of a connection into frames, without keeping what need not be kept.

`FrameScanner` looks at a window of bytes that its driver owns. At the boundary between two frames the driver reads a
head (`headrace.proxy.wire.heads`) and then says what becomes of the frame: `skip` it (hand its bytes on as they are) or
`collect` it (until it is there whole). In the middle of a frame, `advance` goes on with what was said. The scanner
never holds bytes of a skipped frame, and of a collected one it holds at most ``max_collected_bytes``.

    scanner.feed(buffer, end)
    while there is more:
        if scanner.mid_frame: frame = scanner.advance()       # a collected frame that is now whole, or None
        else: head = read_request_head(buffer, scanner.position, scanner.end, ...)
              scanner.skip(size) or scanner.collect(size)
    rest = scanner.tail()                                      # goes before the next bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.wire.errors import MalformedFrame
from headrace.proxy.wire.heads import LENGTH_BYTES

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

_NOTHING = memoryview(b"")


class FrameScanner:
    """Where one direction of a connection stands between its frames."""

    __slots__ = ("_collected", "_collecting", "buffer", "end", "left", "max_collected_bytes", "position")

    def __init__(self, max_collected_bytes: int) -> None:
        self.max_collected_bytes = max_collected_bytes
        self.buffer: Buffer = _NOTHING
        self.position = 0
        """Everything before it in the window has been dealt with."""
        self.end = 0
        self.left = 0
        """Bytes of the current frame that are yet to come; behind the window when ``position == end``."""
        self._collecting = False
        self._collected = bytearray()

    @property
    def mid_frame(self) -> bool:
        """Whether the next byte belongs to a frame that was skipped or collected, not to a head."""
        return self.left > 0

    @property
    def collecting(self) -> bool:
        """Whether a frame is being collected."""
        return self._collecting

    def feed(self, buffer: Buffer, end: int) -> None:
        """Look at ``buffer[0:end]`` next. What was left of the last window must stand at its front (see `tail`)."""
        self.buffer = buffer
        self.position = 0
        self.end = end

    def skip(self, size: int) -> None:
        """Hand the frame at ``position`` on as it is: ``size`` bytes and the length before them."""
        self._pass(LENGTH_BYTES + size)

    def pass_bytes(self, count: int) -> None:
        """Step over ``count`` bytes of the frame, in this window and beyond."""
        self._pass(count)

    def collect(self, size: int) -> bytes | None:
        """Take the frame at ``position`` out of the stream; return it (length included) when it is here whole."""
        whole = LENGTH_BYTES + size
        if whole > self.max_collected_bytes:
            raise MalformedFrame(
                f"a message of {whole} bytes that has to be read whole is longer than"
                f" limits.max_collected_bytes = {self.max_collected_bytes}"
            )
        begin = self.position
        if self.end - begin >= whole:
            self.position = begin + whole
            return bytes(self.buffer[begin : begin + whole])
        self._collecting = True
        self._collected = bytearray(self.buffer[begin : self.end])
        self.left = whole - (self.end - begin)
        self.position = self.end
        return None

    def advance(self) -> bytes | None:
        """Go on in the middle of a frame; return a collected frame that became whole by it."""
        if not self._collecting:
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
        self._collecting = False
        self._collected = bytearray()
        return frame

    def passed_outside(self, count: int) -> None:
        """``count`` bytes of a skipped frame went on without coming through the window (by splice)."""
        self.left -= count

    def tail(self) -> bytes:
        """The bytes behind ``position``: an unfinished head, or frames that have to wait."""
        return bytes(self.buffer[self.position : self.end])

    def _pass(self, count: int) -> None:
        here = min(count, self.end - self.position)
        self.position += here
        self.left = count - here
