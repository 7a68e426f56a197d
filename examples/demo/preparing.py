"""Prepares Java and Kafka's jars before anything is started: waits for `prepare` and shows its progress.

Takes milliseconds if everything is cached; the first run on a machine downloads about 110 MB.
"""

from __future__ import annotations

import stat
import sys
import time
from typing import TYPE_CHECKING, Final

from examples.demo.client_process import LineProcess
from examples.demo.prepare import Stage
from testbed.errors import TestbedError
from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION, cache_directory

if TYPE_CHECKING:
    from examples.demo.screen import Screen, Step

POLL_S: Final = 0.1
LOOK_S: Final = 0.5
"""Interval at which the size of the download is read."""
DOWNLOAD: Final = "about 110 MB"


def prepare(screen: Screen) -> None:
    """Make sure that a cluster can be started. Raises TestbedError, whose text names what is missing."""
    with (
        screen.step("looking for Java and Kafka", done="Java and Kafka are available") as step,
        LineProcess([sys.executable, "-m", "examples.demo.prepare"]) as program,
    ):
        watch = _Watch(step)
        while True:
            status = program.exit_status()
            for line in program.new_lines():
                watch.saw(line)
            watch.look()
            if status is not None:
                break
            time.sleep(POLL_S)
        if status != 0:
            raise TestbedError("\n".join(watch.lines) or f"preparing Kafka ended with status {status}")


class _Watch:
    """The updates of a step's description with the stage and the size of the download."""

    def __init__(self, step: Step) -> None:
        self.lines: list[str] = []
        self._step = step
        self._stage = Stage.JAVA
        self._next_look_s = 0.0
        self._before = _in_cache()

    def saw(self, line: str) -> None:
        """Handle a line of the process."""
        for stage in Stage:
            if line == stage.value:
                self._stage = stage
                return
        self.lines.append(line)

    def look(self) -> None:
        """Update the description."""
        if self._stage is Stage.CLASSES:
            self._step.doing = "creating Kafka's class data archive for faster starts, once (about 10 s)"
        elif self._stage is Stage.JARS and time.monotonic() >= self._next_look_s:
            self._next_look_s = time.monotonic() + LOOK_S
            files, size = _in_cache()
            # There may be fewer than before, since the remains of an interrupted download are removed.
            files, megabytes = max(0, files - self._before[0]), max(0, size - self._before[1]) // 1_000_000
            self._step.doing = (
                f"downloading Kafka {DEFAULT_BROKER_VERSION}, once ({DOWNLOAD}): {files} files, {megabytes} MB so far"
            )


def _in_cache() -> tuple[int, int]:
    """Return the number of files downloaded so far, and their bytes."""
    files, size = 0, 0
    for file in (cache_directory() / "maven").rglob("*"):
        try:
            status = file.stat()
        except OSError:  # a temporary file that was renamed
            continue
        if stat.S_ISREG(status.st_mode):
            files, size = files + 1, size + status.st_size
    return files, size
