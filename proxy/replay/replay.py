"""``headrace replay``: what these quotas would have done to this traffic.

A trace is charged line by line (`headrace.quota_callbacks.records.replay`). Called by `headrace.proxy.replay.files`;
knows no files, sockets or loop.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Final

from headrace.proxy.replay.summary import Summary
from headrace.quota_callbacks.records.replay import Change, Replay, TimeOrderError
from headrace.quota_callbacks.records.trace_lines import (
    MAX_LINE_BYTES,
    BadLineError,
    Members,
    parse,
    read,
    read_windows,
)
from headrace.quota_callbacks.verdicts import Refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.quota_callbacks.verdicts import Throttle

PROGRESS_BYTES: Final = 256 * 1024
"""How much is read between two reports of progress."""


class TraceError(Exception):
    """A trace that cannot be replayed. ``str()`` names the line."""


def replay(trace: IO[bytes], name: str, out: IO[bytes], progress: Callable[[int], None] = lambda _: None) -> Summary:
    """Replay ``trace``, called ``name`` in errors, and write each usage line with its verdict to ``out``.

    ``progress`` is told, now and then, how many more bytes were read. Raises `TraceError` for the first bad line;
    what was written by then is to be thrown away.
    """
    summary = Summary()
    number = unreported = 0
    replaying: Replay | None = None
    try:
        for number, line in enumerate(_lines(trace), 1):
            summary.lines = number
            unreported += len(line)
            if unreported >= PROGRESS_BYTES:
                progress(unreported)
                unreported = 0
            text = _text(line)
            members = parse(text)
            if replaying is None:
                replaying = Replay(read_windows(members))
                continue
            entry = read(members)
            if isinstance(entry, Change):
                replaying.alter(entry)
                summary.changed(entry.t_ms)
                continue
            verdict = replaying.charge(entry)
            summary.count(entry, verdict)
            out.write(_answer(text, members, verdict))
    except (BadLineError, TimeOrderError) as error:
        raise TraceError(f"{name}: line {number}: {error}") from error
    if replaying is None:
        raise TraceError(f"{name}: line 1: nothing, the trace is empty; expected a window line")
    progress(unreported)
    summary.expired, summary.evicted = replaying.expired, replaying.quotas.evicted
    return summary


def _lines(trace: IO[bytes]) -> Iterator[bytes]:
    while line := trace.readline(MAX_LINE_BYTES + 1):
        yield line


def _text(line: bytes) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise BadLineError(f"too long; expected at most {MAX_LINE_BYTES} bytes")
    try:
        return line.decode().strip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8 (byte {error.start + 1}); expected one JSON object") from error


def _answer(text: str, members: Members, verdict: Throttle | Refuse | None) -> bytes:
    """The line as it was, to the letter, with what was decided behind it."""
    throttle_ms = 0 if verdict is None else verdict.throttle_ms
    accepted = not isinstance(verdict, Refuse)
    if "throttle_time_ms" in members or "accepted" in members:  # of an earlier replay, or what a broker said
        members |= {"throttle_time_ms": throttle_ms, "accepted": accepted}
        try:
            return (json.dumps(members, allow_nan=False) + "\n").encode()
        except ValueError as error:
            raise BadLineError("holds a number that is too large; expected what a double holds") from error
    said = f'"throttle_time_ms": {throttle_ms}, "accepted": {"true" if accepted else "false"}'
    return f"{text[:-1].rstrip()}, {said}}}\n".encode()
