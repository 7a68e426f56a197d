"""The errors of the benchmark."""

from __future__ import annotations


class BenchError(Exception):
    """The run cannot continue; the text names what to change."""


class PathUnavailableError(BenchError):
    """A path is not available on this machine; the others are measured without it."""
