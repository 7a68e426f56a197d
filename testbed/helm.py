"""Helm, which renders and checks the chart in ``deploy/helm``: built by Go from its module, once, and cached on disk.

No maintained package of a registry contains the program, so it is built, which takes some minutes. Called by tests;
does not depend on the chart.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.errors import HelmError, HelmUnavailableError
from testbed.kafka.artifacts import cache_directory
from testbed.processes.locks import exclusive
from testbed.processes.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)

VERSION: Final = "4.3.1"
MODULE: Final = f"helm.sh/helm/v4/cmd/helm@v{VERSION}"
OLDEST: Final = (3, 18)
"""The oldest version on the PATH that is used. Since this version, schemas of values are checked as by Helm 4."""
BUILD_TIMEOUT_S: Final = 1800.0
RUN_TIMEOUT_S: Final = 60.0


def existing_helm() -> Path | None:
    """Return the program if it was built before, or one on the PATH that is not older than `OLDEST`, else None."""
    built = _built()
    if built.is_file():
        return built
    found = shutil.which("helm")
    if found is None:
        return None
    version = re.match(r"v(\d+)\.(\d+)", run_program([found, "version", "--short"], timeout_s=RUN_TIMEOUT_S).stdout)
    return Path(found) if version and (int(version[1]), int(version[2])) >= OLDEST else None


def helm() -> Path:
    """Return the path of the program; build the program if `existing_helm` finds none.

    Raises HelmUnavailableError if it cannot be built, for instance because there is no Go, and LockTimeoutError if
    another process is still building it.
    """
    if existing := existing_helm():
        return existing
    go = shutil.which("go")
    if go is None:
        oldest = ".".join(map(str, OLDEST))
        raise HelmUnavailableError(f"neither helm {oldest} or newer nor go is installed; install one of them")
    cache = cache_directory() / "helm"
    with exclusive(cache / "build.lock", timeout_s=BUILD_TIMEOUT_S):
        if not _built().is_file():  # another process may have been faster
            _log.info("building Helm %s into %s, once: this takes some minutes", VERSION, cache)
            _build(go, cache)
    return _built()


def run_helm(program: Path, arguments: Sequence[str]) -> str:
    """Run the program and return its standard output. Raises HelmError, with all its output, if it fails."""
    done = run_program([str(program), *arguments], timeout_s=RUN_TIMEOUT_S)
    if done.returncode:
        raise HelmError(f"helm {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
    return done.stdout


def _built() -> Path:
    return cache_directory() / "helm" / VERSION / "helm"


def _build(go: str, cache: Path) -> None:
    """Build into a folder of its own, which is renamed when it is complete."""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        folder = Path(scratch, "bin")
        done = run_program([go, "install", MODULE], timeout_s=BUILD_TIMEOUT_S, variables={"GOBIN": str(folder)})
        if done.returncode:
            raise HelmUnavailableError(f"go install {MODULE} failed: {done.stderr[-1000:].strip()}")
        folder.rename(_built().parent)
