"""Each bug of `tests.planted_bugs.bugs` is planted in a copy of the sources, and the quick tests there must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.planted_bugs.bugs import BUGS, Bug

pytestmark = pytest.mark.exhaustive

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = (
    *("config", "pipeline", "plugins", "proxy", "quota_callbacks", "src", "testbed", "tests"),
    *("benchmarks", "docs", "examples", "pyproject.toml"),
)
TIMEOUT_S: Final = 600.0


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with the links in ``src`` as they are, so that they lead to the copy."""
    folder = tmp_path_factory.mktemp("planted") / "sources"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def run_quick_tests(sources: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run quick tests of the copy until one of them fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--randomly-seed=1",
        "-m",
        "not soak and not exhaustive",
        tests,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{sources / 'src'}{os.pathsep}{sources}", "PYTEST_ADDOPTS": ""}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    return subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_it_is_found(sources: Path, bug: Bug) -> None:
    file = sources / bug.file
    text = file.read_text(encoding="utf-8")
    assert text.count(bug.right) == 1, "the list of bugs is not of these sources"
    file.write_text(text.replace(bug.right, bug.wrong), encoding="utf-8")
    try:
        found = run_quick_tests(sources, bug.tests)
    finally:
        file.write_text(text, encoding="utf-8")
    assert found.returncode == pytest.ExitCode.TESTS_FAILED, found.stdout + found.stderr
    assert "FAILED" in found.stdout, "a test failed, and not what it needs"


def test_without_a_bug_they_pass(sources: Path) -> None:
    """Otherwise any failure would pass for having found a bug."""
    found = run_quick_tests(sources, "tests/proxy/wire/test_heads.py")
    assert found.returncode == pytest.ExitCode.OK, found.stdout + found.stderr
