"""The reports of a client program on standard output: one JSON object per line, or sentences on a terminal.

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
"""Interval of reports on a terminal."""
MIB: Final = 1024 * 1024


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A client's totals at one time."""

    at_s: float
    """Time of the monotonic clock, which all processes of a machine share, in seconds."""
    moved_bytes: int
    """Bytes of record values that were acknowledged or consumed."""
    throttles: int
    """Replies with a throttle time."""
    longest_throttle_ms: int
    most_in_flight: int
    """Maximum number of requests in flight; 0 if the library does not report it."""
    errors: int
    last_error: str


class Reporter:
    """The totals of a client program, which are printed regularly."""

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
        """Count a reply with a throttle time."""
        if throttle_ms > 0:
            self.throttles += 1
            self.longest_throttle_ms = max(self.longest_throttle_ms, throttle_ms)

    def failed(self, error: object) -> None:
        """Count an error that the library reported."""
        self.errors += 1
        self.last_error = str(error)

    def report(self) -> None:
        """Print the totals if a report is due. Ends the program when its output is closed."""
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
        words += f"; throttled {report.throttles} times, for up to {report.longest_throttle_ms / 1000:.1f} s"
    if report.errors:
        words += f"; {report.errors} errors, the last: {report.last_error}"
    return words


def read_report(line: str) -> Report | None:
    """Return the report in a line of output, or `None` if the line is not a report."""
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
