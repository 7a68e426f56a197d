"""The whole command, as short as it gets, with a real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_quick_run_measures_each_way(tmp_path: Path) -> None:
    asked = ["--quick", "--work", "latency,idle,connect", "--path", "direct,headrace-quotas", "--output", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.bench", *asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    samples = {(each["work"], each["path"]): each["values"] for each in document["samples"]}
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
    assert "| added latency, p50 |" in done.stdout
