"""The built-in quotas and Apache Kafka 4.3.1's quota managers have the same outcomes for random traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from tests.quota_callbacks.buckets.random_traces import Alter, Event, RandomTrace, Sweep, Use, apply
from tests.quota_callbacks.kafka_quotas import VERSION, KafkaQuotas
from tests.quota_callbacks.our_quotas import Op, OurQuotas

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

QUICK_TRACES: Final = 16
TRACES: Final = 48
USES: Final = 1000
"""Compared charges of each trace, besides quota changes and sweeps."""

HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class Compared:
    """A trace up to the first mismatch."""

    events: list[Event] = field(default_factory=list)
    uses: int = 0
    throttled: int = 0
    refused: int = 0
    mismatch: str | None = None


def compare(trace: Iterable[Event], ours: OurQuotas, kafkas: KafkaQuotas, uses: int = USES) -> Compared:
    """Apply ``trace`` to both until they differ."""
    seen = Compared()
    for event in trace:
        seen.events.append(event)
        mine, theirs = apply(event, ours), apply(event, kafkas)
        if mine is None or theirs is None:
            continue
        seen.uses += 1
        seen.throttled += theirs.throttle_ms > 0
        seen.refused += not theirs.accepted
        if theirs.throttle_ms > 0 and isinstance(event, Use):
            kafkas.note_throttle(event.op, event.user, event.client_id, theirs.throttle_ms)
        if isinstance(trace, RandomTrace):
            trace.last_throttle_ms = mine.throttle_ms
        if mine != theirs:
            seen.mismatch = f"{describe(seen.events)}\nours {mine}, Kafka's {theirs}"
        if seen.mismatch or seen.uses == uses:
            break
    return seen


def describe(events: Sequence[Event]) -> str:
    """Return the events up to a mismatch, without those of other quota keys."""
    last = events[-1]
    assert isinstance(last, Use)
    return "\n".join(str(event) for event in events if getattr(event, "key", last.key) is last.key)


def metrics_that_differ(ours: OurQuotas, kafkas: KafkaQuotas, now_ms: int, names: frozenset[str]) -> list[str]:
    """Return descriptions of metrics that differ at the end of a trace."""
    different = []
    for bucket in ours.quotas:
        for name, value in bucket.measures(now_ms):
            if name not in names or (bucket.limit is None and name == "tokens"):
                continue  # without a limit, Kafka's tokens start at Long.MAX_VALUE
            theirs = kafkas.metric(bucket.key, name, dict(bucket.tags), now_ms)
            if value != pytest.approx(theirs, rel=1e-9, abs=1e-6, nan_ok=True):
                different.append(f"{bucket.key} {dict(bucket.tags)} {name}: {value}, Kafka's {theirs}")
    return different


@pytest.mark.parametrize("traces", [QUICK_TRACES, pytest.param(TRACES, marks=pytest.mark.exhaustive)])
def test_random_traces(capsys: pytest.CaptureFixture[str], traces: int) -> None:
    uses = mismatches = throttled = refused = 0
    shown: list[str] = []
    for seed in range(traces):
        trace = RandomTrace(seed)
        with KafkaQuotas(trace.window) as kafkas:
            seen = compare(trace, OurQuotas(trace.window), kafkas)
        uses, throttled, refused = uses + seen.uses, throttled + seen.throttled, refused + seen.refused
        if seen.mismatch:
            mismatches += 1
            shown.append(f"trace {seed} over {trace.window}:\n{seen.mismatch}")
    with capsys.disabled():
        print(  # noqa: T201 - the line with what was compared
            f"\ndifferential test against Kafka {VERSION}: {traces} traces, {uses} events ({throttled} throttled, "
            f"{refused} refused), {mismatches} mismatches"
        )
    assert not mismatches, min(shown, key=len)
    assert uses >= 400 * traces
    assert throttled > uses / 20, "a trace in which no request is throttled shows nothing"
    assert refused > 10 * traces


@pytest.mark.parametrize(
    "names",
    [
        ("byte-rate", "request-time", "tokens"),
        ("mutation-rate",),
        ("throttle-time",),
    ],
    ids=",".join,
)
def test_metrics_at_the_end_of_a_trace(names: tuple[str, ...]) -> None:
    different = []
    for seed in range(1000, 1008):
        trace = RandomTrace(seed)
        ours = OurQuotas(trace.window)
        with KafkaQuotas(trace.window) as kafkas:
            seen = compare(trace, ours, kafkas, uses=300)
            assert seen.mismatch is None, seen.mismatch
            different += metrics_that_differ(ours, kafkas, seen.events[-1].t_ms, frozenset(names))
    assert not different, "\n".join(different)


def test_a_refusal_does_not_keep_a_bucket_that_nothing_was_recorded_in() -> None:
    """Kafka's sensor expires an hour after its last record; a refusal is not recorded."""
    events: list[Event] = [
        Alter(0, QuotaKey.CONTROLLER_MUTATION_RATE, "u", None, 1),
        Use(0, Op.STRICT, "u", "c", 10_000),
        Use(HOUR_MS // 2, Op.STRICT, "u", "c", 1),
        Sweep(HOUR_MS + 1000),
        Use(HOUR_MS + 1000, Op.STRICT, "u", "c", 1),
    ]
    with KafkaQuotas(Window()) as kafkas:
        seen = compare(events, OurQuotas(Window()), kafkas)
    assert seen.refused == 1
    assert seen.mismatch is None, seen.mismatch


@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_window_is_found_and_reported(seed: int) -> None:
    """The comparison can fail: Headrace's window has one sample more than Kafka's here."""
    trace = RandomTrace(seed)
    wrong = Window(samples=trace.window.samples + 1, seconds=trace.window.seconds)
    with KafkaQuotas(trace.window) as kafkas:
        seen = compare(trace, OurQuotas(wrong), kafkas)
    assert seen.mismatch is not None
    *prefix, outcomes = seen.mismatch.splitlines()
    assert prefix[-1] == str(seen.events[-1])
    assert outcomes.startswith("ours Outcome(")
    with KafkaQuotas(trace.window) as kafkas:
        again = compare(seen.events, OurQuotas(wrong), kafkas)
    assert again.mismatch == seen.mismatch, "the prefix shows it by itself"
    with KafkaQuotas(trace.window) as kafkas:
        assert compare(seen.events, OurQuotas(trace.window), kafkas).mismatch is None
