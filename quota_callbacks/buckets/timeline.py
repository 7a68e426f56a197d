"""The timeline of an entity with a paced quota: the requests of all its connections, spaced according to the limit.

Kafka throttles every connection independently, so that the connections of one entity exceed its limit together. Here
a request reserves a time slot after all earlier reservations and is forwarded when the slot begins. This is the generic
cell rate algorithm (ITU-T I.371) in its leaky-bucket form. The state is a debt in the quota's unit, so that a changed
limit applies to the debt; time before the first use of the new limit counts with the old one. Used by `QuotaBucket`.
Pure: time and limit are arguments.
"""

from __future__ import annotations

import math
from typing import Final

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

LEAST_DELAY_MS: Final = 10
"""A request is not held again for less than this: `Timeline.delay_ms`."""


class Timeline:
    """The debt: the reserved amount minus the amount that the limit has allowed since."""

    __slots__ = ("_at_ms", "_debt", "_limit", "_settled")

    def __init__(self) -> None:
        self._debt = 0.0
        self._at_ms = 0
        self._limit = 0.0
        """The limit at the last use."""
        self._settled = 0.0

    def debt(self, limit: float, now_ms: int) -> float:
        """Return the debt at ``now_ms``, in the quota's unit; never below 0. ``limit`` is in units a second.

        A time before the last use counts as that time.
        """
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms > 0 or not self._limit:
            self._debt = max(0.0, self._debt - self._limit * elapsed_ms / 1000.0)
            self._at_ms = now_ms
        self._limit = limit
        return self._debt

    def reserve(self, amount: float, limit: float, burst: float, now_ms: int) -> int:
        """Reserve a slot for ``amount``; return the milliseconds until it begins, rounded up.

        The slot begins when the debt of earlier reservations has decreased to ``burst``.
        """
        debt = self.debt(limit, now_ms)
        self._debt = debt + amount
        return _wait_ms(debt - burst, limit)

    def correct(self, difference: float, limit: float, now_ms: int) -> None:
        """Add ``difference`` to the debt; a negative one reduces or cancels a reservation."""
        self._debt = max(0.0, self.debt(limit, now_ms) + difference)

    def settle(self, difference: float, limit: float, now_ms: int) -> None:
        """Add ``difference`` to the debt, as `correct` does, and to `settled`.

        It is what a forwarded request has cost beyond its reservation; negative if the request has cost less.
        """
        self.correct(difference, limit, now_ms)
        self._settled += difference

    def settled(self) -> float:
        """Return the sum of what requests cost beyond their reservations, of all time."""
        return self._settled

    def delay_ms(self, settled: float, limit: float, burst: float, now_ms: int) -> int:
        """Return by how many milliseconds the slot of a request has moved, rounded up; 0 if it has by very little.

        ``settled`` is the value of `settled` when its slot was reserved. The slot is delayed by what earlier requests
        cost beyond their reservations. Otherwise, an entity whose requests cost more than was reserved would exceed its
        limit for as long as requests are held.
        """
        excess = min(self._settled - settled, self.debt(limit, now_ms) - burst)
        delay_ms = _wait_ms(excess, limit)
        return delay_ms if delay_ms >= LEAST_DELAY_MS else 0

    def state(self, now_ms: int) -> list[float]:
        """Return the state for `restore`: the debt, its age in milliseconds, and the limit at the last use."""
        return [self._debt, now_ms - self._at_ms, self._limit]

    def restore(self, state: list[float], now_ms: int) -> None:
        """Restore a `state`; its age counts back from ``now_ms``. Changes nothing if it is not valid."""
        self._debt, self._at_ms, self._limit = float(state[0]), now_ms - int(state[1]), float(state[2])


def _wait_ms(excess: float, limit: float) -> int:
    if excess <= 0:
        return 0
    wait = excess / limit * 1000.0
    return MAX_THROTTLE_MS if wait >= MAX_THROTTLE_MS else math.ceil(wait)
