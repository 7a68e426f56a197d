"""Whether the threads of the native data plane still run, from how often each has executed its commands.

Called by `headrace.proxy.data_plane.native` about once a second while connections are relayed. Does not depend on the
extension module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

log = structlog.get_logger("headrace.data_plane")

SILENT_S: Final = 10.0
"""Seconds without an answer after which a thread is reported.

A thread answers between two turns of its connections, which take microseconds, and at most some milliseconds. So only
one that hangs, or gets no processor, is silent for this time, which is also well below that of usual watchdogs (30 s).
"""

LONGEST_PAUSE_S: Final = 2.0
"""Seconds between two checks that count at most: the whole process may have been stopped meanwhile."""


class ThreadWatch:
    """The threads that have not answered."""

    def __init__(self, threads: int) -> None:
        self._beats: Sequence[int | None] = [None] * threads
        self._silent_s = [0.0] * threads
        self._checked_s = 0.0
        self._reported: set[int] = set()

    @property
    def silent_s(self) -> float:
        """Seconds for which the slowest thread has not answered; 0 if all have answered."""
        return max(self._silent_s)

    @property
    def problem(self) -> str:
        """Which thread has not answered for `SILENT_S`, and since when; empty if there is none."""
        if self.silent_s < SILENT_S:
            return ""
        return f"data plane thread {self._silent_s.index(self.silent_s)} has not answered for {self.silent_s:.0f} s"

    def end(self) -> None:
        """Note that no connection is left: no thread is asked until there is one, and none can hang."""
        self.check([None] * len(self._beats), self._checked_s)

    def check(self, beats: Sequence[int | None], now_s: float) -> None:
        """Note how often each thread has executed commands, when it was asked to do so again.

        ``None`` stands for a thread that was not asked. Logs a thread that is silent for too long once, and its answer.
        """
        passed_s = min(now_s - self._checked_s, LONGEST_PAUSE_S)
        self._silent_s = [
            silent_s + passed_s if now is not None and now == before else 0.0
            for now, before, silent_s in zip(beats, self._beats, self._silent_s, strict=True)
        ]
        self._beats, self._checked_s = beats, now_s
        for thread, silent_s in enumerate(self._silent_s):
            if silent_s >= SILENT_S and thread not in self._reported:
                self._reported.add(thread)
                log.error("data plane thread does not answer", thread=thread, silent_s=round(silent_s))
            elif not silent_s and thread in self._reported:
                self._reported.discard(thread)
                log.warning("data plane thread answers again", thread=thread)
