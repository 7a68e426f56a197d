"""The metric ``throttle-time`` against Kafka's ``Avg`` over ``SampledStat``."""

from __future__ import annotations

import math
import random

import pytest

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.buckets.throttle_times import METRICS_WINDOW, ThrottleTimes
from tests.quota_callbacks.kafka_quotas import METRICS, java

WINDOWS = [METRICS_WINDOW, Window(samples=1, seconds=1), Window(samples=11, seconds=1)]


def test_the_average_of_what_was_not_0() -> None:
    times = ThrottleTimes()
    assert math.isnan(times.average(0))
    for throttle_ms in (100, 0, 300):
        times.record(throttle_ms, 0)
    assert times.average(0) == 200
    times.record(500, 59_999)
    assert times.average(59_999) == 300
    assert times.average(60_000) == 500, "0 is a window old"
    assert math.isnan(times.average(119_999))


def test_kafkas_default_window() -> None:
    """The window of a sensor without a configuration (``Metrics.config``)."""
    config = java(f"{METRICS}.MetricConfig")()
    assert (config.samples(), config.timeWindowMs()) == (METRICS_WINDOW.samples, METRICS_WINDOW.seconds * 1000)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_random_throttles(window: Window, seed: int) -> None:
    """Kafka's average is read only after a record, since reading it resets expired samples."""
    choose = random.Random(seed)  # noqa: S311 - a test's
    seconds = java("java.util.concurrent.TimeUnit").SECONDS
    config = java(f"{METRICS}.MetricConfig")().samples(window.samples).timeWindow(window.seconds, seconds)
    ours, kafkas, now_ms = ThrottleTimes(window), java(f"{METRICS}.stats.Avg")(), 0
    sample_ms = window.seconds * 1000
    gaps = (0, 1, sample_ms // 3, sample_ms - 1, sample_ms, sample_ms * window.samples, sample_ms * window.samples - 1)
    for _ in range(500):
        now_ms += choose.choice(gaps)
        throttle_ms = choose.randint(1, 10**6)
        ours.record(throttle_ms, now_ms)
        kafkas.record(config, float(throttle_ms), now_ms)
        assert ours.average(now_ms) == pytest.approx(float(kafkas.measure(config, now_ms)))
