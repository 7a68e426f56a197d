"""The demo as a user starts it, with or without a terminal, and everything that belongs to it.

Whatever the demo starts inherits a variable of its environment, so that it is found wherever it went in the process
tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
MARK = "HEADRACE_TESTBED_DEMO_TEST"
# The arguments of brokers and proxy that lie in their directories.
CONFIGURATIONS = (".properties", ".toml")
# The first run on a machine downloads Kafka.
PATIENCE_S = 600.0
# Time for the supervisor, which ends last, to be reaped.
GONE_S = 10.0
POLL_S = 0.1
READ_BYTES = 65536

# The terminal becomes the controlling one, so that a ^C typed into it is a SIGINT.
ON_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class DemoProcess:
    """`python -m examples.demo`. A context manager, whose end kills it if it still runs."""

    def __init__(
        self,
        *arguments: str,
        terminal: bool = False,
        environment: Mapping[str, str] | None = None,
        columns: int = 120,
    ) -> None:
        self._mark = uuid.uuid4().hex
        self._processes: set[psutil.Process] = set()
        self._paths: set[Path] = set()
        self.text = ""
        command = [sys.executable, "-m", "examples.demo", *arguments]
        self._ours, theirs = pty.openpty() if terminal else os.pipe()
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            command = [sys.executable, "-c", ON_TERMINAL, *command]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(self._mark, environment),
            stdin=theirs if terminal else subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed that; remembers all that belongs to it by then."""
        self._read_until(lambda: text in self.text)
        assert text in self.text, f"ended without having printed {text!r}: {self.text}"
        self.look()

    def look(self) -> None:
        """Remember the processes and directories that belong to it now."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self._process.pid and process.environ().get(MARK) == self._mark:
                    self._processes.add(process)
                    self._paths |= {Path(word) for word in process.cmdline() if word.endswith(CONFIGURATIONS)}

    def interrupt(self) -> None:
        """SIGINT, to it alone."""
        self._process.send_signal(signal.SIGINT)

    def type(self, keys: bytes) -> None:
        """Type into its terminal."""
        os.write(self._ours, keys)

    def end(self) -> int:
        """Wait for its end, and return the exit status."""
        self._read_until(lambda: False)
        return self._process.wait(PATIENCE_S)

    @property
    def brokers(self) -> int:
        """How many brokers were seen."""
        seen = 0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                seen += "kafka.Kafka" in process.cmdline()
        return seen

    @property
    def left(self) -> list[object]:
        """What is left of all that was ever seen of it, and of what was not."""
        deadline_s = time.monotonic() + GONE_S
        while True:
            seen, self._processes = self._processes, set()
            self.look()
            running = [each for each in seen | self._processes if each.is_running()]
            left: list[object] = [*running, *(path for path in self._paths if path.exists())]
            if not left or time.monotonic() > deadline_s:
                return left
            time.sleep(POLL_S)

    def _read_until(self, condition: Callable[[], bool]) -> None:
        """Read until the condition holds or the output ends."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"no end in {PATIENCE_S} s: {self.text}"
            if not select.select([self._ours], [], [], POLL_S)[0]:
                continue
            try:
                data = os.read(self._ours, READ_BYTES)
            except OSError:  # the error of a terminal whose other end is closed
                data = b""
            if not data:
                return
            self.text += data.decode(errors="replace")


def _environment(mark: str, changes: Mapping[str, str] | None) -> dict[str, str]:
    shown: Sequence[str] = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in shown}
    return {**kept, "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color", MARK: mark, **(changes or {})}
