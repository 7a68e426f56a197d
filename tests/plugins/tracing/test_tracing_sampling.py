"""Which requests are kept. Nothing is exported here before the end: what was kept waits in the queue."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from headrace.plugins.tracing import Tracing
from tests.plugins.tracing.traced import OVER_PRODUCE, failed, refused, request, throttled

if TYPE_CHECKING:
    from headrace.plugins.tracing.records import TraceRecord
    from headrace.quota_callbacks.requests import Request
    from tests.otlp_receiver import OtlpReceiver
    from tests.plugins.conftest import StartTracing

LARGE = 100_000


@pytest.fixture(autouse=True)
def held_back(otlp_receiver: OtlpReceiver, otel_environment: pytest.MonkeyPatch) -> OtlpReceiver:
    otel_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    otel_environment.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", str(LARGE))
    return otlp_receiver


def kept(plugin: Tracing) -> list[TraceRecord]:
    """Taken out of the queue, so that closing need not export them."""
    return list(iter(plugin._queue.take, None))


@pytest.mark.parametrize(
    "notable",
    [
        throttled(),
        throttled(reason=None),
        refused(),
        refused(reason=None),
        failed(),
        failed(error=""),
        request(broker_throttle_ms=1),
        request(reason=OVER_PRODUCE),
    ],
    ids=["throttled", "unexplained", "refused", "refused bare", "failed", "failed bare", "by the broker", "observed"],
)
def test_a_ratio_of_0_keeps_what_is_notable(notable: Request, start_tracing: StartTracing) -> None:
    plugin = Tracing(seed=3)
    tracing = start_tracing(plugin, enabled=True, sample_ratio=0, queue_size=LARGE)
    tracing.complete(*[request()] * 50, notable, *[request()] * 50)
    (record,) = kept(plugin)
    assert (record.throttle_ms, record.refused_code, record.error) == (
        notable.throttle_ms,
        notable.refused_code,
        notable.error,
    )


def test_a_ratio_of_1_keeps_all(start_tracing: StartTracing) -> None:
    plugin = Tracing(seed=3)
    start_tracing(plugin, enabled=True, sample_ratio=1, queue_size=LARGE).complete(*[request()] * 500)
    assert len(kept(plugin)) == 500


@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.9])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_ratio_keeps_its_part(ratio: float, seed: int, start_tracing: StartTracing) -> None:
    """Within four standard deviations of the binomial distribution."""
    count = 2000
    plugin = Tracing()
    tracing = start_tracing(plugin, enabled=True, sample_ratio=ratio, queue_size=LARGE)
    tracing.hooks.completed.draw = Random(seed).random  # noqa: S311 -- the same sample each time
    tracing.complete(*[request()] * count)
    deviation = (count * ratio * (1 - ratio)) ** 0.5
    assert abs(len(kept(plugin)) - count * ratio) < 4 * deviation


def test_the_sdks_own_sampler_would_keep_the_same(start_tracing: StartTracing) -> None:
    """So that a collector that samples again by the trace id downstream, at a higher ratio, keeps all of them."""
    plugin = Tracing(seed=5)
    start_tracing(plugin, enabled=True, sample_ratio=0.2, queue_size=LARGE).complete(*[request()] * 1000)
    sampler = TraceIdRatioBased(0.2)
    records = kept(plugin)
    assert records
    assert all(sampler.should_sample(None, record.trace_id, "").decision.is_sampled() for record in records)


def test_trace_ids_are_128_bits_and_never_the_same(start_tracing: StartTracing) -> None:
    plugin = Tracing()
    start_tracing(plugin, enabled=True, sample_ratio=1, queue_size=LARGE).complete(*[request()] * 1000)
    ids = {record.trace_id for record in kept(plugin)}
    assert len(ids) == 1000
    assert max(ids).bit_length() > 118


def test_the_ratio_comes_from_the_environment(
    start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_TRACES_SAMPLER", "always_on")
    plugin = Tracing(seed=1)
    start_tracing(plugin, enabled=True).complete(*[request()] * 100)
    assert len(kept(plugin)) == 100
