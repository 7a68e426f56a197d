"""The performance targets as data, and whether a run meets them. Pure."""

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
from benchmarks.bench.paths import (
    DIRECT,
    HAPROXY,
    HAPROXY_TLS,
    HEADRACE,
    HEADRACE_2_WORKERS,
    HEADRACE_AUTHORIZATION,
    HEADRACE_COMPILED,
    HEADRACE_COMPILED_TLS,
    HEADRACE_QUOTAS,
    HEADRACE_TLS,
    HEADRACE_TRACING,
    KROXYLICIOUS,
    TLS_SIDES,
)
from benchmarks.bench.workloads import BUSY, FETCH, IDLE, LATENCY, PRODUCE, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

PURE, COMPILED = HEADRACE_QUOTAS, HEADRACE_COMPILED
OURS: Final = frozenset(
    {
        DIRECT,
        HEADRACE,
        HEADRACE_2_WORKERS,
        HEADRACE_AUTHORIZATION,
        HEADRACE_COMPILED,
        HEADRACE_QUOTAS,
        HEADRACE_TRACING,
    }
)
"""The paths that are not other proxies."""
TLS_LIMITS: Final = {
    PRODUCE: ("TLS: CPU, 64 KiB batches in", 1.5),
    FETCH: ("TLS: CPU, large batches out", 1.5),
    SMALL: ("TLS: CPU, one record a request", 2.5),
}
"""Maximum CPU time with TLS on both sides, as a multiple of HAProxy's with the same cipher."""
ONE_RECORD: Final = {PURE: 1.5, COMPILED: 1.0}
"""Maximum CPU time for requests of one record, as a multiple of Kroxylicious'."""
WORKERS_MORE: Final = 1.1
LEAST_WORKER_SHARE: Final = 0.4
"""Minimum CPU share of the less busy of two workers. With 1,000 connections that are distributed by a hash, one worker
has fewer than 450 in one of a thousand runs."""
RESIDENT_BASE_BYTES: Final = 40 * 2**20
RESIDENT_CONNECTION_BYTES: Final = 12 * 2**10


class Verdict(enum.Enum):
    """Whether a target is met."""

    MET = "met"
    MISSED = "**missed**"
    UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One target of one path, and what the run measured."""

    path: str
    what: str
    target: str
    measured: Spread | None
    against: str
    """The path of the comparison, if there are several."""
    unit: str
    verdict: Verdict


def evaluate(results: Results) -> list[Outcome]:
    """Return an outcome for each target and each path that it applies to."""
    by_path = [_of_one_path(results, path) for path in (PURE, COMPILED)]
    both = [each for of_one_target in zip(*by_path, strict=True) for each in of_one_target]
    return both + _of_two_workers(results) + _with_tls(results)


def _of_one_path(results: Results, path: str) -> list[Outcome]:
    return [
        _most_cpu(results, path, "CPU, 64 KiB batches in", PRODUCE, KROXYLICIOUS, 0.8),
        _most_cpu(results, path, "CPU, 64 KiB batches in", PRODUCE, HAPROXY, 1.5),
        _most_cpu(results, path, "CPU, large batches out", FETCH, KROXYLICIOUS, 0.25),
        _most_cpu(results, path, "CPU, large batches out", FETCH, HAPROXY, 0.5),
        _most_cpu(results, path, "CPU, one record a request", SMALL, KROXYLICIOUS, ONE_RECORD[path]),
        *(
            outcome
            for work, title in ((PRODUCE, "throughput, large batches in"), (FETCH, "throughput, large batches out"))
            for outcome in (_throughput(results, path, title, work), _never_below_a_peer(results, path, title, work))
        ),
        _added(results, path, "added latency, p50", P50_MS, 0.2),
        _added(results, path, "added latency, p99", P99_MS, 1.0),
        _below_every_peer(results, path, "added latency, p50", P50_MS),
        _below_every_peer(results, path, "added latency, p99", P99_MS),
        _resident(results, path),
    ]


def _of_two_workers(results: Results) -> list[Outcome]:
    workloads = {
        PRODUCE: "CPU, 64 KiB batches in",
        FETCH: "CPU, large batches out",
        SMALL: "CPU, one record a request",
        BUSY: "CPU, 1,000 busy connections",
    }
    share = results.value(BUSY, HEADRACE_2_WORKERS, WORKER_SHARE)
    spread_over_both = Outcome(
        path=HEADRACE_2_WORKERS,
        what="2 workers: CPU share of the less busy one with 1,000 busy connections",
        target=f"≥ {LEAST_WORKER_SHARE:g}",
        measured=share,
        against="",
        unit="",
        verdict=_verdict(share, lambda middle: middle >= LEAST_WORKER_SHARE),
    )
    compared = [
        _most_cpu(results, HEADRACE_2_WORKERS, f"2 workers: {what}", work, PURE, WORKERS_MORE)
        for work, what in workloads.items()
    ]
    return [*compared, spread_over_both]


def _with_tls(results: Results) -> list[Outcome]:
    return [
        _most_cpu(results, path, what, work, HAPROXY_TLS, limit)
        for work, (what, limit) in TLS_LIMITS.items()
        for path in (HEADRACE_TLS, HEADRACE_COMPILED_TLS)
    ]


def peers(results: Results, work: str) -> list[str]:
    """Return the paths through other proxies without TLS."""
    return [path for path in results.paths(work) if path not in OURS and path not in TLS_SIDES]


def _verdict(measured: Spread | None, holds: Callable[[float], bool]) -> Verdict:
    if measured is None:
        return Verdict.UNKNOWN
    return Verdict.MET if holds(measured.middle) else Verdict.MISSED


def _most_cpu(results: Results, path: str, what: str, work: str, base: str, limit: float) -> Outcome:
    measured = results.ratio(work, CPU_S, path, base)
    return Outcome(
        path=path,
        what=what,
        target=f"≤ {limit:g} x {base}",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle <= limit),
    )


def _throughput(results: Results, path: str, what: str, work: str) -> Outcome:
    measured = results.ratio(work, RATE, path, DIRECT)
    return Outcome(
        path=path,
        what=what,
        target="≥ 0.95 x direct",
        measured=measured,
        against="",
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 0.95),
    )


def _never_below_a_peer(results: Results, path: str, what: str, work: str) -> Outcome:
    ratios = {peer: results.ratio(work, RATE, path, peer) for peer in peers(results, work)}
    name, measured = _worst(ratios, lambda each: each.middle)
    return Outcome(
        path=path,
        what=what,
        target="≥ every peer",
        measured=measured,
        against=name,
        unit="x",
        verdict=_verdict(measured, lambda middle: middle >= 1.0),
    )


def _added(results: Results, path: str, what: str, figure: str, limit_ms: float) -> Outcome:
    measured = results.difference(LATENCY, figure, path, DIRECT)
    return Outcome(
        path=path,
        what=what,
        target=f"≤ {limit_ms:g} ms over direct",
        measured=measured,
        against="",
        unit="ms",
        verdict=_verdict(measured, lambda middle: middle <= limit_ms),
    )


def _below_every_peer(results: Results, path: str, what: str, figure: str) -> Outcome:
    more = {peer: results.difference(LATENCY, figure, path, peer) for peer in peers(results, LATENCY)}
    name, measured = _worst(more, lambda each: -each.middle)
    return Outcome(
        path=path,
        what=what,
        target="below every peer",
        measured=measured,
        against=name,
        unit="ms",
        verdict=_verdict(measured, lambda middle: middle < 0),
    )


def _worst(each: dict[str, Spread | None], goodness: Callable[[Spread], float]) -> tuple[str, Spread | None]:
    """Return the peer with the best result in comparison with Headrace."""
    known = [(name, measured) for name, measured in each.items() if measured is not None]
    return min(known, key=lambda one: goodness(one[1])) if known else ("", None)


def _resident(results: Results, path: str) -> Outcome:
    resident = results.value(IDLE, path, RESIDENT_BYTES)
    count = max((sample.values.get(CONNECTIONS, 0) for sample in results.samples if sample.work == IDLE), default=0)
    allowed = RESIDENT_BASE_BYTES + RESIDENT_CONNECTION_BYTES * count
    measured = None
    if resident is not None:
        measured = Spread(middle=resident.middle / 2**20, low=resident.low / 2**20, high=resident.high / 2**20)
    return Outcome(
        path=path,
        what=f"resident memory, {count:,.0f} idle connections" if count else "resident memory, idle connections",
        target=f"≤ {allowed / 2**20:.1f} MiB" if count else "≤ 40 MiB + 12 KiB each",
        measured=measured,
        against="",
        unit="MiB",
        verdict=_verdict(measured, lambda middle: middle <= allowed / 2**20),
    )
