"""Rate limit for repeated log lines: one line per cause and minute, which states how many were left out before it."""

from __future__ import annotations

import time
from typing import Final

EVERY_S: Final = 60.0
MAX_CAUSES: Final = 1000
"""Causes that are remembered. When there are more, all are forgotten, and each may be logged again at once."""


class RepeatedLines:
    """The time of the last line and the number of lines left out since, by cause."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[object, tuple[float, int]] = {}

    def due(self, cause: object, now_s: float | None = None) -> int | None:
        """Return how many lines about ``cause`` were left out since the last one, or ``None`` to leave out this one."""
        now_s = time.monotonic() if now_s is None else now_s
        written_s, left_out = self._written.get(cause, (float("-inf"), 0))
        if now_s - written_s < EVERY_S:
            self._written[cause] = (written_s, left_out + 1)
            return None
        if len(self._written) >= MAX_CAUSES:
            self._written.clear()
        self._written[cause] = (now_s, 0)
        return left_out
