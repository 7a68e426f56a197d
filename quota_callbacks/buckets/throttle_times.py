"""The metric ``throttle-time``: the average of the throttle times that were not 0, over the window.

Reproduces ``org.apache.kafka.common.metrics.stats.Avg`` over ``SampledStat``: NaN without records. The window is that
of Kafka's metrics, not that of the quota, since ``ClientQuotaManager`` does not configure the sensor.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from headrace.quota_callbacks.buckets.sampled_rate import Window

METRICS_WINDOW: Final = Window(samples=2, seconds=30)
"""The defaults of ``metrics.num.samples`` and ``metrics.sample.window.ms``, which Kafka uses for ``throttle-time``,
``mutation-rate`` and ``exempt-request-time``."""


class ThrottleTimes:
    """The throttle times of a bucket. Created when the bucket first throttles, to save memory."""

    __slots__ = ("_sample_ms", "_samples", "_window_ms")

    def __init__(self, window: Window = METRICS_WINDOW) -> None:
        self._sample_ms = window.seconds * 1000
        self._window_ms = window.samples * self._sample_ms
        self._samples: deque[list[float]] = deque(maxlen=window.samples + 1)  # start, last, sum, count

    def record(self, throttle_ms: int, now_ms: int) -> None:
        """Record a throttle time. 0 is ignored."""
        if throttle_ms == 0:
            return
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, now_ms, throttle_ms, 1])
            return
        newest = samples[-1]
        newest[1] = now_ms
        newest[2] += throttle_ms
        newest[3] += 1

    def average(self, now_ms: int) -> float:
        """Return the average in milliseconds; NaN without throttles in the window."""
        alive = [sample for sample in self._samples if now_ms - sample[1] < self._window_ms]
        count = sum(sample[3] for sample in alive)
        return sum(sample[2] for sample in alive) / count if count else math.nan
