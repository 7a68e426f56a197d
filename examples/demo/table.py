"""The live table, with one row per client. Pure: converts rows to a renderable of rich."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from examples.demo.scenario import WINDOW_S
from examples.demo.verdict import TOLERATED, mib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from examples.demo.scenario import Client

BARS: Final = " ▁▂▃▄▅▆▇█"
MOST_BARS: Final = 30
FEWEST_BARS: Final = 7
NOW_S: Final = 2
"""Time over which the column "now" is measured."""
DOES_WIDTH: Final = 18
# Widths of the table, with room for longer numbers; a test compares them with the rendered table.
NARROW: Final = 73
"""Width without the bars and the clients' descriptions."""
WIDE: Final = 93
"""Width without the bars."""


class State(Enum):
    """The state of a client; the value is the word in the table."""

    STARTING = "starting"
    FREE = "running"
    MUTED = "muted"
    FAILED = "failed"


STYLES: Final = {State.STARTING: "dim", State.FREE: "green", State.MUTED: "yellow", State.FAILED: "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The current values of one client."""

    client: Client
    state: State
    now_rate: float
    """Bytes per second over `NOW_S`."""
    mean_rate: float
    """Bytes per second over Kafka's window."""
    muted_share: float
    """Muted share of the time since all clients run, over all its connections."""
    throttled_requests: int
    longest_throttle_s: float
    bars: Sequence[float]
    """Bytes of each of the last `MOST_BARS` seconds."""


def draw(rows: Sequence[Row], *, title: str, width: int, ascii_only: bool, footnote: bool = True) -> RenderableType:
    """Return the table and, with `footnote`, its footnote; columns that do not fit into `width` are omitted."""
    wide = width >= WIDE + FEWEST_BARS
    bars = min(MOST_BARS, width - (WIDE if wide else NARROW))
    if ascii_only or bars < FEWEST_BARS:
        bars = 0
    lines = box.ASCII if ascii_only else box.SIMPLE
    table = Table(title=title, title_justify="left", title_style="bold", box=lines, collapse_padding=not ascii_only)
    table.add_column("client", no_wrap=True)
    if wide:
        table.add_column("does", no_wrap=True)
    for name in ("now", f"{WINDOW_S} s\nmean", "limit", "muted", "throttled"):
        table.add_column(name, justify="right", no_wrap=True)
    if bars:
        table.add_column("each\nsecond", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, wide=wide, bars=bars))
    return Group(table, Text(_footnote(bars=bars > 0), style="dim")) if footnote else table


def _cells(row: Row, *, wide: bool, bars: int) -> list[RenderableType]:
    client = row.client
    name = Text.assemble((client.client_id, "bold"), "\n", (client.library, "dim"))
    cells: list[RenderableType] = [name]
    if wide:
        cells.append(textwrap.fill(client.does, DOES_WIDTH))
    limited = client.limit is not None
    over = client.limit is not None and row.mean_rate > client.limit * TOLERATED
    cells += [
        mib(row.now_rate),
        Text(mib(row.mean_rate), style="bold red" if over else "bold"),
        mib(client.limit) if client.limit is not None else "none",
        f"{row.muted_share:.0%}" if limited else "-",
        f"{row.throttled_requests}x\nmax {row.longest_throttle_s:.1f} s" if limited else "-",
    ]
    if bars:
        cells.append(Text(sparkline(row.bars[-bars:]), style="cyan"))
    cells.append(Text(row.state.value, style=STYLES[row.state]))
    return cells


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each value, scaled to the highest value; any value above 0 is visible."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return " " * len(values)
    steps = len(BARS) - 1
    return "".join(BARS[0 if value <= 0 else max(1, round(value / highest * steps))] for value in values)


def _footnote(*, bars: bool) -> str:
    each = ', as the column "each second" shows (each row has its own scale)' if bars else ""
    return (
        f'MiB/s of record values; "now" is over {NOW_S} s. Kafka measures a quota over {WINDOW_S} samples of 1 s:'
        f" a client at its limit gets a whole window's bytes at once, then waits{each}. So the limit applies to the"
        f' {WINDOW_S} s mean. "muted" is the share of time that the client\'s connections were not read.'
    )
