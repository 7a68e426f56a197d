"""Turns of the computations of TLS handshakes, which go round the addresses of the clients.

Used by `headrace.proxy.network.tls.handshakes` for Kafka's clients, by `headrace.proxy.network.upstream` for brokers to
which these make the proxy connect, and by `headrace.proxy.admin.turns`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.long_work import FairLock
from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONGEST_PAUSE_S: Final = 0.25
"""Limit for a pause: a page of the admin server may also take long because it waits for a thread or a broker, which
does not occupy the event loop."""


class TurnsByAddress:
    """Turns of TLS handshakes. They go round the addresses, so that each waits for at most one turn of each other."""

    __slots__ = ("_lock", "_next_s", "_pause_factor")

    def __init__(self, pause_factor: float) -> None:
        self._pause_factor = pause_factor
        """A pause is this many times as long as the computation before it."""
        self._lock = FairLock()
        self._next_s = float("-inf")
        """Time at which the pause ends."""

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for the turn of the client's address; the turn lasts until the end of the block."""
        await self._lock.acquire(counted_address(client))
        try:
            await trio.sleep_until(self._next_s)
            began_s = trio.current_time()
            try:
                yield
            finally:
                self._next_s = end_of_pause(began_s, self._pause_factor)
        finally:
            self._lock.release()


def end_of_pause(began_s: float, factor: float) -> float:
    """Return the end of the pause after work that began at ``began_s`` and ends now; ``factor`` times as long."""
    now_s = trio.current_time()
    return now_s + min(LONGEST_PAUSE_S, factor * (now_s - began_s))
