"""Which runs meet the targets."""

from __future__ import annotations

import pytest

from benchmarks.bench.figures import CONNECTIONS, CPU_S, P50_MS, P99_MS, RATE, RESIDENT_BYTES, Results
from benchmarks.bench.targets import Judgement, Verdict, judge, peers
from tests.benchmarks.samples import results, rounds, sample

OURS = "headrace-quotas"


def one(measured: Results, what: str, target: str) -> Judgement:
    (found,) = [each for each in judge(measured) if each.what.startswith(what) and target in each.target]
    return found


def test_nothing_measured_is_nothing_met() -> None:
    assert {each.verdict for each in judge(Results([]))} == {Verdict.UNKNOWN}


@pytest.mark.parametrize(
    ("work", "what", "base", "limit"),
    [
        ("produce", "CPU, 64 KiB batches in", "kroxylicious", 0.8),
        ("produce", "CPU, 64 KiB batches in", "haproxy", 1.5),
        ("fetch", "CPU, large batches out", "kroxylicious", 0.25),
        ("fetch", "CPU, large batches out", "haproxy", 0.5),
        ("small", "CPU, one record a request, pure", "kroxylicious", 1.5),
        ("small", "CPU, one record a request, compiled", "kroxylicious", 1.0),
    ],
)
def test_cpu_against_a_peer(work: str, what: str, base: str, limit: float) -> None:
    for cpu_s, verdict in ((2 * limit, Verdict.MET), (2 * limit + 0.01, Verdict.MISSED)):
        measured = results(rounds(work, OURS, CPU_S, cpu_s), rounds(work, base, CPU_S, 2.0))
        assert one(measured, what, base).verdict is verdict


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
    assert one(measured, what, "direct").verdict is Verdict.MET
    against = one(measured, what, "every peer")
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
    assert one(measured, "added latency, p50", "over direct").verdict is Verdict.MET
    assert one(measured, "added latency, p99", "over direct").verdict is Verdict.MISSED
    assert one(measured, "added latency, p50", "below every peer").verdict is Verdict.MET
    assert one(measured, "added latency, p99", "below every peer").verdict is Verdict.MISSED


@pytest.mark.parametrize(("mebibytes", "verdict"), [(133, Verdict.MET), (134, Verdict.MISSED)])
def test_resident_memory(mebibytes: int, verdict: Verdict) -> None:
    values = {RESIDENT_BYTES: mebibytes * 2.0**20, CONNECTIONS: 8000.0}
    found = one(Results([sample("idle", OURS, 1, **values)]), "resident memory, 8,000", "133.8 MiB")
    assert found.verdict is verdict


def test_peers_are_the_ways_of_others() -> None:
    ways = ("direct", "haproxy", "kroxylicious", "headrace", OURS, "headrace-tracing", "mine")
    assert peers(results(*(rounds("small", way, CPU_S, 1.0) for way in ways)), "small") == [
        "haproxy",
        "kroxylicious",
        "mine",
    ]
