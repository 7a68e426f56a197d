"""Runs a program to its end and returns its output.

The program ends with this process, like every program that `testbed.processes.supervised` starts. Called by Kafka's
tools and by the modules that prepare brokers.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from testbed.errors import TestbedTimeoutError
from testbed.processes.supervised import start_program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Variables that change a JVM's options or class path, some of them with a line on standard error.
REMOVED_VARIABLES = ("CLASSPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


def java_environment() -> dict[str, str]:
    """Return this process's environment without the variables that JVMs take options from."""
    return {name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES}


def run_program(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str = "",
    variables: Mapping[str, str] | None = None,
    template: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `argv` and return its exit status and its output, decoded as UTF-8.

    `variables` are set besides those of `java_environment`. Output is written to temporary files, so only the disk
    limits its size. If the program has not ended after `timeout_s` seconds, kills it and raises TestbedTimeoutError
    with the end of its standard error. See `start_program` for `template`.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        program = start_program(
            argv,
            environment={**java_environment(), **(variables or {})},
            stdin=given.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno(),
            template=template,
        )
        try:
            status = program.wait(timeout_s)
        except TestbedTimeoutError as error:
            raise TestbedTimeoutError(f"{error}: {content(err.fileno())[-2000:].strip()}") from error
        finally:
            program.kill()
        return subprocess.CompletedProcess(list(argv), status, content(out.fileno()), content(err.fileno()))


def content(descriptor: int) -> str:
    """Return the whole content of an open file as text, regardless of its position."""
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")


def tail(file: Path, lines: int = 40) -> str:
    """Return the last `lines` lines of a log file, or "(the log is empty)"."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
