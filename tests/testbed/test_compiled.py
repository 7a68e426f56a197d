"""When the compiled copy is built, and the errors if it cannot be built. `make compiled` tests the copy itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import compiled
from testbed.compiled import compiled_copy
from testbed.errors import CompiledUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Pip:
    """Installs into ``--target`` what it was made with."""

    def __init__(self, *installs: str, status: int = 0) -> None:
        self._installs = installs
        self._status = status
        self.runs = 0

    def __call__(self, argv: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        self.runs += 1
        target = Path(argv[argv.index("--target") + 1])
        for name in self._installs:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).touch()
        return subprocess.CompletedProcess(list(argv), self._status, "", "no such wheel")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one."""
    for name in (
        "pyproject.toml",
        "setup.py",
        "README.md",
        "src/headrace/proxy/request_relay.py",
        "src/headrace/quota_callbacks/buckets.py",
        "src/headrace/proxy/note.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="ascii")
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.setattr(compiled, "CACHE", tmp_path / ".cache")
    return tmp_path


BROKEN = """
import importlib.util, sys
from setuptools import Extension, setup
spec = importlib.util.spec_from_file_location("headrace_setup", sys.argv[2])
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
sys.argv = ["setup.py", "build_ext", "--inplace"]
names = ("first", "second", "third")
setup(name="x", ext_modules=[Extension(name, [name + ".c"]) for name in names], cmdclass={"build_ext": ours.AllOrNone})
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
@pytest.mark.parametrize("broken", [True, False])
def test_where_one_module_cannot_be_compiled_none_is_kept(tmp_path: Path, *, broken: bool) -> None:
    good = "#include <Python.h>\nPyMODINIT_FUNC PyInit_{0}(void) {{ return NULL; }}\n"
    for name in ("first", "second", "third"):
        text = "#error no\n" if broken and name == "second" else good.format(name)
        (tmp_path / f"{name}.c").write_text(text, encoding="ascii")
    command = [sys.executable, "-c", BROKEN, "-", str(Path(__file__).parents[2] / "setup.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.so"))) == (0 if broken else 3)
    assert ("a pure Python wheel, since compiling failed" in done.stderr + done.stdout) == broken


BUILT = "headrace/proxy/connection/request_relay.cpython-311-x86_64-linux-gnu.so"


def test_it_is_built_once_for_the_same_sources(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = Pip(BUILT)
    monkeypatch.setattr(compiled, "run_program", pip)
    reported: list[str] = []
    first = compiled_copy(reported.append)
    (tree / "src/headrace/proxy/note.txt").write_text("no source", encoding="ascii")
    assert compiled_copy(reported.append) == first
    assert (first / BUILT).is_file()
    assert (pip.runs, len(reported)) == (1, 1)
    (tree / "src/headrace/quota_callbacks/buckets.py").write_text("changed", encoding="ascii")
    assert compiled_copy(reported.append) != first
    assert (pip.runs, len(reported)) == (2, 2)


@pytest.mark.parametrize(
    ("pip", "reason"),
    [(Pip(status=1), "no such wheel"), (Pip("headrace/proxy/connection/request_relay.py"), "for lack of a C compiler")],
    ids=["pip fails", "nothing is compiled"],
)
def test_where_it_cannot_be_built(tree: Path, monkeypatch: pytest.MonkeyPatch, pip: Pip, reason: str) -> None:
    monkeypatch.setattr(compiled, "run_program", pip)
    for _ in range(2):
        with pytest.raises(CompiledUnavailableError, match=reason):
            compiled_copy(lambda line: None)
    assert pip.runs == 2
    assert [each.name for each in (tree / ".cache").iterdir()] == ["compiled.lock"]
