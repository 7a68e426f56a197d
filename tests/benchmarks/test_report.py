"""What is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench.figures import Results, Spread
from benchmarks.bench.report import (
    JSON_FILE,
    MARKDOWN_FILE,
    PLOT_FILE,
    digits,
    targets_table,
    with_quartiles,
    work_table,
    write,
)
from benchmarks.bench.targets import Outcome, Verdict
from benchmarks.bench.workloads import WORKLOADS
from tests.benchmarks.samples import sample

if TYPE_CHECKING:
    from pathlib import Path

WORK = {work.name: work for work in WORKLOADS}
MEASURED = Results(
    [
        sample("produce", "direct", 1, rate=100.0, amount=0.6),
        sample("produce", "haproxy", 1, rate=99.0, cpu_s=0.3, amount=0.6, resident_bytes=2.0**24),
        sample("produce", "headrace-quotas", 1, rate=98.0, cpu_s=0.45, amount=0.6, resident_bytes=2.0**25),
        sample("latency", "direct", 1, p50_ms=0.2, p99_ms=1.0, p999_ms=2.0, amount=1.0),
        sample("latency", "haproxy", 1, p50_ms=0.3, p99_ms=1.5, p999_ms=4.0, amount=1.0, cpu_s=0.05),
        sample("idle", "haproxy", 1, connections=200.0, connection_bytes=2048.0, resident_bytes=2.0**24),
    ]
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123"), (-2.5, "-2.5")],
)
def test_three_digits(value: float, text: str) -> None:
    assert digits(value) == text


def test_quartiles_stand_in_brackets_unless_they_say_nothing() -> None:
    assert with_quartiles(Spread(middle=1.5, low=1.25, high=2.0), "ms") == "1.5 ms (1.25 to 2)"
    assert with_quartiles(Spread(middle=1.5, low=1.5, high=1.5)) == "1.5"
    assert with_quartiles(None, "ms") == "-"


def test_the_table_of_a_work() -> None:
    header, line, *rows = work_table(MEASURED, WORK["produce"]).splitlines()
    assert header == ("| path | MB/s | x direct | CPU s/GB | CPU x haproxy | CPU x kroxylicious | resident MiB |")
    assert line.count("---") == 7
    assert rows == [
        "| direct | 100 | 1 | - | - | - | - |",
        "| haproxy | 99.0 | 0.99 | 0.5 | 1 | - | 16.0 |",
        "| headrace-quotas | 98.0 | 0.98 | 0.75 | 1.5 | - | 32.0 |",
    ]


def test_the_tables_of_latency_and_of_idle_connections() -> None:
    assert work_table(MEASURED, WORK["latency"]).splitlines()[2:] == [
        "| direct | 0.2 | 1 | 2 | - | - | - | - |",
        "| haproxy | 0.3 | 1.5 | 4 | 0.1 | 0.5 | 2 | 0.05 |",
    ]
    assert work_table(MEASURED, WORK["idle"]).splitlines()[2:] == ["| haproxy | 200 | 2 | 16.0 |"]


@pytest.mark.exhaustive
def test_three_files_are_written(tmp_path: Path) -> None:
    text = write(tmp_path / "new", MEASURED, {"rounds": 1, "sizes": {"connects": 4}})
    assert (tmp_path / "new" / MARKDOWN_FILE).read_text(encoding="utf-8") == text
    assert "- sizes: connects 4" in text
    assert "| CPU, 64 KiB batches in | ≤ 1.5 x haproxy | 1.5 x | met | - | - |" in text
    document = json.loads((tmp_path / "new" / JSON_FILE).read_text(encoding="utf-8"))
    assert len(document["samples"]) == len(MEASURED.samples)
    assert document["samples"][1]["values"]["cpu_s"] == 0.3
    assert {each["verdict"] for each in document["targets"]} == {"met", "missed", "unknown"}
    picture = (tmp_path / "new" / PLOT_FILE).read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert "headrace-quotas" in picture


def test_both_data_planes_stand_in_one_row_unless_their_targets_differ() -> None:
    def evaluated(path: str, target: str, measured: float, verdict: Verdict) -> Outcome:
        found = Spread(middle=measured, low=measured, high=measured)
        return Outcome(path=path, what="CPU", target=target, measured=found, against="mine", unit="x", verdict=verdict)

    pure = [evaluated("headrace-quotas", target, 3.0, Verdict.MISSED) for target in ("≤ 2 x", "≤ 1.5 x")]
    native = [evaluated("headrace-native", target, 1.0, Verdict.MET) for target in ("≤ 2 x", "≤ 1 x")]
    assert targets_table([*pure, *native]).splitlines()[2:] == [
        "| CPU | ≤ 2 x | 3 x, against mine | **missed** | 1 x, against mine | met |",
        "| CPU | ≤ 1.5 x | 3 x, against mine | **missed** | - | - |",
        "| CPU | ≤ 1 x | - | - | 1 x, against mine | met |",
    ]


def test_a_path_with_tls_is_compared_with_haproxy_on_the_same_sides() -> None:
    measured = Results(
        [
            sample("handshake", path, 1, cpu_s=cpu_s, rate=1.0, amount=1.0)
            for path, cpu_s in (
                ("haproxy", 1.0),
                ("haproxy-tls", 2.0),
                ("headrace-tls", 3.0),
                ("haproxy-tls-clients", 4.0),
                ("headrace-tls-clients", 20.0),
            )
        ]
    )
    rows = [line.split(" | ") for line in work_table(measured, WORK["handshake"]).splitlines()[2:]]
    assert {row[0].strip("| "): row[4] for row in rows} == {
        "haproxy": "1",
        "haproxy-tls": "1",
        "headrace-tls": "1.5",
        "haproxy-tls-clients": "1",
        "headrace-tls-clients": "5",
    }
