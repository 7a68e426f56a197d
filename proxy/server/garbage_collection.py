"""Python's garbage collector, kept from stopping the loop.

A full collection looks at every object that lives: half a second with 100,000 buckets. What is there for good (modules,
configuration, buckets) is frozen: no longer looked at, and still freed when nobody refers to it.
"""

from __future__ import annotations

import gc
from typing import Final

GROWN_BY: Final = 5_000
"""Buckets that have come since the last freeze before it is done again: 25 ms of a full collection."""


class Collector:
    """Freezes what has come to stay. One for the process."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = 0

    def start(self) -> None:
        """All is loaded and nobody is served yet: collect once, and freeze what is left."""
        gc.collect()
        gc.freeze()

    def look(self, buckets: int) -> None:
        """Freeze again when so many buckets are there that a full collection would be felt. Frees nothing, and so
        takes no time; what is garbage in a cycle at that moment stays."""
        if buckets - self._buckets >= GROWN_BY:
            gc.freeze()
        if abs(buckets - self._buckets) >= GROWN_BY:
            self._buckets = buckets
