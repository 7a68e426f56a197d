"""The layout of docs/architecture.md: no folder is crowded, and there are no import cycles, not even for annotations.

That each package lists its modules is tested in `tests.docs.test_package_docstrings`.
"""

from __future__ import annotations

from functools import cache

import grimp

from tests.layout.folders import OTHERS, ROOT, SHIPPED

PACKAGES = sorted(
    path.parent.relative_to(ROOT).as_posix()
    for name in (*SHIPPED, "testbed")
    for path in (ROOT / name).rglob("__init__.py")
)
MOST_MODULES = 13
CROWDED = {
    "benchmarks": "each module is a measurement of its own, with its own command",
    "benchmarks/bench": "one program that reads from top to bottom: peers, workloads, cores, figures, report",
    "examples/demo": "one program; the clients, which are programs of their own, have a folder",
    "proxy/network": "a module for each thing between the system and the relays; a package for TLS",
    "proxy/wire": "one module for each thing that is read or written; packages for whole messages and for walks",
    "quota_callbacks": "what authors of plugins import: a module for each thing that they use",
    "tests/config": "one module of tests for each module of config and of config/tables",
    "tests/docs": "one module of tests for each page, and for what all pages have in common",
    "tests/fuzzing/targets": "one module of targets for each package that reads what others have written",
    "tests/proxy/wire": "one module of tests for each module of proxy/wire",
}
"""Folders with more modules, and the reason why they are not divided."""


def test_no_folder_is_crowded_without_a_reason() -> None:
    others = {path.parent.relative_to(ROOT).as_posix() for top in OTHERS for path in (ROOT / top).rglob("*.py")}
    counts = {
        folder: sum(path.name != "__init__.py" for path in (ROOT / folder).glob("*.py"))
        for folder in {*PACKAGES, *others}
    }
    crowded = {folder: count for folder, count in counts.items() if count > MOST_MODULES}
    assert crowded.keys() == CROWDED.keys(), crowded


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
