"""Rate limit for repeated log lines: one line a minute for each cause, and a limit for all causes of one kind.

A cause should not contain what a client chooses freely. Whatever it contains, its kind does not, so that the limit of
lines of one kind holds however many causes an attacker invents.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

EVERY_S: Final = 60.0
MAX_CAUSES: Final = 1000
"""Causes that are remembered; with one more, the one that was logged least recently is forgotten."""


class RepeatedLines:
    """The time of the last line of each cause, and the number of lines left out since, by cause and by kind.

    Causes are kept as their hashes, so that long ones need no memory.
    """

    __slots__ = ("_kinds", "_written")

    lines_per_minute: ClassVar[int] = 100
    """The most lines a minute of one kind: ``log.lines_per_minute``."""

    def __init__(self) -> None:
        self._written: dict[int, _Cause] = {}
        self._kinds: dict[str, _Kind] = {}

    def due(self, kind: str, *cause: Hashable, now_s: float | None = None) -> int | None:
        """Return how many lines about this cause were left out before this one, or ``None`` to leave out this one.

        The lines that were left out because of the limit of their kind, or whose cause was forgotten, are included in
        the next line of the kind.
        """
        now_s = time.monotonic() if now_s is None else now_s
        key = hash((kind, cause))
        known = self._written.get(key)
        if known is not None and now_s - known.written_s < EVERY_S:
            known.left_out += 1
            return None
        of_kind = self._kinds.setdefault(kind, _Kind())
        if not of_kind.has_room(now_s, self.lines_per_minute):
            of_kind.left_out += 1
            return None
        if known is not None:
            del self._written[key]
        elif len(self._written) >= MAX_CAUSES:
            forgotten = self._written.pop(next(iter(self._written)))
            forgotten.of_kind.left_out += forgotten.left_out
        left_out = of_kind.left_out + (known.left_out if known is not None else 0)
        of_kind.left_out = 0
        self._written[key] = _Cause(of_kind, now_s)
        return left_out


class _Kind:
    """The lines of one kind: those of the present minute, and those left out that no cause remembers."""

    __slots__ = ("began_s", "left_out", "lines")

    def __init__(self) -> None:
        self.began_s = float("-inf")
        self.lines = 0
        self.left_out = 0

    def has_room(self, now_s: float, lines_per_minute: int) -> bool:
        """Count a line, unless the lines of this minute are used up."""
        if now_s - self.began_s >= EVERY_S:
            self.began_s, self.lines = now_s, 0
        if self.lines >= lines_per_minute:
            return False
        self.lines += 1
        return True


class _Cause:
    """The last line of a cause."""

    __slots__ = ("left_out", "of_kind", "written_s")

    def __init__(self, of_kind: _Kind, now_s: float) -> None:
        self.of_kind = of_kind
        self.written_s = now_s
        self.left_out = 0


def place_of(error: BaseException) -> tuple[str, int]:
    """Return the function and the line in which ``error`` was raised: the kind of a fault, whatever its text says."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_qualname, trace.tb_lineno
