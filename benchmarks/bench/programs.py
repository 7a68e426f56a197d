"""Programs of a path (a proxy, a receiver of traces) as processes that end with this one."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench.errors import PathUnavailableError
from testbed.processes.programs import content
from testbed.processes.supervised import start_program

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_S: Final = 0.02


class Program:
    """A running program, whose output is written to a file. `close` kills it."""

    __slots__ = ("_output", "_program", "_what")

    def __init__(self, what: str, argv: Sequence[str]) -> None:
        """Start `argv`; `what` names it in errors. Raises SupervisorError if it cannot be started."""
        self._what = what
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        with Path(os.devnull).open("rb") as nothing:
            self._program = start_program(
                argv,
                environment=dict(os.environ),
                stdin=nothing.fileno(),
                stdout=self._output.fileno(),
                stderr=self._output.fileno(),
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._program.pid

    @property
    def output(self) -> str:
        """The output so far."""
        return content(self._output.fileno())

    def wait_for_output(self, text: str, timeout_s: float) -> str:
        """Wait until `text` is in the output, and return the output so far.

        Raises PathUnavailableError, with the end of the output, if the program ends first or takes longer than
        `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while text not in (printed := self.output):
            if self._program.poll() is not None or time.monotonic() > deadline:
                raise PathUnavailableError(f"{self._what} did not start within {timeout_s:g} s: {printed[-1000:]}")
            time.sleep(POLL_S)
        return printed

    def close(self) -> None:
        """Kill the program."""
        self._program.kill()
        self._output.close()
