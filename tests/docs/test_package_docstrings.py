"""Each package's docstring is the map of its folder: a line for every module and package in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("config", "pipeline", "plugins", "proxy", "quota_callbacks")
FOLDERS = (*SHIPPED, "benchmarks", "examples", "testbed")
PACKAGES = sorted(
    str(init.parent.relative_to(ROOT)) for folder in FOLDERS for init in (ROOT / folder).rglob("__init__.py")
)


def members(folder: Path) -> set[str]:
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


def listed(docstring: str) -> set[str]:
    """The first words of its table's lines, which may be several with commas between them."""
    rows = re.findall(r"^ *(\w+(?:, \w+)*)  +\S|^ +(\w+(?:, \w+)*)$", docstring, re.MULTILINE)
    return {name for row in rows for name in "".join(row).split(", ")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_its_modules(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")), clean=False)
    assert docstring is not None
    assert listed(docstring) == members(ROOT / package)


FRAGMENT = re.compile(r'"""(By|Of|In|Its|Their|The same|Whom|How many|How much|Until) ')
"""How a docstring begins that does not say what the thing is, only something about it."""


def test_docstrings_say_what_a_thing_is() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in SHIPPED
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FRAGMENT.search(line)
    ]
    assert found == []
