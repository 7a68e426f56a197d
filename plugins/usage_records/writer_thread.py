"""The thread that takes finished seconds from the event loop and writes them.

If the disk or the cluster is slow or unavailable, records are lost, which are counted and reported in the output; the
event loop is not affected. A thread that computes without a pause makes the loop wait for the interpreter lock after
every system call, so this one pauses after every few records (`headrace.plugins.tracing.export_thread` has the
measurements).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import structlog

from headrace.plugins.usage_records.pending_losses import LossSummary, PendingLosses
from headrace.plugins.usage_records.rows import Losses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.plugins.usage_records.encoding import Encoder
    from headrace.plugins.usage_records.rows import Row, Rows, Seconds

log = structlog.get_logger("headrace.usage_records")

BEHIND_S: Final = 0.002
"""How long after its end a second is written; so a process that is killed only loses its last second."""
LINES_AT_ONCE: Final = 16
"""Lines encoded between two pauses, in about 150 µs."""
PAUSE_S: Final = 200e-6
CLOSE_DEADLINE_S: Final = 4.0
"""How long `WriterThread.close` waits; the server limits the time in which all plugins close."""
REPORT_EVERY_S: Final = 60.0


LineContent: TypeAlias = "Row | LossSummary | None"
"""The content of a line, kept to count it if the line is lost: a row, a loss summary, or nothing (the last line)."""


class Sink(Protocol):
    """A destination for lines."""

    removed: int
    """Number of files that were removed to make room."""

    @property
    def accepts_loss_records(self) -> bool:
        """Whether a loss record may be written now; if not, losses are summed up further."""

    def write(self, lines: list[bytes], contents: Sequence[LineContent], first: int, now_s: float) -> int:
        """Write ``lines``, and return the number of those that were accepted; `tick` returns the others.

        ``contents`` has the content of each, and ``first`` is the sequence number of the first. Raises an exception if
        none was accepted: their sequence numbers are then used again.
        """

    def tick(self, now_s: float) -> Sequence[tuple[str, LineContent]]:
        """Return the reason and content of each accepted line that has been lost since; called once a second."""

    def close(self) -> None:
        """Complete the output. Raises OSError."""


class WriterThread:
    """The owner of the sink and the thread. The counters may be read from other threads."""

    def __init__(
        self,
        seconds: Seconds,
        sink: Sink,
        encoder: Encoder,
        *,
        present_second: Callable[[], int],
        deliver_completed: Callable[[], Awaitable[None]],
        run_on_loop: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        """``present_second`` returns the wall clock's second; ``deliver_completed`` has all that was completed until
        now added to ``seconds``. Both are called on the event loop."""
        self.written = 0
        """Number of records that the sink accepted."""
        self.lost = 0
        """Number of records that were lost."""
        self._seconds = seconds
        self._sink = sink
        self._encoder = encoder
        self._present_second = present_second
        self._deliver_completed = deliver_completed
        self._run_on_loop = run_on_loop
        self._taken: list[tuple[int, Rows]] = []
        self._pending_losses = PendingLosses()
        self._reported_s: dict[str, float] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-usage", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write the remaining records and the end record, and end the thread.

        Called when no request is in flight any more; may be called from any thread.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            log.warning("usage records were not written in time", waited_s=CLOSE_DEADLINE_S)

    @property
    def removed_files(self) -> int:
        """Number of files that the sink has removed to make room."""
        return self._sink.removed

    # --- the thread ---

    def _run(self) -> None:
        while not self._closing.wait(to_next_second_s(time.time_ns())):
            try:
                self._run_on_loop(self._take_and_note)
            except RuntimeError:  # the event loop has not started yet, or has ended
                continue
            self._write_taken()
        self._note(self._seconds.take(self._seconds.second + 1))
        self._write_taken()
        self._finish()

    async def _take_and_note(self) -> None:
        """Take the finished seconds; runs on the event loop."""
        await self._deliver_completed()
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
            for why, content in self._sink.tick(time.monotonic()):
                self._count_lost_line(why, content)
        except Exception as error:  # noqa: BLE001 -- no failure of a sink ends the thread
            self._report("usage files cannot be completed or removed", _reason(error))
        self._write_losses()

    def _write_second(self, second: int, rows: Rows) -> None:
        """Write all rows of ``second``, or count them as lost."""
        first = self._encoder.sequence
        lines: list[bytes] = []
        try:
            for line in self._encoder.lines(second, rows):
                lines.append(line)
                if len(lines) % LINES_AT_ONCE == 0 and not self._closing.is_set():
                    time.sleep(PAUSE_S)
            self.written += self._sink.write(lines, list(rows.values()), first, time.monotonic())
        except Exception as error:  # noqa: BLE001 -- no failure of a sink ends the thread
            self._encoder.sequence = first
            losses = Losses()
            for row in rows.values():
                losses.add(row)
            self._lose(_reason(error), losses)

    def _count_lost_line(self, why: str, content: LineContent) -> None:
        if isinstance(content, LossSummary):
            self._pending_losses.put_back(content)
        elif content is not None:
            self._lose(why, content)

    def _lose(self, why: str, lost: Row | Losses) -> None:
        self.lost += lost.records if isinstance(lost, Losses) else 1
        self._pending_losses.add(why, lost, time.time_ns() // 1_000_000_000)
        self._report("usage records are being lost", why)

    def _report(self, what: str, why: str) -> None:
        """Log ``what`` the first time, and then at most once in `REPORT_EVERY_S`."""
        now_s, reported_s = time.monotonic(), self._reported_s.get(what)
        if reported_s is None or now_s - reported_s >= REPORT_EVERY_S:
            self._reported_s[what] = now_s
            log.warning(what, records=self.lost, reason=why)

    def _write_losses(self) -> None:
        """Write the pending losses to the output itself, as soon as the sink accepts lines again."""
        while self._pending_losses and self._sink.accepts_loss_records:
            first, summary = self._encoder.sequence, self._pending_losses.first()
            line = self._encoder.lost(
                first_second=summary.first_second, second=summary.second, reason=summary.reason, losses=summary.losses
            )
            try:
                self._sink.write([line], [summary], first, time.monotonic())
            except Exception as error:  # noqa: BLE001 -- no failure of a sink ends the thread
                self._encoder.sequence = first
                self._report("losses of usage records cannot be written", _reason(error))
                return
            self._pending_losses.remove(summary)

    def _finish(self) -> None:
        try:
            first = self._encoder.sequence
            self._sink.write([self._encoder.end()], [None], first, time.monotonic())
            self._sink.close()
        except Exception as error:  # noqa: BLE001 -- no failure of a sink ends the thread
            log.warning("usage records were lost at the end", reason=_reason(error))


def to_next_second_s(now_ns: int) -> float:
    """Return the time until `BEHIND_S` after the end of the wall clock's current second."""
    return 1.0 - now_ns % 1_000_000_000 / 1e9 + BEHIND_S


def _reason(error: Exception) -> str:
    """Return a description of ``error``, without the file name for an `OSError`."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"{type(error).__name__}: {error}"
