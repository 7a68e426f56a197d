"""The interfaces between a connection and its native relay (`headrace.proxy.connection.native.relay`).

`NativeRelayState` is what a connection uses of its native relay; `ContinuedRelay` is what the native relay uses of the
Python relays.
"""

from __future__ import annotations

from typing import Protocol


class NativeRelayState(Protocol):
    """The native relay of one connection."""

    @property
    def is_active(self) -> bool:
        """Whether the connection is relayed natively now."""

    @property
    def in_flight(self) -> int:
        """Number of requests in flight in the data plane."""

    @property
    def bytes_moved(self) -> tuple[int, int, int, int, int]:
        """Bytes received from the client and sent to it, received from the broker and sent to it, natively; and how
        many of them were spliced."""

    @property
    def hints_hidden(self) -> int:
        """Number of replies in which hints to other leaders were hidden, natively."""

    def note_request(self) -> None:
        """Note that the control plane has read a request."""

    def try_to_begin(self, now_s: float) -> bool:
        """Give the connection to the data plane if that is possible; return whether it was."""

    def recall(self) -> None:
        """Let the connection return between the next two frames."""

    def check(self, now_s: float) -> None:
        """Check the timeouts of a connection that is relayed natively."""

    def take_back(self) -> None:
        """End the native relay at once."""


class ContinuedRelay(Protocol):
    """A relay that continues what was relayed natively."""

    @property
    def is_at_rest(self) -> bool:
        """Whether all that was read was sent."""

    def continue_with(self, tail: bytes, left: int) -> None:
        """Continue with what was read and not processed; ``left`` bytes of a frame that has begun are missing."""


class ContinuedRequests(ContinuedRelay, Protocol):
    """The relay of requests."""

    def take_tail(self) -> bytes:
        """Return what was read and not processed, and free it."""
