"""Results of work in threads, which several connections share for some time.

After a broker was restarted, a thousand clients connect at once. Each connection needs the same password, which a
command may have to fetch, and the same keys, which take milliseconds to compute.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")
ErrorT = TypeVar("ErrorT", bound=Exception)


class _Entry(Generic[V]):
    """A result, once there is one, and the lock of those who need it."""

    __slots__ = ("error", "expires_s", "lock", "value")

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.value: V | None = None
        self.error: Exception | None = None
        self.expires_s = -math.inf
        """The time of trio's clock from which the work is done again."""


class SharedResults(Generic[K, V]):
    """At most ``most`` results by key; the one that was used the longest time ago is dropped first.

    A result is kept for ``kept_s``, and an exception of the class ``failure`` for ``failure_kept_s``. Work runs in at
    most ``threads`` threads; for one key in one of them. A caller that is cancelled abandons its thread, and the next
    one does the work again.
    """

    def __init__(
        self, *, most: int, kept_s: float, failure: type[Exception], failure_kept_s: float, threads: int
    ) -> None:
        self._most = most
        self._kept_s = kept_s
        self._failure = failure
        self._failure_kept_s = failure_kept_s
        self._threads = threads
        self._limiter: trio.CapacityLimiter | None = None
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    async def get(self, key: K, work: Callable[[], V]) -> V:
        """Return the result of ``work``, which is called in a thread if there is none for ``key``."""
        entry = self._entries.setdefault(key, _Entry())
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)  # those who wait for it keep it
        async with entry.lock:
            if trio.current_time() >= entry.expires_s:
                await self._work(entry, work)
        if entry.error is not None:
            raise self._again(entry.error)
        return entry.value  # type: ignore[return-value]  # without an error there is a value

    async def _work(self, entry: _Entry[V], work: Callable[[], V]) -> None:
        if self._limiter is None:  # made here, since there is no event loop when plugins are created
            self._limiter = trio.CapacityLimiter(self._threads)
        kept_s = self._kept_s
        try:
            entry.value, entry.error = None, None
            entry.value = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        except self._failure as error:
            entry.error, kept_s = error, self._failure_kept_s
        entry.expires_s = trio.current_time() + kept_s

    def _again(self, error: Exception) -> Exception:
        """Return an exception of its own for each caller, since raising adds a traceback."""
        return self._failure(str(error))
