"""The layout of docs/architecture.md: every package lists what is in it, no folder is crowded, and there are no import
cycles, not even for annotations."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("proxy", "quota_callbacks", "config", "plugins", "pipeline")
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for name in (*SHIPPED, "testbed")
    for path in (ROOT / name).rglob("__init__.py")
)
MOST_MODULES = 13
CROWDED = {"proxy/connection": 17}
"""Folders with more, and how many: a connection's parts belong together until the native data plane takes some over."""


def modules_in(package: str) -> set[str]:
    """Return the names of the modules and packages directly in a package."""
    folder = ROOT / package
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_its_modules(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, f"{package} has no docstring"
    listed = set(re.findall(r"^\s*([a-z_0-9]+)/?(?: {2,}| )\S", docstring, re.MULTILINE))
    missing = modules_in(package) - listed
    assert not missing, f"{package}/__init__.py does not list {sorted(missing)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_no_module_that_is_gone(package: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    rows = set(re.findall(r"^ *([a-z_0-9]+)/? {2,}\S", docstring, re.MULTILINE))
    assert rows <= modules_in(package) | {"__main__"}, f"{package} lists {sorted(rows - modules_in(package))}"


def test_no_folder_is_crowded() -> None:
    counts = {package: len([*(ROOT / package).glob("*.py")]) - 1 for package in PACKAGES}
    crowded = {package: count for package, count in counts.items() if count > CROWDED.get(package, MOST_MODULES)}
    assert not crowded


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("headrace", "testbed", exclude_type_checking_imports=False)


def test_nothing_is_imported_in_a_circle() -> None:
    """Tarjan's strongly connected components of the modules, packages' own files left out."""
    graph = _graph()
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    circles: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for imported in sorted(imports[name]):
            if imported not in index:
                visit(imported)
                low[name] = min(low[name], low[imported])
            elif imported in stack:
                low[name] = min(low[name], index[imported])
        if low[name] == index[name]:
            circle = []
            while True:
                circle.append(stack.pop())
                if circle[-1] == name:
                    break
            if len(circle) > 1:
                circles.append(sorted(circle))

    for name in sorted(imports):
        if name not in index:
            visit(name)
    assert not circles
