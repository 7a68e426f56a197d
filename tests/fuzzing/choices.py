"""Decisions read from the bytes of a fuzzing input.

Every input is complete, since decisions after its end are all 0, and a change of one byte changes one decision. So a
fuzzer that mutates bytes mutates a message field by field. Decision 0 is always the simplest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Choices:
    """The decisions of one input."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that have not been read."""
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        """Return the next byte, 0 after the end."""
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def flag(self) -> bool:
        """Return whether the next byte is odd."""
        return bool(self.byte() & 1)

    def number(self) -> int:
        """Return an unsigned number of two bytes."""
        return self.byte() << 8 | self.byte()

    def pick(self, values: Sequence[T]) -> T:
        """Return one of at most 65,536 values; the first for decision 0."""
        return values[(self.byte() if len(values) <= 256 else self.number()) % len(values)]

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, fewer at the end."""
        at = self._at
        self._at = at + count
        return self._data[at : at + count]

    def rest(self) -> bytes:
        """Return all remaining bytes."""
        return self.take(self.left)

    def cuts(self) -> list[int]:
        """Return sizes of up to 15 pieces; a receiver gets the remaining bytes as one more piece."""
        return [1 + self.byte() for _ in range(self.byte() & 15)]


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the data in pieces of these sizes, the remaining bytes as the last piece."""
    found, at = [], 0
    for size in cuts:
        if at >= len(data):
            break
        found.append(data[at : at + size])
        at += size
    if at < len(data):
        found.append(data[at:])
    return found
