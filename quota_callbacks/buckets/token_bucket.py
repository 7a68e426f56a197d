"""Kafka's token bucket, which is refilled at a rate up to a burst and may be overdrawn.

Reproduces ``org.apache.kafka.common.metrics.stats.TokenBucket`` and the throttle time of
``ControllerMutationQuotaManager`` operation for operation, with one difference: Kafka's buckets start at time 0 of the
wall clock and so are full at the first use; here the first use fills them. Pure: time and rate are arguments. As in
Kafka, a changed quota applies to all time since the last use.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.sampled_rate import Window


class TokenBucket:
    """A number of tokens: at most ``burst_s`` seconds of the rate, below 0 while overdrawn."""

    __slots__ = ("_last_ms", "_tokens", "burst_s")

    def __init__(self, burst_s: float) -> None:
        self.burst_s = burst_s
        self._tokens: float | None = None
        self._last_ms = 0

    @classmethod
    def over(cls, window: Window) -> TokenBucket:
        """Return a bucket with a burst of the whole window: ``samples * seconds`` of the rate (KIP-599)."""
        return cls(window.samples * window.seconds)

    def tokens(self, rate: float, now_ms: int) -> float:
        """Refill for the time since the last use; return the number of tokens. ``rate`` is in tokens a second."""
        burst = self.burst_s * rate
        tokens = self._tokens
        tokens = burst if tokens is None else min(burst, tokens + rate * ((now_ms - self._last_ms) / 1000.0))
        self._tokens = tokens
        self._last_ms = now_ms
        return tokens

    def take(self, amount: float, rate: float, now_ms: int) -> float:
        """Refill and take ``amount`` tokens; return the rest. A negative amount adds tokens, up to the burst."""
        tokens = min(self.burst_s * rate, self.tokens(rate, now_ms) - amount)
        self._tokens = tokens
        return tokens

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Return the milliseconds until no tokens are owed: ``-tokens / rate``, rounded half up and clamped."""
        tokens = self.tokens(rate, now_ms)
        if tokens >= 0:
            return 0
        throttle = -tokens / rate * 1000.0
        return MAX_THROTTLE_MS if throttle >= MAX_THROTTLE_MS else math.floor(throttle + 0.5)

    def is_full(self, rate: float, now_ms: int) -> bool:
        """Return whether the bucket has its whole burst, as a new one."""
        return self.tokens(rate, now_ms) >= self.burst_s * rate

    def state(self, now_ms: int) -> list[float] | None:
        """Return the state for `restore`: the tokens and their age in milliseconds; ``None`` before the first use."""
        return None if self._tokens is None else [self._tokens, now_ms - self._last_ms]

    def restore(self, state: list[float] | None, now_ms: int) -> None:
        """Restore a `state`; its age counts back from ``now_ms``."""
        if state is not None:
            self._tokens, self._last_ms = float(state[0]), now_ms - int(state[1])
