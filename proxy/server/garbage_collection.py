"""Freezing of long-lived objects, so that Python's garbage collector does not stall the event loop.

A full collection traverses every tracked object: half a second with 100,000 buckets. Long-lived objects (modules,
configuration, buckets, quotas) are frozen with `gc.freeze`: collections skip them, and reference counting still frees
them. Called by the server.
"""

from __future__ import annotations

import gc
from typing import Final

GROWN_BY: Final = 5_000
"""Number of buckets, or of entities with quotas, since the last freeze that causes another: 25 ms of a full
collection."""


class Collector:
    """The freezing of long-lived objects. There is one in a process."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def start(self) -> None:
        """Collect once, and freeze the remaining objects. Call it when all is loaded and no client is served yet."""
        gc.collect()
        gc.freeze()

    def freeze_if_grown(self, what: str, count: int) -> None:
        """Freeze again when the ``count`` of ``what`` has grown so much that a full collection would take long.

        Freezing takes no time, since it collects nothing; cyclic garbage that exists at that moment is never freed.
        """
        grown_by = count - self._counts.get(what, 0)
        if grown_by >= GROWN_BY:
            gc.freeze()
        if abs(grown_by) >= GROWN_BY:
            self._counts[what] = count
