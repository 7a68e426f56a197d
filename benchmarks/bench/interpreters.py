"""The Python that runs Headrace: one that is built with optimizations needs a quarter less CPU than one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bench.errors import BenchError

ASK: Final = "import json, sys, sysconfig; print(json.dumps([sysconfig.get_config_var('SOABI'), sys.version]))"
ASK_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that can load the same extension modules as this one; `version` is its ``sys.version``."""

    command: str
    version: str

    def environment(self, packages: str = "") -> dict[str, str]:
        """Return the variables with which it imports Headrace, from ``packages`` or else the source tree."""
        if self.command == sys.executable:
            return {"PYTHONPATH": packages, "PYTHONSAFEPATH": "1"} if packages else {}
        return {
            "PYTHONPATH": os.pathsep.join([packages or str(Path.cwd()), sysconfig.get_path("purelib")]),
            "PYTHONSAFEPATH": "1",
        }


THIS: Final = Interpreter(command=sys.executable, version=sys.version)


def interpreter(command: str) -> Interpreter:
    """Return the Python that ``command`` starts. Raises BenchError if it cannot load the installed packages."""
    try:
        asked = subprocess.run([command, "-c", ASK], capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=True)
        binary_interface, version = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BenchError(f"--python {command}: {error}") from error
    expected = sysconfig.get_config_var("SOABI")
    if binary_interface != expected:
        raise BenchError(f"--python {command} is {binary_interface}; expected {expected}, as the installed packages")
    return Interpreter(command=command, version=version)
