"""The targets of issue 5 as data, and whether a run meets them. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.bench.figures import (
    CONNECTIONS,
    CPU_S,
    P50_MS,
    P99_MS,
    RATE,
    RESIDENT_BYTES,
    WORKER_SHARE,
    Results,
    Spread,
)
from benchmarks.bench.ways import (
    DIRECT,
    HAPROXY,
    HEADRACE,
    HEADRACE_2_WORKERS,
    HEADRACE_COMPILED,
    HEADRACE_QUOTAS,
    HEADRACE_TRACING,
    KROXYLICIOUS,
)
from benchmarks.bench.works import BUSY, FETCH, IDLE, LATENCY, PRODUCE, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

PURE, COMPILED = HEADRACE_QUOTAS, HEADRACE_COMPILED
OURS: Final = frozenset({DIRECT, HEADRACE, HEADRACE_2_WORKERS, HEADRACE_COMPILED, HEADRACE_QUOTAS, HEADRACE_TRACING})
"""The ways that are nobody else's."""
"""Both with all four quotas on."""
ONE_RECORD: Final = {PURE: 1.5, COMPILED: 1.0}
"""Of Kroxylicious' CPU."""
WORKERS_MORE: Final = 1.1
LEAST_WORKER_SHARE: Final = 0.4
"""Of 1,000 connections that are spread by a hash, one of two workers has fewer than 450 once in a thousand runs."""
RESIDENT_BASE_BYTES: Final = 40 * 2**20
RESIDENT_CONNECTION_BYTES: Final = 12 * 2**10


class Verdict(enum.Enum):
    """What a row of the targets says."""

    MET = "met"
    MISSED = "**missed**"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One target in one run, of one way."""

    way: str
    what: str
    target: str
    measured: Spread | None
    against: str
    """The way that it was compared with, where there are several."""
    unit: str
    verdict: Verdict


def judge(results: Results) -> list[Judgement]:
    """One judgement for each target and each way that it is for, in the issue's order."""
    by_way = [_of_one_way(results, way) for way in (PURE, COMPILED)]
    return [each for of_one_target in zip(*by_way, strict=True) for each in of_one_target] + _of_two_workers(results)


def _of_one_way(results: Results, way: str) -> list[Judgement]:
    return [
        _most_cpu(results, way, "CPU, 64 KiB batches in", PRODUCE, KROXYLICIOUS, 0.8),
        _most_cpu(results, way, "CPU, 64 KiB batches in", PRODUCE, HAPROXY, 1.5),
        _most_cpu(results, way, "CPU, large batches out", FETCH, KROXYLICIOUS, 0.25),
        _most_cpu(results, way, "CPU, large batches out", FETCH, HAPROXY, 0.5),
        _most_cpu(results, way, "CPU, one record a request", SMALL, KROXYLICIOUS, ONE_RECORD[way]),
        *(
            judgement
            for work, title in ((PRODUCE, "throughput, large batches in"), (FETCH, "throughput, large batches out"))
            for judgement in (_throughput(results, way, title, work), _never_below_a_peer(results, way, title, work))
        ),
        _added(results, way, "added latency, p50", P50_MS, 0.2),
        _added(results, way, "added latency, p99", P99_MS, 1.0),
        _below_every_peer(results, way, "added latency, p50", P50_MS),
        _below_every_peer(results, way, "added latency, p99", P99_MS),
        _resident(results, way),
    ]


def _of_two_workers(results: Results) -> list[Judgement]:
    works = {
        PRODUCE: "CPU, 64 KiB batches in",
        FETCH: "CPU, large batches out",
        SMALL: "CPU, one record a request",
        BUSY: "CPU, 1,000 busy connections",
    }
    share = results.value(BUSY, HEADRACE_2_WORKERS, WORKER_SHARE)
    spread_over_both = Judgement(
        way=HEADRACE_2_WORKERS,
        what="2 workers: of their CPU with 1,000 busy connections, the part of the one that did less",
        target=f"≥ {LEAST_WORKER_SHARE:g}",
        measured=share,
        against="",
        unit="",
        verdict=_verdict(share, lambda middle: middle >= LEAST_WORKER_SHARE),
    )
    compared = [
        _most_cpu(results, HEADRACE_2_WORKERS, f"2 workers: {what}", work, PURE, WORKERS_MORE)
        for work, what in works.items()
    ]
    return [*compared, spread_over_both]


def peers(results: Results, work: str) -> list[str]:
    """The ways of others."""
    return [way for way in results.ways(work) if way not in OURS]


def _verdict(measured: Spread | None, holds: Callable[[float], bool]) -> Verdict:
    if measured is None:
        return Verdict.UNKNOWN
    return Verdict.MET if holds(measured.middle) else Verdict.MISSED


def _most_cpu(results: Results, way: str, what: str, work: str, base: str, limit: float) -> Judgement:
    measured = results.ratio(work, CPU_S, way, base)
    return Judgement(
        way=way,
        what=what,
        target=f"≤ {limit:g} x {base}",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle <= limit),
    )


def _throughput(results: Results, way: str, what: str, work: str) -> Judgement:
    measured = results.ratio(work, RATE, way, DIRECT)
    return Judgement(
        way=way,
        what=what,
        target="≥ 0.95 x direct",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 0.95),
    )


def _never_below_a_peer(results: Results, way: str, what: str, work: str) -> Judgement:
    ratios = {peer: results.ratio(work, RATE, way, peer) for peer in peers(results, work)}
    name, measured = _worst(ratios, lambda each: each.middle)
    return Judgement(
        way=way,
        what=what,
        target="≥ every peer",
        measured=measured,
        against=name,
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 1.0),
    )


def _added(results: Results, way: str, what: str, figure: str, limit_ms: float) -> Judgement:
    measured = results.difference(LATENCY, figure, way, DIRECT)
    return Judgement(
        way=way,
        what=what,
        target=f"≤ {limit_ms:g} ms over direct",
        measured=measured,
        against="",
        unit="ms",
        verdict=_verdict(measured, lambda middle: middle <= limit_ms),
    )


def _below_every_peer(results: Results, way: str, what: str, figure: str) -> Judgement:
    more = {peer: results.difference(LATENCY, figure, way, peer) for peer in peers(results, LATENCY)}
    name, measured = _worst(more, lambda each: -each.middle)
    return Judgement(
        way=way,
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


def _resident(results: Results, way: str) -> Judgement:
    resident = results.value(IDLE, way, RESIDENT_BYTES)
    count = max((sample.values.get(CONNECTIONS, 0) for sample in results.samples if sample.work == IDLE), default=0)
    allowed = RESIDENT_BASE_BYTES + RESIDENT_CONNECTION_BYTES * count
    measured = None
    if resident is not None:
        measured = Spread(middle=resident.middle / 2**20, low=resident.low / 2**20, high=resident.high / 2**20)
    return Judgement(
        way=way,
        what=f"resident memory, {count:,.0f} idle connections" if count else "resident memory, idle connections",
        target=f"≤ {allowed / 2**20:.1f} MiB" if count else "≤ 40 MiB + 12 KiB each",
        measured=measured,
        against="",
        unit="MiB",
        verdict=_verdict(measured, lambda middle: middle <= allowed / 2**20),
    )
