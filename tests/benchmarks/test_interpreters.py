"""``--python``: another interpreter is asked what it is before it runs anything."""

from __future__ import annotations

import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench.errors import BenchError
from benchmarks.bench.interpreters import THIS, interpreter

if TYPE_CHECKING:
    from pathlib import Path


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    path.chmod(0o755)
    return str(path)


def test_this_one_needs_nothing_set() -> None:
    assert THIS.environment() == {}
    assert THIS.environment("/packages") == {"PYTHONPATH": "/packages", "PYTHONSAFEPATH": "1"}
    assert interpreter(sys.executable) == THIS


def test_another_one_finds_headrace_and_what_it_needs(tmp_path: Path) -> None:
    other = interpreter(script(tmp_path / "python", f'exec {sys.executable} "$@"'))
    assert other.version == sys.version
    assert other.environment("/packages")["PYTHONPATH"] == f"/packages:{sysconfig.get_path('purelib')}"


def test_what_is_no_python_is_named() -> None:
    with pytest.raises(BenchError, match=r"--python /no/such/python: .*No such file"):
        interpreter("/no/such/python")
    with pytest.raises(BenchError, match=r"--python true: Expecting value"):
        interpreter("true")


def test_another_binary_interface_is_refused(tmp_path: Path) -> None:
    other = script(tmp_path / "python", """echo '["cpython-27-x86_64-linux-gnu", "2.7"]'""")
    with pytest.raises(BenchError, match=r"is cpython-27-x86_64-linux-gnu; expected cpython-3"):
        interpreter(other)
