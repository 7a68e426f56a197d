"""What a client program says of itself on standard output: JSON objects, one a line, or words for who runs it by hand.

Shared by the client programs and `client_process`. Counts are totals since the program started.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTERVAL_S: Final = 0.25
WORDS_INTERVAL_S: Final = 1.0
"""On a terminal."""
MIB: Final = 1024 * 1024


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Totals at one moment."""

    at_s: float
    """Of the monotonic clock, which all processes of a machine share."""
    moved_bytes: int
    """Record values that were acknowledged to it, or that it consumed."""
    throttles: int
    """Replies that told it to wait."""
    longest_throttle_ms: int
    most_in_flight: int
    """Requests that waited for a reply at one time; 0 where the library does not tell."""
    errors: int
    last_error: str


class Reporter:
    """A client program's counters, and when they are printed."""

    __slots__ = (
        "_interval_s",
        "_last",
        "_next_s",
        "_words",
        "errors",
        "last_error",
        "longest_throttle_ms",
        "most_in_flight",
        "moved_bytes",
        "throttles",
    )

    def __init__(self) -> None:
        self._words = sys.stdout.isatty()
        self._interval_s = WORDS_INTERVAL_S if self._words else INTERVAL_S
        self._next_s = 0.0
        self._last: Report | None = None
        self.moved_bytes = 0
        self.throttles = 0
        self.longest_throttle_ms = 0
        self.most_in_flight = 0
        self.errors = 0
        self.last_error = ""

    def throttled(self, throttle_ms: int) -> None:
        """A reply said to wait so long."""
        if throttle_ms > 0:
            self.throttles += 1
            self.longest_throttle_ms = max(self.longest_throttle_ms, throttle_ms)

    def failed(self, error: object) -> None:
        """The library reported an error."""
        self.errors += 1
        self.last_error = str(error)

    def report(self) -> None:
        """Print the totals if it is time. Ends the program when nobody reads any more."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._interval_s
        report = Report(
            at_s=now_s,
            moved_bytes=self.moved_bytes,
            throttles=self.throttles,
            longest_throttle_ms=self.longest_throttle_ms,
            most_in_flight=self.most_in_flight,
            errors=self.errors,
            last_error=self.last_error,
        )
        try:
            print(_in_words(report, self._last) if self._words else msgspec.json.encode(report).decode(), flush=True)
        except BrokenPipeError:
            sys.exit(0)
        self._last = report


def _in_words(report: Report, last: Report | None) -> str:
    moved, span_s = report.moved_bytes, WORDS_INTERVAL_S
    if last is not None:
        moved, span_s = moved - last.moved_bytes, report.at_s - last.at_s
    words = f"{moved / MIB / span_s:7.2f} MiB/s, {report.moved_bytes / MIB:.0f} MiB in all"
    if report.throttles:
        words += f"; told to wait {report.throttles} times, for up to {report.longest_throttle_ms / 1000:.1f} s"
    if report.errors:
        words += f"; {report.errors} errors, the last: {report.last_error}"
    return words


def read_report(line: str) -> Report | None:
    """Return the report in a line of output, or `None` when the line is something else."""
    try:
        return msgspec.json.decode(line, type=Report)
    except msgspec.DecodeError:
        return None


def parse_settings(pairs: Sequence[str]) -> Mapping[str, str]:
    """Return the settings of `--set name=value` arguments. Raises ValueError for one without "="."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: expected name=value")
        settings[name] = value
    return settings
