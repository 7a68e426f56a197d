"""The layout of docs/architecture.md: no folder is crowded, and there are no import cycles, not even for annotations.

That each package lists its modules is tested in `tests.docs.test_package_docstrings`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import grimp

from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
OTHERS = ("tests", "benchmarks", "examples")
SHIPPED = ("proxy", "quota_callbacks", "config", "plugins", "pipeline")
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
    "tests/proxy/connection": "one module of tests for each kind of traffic through a connection",
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


def _values(node: ast.expr | None) -> list[object]:
    """Return the constants of an expression that is a constant or a tuple, a list or a set of constants."""
    elements = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [each.value for each in elements if isinstance(each, ast.Constant)]


def _api_constants(tree: ast.Module) -> Iterator[str]:
    """Yield the constants of a module that have the name of an API, or its plural, and its key or its name."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = node.target, node.value
        else:
            continue
        names = [each.id for each in ast.walk(targets) if isinstance(each, ast.Name)]
        values = _values(value)
        for name in names:
            api = name.lstrip("_")
            for singular in (api, api.removesuffix("S"), api.removesuffix("ES")):
                key = ApiKey.__members__.get(singular)
                if key is not None and (key.value in values or API_NAMES[key] in values):
                    yield name
                    break


def _api_numbers(tree: ast.Module) -> Iterator[str]:
    """Yield what a module compares with, or passes as, an attribute ``api_key``: the keys of APIs as numbers."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Name(id="api_key") | ast.Attribute(attr="api_key"), comparators=[value]):
                found = _values(value)
            case ast.keyword(arg="api_key", value=value):
                found = _values(value)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                found = [each for key, value in pairs if _values(key) == ["api_key"] for each in _values(value)]
            case _:
                continue
        yield from (f"{each}" for each in found if type(each) is int and each in API_NAMES)


def test_the_keys_of_apis_are_defined_once() -> None:
    """By `ApiKey`. The testbed, which imports nothing of the project, repeats two; the fault tests repeat some, since
    they do not trust the code that they test.
    """
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in (*SHIPPED, *OTHERS)
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "tests" / "faults" / "messages.py"
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
        for name in (*_api_constants(tree), *_api_numbers(tree))
    }
    assert found == set()


def test_a_key_that_is_defined_again_is_found() -> None:
    source = """\
PRODUCE: Final = 0
FETCHES: Final = (1, 78)
_METADATA = 3
FETCH, HEARTBEAT = 1, 12
INIT_PRODUCER_ID = "InitProducerId"
SHARE_FETCH = 100
PRODUCE_VERSION = 0
"""
    found = list(_api_constants(ast.parse(source)))
    assert found == ["PRODUCE", "FETCHES", "_METADATA", "FETCH", "HEARTBEAT", "INIT_PRODUCER_ID"]


def test_a_number_in_place_of_a_key_is_found() -> None:
    source = """\
Interest(api_key=19)
if request.api_key == 3 or api_key in (0, 1): ...
row = {"api_key": 22, "acks": 1, **others}
OfferedApi(api_key=9999, version=3)
"""
    assert sorted(_api_numbers(ast.parse(source))) == ["0", "1", "19", "22", "3"]
