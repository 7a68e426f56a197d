"""The base class of the walks through the bodies of Fetch responses and Produce requests.

A walk is called with windows of the body. It reads fields in small groups, and skips records: it reports how many bytes
follow that it does not have to see, so that they can be spliced. If a window ends within a group of fields, the walk
stops before the group. Its state is the method that reads the next group. Called by the relays of
`headrace.proxy.connection`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.proxy.wire.errors import MalformedFrame

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

UNBOUNDED: Final = sys.maxsize
"""The number of rows of a reply, since brokers are trusted not to stall their clients."""

SHORT: Final = -1
"""The result of a step if the window ends before the end of its group of fields."""

Step = Callable[["Buffer", int, int], int]
"""Reads a group of fields of ``buffer[at:end]``; returns the position after them, or `SHORT`."""


def too_many_rows(what: str, max_rows: int) -> MalformedFrame:
    """Return the error for a message with more than ``max_rows``."""
    return MalformedFrame(
        f"{what} has more than limits.max_request_rows = {max_rows} topics, partitions and other rows"
    )


class BodyWalk:
    """A walk through one body. Subclasses set the first step."""

    __slots__ = (
        "_after_tags",
        "_begin",
        "_left",
        "_max_rows",
        "_rows_left",
        "_step",
        "_tags",
        "longest",
        "pauses",
        "skip_left",
    )

    what: ClassVar[str]
    """The kind of message, for error messages."""

    most_steps: ClassVar[int] = UNBOUNDED
    """The most groups of fields that one call of `walk` reads."""

    def __init__(self, body_bytes: int, max_rows: int = UNBOUNDED) -> None:
        self._left = body_bytes
        self._max_rows = self._rows_left = max_rows
        self._begin = 0
        self._tags = 0
        self.skip_left = 0
        """Number of bytes that follow and are skipped: records, or fields that are not read."""
        self.longest = 0
        """Length in bytes of the longest contiguous records so far."""
        self.pauses = False
        """Whether the last call of `walk` has ended because of `most_steps`; the next one goes on at its position."""
        self._step: Step | None = None
        self._after_tags: Step | None = None

    @property
    def left(self) -> int:
        """Number of bytes of the body that have not been processed."""
        return self._left

    @property
    def done(self) -> bool:
        """Whether the whole body has been processed."""
        return self._step is None and self.skip_left == 0

    def walk(self, buffer: Buffer, position: int, end: int) -> int:
        """Continue in ``buffer[position:end]``; return the new position. All bytes before it can be forwarded.

        Bytes after the last field are skipped, since brokers and clients ignore them. Raises `MalformedFrame` if the
        fields extend beyond the body.
        """
        begin = self._begin = position
        end = min(end, position + self._left)
        whole = end - position == self._left
        self.pauses = False
        steps_left = self.most_steps
        while True:
            if self.skip_left:
                count = min(self.skip_left, end - position)
                self.skip_left -= count
                position += count
                if self.skip_left:
                    break
            step = self._step
            if step is None:
                self.skip_left = self._left - (position - begin)
                if self.skip_left:
                    continue
                break
            if not steps_left:  # here nothing is to be skipped, so that nothing is spliced before what was read
                self.pauses = position < end
                break
            steps_left -= 1
            after = step(buffer, position, end)
            if after == SHORT:
                break
            position = after
        self._left -= position - begin
        if whole and not self.done and not self.pauses:
            raise MalformedFrame(f"{self.what}'s fields reach beyond its frame")
        return position

    def walk_whole(self, body: Buffer) -> None:
        """Process a body that has arrived completely, without regard to `most_steps`."""
        position = 0
        while not self.done:
            position = self.walk(body, position, len(body))

    def passed_outside(self, count: int) -> None:
        """Account for ``count`` bytes of `skip_left` that were forwarded outside of a window."""
        self.skip_left -= count
        self._left -= count
        if self._step is None and self.skip_left == 0:
            self.skip_left = self._left

    def _count_rows(self, rows: int) -> None:
        """Count ``rows`` topics, partitions or tagged fields that follow, each of which takes a step."""
        self._rows_left -= rows
        if self._rows_left < 0:
            raise too_many_rows(self.what, self._max_rows)

    def _begin_tags(self, tags: int, after: Step | None) -> None:
        """Set the next steps: ``tags`` tagged fields to skip, and then ``after``."""
        self._step = after
        if tags:
            self._count_rows(tags)
            self._tags = tags
            self._after_tags = after
            self._step = self._read_tag

    def _read_tag(self, buffer: Buffer, at: int, end: int) -> int:
        _, at = self._uvarint(buffer, at, end)
        length, at = self._uvarint(buffer, at, end) if at != SHORT else (0, SHORT)
        if at == SHORT:
            return SHORT
        self._skip_tag(length, at, end)
        if not self._tags:
            self._step = self._after_tags
        return at

    def _skip_tag(self, length: int, at: int, end: int) -> None:
        self._tags -= 1
        self._check_reach(length, at, end)
        self.skip_left = length

    def _check_reach(self, length: int, at: int, end: int) -> None:
        """Raise `MalformedFrame` for a field of ``length`` bytes that is longer than the rest of the body."""
        if length > self._left - (at - self._begin):
            raise MalformedFrame(f"a field of {length} bytes in {self.what} reaches beyond it ({end - at} here)")

    def _uvarint(self, buffer: Buffer, at: int, end: int) -> tuple[int, int]:
        """Read an UNSIGNED_VARINT; return it and the position after it, or `SHORT` if the window ends before that."""
        if at < end and buffer[at] < 0x80:  # nearly all have one byte
            return buffer[at], at + 1
        value = shift = 0
        while at < end:
            byte = buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 28:
                raise MalformedFrame(f"a varint of more than 5 bytes in {self.what}")
        return 0, SHORT
