"""Which runs meet the targets."""

from __future__ import annotations

import pytest

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
)
from benchmarks.bench.targets import Outcome, Verdict, evaluate, peers
from tests.benchmarks.samples import results, rounds, sample

OURS = "headrace-quotas"
NATIVE = "headrace-native"


def one(measured: Results, path: str, what: str, target: str) -> Outcome:
    evaluated = [each for each in evaluate(measured) if each.path == path]
    (found,) = [each for each in evaluated if each.what.startswith(what) and target in each.target]
    return found


def test_nothing_measured_is_nothing_met() -> None:
    assert {each.verdict for each in evaluate(Results([]))} == {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("work", "what", "base", "limit"),
    [
        ("produce", "CPU, 64 KiB batches in", "kroxylicious", 0.8),
        ("produce", "CPU, 64 KiB batches in", "haproxy", 1.5),
        ("fetch", "CPU, large batches out", "kroxylicious", 0.25),
        ("fetch", "CPU, large batches out", "haproxy", 0.5),
        ("small", "CPU, one record a request", "kroxylicious", 1.5),
    ],
)
def test_cpu_against_a_peer(work: str, what: str, base: str, limit: float) -> None:
    for cpu_s, verdict in ((2 * limit, Verdict.MET), (2 * limit + 0.01, Verdict.MISSED)):
        measured = results(rounds(work, OURS, CPU_S, cpu_s), rounds(work, base, CPU_S, 2.0))
        assert one(measured, OURS, what, base).verdict is verdict


@pytest.mark.parametrize("work", ["produce", "fetch"])
def test_throughput(work: str) -> None:
    what = f"throughput, large batches {'in' if work == 'produce' else 'out'}"
    measured = results(
        rounds(work, "direct", RATE, 100.0),
        rounds(work, "haproxy", RATE, 90.0),
        rounds(work, "kroxylicious", RATE, 97.0),
        rounds(work, "headrace", RATE, 99.0),
        rounds(work, OURS, RATE, 96.0),
    )
    assert one(measured, OURS, what, "direct").verdict is Verdict.MET
    against = one(measured, OURS, what, "every peer")
    assert (against.verdict, against.against) == (Verdict.MISSED, "kroxylicious")


def test_added_latency() -> None:
    measured = results(
        rounds("latency", "direct", P50_MS, 0.3),
        rounds("latency", "direct", P99_MS, 1.0),
        rounds("latency", "haproxy", P50_MS, 0.6),
        rounds("latency", "haproxy", P99_MS, 1.1),
        rounds("latency", OURS, P50_MS, 0.45),
        rounds("latency", OURS, P99_MS, 2.5),
    )
    assert one(measured, OURS, "added latency, p50", "over direct").verdict is Verdict.MET
    assert one(measured, OURS, "added latency, p99", "over direct").verdict is Verdict.MISSED
    assert one(measured, OURS, "added latency, p50", "below every peer").verdict is Verdict.MET
    assert one(measured, OURS, "added latency, p99", "below every peer").verdict is Verdict.MISSED


@pytest.mark.parametrize(("mebibytes", "verdict"), [(133, Verdict.MET), (134, Verdict.MISSED)])
def test_resident_memory(mebibytes: int, verdict: Verdict) -> None:
    values = {RESIDENT_BYTES: mebibytes * 2.0**20, CONNECTIONS: 8000.0}
    found = one(Results([sample("idle", OURS, 1, **values)]), OURS, "resident memory, 8,000", "133.8 MiB")
    assert found.verdict is verdict


def test_peers_are_the_ways_of_others() -> None:
    paths = ("direct", "haproxy", "kroxylicious", "headrace", OURS, NATIVE, "mine")
    assert peers(results(*(rounds("small", path, CPU_S, 1.0) for path in paths)), "small") == [
        "haproxy",
        "kroxylicious",
        "mine",
    ]


@pytest.mark.parametrize(("work", "limit"), [("produce", 1.5), ("fetch", 1.5), ("small", 2.5)])
def test_cpu_with_tls(work: str, limit: float) -> None:
    for cpu_s, verdict in ((2 * limit, Verdict.MET), (2 * limit + 0.01, Verdict.MISSED)):
        measured = results(rounds(work, "headrace-tls", CPU_S, cpu_s), rounds(work, "haproxy-tls", CPU_S, 2.0))
        assert {each.verdict for each in evaluate(measured) if each.path == "headrace-tls"} == {
            verdict,
            Verdict.UNKNOWN,
        }


def test_a_proxy_with_tls_is_no_peer_of_one_without() -> None:
    measured = results(rounds("produce", "haproxy-tls", RATE, 1.0), rounds("produce", "haproxy", RATE, 2.0))
    assert peers(measured, "produce") == ["haproxy"]


@pytest.mark.parametrize(
    ("path", "base", "work", "figure", "what", "met", "missed"),
    [
        (NATIVE, "haproxy", "produce", CPU_S, "native: CPU, 64 KiB", 1.9, 1.91),
        (NATIVE, "haproxy", "fetch", CPU_S, "native: CPU, large", 1.5, 1.51),
        (NATIVE, "haproxy", "small", CPU_S, "native: CPU, one record", 2.1, 2.11),
        (NATIVE, "haproxy", "produce", RATE, "native: throughput, large batches in", 1.94, 1.93),
        (f"{NATIVE}-2-threads", NATIVE, "busy", CPU_S, "native, 2 threads: CPU, 1,000", 2.1, 2.11),
        (f"{NATIVE}-observed", NATIVE, "small", CPU_S, "native, usage and 1 % traced: CPU, one record", 2.2, 2.21),
        (f"{NATIVE}-tls", "haproxy-tls", "fetch", CPU_S, "native, TLS: CPU, large", 2.3, 2.31),
        (f"{NATIVE}-tls", "haproxy-tls", "handshake", CPU_S, "native, TLS: CPU, full handshakes", 2.6, 2.61),
        (f"{NATIVE}-tls", "haproxy-tls", "resume", CPU_S, "native, TLS: CPU, resumed sessions", 2.6, 2.61),
    ],
)
def test_native_against_another(
    path: str, base: str, work: str, figure: str, what: str, met: float, missed: float
) -> None:
    for value, verdict in ((met, Verdict.MET), (missed, Verdict.MISSED)):
        measured = results(rounds(work, path, figure, value), rounds(work, base, figure, 2.0))
        assert one(measured, path, what, "x").verdict is verdict


@pytest.mark.parametrize(("p99_ms", "verdict"), [(2.5, Verdict.MET), (2.51, Verdict.MISSED)])
def test_native_latency_is_compared_with_what_haproxy_adds(p99_ms: float, verdict: Verdict) -> None:
    measured = results(
        rounds("latency", "direct", P99_MS, 1.0),
        rounds("latency", "haproxy", P99_MS, 2.0),
        rounds("latency", NATIVE, P99_MS, p99_ms),
    )
    assert one(measured, NATIVE, "native: added latency, p99", "haproxy").verdict is verdict


def test_native_threads_share_the_load_and_connections_are_small() -> None:
    threads = f"{NATIVE}-2-threads"
    measured = results(rounds("busy", threads, THREAD_SHARE, 0.45), rounds("idle", NATIVE, CONNECTION_BYTES, 6145.0))
    assert one(measured, threads, "native, 2 threads: CPU share", "0.45").verdict is Verdict.MET
    assert one(measured, NATIVE, "native: bytes", "6,144").verdict is Verdict.MISSED
