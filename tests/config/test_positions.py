"""`Positions` for generated documents, whose positions the generator records."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.positions import Position, Positions
from headrace.quota_callbacks.value_texts import Path

BARE = st.text("abcXYZ019_-", min_size=1, max_size=4)
ANY = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=4)
ODD = st.sampled_from(["", "a.b", 'q"q', "it's", "tab\t", "new\nline", "back\\slash", "[x]", "# no", "=", "é"])
NAMES = BARE | ANY | ODD

SCALARS = st.sampled_from(
    [
        *("1", "0x1F", "-5", "1_000", "3.14", "-inf", "nan", "true", "1979-05-27 07:32:00", "07:32:00.5"),
        *('""', '"]"', '"}"', '"# no"', '"\\""', '"\\\\"', "''", "'\"'", "'\\'", "'a]b}c,d'"),
        *('""""""', '"""a\n"b""c\n"""', '"""\n[x]\n# y"""', '"""a""""', '"""a"""""', '"""\\""""""', '"""a\\\n   b"""'),
        *("''''''", "'''a\n'b''c'''", "'''a''''", "'''\\'''", "'''a'''''"),
    ]
)
ARRAYS = st.deferred(lambda: st.lists(VALUES, max_size=3))
INLINE = st.deferred(lambda: st.dictionaries(NAMES, VALUES, max_size=3))
VALUES: st.SearchStrategy[Any] = st.one_of(SCALARS, SCALARS, ARRAYS, INLINE)
TABLES: st.SearchStrategy[Any] = st.deferred(
    lambda: st.dictionaries(NAMES, st.one_of(VALUES, st.tuples(st.just("table"), TABLES), TABLE_ARRAYS), max_size=4)
)
TABLE_ARRAYS = st.deferred(lambda: st.tuples(st.just("tables"), st.lists(TABLES, min_size=1, max_size=3)))


class Writer:
    """Writes a document in a style that Hypothesis draws, and records all positions."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = ""
        self.places: dict[Path, Position] = {}

    def __repr__(self) -> str:
        return f"<document {self.text!r}>"

    def note(self, path: Path, *, first: bool = True) -> None:
        line = self.text.rpartition("\n")[2]
        place = Position(line=self.text.count("\n") + 1, column=len(line) + 1)
        if not (first and path in self.places):
            self.places[path] = place

    def pick(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def space(self) -> None:
        self.text += self.pick("", " ", "\t ")

    def blank(self) -> None:
        self.text += self.pick("", "", " ", "\n", " # ] } ' \"\n", "\n\n\t")

    def name(self, name: str) -> None:
        bare = bool(name) and all(character in "abcXYZ019_-" for character in name)
        literal = not set(name) & set("'\n\t")
        styles = ['"'] + ["bare"] * bare + ["'"] * literal
        style = self.draw(st.sampled_from(styles))
        self.text += {"bare": name, "'": f"'{name}'"}.get(style, json.dumps(name, ensure_ascii=False))

    def dotted(self, names: list[str], outer: Path, *, explicit: bool = False) -> None:
        path = outer
        for index, name in enumerate(names):
            path = (*path, name)
            self.note(path, first=not (explicit and index == len(names) - 1))
            self.name(name)
            if index < len(names) - 1:
                self.space()
                self.text += "."
                self.space()

    def value(self, value: Any, path: Path) -> None:
        if isinstance(value, str):
            self.text += value
        elif isinstance(value, list):
            self.text += "["
            self.blank()
            for index, item in enumerate(value):
                self.note((*path, index))
                self.value(item, (*path, index))
                self.blank()
                self.text += "," if index < len(value) - 1 else self.pick("", ",")
                self.blank()
            self.text += "]"
        else:
            self.text += "{"
            self.space()
            for index, (name, item) in enumerate(value.items()):
                self.text += "," * bool(index)
                self.space()
                self.pair([name], item, path)
                self.space()
            self.text += "}"

    def pair(self, names: list[str], value: Any, outer: Path) -> None:
        self.dotted(names, outer)
        self.space()
        self.text += "="
        self.space()
        self.value(value, (*outer, *names))

    def end_line(self) -> None:
        self.space()
        self.text += self.pick("", "# a = [")
        self.text += "\n"
        self.blank()

    def body(self, table: dict[str, Any], header: list[str], path: Path) -> None:
        below: list[tuple[str, str, Any]] = []
        for name, value in table.items():
            if isinstance(value, tuple):
                below.append((name, *value))
            elif isinstance(value, dict) and value and self.pick("inline", "dotted") == "dotted":
                for inner, item in value.items():
                    self.pair([name, inner], item, path)
                    self.end_line()
            else:
                self.pair([name], value, path)
                self.end_line()
        for name, form, value in below:
            names = [*header, name]
            for index, item in enumerate(value if form == "tables" else [value]):
                inner = (*path, name, index) if form == "tables" else (*path, name)
                self.header(names, path, inner, item, of_array=form == "tables")
                self.body(item, names, inner)

    def header(self, names: list[str], outer: Path, inner: Path, table: dict[str, Any], *, of_array: bool) -> None:
        implied = table and all(isinstance(value, tuple) for value in table.values())
        if implied and not of_array and self.pick("explicit", "implied") == "implied":
            return
        self.text += "[[" if of_array else "["
        self.space()
        for index, name in enumerate(names):
            last = index == len(names) - 1
            path = (*self.header_path(outer, index), name)
            self.note(path, first=not last or of_array)
            if last and of_array:
                self.note(inner)
            self.name(name)
            self.space()
            self.text += "" if last else "."
            self.space()
        self.text += "]]" if of_array else "]"
        self.end_line()

    @staticmethod
    def header_path(outer: Path, depth: int) -> Path:
        """Return the first ``depth`` names of a path, with the indices between them."""
        path: list[str | int] = []
        for step in outer:
            depth -= isinstance(step, str)
            if depth < 0:
                break
            path.append(step)
        return tuple(path)


def walk(value: Any, path: Path = ()) -> Iterator[Path]:
    """Return all paths of a parsed document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, member in members:
        yield (*path, step)
        yield from walk(member, (*path, step))


@st.composite
def documents(draw: st.DrawFn) -> Writer:
    writer = Writer(draw)
    writer.blank()
    writer.body(draw(TABLES), [], ())
    return writer


@given(documents())
def test_every_path_has_the_place_where_it_was_written(document: Writer) -> None:
    assert set(walk(tomllib.loads(document.text))) == set(document.places), "the test wrote something else"
    positions = Positions(document.text)
    assert positions.paths() == set(document.places)
    assert {path: positions.find(path) for path in document.places} == document.places


STATEMENTS = st.sampled_from(
    [
        *("[t]", "[t.u]", "[[r]]", "[[r.s]]", "[r.o]", "a = 1", "b.c = 'x'", "b.d.e = [1, {f = 2}]", "# a = 1", ""),
        *("  g={}", "[ t . 'u' ]", "h = [\n1,\n# ]\n[2, 3],\n]", 'i = """\na = 1\n[t]\n"""', "[r.s.v]"),
        *('"b"."x y" = true', "[b]"),
    ]
)


@given(st.lists(STATEMENTS, max_size=8).map("\n".join))
def test_agrees_with_tomllib_on_what_a_document_has(text: str) -> None:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert Positions(text).paths() == set(walk(table))


DOCUMENT = """\
top = 1
[upstream]
servers = [
    "a:1",
    "b:2",
]
[quota]
window.num = 11
  window.size.seconds = 1

[[quotas]]
entity = { user = "alice", client-id = "x" }
[[quotas]]
[quotas.entity]
"user" = 'bob'
[outer.inner]
[outer]
"""


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("top",), 1, 1),
        (("upstream",), 2, 2),
        (("upstream", "servers"), 3, 1),
        (("upstream", "servers", 1), 5, 5),
        (("quota", "window"), 8, 1),
        (("quota", "window", "num"), 8, 8),
        (("quota", "window", "size", "seconds"), 9, 15),
        (("quotas",), 11, 3),
        (("quotas", 0), 11, 3),
        (("quotas", 0, "entity", "client-id"), 12, 28),
        (("quotas", 1), 13, 3),
        (("quotas", 1, "entity"), 14, 9),
        (("quotas", 1, "entity", "user"), 15, 1),
        (("outer", "inner"), 16, 8),
        (("outer",), 17, 2),  # its own header, not the one that implies it
    ],
)
def test_a_document_by_hand(path: Path, line: int, column: int) -> None:
    assert Positions(DOCUMENT).find(path) == Position(line=line, column=column)
    assert path in Positions(DOCUMENT)


def test_the_nearest_table_stands_in_for_what_is_missing() -> None:
    positions = Positions(DOCUMENT)
    assert positions.nearest(("quotas", 1, "entity", "client-id")) == Position(line=14, column=9)
    assert positions.nearest(("upstream", "connect_timeout")) == Position(line=2, column=2)
    assert positions.nearest(("listen", "address")) is None
    assert positions.find(("listen",)) is None


def test_newlines_in_inline_tables_as_toml_1_1_has_them() -> None:
    positions = Positions('a = {\n  b = 1, # one\n  "c" = [\n2],\n}\nd = 1\n')
    assert positions.find(("a", "c", 0)) == Position(line=4, column=1)
    assert positions.find(("d",)) == Position(line=6, column=1)


def test_too_deep_a_nesting_ends_the_walk() -> None:
    positions = Positions(f"a = 1\nb = {'[' * 100_000}")
    assert positions.find(("a",)) == Position(line=1, column=1)
    assert positions.nearest(("c",)) is None


def test_what_is_not_toml_is_refused_rather_than_walked_forever() -> None:
    with pytest.raises(ValueError, match="not valid TOML at offset 0"):
        Positions("?")
