"""The thread that takes finished seconds off the loop and writes them. A disk or a cluster that is slow or gone costs
records, which are counted and told in the stream, and not the loop.

A thread that computes without a pause makes every system call of the loop wait for the interpreter, so this one pauses
after every few records (`plugins.tracing.export_thread` has the measurements).
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from plugins.usage_records.rows import Losses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from plugins.usage_records.encoding import Encoder
    from plugins.usage_records.rows import Rows, Seconds

log = structlog.get_logger("headrace.usage_records")

EVERY_S: Final = 1.0
LINES_AT_ONCE: Final = 16
"""Encoded between two pauses, in about 150 µs."""
PAUSE_S: Final = 200e-6
CLOSE_DEADLINE_S: Final = 4.0
"""How long `WriterThread.close` waits; the server gives all plugins a bounded time."""
REPORT_EVERY_S: Final = 60.0


class Sink(Protocol):
    """Where lines go."""

    recovered: int

    def write(self, lines: list[bytes], first: int, now_s: float) -> None:
        """Take them, all or none (OSError); ``first`` is the sequence number of the first."""

    def tick(self, now_s: float) -> list[tuple[str, int]]:
        """Once a second; records that were lost or removed since: why, and how many."""

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
        self.lost = 0
        """Records."""
        self._seconds = seconds
        self._sink = sink
        self._encoder = encoder
        self._present_second = present_second
        self._run_on_loop = run_on_loop
        self._untold: list[tuple[str, Losses | int]] = []
        self._told_s = 0.0
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

    # --- the thread ---

    def _run(self) -> None:
        while not self._bell.wait(EVERY_S):
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
            first = self._encoder.sequence
            lines: list[bytes] = []
            for line in self._encoder.lines(second, rows):
                lines.append(line)
                if len(lines) % LINES_AT_ONCE == 0 and not self._bell.is_set():
                    time.sleep(PAUSE_S)
            try:
                self._sink.write(lines, first, time.monotonic())
                self.written += len(lines)
            except OSError as error:
                losses = Losses()
                losses.add(rows)
                self._lose(f"{error.strerror or error}", losses)
        try:
            for why, records in self._sink.tick(time.monotonic()):
                self._lose(why, records)
        except OSError as error:
            self._report(f"{error.strerror or error}")
        self._tell()

    def _lose(self, why: str, losses: Losses | int) -> None:
        self.lost += losses if isinstance(losses, int) else losses.records
        self._untold.append((why, losses))
        del self._untold[:-1000]
        self._report(why)

    def _report(self, why: str) -> None:
        """In one line, when it begins, and then every `REPORT_EVERY_S`."""
        now_s = time.monotonic()
        if not self._told_s or now_s - self._told_s >= REPORT_EVERY_S:
            self._told_s = now_s
            log.warning("usage records are being lost", records=self.lost, reason=why)

    def _tell(self) -> None:
        """Tell of losses in the stream itself, as soon as it takes lines again."""
        while self._untold:
            first = self._encoder.sequence
            try:
                self._sink.write([self._lost_line(*self._untold[0])], first, time.monotonic())
            except OSError:
                return
            self._untold.pop(0)

    def _lost_line(self, why: str, losses: Losses | int) -> bytes:
        second = time.time_ns() // 1_000_000_000
        if isinstance(losses, int):
            return self._encoder.lost(second=second, records=losses, reason=why)
        return self._encoder.lost(
            second=second,
            records=losses.records,
            reason=why,
            requests=losses.requests,
            request_bytes=losses.request_bytes,
            response_bytes=losses.response_bytes,
        )

    def _finish(self) -> None:
        try:
            first = self._encoder.sequence
            self._sink.write([self._encoder.end()], first, time.monotonic())
            self._sink.close()
        except OSError as error:
            log.warning("usage records were lost at the end", reason=f"{error.strerror or error}")
