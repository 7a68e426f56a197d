"""What is tested is what was asked for: compiled modules under ``make compiled``, else the tree's own."""

from __future__ import annotations

import ast
import importlib
import os
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.py"


def hot_modules() -> list[str]:
    """What the build compiles."""
    for statement in ast.parse(SETUP.read_text()).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "COMPILED":  # type: ignore[attr-defined]
            return list(ast.literal_eval(statement.value))
    raise AssertionError("setup.py names no compiled modules")


@pytest.mark.parametrize("path", hot_modules())
def test_a_hot_module_is_compiled_where_that_is_tested(path: str) -> None:
    module = importlib.import_module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
    assert module.__file__ is not None
    assert module.__file__.endswith(".so") == ("HEADRACE_COMPILED" in os.environ)
