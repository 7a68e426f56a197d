"""The layout of docs/architecture.md: no folder is crowded, and there are no import cycles, not even for annotations.

That each package lists its modules is tested in `tests.docs.test_package_docstrings`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
SHIPPED = ("proxy", "quota_callbacks", "config", "plugins", "pipeline")
PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for name in (*SHIPPED, "testbed")
    for path in (ROOT / name).rglob("__init__.py")
)
MOST_MODULES = 13


def test_no_folder_is_crowded() -> None:
    counts = {package: len([*(ROOT / package).glob("*.py")]) - 1 for package in PACKAGES}
    crowded = {package: count for package, count in counts.items() if count > MOST_MODULES}
    assert not crowded


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("headrace", "testbed", exclude_type_checking_imports=False)


def test_nothing_is_imported_in_a_circle() -> None:
    """Tarjan's strongly connected components of the modules."""
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
