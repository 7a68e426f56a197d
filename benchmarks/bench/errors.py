"""What keeps a benchmark from being run."""

from __future__ import annotations


class BenchError(Exception):
    """The run cannot go on; the text says what to change."""


class WayUnavailableError(BenchError):
    """A way cannot be had on this machine; the others are measured without it."""
