"""The number of bytes that all connections hold in memory: messages that are being collected, requests
that were read and wait for the end of a mute, SASL tokens that wait for the broker's answer, parts of TLS records and
of headers of the PROXY protocol, and bytes that a peer does not accept.

Counted by sockets and relays. The server sets the limit (``limits.max_held_bytes``) and closes connections above it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


CALLS: Final = 64
"""While the limit stays exceeded, `HeldBytes.on_excess` is called again when the count has grown by one of this many
parts of it."""


class HeldBytes:
    """The count, its limit, and what to call above it."""

    __slots__ = ("_calls_above", "_limit", "count", "on_excess")

    def __init__(self) -> None:
        self.count = 0
        self._limit = self._calls_above = sys.maxsize
        self.on_excess: Callable[[], None] | None = None
        """Called when the limit is exceeded, and, while it stays exceeded, when the count has grown by a part of the
        limit (`CALLS`): it looks at all connections, and messages may come quickly."""

    @property
    def limit(self) -> int:
        """The count above which `on_excess` is called."""
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = self._calls_above = limit

    def add(self, count: int) -> None:
        """Count ``count`` more bytes, which may be negative."""
        self.count += count
        if self.count <= self._limit:
            self._calls_above = self._limit
        elif self.count > self._calls_above and self.on_excess is not None:
            self._calls_above = self.count + self._limit // CALLS
            self.on_excess()


class Holder(Protocol):
    """The interface of a relay for the code that frees the memory of connections."""

    held: bool
    """Whether what was read has to wait, so that nothing more is read."""

    @property
    def awaits_bytes(self) -> bool:
        """Whether the last bytes that were read end in the middle of a frame."""

    @property
    def left(self) -> int:
        """Number of bytes of the current frame that have not been scanned; 0 between two frames."""

    def drop_held(self) -> None:
        """Free the bytes that it holds."""


held: Final = HeldBytes()
