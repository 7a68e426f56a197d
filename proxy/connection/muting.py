"""Muting a client's channel, as KIP-219 has it: its replies go out at once, its socket is not read until a deadline.

Deadlines never regress: the mute ends at the latest of all that were set. Time is the loop's clock, in seconds.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from headrace.proxy.network.sockets import Channel

HANG_UP_CHECK_S: Final = 1.0
"""How often a muted client is asked whether it is still there; a FIN behind unread bytes wakes nobody."""

_EXACT_MS: Final = 0.0005
"""A float second is not exact to the millisecond: 0.21 s are 210 ms, not 211."""


class Mute:
    """Until when a client is not read."""

    __slots__ = ("entity", "quota", "until_s")

    def __init__(self) -> None:
        self.until_s = -math.inf
        self.quota: str | None = None
        """The quota that it lasts for; ``None`` for the broker's own throttle."""
        self.entity = ""
        """The entity whose quota it is; "" for the broker's own throttle, or where a plugin gave no reason."""

    def extend(self, now_s: float, throttle_ms: int, quota: str | None = None, entity: str = "") -> None:
        """Mute for ``throttle_ms`` from now, unless it lasts longer already."""
        self.extend_to(now_s + throttle_ms / 1000, quota, entity)

    def extend_to(self, until_s: float, quota: str | None = None, entity: str = "") -> None:
        """Mute until then, unless it lasts longer already."""
        if until_s > self.until_s:
            self.until_s = until_s
            self.quota = quota
            self.entity = entity

    def release(self) -> None:
        """End it now; whoever sits it out notices within `HANG_UP_CHECK_S`."""
        self.until_s = -math.inf

    def remaining_ms(self, now_s: float) -> int:
        """What is left of it in whole milliseconds, rounded up; 0 when it is over."""
        left_s = self.until_s - now_s
        return math.ceil(left_s * 1000 - _EXACT_MS) if left_s > 0 else 0

    async def sit_out(self, client: Channel) -> bool:
        """Wait until the mute is over; ``False`` as soon as the client is found to be gone."""
        while not client.hung_up():
            now_s = trio.current_time()
            if now_s >= self.until_s:
                return True
            await trio.sleep_until(min(self.until_s, now_s + HANG_UP_CHECK_S))
        return False
