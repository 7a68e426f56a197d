"""A program of a way (a proxy, a sink) as a process that ends with this one."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench.errors import WayUnavailableError
from testbed.processes.supervised import start_program
from testbed.processes.programs import content

if TYPE_CHECKING:
    from collections.abc import Sequence

POLL_S: Final = 0.02


class Program:
    """A running program. `close` kills it. What it prints goes to a file."""

    __slots__ = ("_output", "_program", "_what")

    def __init__(self, what: str, argv: Sequence[str]) -> None:
        """Raises SupervisorError when it cannot be started."""
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
        """Its process id."""
        return self._program.pid

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return content(self._output.fileno())

    def wait_for_output(self, text: str, timeout_s: float) -> str:
        """Wait until it has printed `text`; all that it has printed.

        Raises WayUnavailableError, with the output's end, when it ends before or takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while text not in (printed := self.output):
            if self._program.poll() is not None or time.monotonic() > deadline:
                raise WayUnavailableError(f"{self._what} did not start within {timeout_s:g} s: {printed[-1000:]}")
            time.sleep(POLL_S)
        return printed

    def close(self) -> None:
        """Kill it."""
        self._program.kill()
        self._output.close()
