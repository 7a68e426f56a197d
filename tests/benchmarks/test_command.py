"""The whole command, as short as it gets, with a real broker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench.peers import HAPROXY_PLACES

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path=HAPROXY_PLACES)
ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_quick_run_measures_each_way(tmp_path: Path) -> None:
    samples, printed = quick_run(tmp_path, "latency,idle,connect", "direct,headrace-quotas")
    assert set(samples) == {
        ("latency", "direct"),
        ("latency", "headrace-quotas"),
        ("idle", "headrace-quotas"),
        ("connect", "direct"),
        ("connect", "headrace-quotas"),
    }
    assert "cpu_s" not in samples["connect", "direct"]
    assert samples["connect", "headrace-quotas"]["cpu_s"] > 0
    assert samples["latency", "headrace-quotas"]["p50_ms"] > 0
    assert samples["idle", "headrace-quotas"]["connection_bytes"] > 0
    assert "| added latency, p50 |" in printed


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.skipif(HAPROXY is None, reason="needs HAProxy")
def test_a_quick_run_with_tls(tmp_path: Path) -> None:
    samples, _ = quick_run(tmp_path, "small,handshake,resume", "haproxy-tls,haproxy-tls-clients,haproxy-tls-brokers")
    assert set(samples) == {
        *((work, path) for work in ("small", "handshake", "resume") for path in ("haproxy-tls", "haproxy-tls-clients")),
        ("small", "haproxy-tls-brokers"),
    }
    assert all(values["rate"] > 0 and values["cpu_s"] > 0 for values in samples.values())


def quick_run(output: Path, works: str, paths: str) -> tuple[dict[tuple[str, str], dict[str, float]], str]:
    """Return the values by workload and path, and what was printed."""
    asked = ["--quick", "--work", works, "--path", paths, "--output", str(output)]
    command = [sys.executable, "-m", "benchmarks.bench", *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((output / "bench.json").read_text(encoding="utf-8"))
    return {(each["work"], each["path"]): each["values"] for each in document["samples"]}, done.stdout
