"""The thread that takes finished seconds off the loop and writes them. A disk or a cluster that is slow or gone costs
records, which are counted and told in the stream, and not the loop.

A thread that computes without a pause makes every system call of the loop wait for the interpreter, so this one pauses
after every few records (`headrace.plugins.tracing.export_thread` has the measurements).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog

from headrace.plugins.usage_records.pending_losses import LossMark, PendingLosses
from headrace.plugins.usage_records.rows import Losses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.plugins.usage_records.encoding import Encoder
    from headrace.plugins.usage_records.rows import Row, Rows, Seconds

log = structlog.get_logger("headrace.usage_records")

BEHIND_S: Final = 0.002
"""How long after the end of a second it is written; so a process that is killed loses its last second alone."""
LINES_AT_ONCE: Final = 16
"""Encoded between two pauses, in about 150 µs."""
PAUSE_S: Final = 200e-6
CLOSE_DEADLINE_S: Final = 4.0
"""How long `WriterThread.close` waits; the server gives all plugins a bounded time."""
REPORT_EVERY_S: Final = 60.0


Held: TypeAlias = "Row | LossMark | None"
"""What a line tells, to be told as lost if it is: a row, losses themselves, or nothing (the end)."""


class Sink(Protocol):
    """Where lines go."""

    removed: int
    """Files that were removed to make room."""

    @property
    def takes_marks(self) -> bool:
        """Whether losses may be told now; otherwise they are summed up further."""

    def write(self, lines: list[bytes], held: Sequence[Held], first: int, now_s: float) -> None:
        """Take lines; ``held`` is what each of them tells, and ``first`` the sequence number of the first.

        Raises when it took none of them: their numbers are then given to others.
        """

    def tick(self, now_s: float) -> Sequence[tuple[str, Held]]:
        """Once a second; what was taken and is lost after all: why, and what it told."""

    def close(self) -> None:
        """Finish. Raises OSError."""


class WriterThread:
    """Owns the sink and the thread. The counters are read from other threads."""

    def __init__(
        self,
        seconds: Seconds,
        sink: Sink,
        encoder: Encoder,
        *,
        present_second: Callable[[], int],
        run_on_loop: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """``present_second`` is asked on the loop."""
        self.written = 0
        """Records that the sink took."""
        self.lost = 0
        """Records."""
        self._seconds = seconds
        self._sink = sink
        self._encoder = encoder
        self._present_second = present_second
        self._run_on_loop = run_on_loop
        self._taken: list[tuple[int, Rows]] = []
        self._pending_losses = PendingLosses()
        self._reported_s: dict[str, float] = {}
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-usage", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def close(self) -> None:
        """Write what is left and say that it is the end. When no request runs any more; from any thread."""
        if self._bell.is_set():
            return
        self._bell.set()
        self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            log.warning("usage records were not finished", waited_s=CLOSE_DEADLINE_S)

    @property
    def removed_files(self) -> int:
        """Files that the sink has removed to make room."""
        return self._sink.removed

    # --- the thread ---

    def _run(self) -> None:
        while not self._bell.wait(to_next_second_s(time.time_ns())):
            try:
                self._run_on_loop(self._take_and_note)
            except RuntimeError:  # the loop does not run yet, or any more
                continue
            self._write_taken()
        self._note(self._seconds.take(self._seconds.second + 1))
        self._write_taken()
        self._finish()

    async def _take_and_note(self) -> None:
        """On the loop."""
        self._note(self._seconds.take(self._present_second()))

    def _note(self, taken: tuple[list[tuple[int, Rows]], Losses | None]) -> None:
        self._taken, dropped = taken
        if dropped is not None:
            self._lose("the writer did not keep up", dropped)

    def _write_taken(self) -> None:
        taken, self._taken = self._taken, []
        for second, rows in taken:
            self._write_second(second, rows)
        try:
            for why, held in self._sink.tick(time.monotonic()):
                self._lost_after_all(why, held)
        except Exception as error:  # noqa: BLE001 -- no failure of a place ends the thread
            self._report("usage records cannot be finished or removed", _reason(error))
        self._tell()

    def _write_second(self, second: int, rows: Rows) -> None:
        """All of its rows, or count them as lost."""
        first = self._encoder.sequence
        lines: list[bytes] = []
        try:
            for line in self._encoder.lines(second, rows):
                lines.append(line)
                if len(lines) % LINES_AT_ONCE == 0 and not self._bell.is_set():
                    time.sleep(PAUSE_S)
            self._sink.write(lines, list(rows.values()), first, time.monotonic())
            self.written += len(lines)
        except Exception as error:  # noqa: BLE001 -- no failure of a place ends the thread
            self._encoder.sequence = first
            losses = Losses()
            for row in rows.values():
                losses.add(row)
            self._lose(_reason(error), losses)

    def _lost_after_all(self, why: str, held: Held) -> None:
        if isinstance(held, LossMark):
            self._pending_losses.put_back(held)
        elif held is not None:
            self._lose(why, held)

    def _lose(self, why: str, lost: Row | Losses) -> None:
        self.lost += lost.records if isinstance(lost, Losses) else 1
        self._pending_losses.add(why, lost, time.time_ns() // 1_000_000_000)
        self._report("usage records are being lost", why)

    def _report(self, what: str, why: str) -> None:
        """In one line, when it begins, and then every `REPORT_EVERY_S`."""
        now_s, told_s = time.monotonic(), self._reported_s.get(what)
        if told_s is None or now_s - told_s >= REPORT_EVERY_S:
            self._reported_s[what] = now_s
            log.warning(what, records=self.lost, reason=why)

    def _tell(self) -> None:
        """Tell of losses in the stream itself, as soon as it takes lines again."""
        while self._pending_losses and self._sink.takes_marks:
            first, mark = self._encoder.sequence, self._pending_losses.first()
            line = self._encoder.lost(
                first_second=mark.first_second, second=mark.second, reason=mark.reason, losses=mark.losses
            )
            try:
                self._sink.write([line], [mark], first, time.monotonic())
            except Exception as error:  # noqa: BLE001 -- no failure of a place ends the thread
                self._encoder.sequence = first
                self._report("losses of usage records cannot be told", _reason(error))
                return
            self._pending_losses.told(mark)

    def _finish(self) -> None:
        try:
            first = self._encoder.sequence
            self._sink.write([self._encoder.end()], [None], first, time.monotonic())
            self._sink.close()
        except Exception as error:  # noqa: BLE001 -- no failure of a place ends the thread
            log.warning("usage records were lost at the end", reason=_reason(error))


def to_next_second_s(now_ns: int) -> float:
    """Until the present second of the wall clock has ended, and `BEHIND_S` more."""
    return 1.0 - now_ns % 1_000_000_000 / 1e9 + BEHIND_S


def _reason(error: Exception) -> str:
    """Of an error of the system's alone what it is, and not of which file."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"
