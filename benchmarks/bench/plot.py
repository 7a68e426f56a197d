"""The picture of a run: for each work, what each way gets through, what it costs, and what it adds to latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.bench.figures import CONNECTION_BYTES, LATENCIES, RATE, Results, Spread
from benchmarks.bench.ways import DIRECT
from benchmarks.bench.works import IDLE, LATENCY, WORKS, Work

if TYPE_CHECKING:
    from pathlib import Path

WIDTH: Final = 260
OURS, THEIRS = "#1b6ca8", "#b0b0b0"
COLUMNS: Final = 3


def draw(results: Results, file: Path) -> None:
    """Write an SVG; nothing where nothing was measured."""
    import altair as alt

    charts = [chart for work in WORKS if work.name in results.works() for chart in _charts(results, work)]
    if charts:
        # Every panel has an axis of its own: they are of different quantities.
        alt.concat(*charts, columns=COLUMNS).resolve_scale(x="independent").save(str(file))


def _charts(results: Results, work: Work) -> list[Any]:
    ways = results.ways(work.name)
    if work.name == LATENCY:
        panels = {
            f"added latency, {figure.removesuffix('_ms').replace('p999', 'p99.9')}, ms": {
                way: results.difference(LATENCY, figure, way, DIRECT) for way in ways if way != DIRECT
            }
            for figure in LATENCIES
        }
    elif work.name == IDLE:
        panels = {
            "resident bytes an idle connection": {way: results.value(IDLE, way, CONNECTION_BYTES) for way in ways}
        }
    else:
        panels = {
            f"{work.title}: {work.rate_unit}": {way: results.value(work.name, way, RATE) for way in ways},
            f"{work.title}: CPU s/{work.unit}": {way: results.cpu_per_unit(work.name, way) for way in ways},
        }
    return [_panel(title, values) for title, values in panels.items() if any(values.values())]


def _panel(title: str, values: dict[str, Spread | None]) -> Any:
    """A bar for each way, with its quartiles."""
    import altair as alt

    rows = [
        {"way": way, "middle": each.middle, "low": each.low, "high": each.high}
        for way, each in values.items()
        if each is not None
    ]
    base = alt.Chart({"values": rows}, title=title, width=WIDTH)
    way = alt.Y("way:N", title=None, sort=None)
    color = alt.condition("test(/^headrace/, datum.way)", alt.value(OURS), alt.value(THEIRS))
    bars = base.mark_bar(height=12).encode(x=alt.X("middle:Q", title=None), y=way, color=color)
    quartiles = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=None), x2="high:Q", y=way)
    return bars + quartiles
