"""Each bug of `tests.planted_bugs.bugs` is planted in a copy of the sources, where the test that it names must fail.
Without it, the test passes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.planted_bugs.bugs import BUGS, Bug

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.exhaustive

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    *("config", "pipeline", "plugins", "proxy", "quota_callbacks", "src", "testbed", "tests"),
    *("benchmarks", "docs", "engine", "examples", "pyproject.toml"),
)
IGNORED: Final = shutil.ignore_patterns("__pycache__", "target")
TIMEOUT_S: Final = 600.0


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with the links in ``src`` as they are, so that they lead to the copy."""
    folder = tmp_path_factory.mktemp("planted") / "sources"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=IGNORED)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_quick_tests(sources: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run these tests of the copy."""
    options = ("-q", "--randomly-seed=1", "-m", "not soak and not exhaustive")
    environment = {**os.environ, "PYTHONPATH": f"{sources / 'src'}{os.pathsep}{sources}", "PYTEST_ADDOPTS": ""}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def run_engine_tests(sources: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run these tests of the engine. Its crates are compiled where `make engine-tests` compiles them."""
    command = ["cargo", "test", "--quiet", "--locked", "--no-default-features", "--", *tests]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "engine" / "target")}
    return subprocess.run(
        command, cwd=sources / "engine", env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


OF_ENGINE: Final = [bug for bug in BUGS if bug.file.startswith("engine/")]
OF_PYTHON: Final = [bug for bug in BUGS if bug not in OF_ENGINE]


@contextmanager
def planted(sources: Path, bug: Bug) -> Iterator[None]:
    file = sources / bug.file
    text = file.read_text(encoding="utf-8")
    assert text.count(bug.right) == 1, "the list of bugs is not of these sources"
    file.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", OF_PYTHON, ids=[bug.name for bug in OF_PYTHON])
def test_it_is_found(sources: Path, bug: Bug) -> None:
    with planted(sources, bug):
        found = run_quick_tests(sources, bug.found_by)
    assert found.returncode == pytest.ExitCode.TESTS_FAILED, found.stdout + found.stderr
    assert f"FAILED {bug.found_by}" in found.stdout, "a test failed, and not what it needs"


@pytest.mark.timeout(TIMEOUT_S)
def test_without_a_bug_they_pass(sources: Path) -> None:
    """Otherwise any failure would pass for having found a bug."""
    found = run_quick_tests(sources, *dict.fromkeys(bug.found_by for bug in OF_PYTHON))
    assert found.returncode == pytest.ExitCode.OK, found.stdout + found.stderr


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")
@pytest.mark.timeout(TIMEOUT_S)
def test_bugs_of_the_engine_are_found(sources: Path) -> None:
    tests = [bug.found_by for bug in OF_ENGINE]
    assert run_engine_tests(sources, *tests).returncode == 0
    for bug in OF_ENGINE:
        with planted(sources, bug):
            found = run_engine_tests(sources, bug.found_by)
        assert found.returncode != 0, bug.name
        assert bug.found_by in found.stdout, found.stdout + found.stderr
