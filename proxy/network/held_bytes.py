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


class HeldBytes:
    """The count, its limit, and what to call above it."""

    __slots__ = ("count", "limit", "on_excess")

    def __init__(self) -> None:
        self.count = 0
        self.limit = sys.maxsize
        self.on_excess: Callable[[], None] | None = None

    def add(self, count: int) -> None:
        """Count ``count`` more bytes, which may be negative."""
        self.count += count
        if self.count > self.limit and self.on_excess is not None:
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
