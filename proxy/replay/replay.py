"""Charging a trace line by line, and writing each usage line with what its quotas would have decided.

Called by `headrace.proxy.replay.files`; must not depend on files, sockets or an event loop. The arithmetic is that of
`headrace.quota_callbacks.records.replay`.
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
"""Number of bytes read between two reports of progress."""


class TraceError(Exception):
    """A trace that cannot be replayed. ``str()`` names the line."""


def replay(trace: IO[bytes], name: str, out: IO[bytes], progress: Callable[[int], None] = lambda _: None) -> Summary:
    """Replay ``trace``, called ``name`` in errors, and write each usage line with its verdict to ``out``.

    ``progress`` is called from time to time with the number of bytes read since its last call. Raises `TraceError` for
    the first bad line; the caller has to discard the output written until then.
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
        raise TraceError(f"{name}: line 1: the trace is empty; expected a window line")
    progress(unreported)
    summary.expired, summary.overflowed = replaying.expired, replaying.quotas.overflowed
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
    """Return the line unchanged, with ``throttle_time_ms`` and ``accepted`` appended.

    If the line already has one of them, both are replaced, and the line is written anew as JSON.
    """
    throttle_ms = 0 if verdict is None else verdict.throttle_ms
    accepted = not isinstance(verdict, Refuse)
    if "throttle_time_ms" in members or "accepted" in members:  # from an earlier replay, or recorded from a broker
        members |= {"throttle_time_ms": throttle_ms, "accepted": accepted}
        try:
            return (json.dumps(members, allow_nan=False) + "\n").encode()
        except ValueError as error:
            raise BadLineError(
                "contains a number that is too large; expected numbers that a double can represent"
            ) from error
    decision = f'"throttle_time_ms": {throttle_ms}, "accepted": {"true" if accepted else "false"}'
    return f"{text[:-1].rstrip()}, {decision}}}\n".encode()
