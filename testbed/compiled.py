"""A copy of the proxy whose modules on the request path are compiled, as in a wheel (setup.py).

Pip builds the copy in a few minutes, once for the same sources and the same Python, and it is cached in the source
tree's ``.cache``. Called by the benchmarks and by ``make compiled``; knows which folders belong to the proxy, but not
their contents.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from testbed.errors import CompiledUnavailableError
from testbed.processes.locks import exclusive
from testbed.processes.programs import run_program

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).parents[1]
CACHE: Final = ROOT / ".cache"
BUILDING: Final = ("pyproject.toml", "setup.py", "README.md")
IMPORTED: Final = "src/headrace"
PACKAGES: Final = (
    IMPORTED,
    *(f"{IMPORTED}/{each}" for each in ("config", "pipeline", "plugins", "proxy", "quota_callbacks")),
)
SUFFIXES: Final = (".py", ".json", ".toml", ".properties", ".typed")
HOT: Final = "headrace/proxy/connection/request_relay"
"""One of the modules that setup.py compiles; if it is not compiled, none is."""
BUILD_TIMEOUT_S: Final = 1200.0


def compiled_copy(on_progress: Callable[[str], None]) -> Path:
    """Return the directory of the copy; build it if there is none, after reporting that to ``on_progress``.

    Raises CompiledUnavailableError if it cannot be built, LockTimeoutError if another process is still building it.
    """
    directory = CACHE / f"compiled-{_digest()}"
    CACHE.mkdir(exist_ok=True)
    with exclusive(CACHE / "compiled.lock", timeout_s=BUILD_TIMEOUT_S):
        if not directory.is_dir():
            on_progress("compiling the modules on the request path, once for these sources: this takes some minutes")
            _build(directory)
    return directory


def _sources() -> list[Path]:
    """Return the files of the copy, relative to the source tree."""
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*") if file.suffix in SUFFIXES]
    return [Path(name) for name in BUILDING] + sorted(file.relative_to(ROOT) for file in files)


def _digest() -> str:
    digest = hashlib.sha256(f"{sys.version}{sysconfig.get_config_var('SOABI')}".encode())
    for file in _sources():
        digest.update(f"\0{file}\0".encode() + (ROOT / file).read_bytes())
    return digest.hexdigest()[:16]


def _build(directory: Path) -> None:
    """Build from a copy of the sources, to leave the tree unchanged; rename the result when it is complete."""
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        sources, installed = Path(scratch, "sources"), Path(scratch, "installed")
        for file in _sources():
            (sources / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, sources / file)
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(installed)]
        argv = [sys.executable, "-m", "pip", "install", *options, str(sources)]
        done = run_program(argv, timeout_s=BUILD_TIMEOUT_S)
        if done.returncode:
            raise CompiledUnavailableError(f"pip could not build it: {done.stderr[-1000:].strip()}")
        if not list(installed.glob(f"{HOT}.*.so")):
            raise CompiledUnavailableError(
                f"{HOT} was not compiled, for instance for lack of a C compiler; pip install -v . prints the reason"
            )
        installed.rename(directory)


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    """Print the directory of the copy, for ``make``."""
    sys.stdout.write(f"{compiled_copy(_print)}\n")


if __name__ == "__main__":
    main()
