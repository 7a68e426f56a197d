"""The threads that compute the keys of passwords. The addresses of clients take turns in using them.

One `LoginThreads` is used by `headrace.proxy.connection.opening.sasl_termination`. Without turns, clients at one
address that do not know any password could delay the logins of all others, since the computation of each takes
milliseconds. What waits is bounded by the number of connections: each waits for one computation.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar, cast

import trio

from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

LOGIN_THREADS: Final = 2
"""Computations at a time. Others wait, so that logins leave time for requests."""


class LoginThreads:
    """The threads of computations, at most ``most`` at a time."""

    __slots__ = ("_running", "_waiting", "most")

    def __init__(self, most: int = LOGIN_THREADS) -> None:
        self.most = most
        self._running = 0
        self._waiting: OrderedDict[str, trio.lowlevel.ParkingLot] = OrderedDict()
        """The logins that wait, by address; the address whose turn is next comes first."""

    async def run(self, host: str, compute: Callable[[bytes], Result], token: bytes) -> Result:
        """Return ``compute(token)`` for a client at ``host``. Raises what it raises.

        *Cancellation:* leaves the queue; a computation that has begun continues, and keeps its place until it ends.
        """
        # trio takes any object with these two methods, and releases the place when the thread has ended.
        limiter = cast("trio.CapacityLimiter", _Place(self, counted_address(host)))
        return await trio.to_thread.run_sync(compute, token, abandon_on_cancel=True, limiter=limiter)

    async def acquire(self, address: str) -> None:
        """Wait for a place."""
        if self._running < self.most:
            self._running += 1
            return
        await self._waiting.setdefault(address, trio.lowlevel.ParkingLot()).park()

    def release(self) -> None:
        """Give the place to the next address, or free it."""
        while self._waiting:
            address, lot = self._waiting.popitem(last=False)
            woken = lot.unpark()
            if len(lot):
                self._waiting[address] = lot
            if woken:  # otherwise all that waited were cancelled
                return
        self._running -= 1


class _Place:
    """One place in the threads, for a client at ``address``: the part of `trio.CapacityLimiter` that threads use."""

    __slots__ = ("_address", "_threads")

    def __init__(self, threads: LoginThreads, address: str) -> None:
        self._threads = threads
        self._address = address

    async def acquire_on_behalf_of(self, _borrower: object) -> None:
        await self._threads.acquire(self._address)

    def release_on_behalf_of(self, _borrower: object) -> None:
        self._threads.release()
