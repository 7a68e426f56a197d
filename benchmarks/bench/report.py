"""The report of a run: JSON with every sample, and Markdown. Pure, except for `write`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from benchmarks.bench.figures import (
    CONNECTION_BYTES,
    CONNECTIONS,
    CPU_S,
    LATENCIES,
    RATE,
    RESIDENT_BYTES,
    Results,
    Spread,
)
from benchmarks.bench.paths import (
    DIRECT,
    HAPROXY,
    HAPROXY_OF,
    KROXYLICIOUS,
    NATIVE_PATHS,
)
from benchmarks.bench.plot import draw
from benchmarks.bench.targets import Outcome, evaluate
from benchmarks.bench.workloads import IDLE, LATENCY, WORKLOADS, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

JSON_FILE, MARKDOWN_FILE, PLOT_FILE = "bench.json", "bench.md", "bench.svg"
NOTHING: Final = "-"
HOW_TO_READ: Final = """\
Medians over the rounds of this run, with quartiles in brackets. A ratio is the ratio of medians, with the quartiles of
the rounds' ratios; an added latency is the median of the rounds' differences. Figures of different runs are not
comparable.
"""


def write(directory: Path, results: Results, about: Mapping[str, Any]) -> str:
    """Write the three files, and return the Markdown. `about` describes the run."""
    directory.mkdir(parents=True, exist_ok=True)
    text = markdown(results, about)
    (directory / MARKDOWN_FILE).write_text(text, encoding="utf-8")
    (directory / JSON_FILE).write_text(as_json(results, about), encoding="utf-8")
    draw(results, directory / PLOT_FILE)
    return text


def as_json(results: Results, about: Mapping[str, Any]) -> str:
    """Return the targets and every sample as JSON."""
    outcomes = [{**asdict(each), "verdict": each.verdict.name.lower()} for each in evaluate(results)]
    samples = [asdict(sample) for sample in results.samples]
    return json.dumps({"about": about, "targets": outcomes, "samples": samples}, indent=1) + "\n"


def markdown(results: Results, about: Mapping[str, Any]) -> str:
    """Return the targets, then a table for each workload, as Markdown."""
    by_name = {work.name: work for work in WORKLOADS}
    parts = ["# Benchmark", HOW_TO_READ, "\n".join(f"- {name}: {_in_words(value)}" for name, value in about.items())]
    parts.append("## Targets\n\n" + targets_table(evaluate(results)))
    parts += [f"## {by_name[name].title}\n\n{work_table(results, by_name[name])}" for name in results.workloads()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or NOTHING
    return str(value)


def targets_table(outcomes: Sequence[Outcome]) -> str:
    """Return a table with a row for each target, with its outcomes in Python and natively."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in outcomes:
        row = rows.setdefault((each.what, each.target), [each.what, each.target, *[NOTHING] * 4])
        against = f", against {each.against}" if each.against else ""
        column = 4 if each.path in NATIVE_PATHS else 2
        row[column : column + 2] = [with_quartiles(each.measured, each.unit) + against, each.verdict.value]
    return table(["Headrace, all four quotas on", "target", "Python", "", "native", ""], list(rows.values()))


def work_table(results: Results, work: Workload) -> str:
    """Return a table with a row for each path. Paths with TLS are compared with HAProxy with TLS on the same sides."""
    if work.name == IDLE:
        return _idle_table(results)
    if work.name == LATENCY:
        return _latency_table(results)
    rows = [
        [
            path,
            number(results.value(work.name, path, RATE)),
            with_quartiles(results.ratio(work.name, RATE, path, DIRECT)),
            number(results.cpu_per_unit(work.name, path)),
            with_quartiles(results.ratio(work.name, CPU_S, path, HAPROXY_OF.get(path, HAPROXY))),
            with_quartiles(results.ratio(work.name, CPU_S, path, KROXYLICIOUS)),
            number(_mebibytes(results.value(work.name, path, RESIDENT_BYTES))),
        ]
        for path in results.paths(work.name)
    ]
    cpu = f"CPU s/{work.unit}"
    header = ["path", work.rate_unit, "x direct", cpu, "CPU x haproxy", "CPU x kroxylicious", "resident MiB"]
    return table(header, rows)


def _latency_table(results: Results) -> str:
    rows = []
    for path in results.paths(LATENCY):
        absolute = [number(results.value(LATENCY, path, figure)) for figure in LATENCIES]
        added = [with_quartiles(results.difference(LATENCY, figure, path, DIRECT)) for figure in LATENCIES]
        rows.append(
            [
                path,
                *absolute,
                *(added if path != DIRECT else [NOTHING] * 3),
                number(results.cpu_per_unit(LATENCY, path)),
            ]
        )
    header = ["path", "p50 ms", "p99 ms", "p99.9 ms", "p50 added", "p99 added", "p99.9 added", "CPU s/1,000 requests"]
    return table(header, rows)


def _idle_table(results: Results) -> str:
    rows = []
    for path in results.paths(IDLE):
        count, each = results.value(IDLE, path, CONNECTIONS), results.value(IDLE, path, CONNECTION_BYTES)
        resident = _mebibytes(results.value(IDLE, path, RESIDENT_BYTES))
        if each is not None and count is not None:
            kibibytes = Spread(middle=each.middle / 1024, low=each.low / 1024, high=each.high / 1024)
            rows.append([path, f"{count.middle:,.0f}", with_quartiles(kibibytes), number(resident)])
    return table(["path", "connections", "KiB each", "resident MiB"], rows)


def _mebibytes(value: Spread | None) -> Spread | None:
    return value and Spread(middle=value.middle / 2**20, low=value.low / 2**20, high=value.high / 2**20)


def number(value: Spread | None) -> str:
    """Return the median, to three digits."""
    return NOTHING if value is None else digits(value.middle)


def with_quartiles(value: Spread | None, unit: str = "") -> str:
    """Return the median and its quartiles, or the median only if all are equal."""
    if value is None:
        return NOTHING
    behind = f" {unit}" if unit else ""
    if value.low == value.middle == value.high:
        return digits(value.middle) + behind
    return f"{digits(value.middle)}{behind} ({digits(value.low)} to {digits(value.high)})"


def digits(value: float) -> str:
    """Return `value` with three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1g}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
