"""The plot of a run: for each workload, throughput, CPU usage and added latency of each path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.bench.figures import CONNECTION_BYTES, LATENCIES, RATE, Results, Spread
from benchmarks.bench.paths import DIRECT
from benchmarks.bench.workloads import IDLE, LATENCY, WORKLOADS, Workload

if TYPE_CHECKING:
    from pathlib import Path

WIDTH: Final = 260
OURS, THEIRS = "#1b6ca8", "#b0b0b0"
COLUMNS: Final = 3


def draw(results: Results, file: Path) -> None:
    """Write an SVG, or nothing if nothing was measured."""
    import altair as alt

    charts = [chart for work in WORKLOADS if work.name in results.workloads() for chart in _charts(results, work)]
    if charts:
        # Every panel has its own axis, since the quantities differ.
        alt.concat(*charts, columns=COLUMNS).resolve_scale(x="independent").save(str(file))


def _charts(results: Results, work: Workload) -> list[Any]:
    paths = results.paths(work.name)
    if work.name == LATENCY:
        panels = {
            f"added latency, {figure.removesuffix('_ms').replace('p999', 'p99.9')}, ms": {
                path: results.difference(LATENCY, figure, path, DIRECT) for path in paths if path != DIRECT
            }
            for figure in LATENCIES
        }
    elif work.name == IDLE:
        panels = {
            "resident bytes per idle connection": {path: results.value(IDLE, path, CONNECTION_BYTES) for path in paths}
        }
    else:
        panels = {
            f"{work.title}: {work.rate_unit}": {path: results.value(work.name, path, RATE) for path in paths},
            f"{work.title}: CPU s/{work.unit}": {path: results.cpu_per_unit(work.name, path) for path in paths},
        }
    return [_panel(title, values) for title, values in panels.items() if any(values.values())]


def _panel(title: str, values: dict[str, Spread | None]) -> Any:
    """Return a chart with a bar for each path, and its quartiles."""
    import altair as alt

    rows = [
        {"path": path, "middle": each.middle, "low": each.low, "high": each.high}
        for path, each in values.items()
        if each is not None
    ]
    base = alt.Chart({"values": rows}, title=title, width=WIDTH)
    path = alt.Y("path:N", title=None, sort=None)
    color = alt.condition("test(/^headrace/, datum.path)", alt.value(OURS), alt.value(THEIRS))
    bars = base.mark_bar(height=12).encode(x=alt.X("middle:Q", title=None), y=path, color=color)
    quartiles = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=None), x2="high:Q", y=path)
    return bars + quartiles
