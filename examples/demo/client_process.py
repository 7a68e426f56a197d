"""Processes whose standard output is read line by line without waiting: the clients, and `prepare`.

They end with this process, however it ends (`testbed.processes.supervised`).
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from examples.demo.reports import read_report
from testbed.processes.programs import java_environment
from testbed.processes.supervised import start_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.demo.reports import Report
    from examples.demo.scenario import Client

READ_BYTES: Final = 65536
LINES_KEPT: Final = 30
ERROR_WORDS: Final = ("Exception", "Error", "Traceback")


class LineProcess:
    """A process whose output, including standard error, is read without waiting.

    A context manager, which kills the process at its exit.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._rest = b""
        self._output, theirs = os.pipe()
        os.set_blocking(self._output, False)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._program = start_program(
                argv, environment=java_environment(), stdin=nothing, stdout=theirs, stderr=theirs
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(theirs)
            os.close(nothing)

    def new_lines(self) -> list[str]:
        """Return the complete lines since the last call, and after the process's end also an incomplete last line."""
        ended = self.exit_status() is not None
        data = self._rest
        while True:
            try:
                more = os.read(self._output, READ_BYTES)
            except BlockingIOError:
                break
            if not more:
                break
            data += more
        whole, newline, self._rest = data.rpartition(b"\n")
        if ended and self._rest:
            whole, newline, self._rest = data, b"\n", b""
        return whole.decode(errors="replace").splitlines() if newline else []

    def exit_status(self) -> int | None:
        """Return the exit status, or `None` while the process runs."""
        return self._program.poll()

    def close(self) -> None:
        """Kill the process if it is running. May be called again."""
        self._program.kill()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ClientProcess(LineProcess):
    """A running client: its latest report, and its other output."""

    def __init__(self, client: Client, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self.client = client
        self.report: Report | None = None
        self._other_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._errors = 0

    def read(self) -> bool:
        """Read new output, and return whether it contained a report."""
        reported = False
        for line in self.new_lines():
            report = read_report(line)
            if report is not None:
                self.report, reported = report, True
            elif line.strip():
                self._other_lines.append(line.strip())
                self._errors += any(word in line for word in ERROR_WORDS)
        return reported

    @property
    def problem(self) -> str | None:
        """A clause that describes a failure (it ended, reported errors, or printed some), or `None`."""
        status = self.exit_status()
        if status is not None:
            last = f": {self._other_lines[-1]}" if self._other_lines else ""
            return f"ended by itself with status {status}{last}"
        if self.report is not None and self.report.errors:
            return f"reported {self.report.errors} errors, the last: {self.report.last_error}"
        if self._errors:
            return f"printed {self._errors} errors, the last: {self._last_error()}"
        return None

    def _last_error(self) -> str:
        errors = [line for line in self._other_lines if any(word in line for word in ERROR_WORDS)]
        return errors[-1] if errors else "no longer known"
