"""Log lines that one cause can repeat without end: the first is written, then one a minute that counts the others."""

from __future__ import annotations

import time
from typing import Final

EVERY_S: Final = 60.0
MAX_CAUSES: Final = 1000
"""Causes that are remembered; when more turn up, all are forgotten and may be written again."""


class RepeatedLines:
    """What was written when, by cause."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[object, tuple[float, int]] = {}

    def due(self, cause: object, now_s: float | None = None) -> int | None:
        """How many lines were left out since the last one that was written; ``None`` to leave this one out, too."""
        now_s = time.monotonic() if now_s is None else now_s
        written_s, left_out = self._written.get(cause, (float("-inf"), 0))
        if now_s - written_s < EVERY_S:
            self._written[cause] = (written_s, left_out + 1)
            return None
        if len(self._written) >= MAX_CAUSES:
            self._written.clear()
        self._written[cause] = (now_s, 0)
        return left_out
