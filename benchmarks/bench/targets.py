"""The targets of issue 5 as data, and whether a run meets them. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.bench.figures import CONNECTIONS, CPU_S, P50_MS, P99_MS, RATE, RESIDENT_BYTES, Results, Spread
from benchmarks.bench.ways import DIRECT, HAPROXY, HEADRACE_QUOTAS, KROXYLICIOUS
from benchmarks.bench.works import FETCH, IDLE, LATENCY, PRODUCE, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

SUBJECT: Final = HEADRACE_QUOTAS
"""All four quotas on."""
RESIDENT_BASE_BYTES: Final = 40 * 2**20
RESIDENT_CONNECTION_BYTES: Final = 12 * 2**10


class Verdict(enum.Enum):
    """What a row of the targets says."""

    MET = "met"
    MISSED = "**missed**"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One target in one run."""

    what: str
    target: str
    measured: Spread | None
    against: str
    """The way that it was compared with, where there are several."""
    unit: str
    verdict: Verdict


def judge(results: Results) -> list[Judgement]:
    """One judgement for each target, in the issue's order."""
    return [
        _most(results, "CPU, 64 KiB batches in", PRODUCE, KROXYLICIOUS, 0.8),
        _most(results, "CPU, 64 KiB batches in", PRODUCE, HAPROXY, 1.5),
        _most(results, "CPU, large batches out", FETCH, KROXYLICIOUS, 0.25),
        _most(results, "CPU, large batches out", FETCH, HAPROXY, 0.5),
        _most(results, "CPU, one record a request, pure Python", SMALL, KROXYLICIOUS, 1.5),
        _most(results, "CPU, one record a request, compiled", SMALL, KROXYLICIOUS, 1.0),
        *(
            judgement
            for work, title in ((PRODUCE, "throughput, large batches in"), (FETCH, "throughput, large batches out"))
            for judgement in (_throughput(results, title, work), _never_below_a_peer(results, title, work))
        ),
        _added(results, "added latency, p50", P50_MS, 0.2),
        _added(results, "added latency, p99", P99_MS, 1.0),
        _below_every_peer(results, "added latency, p50", P50_MS),
        _below_every_peer(results, "added latency, p99", P99_MS),
        _resident(results),
    ]


def peers(results: Results, work: str) -> list[str]:
    """The ways of others."""
    ours = (DIRECT, "headrace")
    return [way for way in results.ways(work) if not way.startswith(ours)]


def _verdict(measured: Spread | None, holds: Callable[[float], bool]) -> Verdict:
    if measured is None:
        return Verdict.UNKNOWN
    return Verdict.MET if holds(measured.middle) else Verdict.MISSED


def _most(results: Results, what: str, work: str, base: str, limit: float) -> Judgement:
    measured = results.ratio(work, CPU_S, SUBJECT, base)
    return Judgement(
        what=what,
        target=f"≤ {limit:g} x {base}",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle <= limit),
    )


def _throughput(results: Results, what: str, work: str) -> Judgement:
    measured = results.ratio(work, RATE, SUBJECT, DIRECT)
    return Judgement(
        what=what,
        target="≥ 0.95 x direct",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 0.95),
    )


def _never_below_a_peer(results: Results, what: str, work: str) -> Judgement:
    ratios = {peer: results.ratio(work, RATE, SUBJECT, peer) for peer in peers(results, work)}
    name, measured = _worst(ratios, lambda each: each.middle)
    return Judgement(
        what=what,
        target="≥ every peer",
        measured=measured,
        against=name,
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 1.0),
    )


def _added(results: Results, what: str, figure: str, limit_ms: float) -> Judgement:
    measured = results.difference(LATENCY, figure, SUBJECT, DIRECT)
    return Judgement(
        what=what,
        target=f"≤ {limit_ms:g} ms over direct",
        measured=measured,
        against="",
        unit="ms",
        verdict=_verdict(measured, lambda middle: middle <= limit_ms),
    )


def _below_every_peer(results: Results, what: str, figure: str) -> Judgement:
    more = {peer: results.difference(LATENCY, figure, SUBJECT, peer) for peer in peers(results, LATENCY)}
    name, measured = _worst(more, lambda each: -each.middle)
    return Judgement(
        what=what,
        target="below every peer",
        measured=measured,
        against=name,
        unit="ms",
        verdict=_verdict(measured, lambda middle: middle < 0),
    )


def _worst(each: dict[str, Spread | None], goodness: Callable[[Spread], float]) -> tuple[str, Spread | None]:
    """The peer that comes out best against us."""
    known = [(name, measured) for name, measured in each.items() if measured is not None]
    return min(known, key=lambda one: goodness(one[1])) if known else ("", None)


def _resident(results: Results) -> Judgement:
    resident = results.value(IDLE, SUBJECT, RESIDENT_BYTES)
    count = results.value(IDLE, SUBJECT, CONNECTIONS)
    allowed = RESIDENT_BASE_BYTES + RESIDENT_CONNECTION_BYTES * (count.middle if count else 0)
    measured = None
    if resident is not None:
        measured = Spread(middle=resident.middle / 2**20, low=resident.low / 2**20, high=resident.high / 2**20)
    return Judgement(
        what=f"resident memory, {count.middle:,.0f} idle connections" if count else "resident memory, idle connections",
        target=f"≤ {allowed / 2**20:.1f} MiB" if count else "≤ 40 MiB + 12 KiB each",
        measured=measured,
        against="",
        unit="MiB",
        verdict=_verdict(measured, lambda middle: middle <= allowed / 2**20),
    )
