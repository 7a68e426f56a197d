"""Kafka's rate over a window of samples, and the throttle time after which the rate is back at its bound.

Reproduces ``org.apache.kafka.common.metrics.stats.Rate`` over ``SampledStat`` (windowed sum) and
``org.apache.kafka.server.quota.QuotaUtils.throttleTime`` operation for operation, so that results agree to the
millisecond. Pure: time is an argument, in milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The window of a quota: ``quota.window.num`` samples of ``quota.window.size.seconds`` each.

    Raises `ValueError` unless both are at least 1.
    """

    samples: int = 11
    seconds: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1 or self.seconds < 1:
            raise ValueError(f"a window needs at least 1 sample of at least 1 s, not {self.samples} x {self.seconds} s")


class SampledRate:
    """A rate in units a second over the last ``samples`` + 1 samples (``SampledStat`` keeps one more for the overlap).

    A record, not the clock, starts a sample. It covers ``[start, start + seconds)`` and is dropped when its last record
    is as old as the window.
    """

    __slots__ = ("_least_s", "_sample_ms", "_samples", "_total", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._sample_ms = window.seconds * 1000
        self._least_s = float((window.samples - 1) * window.seconds)
        """Seconds over which the rate is computed at least."""
        self._samples: list[float] = []
        """Start and last record (ms) and sum of each sample, oldest first; one flat list, to save memory."""
        self._total = 0.0

    def record(self, value: float, now_ms: int) -> None:
        """Add ``value`` at ``now_ms``. A negative one un-records a value that was recorded at the same time."""
        samples = self._samples
        if not samples or now_ms - samples[-3] >= self._sample_ms:
            self._drop_obsolete(now_ms)
            samples += (now_ms, now_ms, value)
            self._total = math.fsum(samples[2::3])
            return
        samples[-2] = now_ms
        samples[-1] += value
        self._total += value

    def take_back(self, value: float, recorded_ms: int) -> None:
        """Un-record ``value``, recorded at ``recorded_ms``, from its sample; do nothing if that has been dropped."""
        samples = self._samples
        for at in range(len(samples) - 3, -1, -3):
            if samples[at] <= recorded_ms:
                samples[at + 2] -= value
                self._total = math.fsum(samples[2::3])
                return

    def rate(self, now_ms: int) -> float:
        """Return the rate in units a second at ``now_ms``."""
        window_ms = self.window_ms(now_ms)
        return self._total / (window_ms / 1000.0)

    def window_ms(self, now_ms: int) -> int:
        """Return the milliseconds that the rate is computed over: at least ``samples`` - 1 full samples
        (``Rate.windowSize``)."""
        samples, count = self._samples, self._window.samples
        elapsed_ms = 0
        if samples:
            if now_ms - samples[1] >= count * self._sample_ms:
                self._drop_obsolete(now_ms)
                self._total = math.fsum(samples[2::3])
            if samples:
                elapsed_ms = now_ms - int(samples[0])
        missing = count - 1 - elapsed_ms // self._sample_ms
        if missing > 0:
            elapsed_ms += missing * self._sample_ms
        return max(elapsed_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int, *, longest_ms: int = MAX_THROTTLE_MS) -> int:
        """Return the milliseconds until the rate is back at ``bound``; 0 unless it is above.

        ``X = (O - T) / T * W``, rounded half up (``QuotaUtils.throttleTime``), at most ``longest_ms``.
        """
        # The usual case: the window is never shorter than this, and a longer one makes the rate lower.
        if self._total <= bound * self._least_s:
            return 0
        window_ms = self.window_ms(now_ms)
        rate = self._total / (window_ms / 1000.0)
        if rate <= bound:
            return 0
        throttle = (rate - bound) / bound * window_ms
        return longest_ms if throttle >= longest_ms else math.floor(throttle + 0.5)

    def room(self, bound: float) -> float:
        """Return how much can be recorded from now on without a rate above ``bound`` at any time; may be below 0."""
        return bound * self._least_s - self._total

    def state(self, now_ms: int) -> list[list[float]] | None:
        """Return the state for `restore`: for every sample its age and the age of its last record (both in
        milliseconds), and its sum; ``None`` without samples."""
        samples = self._samples
        if not samples or now_ms - samples[-2] >= self._window.samples * self._sample_ms:
            return None
        return [[now_ms - samples[at], now_ms - samples[at + 1], samples[at + 2]] for at in range(0, len(samples), 3)]

    def restore(self, state: list[list[float]] | None, now_ms: int) -> None:
        """Restore a `state`; its ages count back from ``now_ms``."""
        for start_age_ms, last_age_ms, total in state or ():
            self._samples += (now_ms - int(start_age_ms), now_ms - int(last_age_ms), float(total))
        self._total = math.fsum(self._samples[2::3])

    def _drop_obsolete(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._window.samples * self._sample_ms
        obsolete = 0
        for last in self._samples[1::3]:
            if last > oldest_ms:
                break
            obsolete += 3
        if obsolete:
            del self._samples[:obsolete]
