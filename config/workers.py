"""How many processes serve clients: a number, or as many as there are cores. A kind of value for `schema`."""

from __future__ import annotations

import os
from typing import Final

from config.kinds import JsonSchema, Kind, UnfitError, Whole

AUTO: Final = 0
"""One for each core that the process may use (`count_workers`)."""

MOST_WORKERS: Final = 64
"""What one worker has used is looked up by all others, so many small ones gain nothing beyond the cores there are."""

_AUTO: Final = "auto"


def count_workers(configured: int) -> int:
    """How many processes are to serve clients."""
    if configured != AUTO:
        return configured
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers(Kind[int]):
    """A whole number from 1, or ``"auto"``."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = Whole(1, MOST_WORKERS)
        self.expected = f'{self._number.expected}, or "{_AUTO}" for one for each core'

    def _read(self, raw: object) -> int:
        if raw == _AUTO:
            return AUTO
        try:
            return self._number.read(raw)
        except UnfitError:
            raise self.unfit(raw) from None

    def _spell(self, value: int) -> object:
        return _AUTO if value == AUTO else value

    def _schema(self) -> JsonSchema:
        return {"anyOf": [self._number.json_schema(), {"const": _AUTO}]}

    def _from_flag(self, given: object) -> object:
        return self._number.from_flag(given)
