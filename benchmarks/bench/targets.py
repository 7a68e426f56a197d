"""The performance targets as data, and whether a run meets them. Pure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.bench.figures import (
    CONNECTION_BYTES,
    CONNECTIONS,
    CPU_S,
    P50_MS,
    P99_MS,
    RATE,
    RESIDENT_BYTES,
    THREAD_SHARE,
    Results,
    Spread,
)
from benchmarks.bench.paths import (
    DIRECT,
    HAPROXY,
    HAPROXY_TLS,
    HEADRACE,
    HEADRACE_AUTHORIZATION,
    HEADRACE_NATIVE,
    HEADRACE_NATIVE_2_THREADS,
    HEADRACE_NATIVE_OBSERVED,
    HEADRACE_NATIVE_TLS,
    HEADRACE_QUOTAS,
    HEADRACE_TLS,
    HEADRACE_TRACING,
    KROXYLICIOUS,
    NATIVE_PATHS,
    TLS_SIDES,
)
from benchmarks.bench.workloads import BUSY, FETCH, HANDSHAKE, IDLE, LATENCY, PRODUCE, RESUME, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

PURE = HEADRACE_QUOTAS
OURS: Final = frozenset(
    {
        DIRECT,
        HEADRACE,
        HEADRACE_AUTHORIZATION,
        HEADRACE_QUOTAS,
        HEADRACE_TRACING,
        *NATIVE_PATHS,
    }
)
"""The paths that are not other proxies."""
TLS_LIMITS: Final = {
    PRODUCE: ("TLS: CPU, 64 KiB batches in", 1.5),
    FETCH: ("TLS: CPU, large batches out", 1.5),
    SMALL: ("TLS: CPU, one record a request", 2.5),
}
"""Maximum CPU time with TLS on both sides, as a multiple of HAProxy's with the same cipher."""
CPU_OF: Final = {
    PRODUCE: "CPU, 64 KiB batches in",
    FETCH: "CPU, large batches out",
    SMALL: "CPU, one record a request",
    BUSY: "CPU, 1,000 busy connections",
}
CPU_OF_HANDSHAKES: Final = {HANDSHAKE: "CPU, full handshakes", RESUME: "CPU, resumed sessions"}
NATIVE_LIMITS: Final = {PRODUCE: 0.95, FETCH: 0.75, SMALL: 1.05}
"""Maximum CPU time of the native data plane, as a multiple of HAProxy's."""
NATIVE_TLS_LIMITS: Final = {PRODUCE: 1.15, FETCH: 1.15, SMALL: 1.3, HANDSHAKE: 1.3, RESUME: 1.3}
"""Maximum CPU time of the native data plane with TLS on both sides, as a multiple of HAProxy's."""
NATIVE_LATENCY: Final = {P50_MS: ("p50", 1.2), P99_MS: ("p99", 1.5)}
"""Maximum added latency, as a multiple of what HAProxy adds."""
NATIVE_RATE: Final = 0.97
THREADS_MORE: Final = 1.05
LEAST_THREAD_SHARE: Final = 0.45
OBSERVED_MORE: Final = 1.1
NATIVE_CONNECTION_BYTES: Final = 6 * 2**10
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
    return _of_one_path(results, PURE) + _with_tls(results) + _natively(results)


def _of_one_path(results: Results, path: str) -> list[Outcome]:
    return [
        _most_cpu(results, path, "CPU, 64 KiB batches in", PRODUCE, KROXYLICIOUS, 0.8),
        _most_cpu(results, path, "CPU, 64 KiB batches in", PRODUCE, HAPROXY, 1.5),
        _most_cpu(results, path, "CPU, large batches out", FETCH, KROXYLICIOUS, 0.25),
        _most_cpu(results, path, "CPU, large batches out", FETCH, HAPROXY, 0.5),
        _most_cpu(results, path, "CPU, one record a request", SMALL, KROXYLICIOUS, 1.5),
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


def _natively(results: Results) -> list[Outcome]:
    path = HEADRACE_NATIVE
    return [
        *(
            _most_cpu(results, path, f"native: {CPU_OF[work]}", work, HAPROXY, limit)
            for work, limit in NATIVE_LIMITS.items()
        ),
        *(
            _of(
                path,
                f"native: throughput, {what}",
                f"≥ {NATIVE_RATE:g} x {HAPROXY}",
                "x",
                least=NATIVE_RATE,
                measured=results.ratio(work, RATE, path, HAPROXY),
            )
            for work, what in ((PRODUCE, "large batches in"), (FETCH, "large batches out"))
        ),
        *(
            _of(
                path,
                f"native: added latency, {what}",
                f"≤ {limit:g} x what {HAPROXY} adds",
                "x",
                most=limit,
                measured=results.ratio_of_added(LATENCY, figure, path, HAPROXY, DIRECT),
            )
            for figure, (what, limit) in NATIVE_LATENCY.items()
        ),
        _of(
            path,
            "native: bytes of an idle connection",
            f"≤ {NATIVE_CONNECTION_BYTES:,}",
            "",
            most=NATIVE_CONNECTION_BYTES,
            measured=results.value(IDLE, path, CONNECTION_BYTES),
        ),
        *(
            _most_cpu(results, HEADRACE_NATIVE_2_THREADS, f"native, 2 threads: {what}", work, path, THREADS_MORE)
            for work, what in CPU_OF.items()
        ),
        _of(
            HEADRACE_NATIVE_2_THREADS,
            "native, 2 threads: CPU share of the less busy one with 1,000 busy connections",
            f"≥ {LEAST_THREAD_SHARE:g}",
            "",
            least=LEAST_THREAD_SHARE,
            measured=results.value(BUSY, HEADRACE_NATIVE_2_THREADS, THREAD_SHARE),
        ),
        *(
            _most_cpu(
                results,
                HEADRACE_NATIVE_OBSERVED,
                f"native, usage and 1 % traced: {CPU_OF[work]}",
                work,
                path,
                OBSERVED_MORE,
            )
            for work in NATIVE_LIMITS
        ),
        *(
            _most_cpu(
                results,
                HEADRACE_NATIVE_TLS,
                f"native, TLS: {(CPU_OF | CPU_OF_HANDSHAKES)[work]}",
                work,
                HAPROXY_TLS,
                limit,
            )
            for work, limit in NATIVE_TLS_LIMITS.items()
        ),
    ]


def _of(
    path: str,
    what: str,
    target: str,
    unit: str,
    *,
    measured: Spread | None,
    least: float = -math.inf,
    most: float = math.inf,
) -> Outcome:
    verdict = _verdict(measured, lambda middle: least <= middle <= most)
    return Outcome(path=path, what=what, target=target, measured=measured, against="", unit=unit, verdict=verdict)


def _with_tls(results: Results) -> list[Outcome]:
    return [
        _most_cpu(results, HEADRACE_TLS, what, work, HAPROXY_TLS, limit) for work, (what, limit) in TLS_LIMITS.items()
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
    return _of(path, what, f"≤ {limit:g} x {base}", "x", most=limit, measured=measured)


def _throughput(results: Results, path: str, what: str, work: str) -> Outcome:
    measured = results.ratio(work, RATE, path, DIRECT)
    return _of(path, what, "≥ 0.95 x direct", "x", least=0.95, measured=measured)


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
    return _of(path, what, f"≤ {limit_ms:g} ms over direct", "ms", most=limit_ms, measured=measured)


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
