"""The timeline of an entity whose quota is paced: all its connections' requests in one line, at the speed of the limit.

Kafka delays every connection by itself, so that many connections of one entity overshoot together. Here a request
reserves its place behind everything that was reserved before it, and is forwarded when its place comes: the generic
cell rate algorithm (ITU-T I.371) in its leaky-bucket form, kept as a debt in the quota's own unit so that a changed
limit applies to what is owed. What time has paid off already stays paid: what passed before a new limit was used is
counted at the old one. Pure: the caller brings time and limit.
"""

from __future__ import annotations

import math

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS


class Timeline:
    """What was reserved and not yet paid off. It is paid off at the limit, all the time."""

    __slots__ = ("_at_ms", "_debt", "_limit")

    def __init__(self) -> None:
        self._debt = 0.0
        self._at_ms = 0
        self._limit = 0.0
        """Of the last use."""

    def debt(self, limit: float, now_ms: int) -> float:
        """What is owed at ``now_ms``, in the quota's unit; never below 0."""
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms > 0:
            self._debt = max(0.0, self._debt - self._limit * elapsed_ms / 1000.0)
        self._at_ms, self._limit = now_ms, limit
        return self._debt

    def reserve(self, amount: float, limit: float, burst: float, now_ms: int) -> int:
        """Take a place for ``amount`` and return the milliseconds until it comes, rounded up.

        It comes when no more than ``burst`` of what was reserved before is still owed.
        """
        debt = self.debt(limit, now_ms)
        self._debt = debt + amount
        return _wait_ms(debt - burst, limit)

    def correct(self, difference: float, limit: float, now_ms: int) -> None:
        """A reservation turned out to be larger (or, below 0, smaller, or not wanted at all)."""
        self._debt = max(0.0, self.debt(limit, now_ms) + difference)

    def state(self, now_ms: int) -> list[float]:
        """What `restore` takes: the debt, how long ago it was counted, and the limit of then."""
        return [self._debt, now_ms - self._at_ms, self._limit]

    def restore(self, state: list[float], now_ms: int) -> None:
        """Go on where `state` was taken; ``now_ms`` is the present that its age counts back from."""
        self._debt, self._at_ms, self._limit = state[0], now_ms - int(state[1]), state[2]


def _wait_ms(excess: float, limit: float) -> int:
    if excess <= 0:
        return 0
    wait = excess / limit * 1000.0
    return MAX_THROTTLE_MS if wait >= MAX_THROTTLE_MS else math.ceil(wait)
