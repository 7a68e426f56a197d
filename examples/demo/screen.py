"""The output: live on a terminal, line by line elsewhere.

Uses rich; knows nothing of the demo.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

PLAIN_WIDTH: Final = 120
PLAIN_EVERY_S: Final = 5.0
"""Interval between plain tables, and between progress lines of a long step."""
REFRESHES_PER_S: Final = 4


class Step:
    """A long step; `doing` describes it, and may be changed while it runs."""

    __slots__ = ("began_s", "doing")

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s

    def __str__(self) -> str:
        return f"{self.doing}, {self.elapsed_s:.0f} s"


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self.alive = sys.stdout.isatty() and not Console().is_dumb_terminal
        """Whether standard output is a terminal that can be redrawn."""
        self.console = Console(force_terminal=self.alive, width=None if self.alive else PLAIN_WIDTH, highlight=False)
        self.ascii_only = not self.console.encoding.lower().startswith("utf")

    def write(self, text: str = "", style: str = "") -> None:
        """Print a paragraph, wrapped at the screen's width."""
        self.console.print(Text(text, style=style))

    def lines(self, text: str) -> None:
        """Print lines without wrapping, so that they can be copied."""
        self.console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def step(self, doing: str, done: str) -> Iterator[Step]:
        """Show progress while the block runs; afterwards print `done` and the duration."""
        step = Step(doing)
        with self._spinning(step) if self.alive else self._ticking(step):
            yield step
        mark = "*" if self.ascii_only else "✓"
        self.console.print(Text.assemble((mark, "green"), f" {done} ", (f"({step.elapsed_s:.1f} s)", "dim")))

    @contextlib.contextmanager
    def table(self) -> Iterator[Live | None]:
        """Yield an area that `show` redraws on a terminal; elsewhere `None`."""
        if not self.alive:
            yield None
            return
        with Live(console=self.console, auto_refresh=False, vertical_overflow="visible") as live:
            yield live

    def show(self, live: Live | None, renderable: RenderableType) -> None:
        """Redraw the area, or print."""
        if live is not None:
            live.update(renderable, refresh=True)
        else:
            self.console.print(renderable)
            sys.stdout.flush()

    def _spinning(self, step: Step) -> Live:
        spinner = Spinner("line" if self.ascii_only else "dots")

        def draw() -> RenderableType:
            spinner.update(text=Text(str(step)))
            return spinner

        return Live(get_renderable=draw, console=self.console, refresh_per_second=REFRESHES_PER_S, transient=True)

    @contextlib.contextmanager
    def _ticking(self, step: Step) -> Iterator[None]:
        over = threading.Event()

        def tick() -> None:
            while not over.wait(PLAIN_EVERY_S):
                self._plain(f"  {step}")

        self._plain(f"{step.doing} ...")
        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()

    def _plain(self, line: str) -> None:
        self.console.print(Text(line), soft_wrap=True)
        sys.stdout.flush()
