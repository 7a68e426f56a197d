"""Other Python processes that use the testbed, and checks of what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# Warnings are errors in callers too: an unclosed pipe or a process left behind fails the test.
PYTHON = (sys.executable, "-W", "error", "-c")

# A caller would inherit signals that a shell's background job or nohup ignores.
HEARS_SIGNALS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""


@contextlib.contextmanager
def caller(code: str, environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code`; killed at the end of the block if it still runs."""
    with subprocess.Popen(
        [*PYTHON, HEARS_SIGNALS + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def printed_by(process: subprocess.Popen[str]) -> Any:
    """The JSON value in the next line that the caller prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(f"the caller ended: {process.stderr.read()}")
    return json.loads(line)


def run_caller(code: str, environment: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> Any:
    """Run `code` to its end and return the JSON value it printed."""
    with caller(code, environment) as process:
        out, err = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, err
        return json.loads(out)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until_nothing_is_left(pids: list[int], directory: Path) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids), f"the end of {pids}")
    wait_until(lambda: not directory.exists(), f"the removal of {directory}")
