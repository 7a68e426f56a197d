"""Muting a client's channel (KIP-219): replies are sent at once, and the socket is not read until a deadline.

The mute ends at the latest of all deadlines that were set. Times are seconds of the event loop's clock. Used by the
connection's state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from headrace.proxy.network.sockets import Socket

HANG_UP_CHECK_S: Final = 1.0
"""Interval of checks whether a muted client has closed: a FIN behind unread bytes causes no event."""

_EXACT_MS: Final = 0.0005
"""Tolerance for rounding errors of seconds as floats: 0.21 s are 210 ms, not 211."""


class Mute:
    """The time until which a client is not read."""

    __slots__ = ("entity", "quota", "until_s")

    def __init__(self) -> None:
        self.until_s = -math.inf
        self.quota: str | None = None
        """The quota that set the deadline; ``None`` for the broker's own throttle."""
        self.entity = ""
        """The entity that has the quota; "" for the broker's own throttle, and if the plugin gave no reason."""

    def extend(self, now_s: float, throttle_ms: int, quota: str | None = None, entity: str = "") -> None:
        """Mute for ``throttle_ms`` from now, unless the mute ends later already."""
        self.extend_to(now_s + throttle_ms / 1000, quota, entity)

    def extend_to(self, until_s: float, quota: str | None = None, entity: str = "") -> None:
        """Mute until ``until_s``, unless the mute ends later already."""
        if until_s > self.until_s:
            self.until_s = until_s
            self.quota = quota
            self.entity = entity

    def release(self) -> None:
        """End the mute now; `wait_until_over` returns within `HANG_UP_CHECK_S`."""
        self.until_s = -math.inf

    def remaining_ms(self, now_s: float) -> int:
        """Return the remaining time in whole milliseconds, rounded up; 0 if the mute is over."""
        left_s = self.until_s - now_s
        return math.ceil(left_s * 1000 - _EXACT_MS) if left_s > 0 else 0

    async def wait_until_over(self, client: Socket) -> bool:
        """Wait until the mute is over; return ``False`` as soon as the client is found to have closed."""
        while not client.hung_up():
            now_s = trio.current_time()
            if now_s >= self.until_s:
                return True
            await trio.sleep_until(min(self.until_s, now_s + HANG_UP_CHECK_S))
        return False
