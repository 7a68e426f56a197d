"""Processes whose standard output is read line by line without waiting: the clients, and the one that prepares.

They are kept (`testbed.processes.supervised`): they end with this process, however it ends.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final, Self

from examples.demo.reports import read_report
from testbed.kafka.launch import java_environment
from testbed.processes.supervised import start_program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.demo.reports import Report
    from examples.demo.scenario import Client

READ_BYTES: Final = 65536
LINES_KEPT: Final = 30
ERROR_WORDS: Final = ("Exception", "Error", "Traceback")


class LineProcess:
    """A process whose output, standard error included, is read when asked for.

    A context manager, whose end kills it.
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
        """Return the whole lines that were printed since the last call; after its end, an unfinished one too."""
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
        """Return its exit status, or `None` while it runs."""
        return self._program.poll()

    def close(self) -> None:
        """Kill it if it still runs. May be called again."""
        self._program.kill()
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ClientProcess(LineProcess):
    """A client at work: its latest report, and whatever else it printed."""

    def __init__(self, client: Client, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self.client = client
        self.report: Report | None = None
        self._said: deque[str] = deque(maxlen=LINES_KEPT)
        self._errors = 0

    def read(self) -> bool:
        """Take in what it printed; whether there was a report."""
        reported = False
        for line in self.new_lines():
            report = read_report(line)
            if report is not None:
                self.report, reported = report, True
            elif line.strip():
                self._said.append(line.strip())
                self._errors += any(word in line for word in ERROR_WORDS)
        return reported

    @property
    def problem(self) -> str | None:
        """What went wrong, in a clause, or `None`: it ended, it reported errors, or it printed some."""
        status = self.exit_status()
        if status is not None:
            last = f": {self._said[-1]}" if self._said else ""
            return f"ended by itself with status {status}{last}"
        if self.report is not None and self.report.errors:
            return f"reported {self.report.errors} errors, the last: {self.report.last_error}"
        if self._errors:
            return f"printed {self._errors} errors, the last: {self._last_error()}"
        return None

    def _last_error(self) -> str:
        errors = [line for line in self._said if any(word in line for word in ERROR_WORDS)]
        return errors[-1] if errors else "no longer known"
