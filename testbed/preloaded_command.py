"""Runs ``headrace`` as a template (`testbed.processes.template`): its forks start a second faster than a new process.

Tests use it for proxies (`testbed.proxy_process`) and for other commands (`run_headrace`) while the variable `SWITCH`
is "1".
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.processes.programs import run_program
from testbed.processes.template import serve

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

SWITCH = "HEADRACE_TESTBED_PRELOADED"
COMMAND = "headrace.proxy.cli"
SCRIPT = Path(sys.executable).with_name("headrace")
"""The command as it is installed."""
MODULES = ("headrace.config.check", "headrace.proxy.server.command", "headrace.proxy.admin.server")
"""The modules that the commands import when they are called, apart from those of plugins."""


def template(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line of the template that can run ``argv`` with the variables ``environment`` in addition to
    those of this process; () if no template can, so that ``argv`` has to be executed.
    """
    usual = argv[0] == str(SCRIPT) or list(argv[:3]) == [sys.executable, "-m", COMMAND]
    if os.environ.get(SWITCH) != "1" or not usual or any(name.startswith("PYTHON") for name in environment):
        return ()
    return (sys.executable, "-m", "testbed.preloaded_command")


def run_headrace(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run the installed command to its end, and return its exit status and output."""
    argv, variables = [str(SCRIPT), *map(str, arguments)], environment or {}
    return run_program(argv, timeout_s=timeout_s, variables=variables, template=template(argv, variables))


def _run(argv: Sequence[str]) -> None:
    """Do in a fork what executing ``argv`` does."""
    name, start = ("headrace", 1) if argv[0] == str(SCRIPT) else (f"python -m {COMMAND}", 3)
    sys.argv = [name, *argv[start:]]
    import_module(COMMAND).main(argv[start:], prog_name=name)


if __name__ == "__main__":
    plugins = distribution("headrace").entry_points.select(group="headrace.plugins")
    for module in (COMMAND, *MODULES, *(point.module for point in plugins)):
        import_module(module)
    gc.freeze()  # so that the first collection of a fork does not visit, and thereby copy, what is shared
    serve(int(sys.argv[1]), _run)
