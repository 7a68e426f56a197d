"""Starts `command`, whose import takes a quarter of a second; handles Ctrl-C from the beginning."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, _leave)
    from examples.demo.command import main as command

    command(prog_name="python -m examples.demo")


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # there is nothing to clean up yet


if __name__ == "__main__":
    main()
