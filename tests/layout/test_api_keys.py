"""The keys of Kafka's APIs are defined once, by `ApiKey`, and are nowhere written as numbers.

To parse every module takes more than ten seconds. So regular expressions look for what the syntax tree could show, and
only the modules in which one matches are parsed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.layout.folders import OTHERS, ROOT, SHIPPED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

NOT_CHECKED: Final = "tests/faults/messages.py"
"""The fault tests do not trust the code that they test. The testbed, which imports nothing of the project and repeats
two keys, is not in the folders that are read."""

_CONSTANT: Final = re.compile(
    rf"^(?:\w+, )*_?(?:{'|'.join(ApiKey.__members__)})(?:E?S)?\b[^=\n]*=\s*(?:[(\[{{][^)\]}}]*?)?[\"\d]", re.MULTILINE
)
"""What may be a constant of an API: a number or a text is assigned to the name of one, or to its plural."""

_NUMBER: Final = re.compile(r"\bapi_key\"?\s*(?:[=!]?=|:|\)?,|(?:not )?in\b)\s*(?:[(\[{][^)\]}]*?)?\b\d")
"""What may compare ``api_key`` with a number, assign a number to it, or give it numbers as the parameter of a test."""

_SIGNATURE: Final = re.compile(
    r"^ *(?:async )?def (\w+)\(((?:[^()]|\([^()]*\))*?\bapi_key\b(?:[^()]|\([^()]*\))*)\)", re.MULTILINE
)
_CLASS: Final = re.compile(r"^ *class (\w+)", re.MULTILINE)
_NESTED: Final = r"[(\[{](?:[^()\[\]{}]|[(\[{](?:[^()\[\]{}]|[(\[{][^()\[\]{}]*[)\]}])*[)\]}])*[)\]}]"
_PLAIN_NUMBER: Final = re.compile(r"[(,]\s*\d+\s*[,)]")
_CALL: Final = re.compile(r"(\.)?\b(\w+)\(")
_NTH_IS_NUMBER: Final = [
    re.compile(rf"(?:(?:[^()\[\]{{}},]|{_NESTED})*+,){{{position}}}\s*\d") for position in range(10)
]
"""By number of arguments before it: whether an argument is a number. To be matched behind the parenthesis of a call."""


class ApiKeyParameters:
    """The positions of the parameters called ``api_key`` of the functions, methods and classes of the sources."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        """Read the signatures in ``sources``, the texts of modules by path."""
        self._positions: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for path, source in sources.items():
            for name, position in _signatures(source) if "api_key" in source else ():
                self._positions[name][path].add(position)

    def may_be_numbers(self, path: str, source: str) -> bool:
        """Return whether ``source`` seems to pass a number in the position of an ``api_key``."""
        for call in _CALL.finditer(source) if _PLAIN_NUMBER.search(source) else ():
            paths = self._positions.get(call[2])
            if paths is not None:
                known = (each for where, each in paths.items() if where == path or Path(where).stem in source)
                are_numbers = [_NTH_IS_NUMBER[each].match(source, call.end()) for each in set().union(*known)]
                if any(are_numbers) and (not call[1] or all(are_numbers)):
                    return True
        return False

    def numbers(self, path: str, tree: ast.Module) -> Iterator[object]:
        """Yield the constants that a module passes by position for an ``api_key``.

        A function is looked up in the module that defines it. A method, whose class is not known, is looked up by its
        name in the modules that are imported: a constant counts if it has the position of ``api_key`` in all of them.
        """
        origins = dict(_imported(tree))
        modules = {
            path,
            *origins.values(),
            *(f"{where.removesuffix('.py')}/{name}.py" for name, where in origins.items()),
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            match call.func:
                case ast.Name(id=name):
                    among = {origins.get(name, path)}
                case ast.Attribute(attr=name):
                    among = modules
                case _:
                    continue
            known = (each for where, each in self._positions.get(name, {}).items() if where in among)
            positions = set().union(*known)
            found = [each for position in positions for each in _values(*call.args[position : position + 1])]
            if found and len(found) == len(positions):
                yield found[0]


def _signatures(source: str) -> Iterator[tuple[str, int]]:
    """Yield the names of what has a parameter ``api_key``, which can be passed by position, with that position."""
    for found in _SIGNATURE.finditer(source):
        function = ast.parse(f"def _({found[2]}): ...").body[0]
        assert isinstance(function, ast.FunctionDef)
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if "api_key" in parameters:
            is_bound = parameters[0] in {"self", "cls"}
            name = _CLASS.findall(source, 0, found.start())[-1] if found[1] == "__init__" else found[1]
            yield name, parameters.index("api_key") - is_bound


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports, with the path of the module that each is from."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            path = f"{node.module.removeprefix('headrace.').replace('.', '/')}.py"
            yield from ((each.name, path) for each in node.names)


def _values(node: ast.expr | None = None) -> list[object]:
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


def _named_numbers(tree: ast.Module) -> Iterator[object]:
    """Yield the constants that a module compares with ``api_key``, passes under this name, or runs a test with."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Name(id="api_key") | ast.Attribute(attr="api_key"), comparators=[value]):
                yield from _values(value)
            case ast.keyword(arg="api_key", value=value):
                yield from _values(value)
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                yield from (each for key, value in pairs if _values(key) == ["api_key"] for each in _values(value))
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value="api_key"), value, *_]):
                yield from _values(value)
            case ast.Call(
                func=ast.Attribute(attr="parametrize"), args=[ast.Tuple() as names, ast.List(elts=rows), *_]
            ) if "api_key" in _values(names):
                column = _values(names).index("api_key")
                yield from (each for row in rows if isinstance(row, ast.Tuple) for each in _values(row.elts[column]))


def _keys_defined_again(sources: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the paths of modules with the name of a constant, or with a number, that should be a member of `ApiKey`."""
    parameters = ApiKeyParameters(sources)
    for path, source in sources.items():
        has_constant, has_number = _CONSTANT.search(source), _NUMBER.search(source)
        passes_number = parameters.may_be_numbers(path, source)
        if not (has_constant or has_number or passes_number):
            continue
        tree = ast.parse(source)
        yield from ((path, name) for name in _api_constants(tree))
        numbers = [*_named_numbers(tree), *parameters.numbers(path, tree)]
        yield from ((path, f"{each}") for each in numbers if type(each) is int and each in API_NAMES)


def _found_in(source: str, **others: str) -> Collection[str]:
    """Return what is found in ``source``, a module of a repository that also has the modules ``others``, by name."""
    sources = {f"{name}.py": text for name, text in others.items()}
    return sorted(what for _, what in _keys_defined_again({**sources, "module.py": source}))


def test_the_keys_of_apis_are_defined_once() -> None:
    sources = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in (*SHIPPED, *OTHERS)
        for path in (ROOT / folder).rglob("*.py")
    }
    del sources[NOT_CHECKED]
    assert not set(_keys_defined_again(sources))


def test_a_key_that_is_defined_again_is_found() -> None:
    lines = (
        "PRODUCE: Final = 0",
        "FETCHES: Final = (1, 78)",
        "_METADATA = 3",
        "FETCH, HEARTBEAT = 1, 12",
        'INIT_PRODUCER_ID = "InitProducerId"',
    )
    found = [_found_in(f"{line}\n") for line in lines]
    assert found == [["PRODUCE"], ["FETCHES"], ["_METADATA"], ["FETCH", "HEARTBEAT"], ["INIT_PRODUCER_ID"]]
    assert not _found_in("SHARE_FETCH = 100\nPRODUCE_VERSION = 0\n")


def test_a_number_in_place_of_a_key_is_found() -> None:
    lines = (
        "Interest(api_key=19)",
        "if request.api_key == 3 or api_key in (0, 1): ...",
        'row = {"api_key": 22, "acks": 1, **others}',
        'parametrize = pytest.mark.parametrize("api_key", [8, 9])',
        'parametrize = pytest.mark.parametrize(("size", "api_key"), [(4, 10), (5, FETCH)])',
    )
    assert [_found_in(line) for line in lines] == [["19"], ["0", "1", "3"], ["22"], ["8", "9"], ["10"]]
    assert not _found_in("OfferedApi(api_key=9999, version=3)")


def test_a_number_that_is_passed_by_position_is_found() -> None:
    client = """\
def request(connection: Connection, api_key: int, version: int = 0) -> bytes: ...
class Client:
    def __init__(self, api_key: ApiKey, answers: Callable[[], bytes] = frozenset()) -> None: ...
    async def call(self, api_key: int, version: int) -> bytes: ...
"""
    imports = "from headrace.client import Client, request\nfrom tests.others import framed\n"
    lines = (
        "request(Connection(peer=Address('host', [1, 2])), 3, 1)",
        "request(\n    connection,\n    18,\n)",
        "Client(12)",
        "await book.client.call(3, 0)",
    )
    assert [_found_in(imports + line, client=client) for line in lines] == [["3"], ["18"], ["12"], ["3"]]
    for line in ("framed(connection, 3)", "request(connection, 9999)", "request(3, FETCH)", "client.call(FETCH, 3)"):
        assert not _found_in(imports + line, client=client)
    other = "def call(self, client: Client, api_key: int) -> bytes: ...\n"
    assert not _found_in(imports + "client.call(FETCH, 3)\nsession.call(client, 3)", client=client, other=other)
    assert _found_in("def request(api_key): ...\nrequest(3)", client=client) == ["3"]
