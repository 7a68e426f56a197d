"""Walking a body from head to head, with what lies between them left unread: what the walks of Fetch and Produce share.

A walk is fed windows; it stops before an atom (a fixed group of fields) that is not there whole, and says how many
bytes can go by unseen (by splice, if need be). State is the method that reads the next atom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.proxy.wire.errors import MalformedFrame

if TYPE_CHECKING:
    from headrace.proxy.wire.heads import Buffer

SHORT: Final = -1
"""What a step answers when the window ends before its atom."""

Step = Callable[["Buffer", int, int], int]
"""Reads an atom of ``buffer[at:end]``; answers where it ends, or `SHORT`."""


class BodyWalk:
    """The walk through one body. The first step is set by who derives from it."""

    __slots__ = ("_after_tags", "_begin", "_left", "_step", "_tags", "longest", "skip_left")

    what: ClassVar[str]
    """What is walked, for errors."""

    def __init__(self, body_bytes: int) -> None:
        self._left = body_bytes
        self._begin = 0
        self._tags = 0
        self.skip_left = 0
        """Bytes of records (or of fields nobody reads) that come next."""
        self.longest = 0
        """Of the records that lie together, the most bytes so far."""
        self._step: Step | None = None
        self._after_tags: Step | None = None

    @property
    def left(self) -> int:
        """How many bytes of the body have not gone by."""
        return self._left

    @property
    def done(self) -> bool:
        """Whether the body has been walked to its end."""
        return self._step is None and self.skip_left == 0

    def walk(self, buffer: Buffer, position: int, end: int) -> int:
        """Walk on in ``buffer[position:end]``; return where the walk stands. All before it can be sent.

        Bytes behind the last field pass unread, as brokers and clients ignore them. Raises `MalformedFrame` when the
        fields reach beyond the body.
        """
        begin = self._begin = position
        end = min(end, position + self._left)
        whole = end - position == self._left
        while True:
            if self.skip_left:
                count = min(self.skip_left, end - position)
                self.skip_left -= count
                position += count
                if self.skip_left:
                    break
            if self._step is None:
                self.skip_left = self._left - (position - begin)
                if self.skip_left:
                    continue
                break
            after = self._step(buffer, position, end)
            if after == SHORT:
                break
            position = after
        self._left -= position - begin
        if whole and not self.done:
            raise MalformedFrame(f"{self.what}'s fields reach beyond its frame")
        return position

    def passed_outside(self, count: int) -> None:
        """``count`` bytes of `skip_left` went by without coming through a window."""
        self.skip_left -= count
        self._left -= count
        if self._step is None and self.skip_left == 0:
            self.skip_left = self._left

    def _begin_tags(self, tags: int, after: Step | None) -> None:
        """``tags`` tagged fields come next, and then ``after``."""
        self._step = after
        if tags:
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
        """An UNSIGNED_VARINT and where it ends; `SHORT` for an end when the window ends first."""
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
