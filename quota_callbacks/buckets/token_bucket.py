"""Kafka's token bucket: a burst that refills at a rate, and may be overdrawn.

Reproduces ``org.apache.kafka.common.metrics.stats.TokenBucket`` and the throttle time of
``ControllerMutationQuotaManager`` operation for operation, with one difference: Kafka's buckets begin at time 0 of the
wall clock and so are full when first touched; here the first touch fills them. Pure: the caller brings time and rate,
so that a changed quota applies to all time since the last touch, as in Kafka.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.sampled_rate import Window


class TokenBucket:
    """At most ``burst_s`` seconds of its rate; below 0 while it is overdrawn. Costs two floats."""

    __slots__ = ("_last_ms", "_tokens", "burst_s")

    def __init__(self, burst_s: float) -> None:
        self.burst_s = burst_s
        self._tokens: float | None = None
        self._last_ms = 0

    @classmethod
    def over(cls, window: Window) -> TokenBucket:
        """Return one whose burst is the whole window: ``samples * seconds`` of the rate (KIP-599)."""
        return cls(window.samples * window.seconds)

    def tokens(self, rate: float, now_ms: int) -> float:
        """Refill for the time since the last touch, and return what is there. ``rate`` is in tokens a second."""
        burst = self.burst_s * rate
        tokens = self._tokens
        tokens = burst if tokens is None else min(burst, tokens + rate * ((now_ms - self._last_ms) / 1000.0))
        self._tokens = tokens
        self._last_ms = now_ms
        return tokens

    def take(self, amount: float, rate: float, now_ms: int) -> float:
        """Refill, take ``amount`` (negative gives back, up to the burst), and return what is left."""
        tokens = min(self.burst_s * rate, self.tokens(rate, now_ms) - amount)
        self._tokens = tokens
        return tokens

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Milliseconds until the bucket is no longer overdrawn: ``-tokens / rate``, rounded half up, clamped."""
        tokens = self.tokens(rate, now_ms)
        if tokens >= 0:
            return 0
        throttle = -tokens / rate * 1000.0
        return MAX_THROTTLE_MS if throttle >= MAX_THROTTLE_MS else math.floor(throttle + 0.5)

    def state(self, now_ms: int) -> list[float] | None:
        """What `restore` takes: the tokens and how long ago they were counted; ``None`` for one never touched."""
        return None if self._tokens is None else [self._tokens, now_ms - self._last_ms]

    def restore(self, state: list[float] | None, now_ms: int) -> None:
        """Go on where `state` was taken; ``now_ms`` is the present that its age counts back from."""
        if state is not None:
            self._tokens, self._last_ms = state[0], now_ms - int(state[1])
