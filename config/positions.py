"""The positions of the keys in a TOML document.

Used by `problems`, so that an error message can contain the line. Neither `tomllib` nor tomlkit keeps positions
(python-poetry/tomlkit#55, open since 2019), so this module parses the text a second time. The document must be valid,
as `tomllib` has verified: the parser looks only for the ends of values and decodes only quoted keys.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.quota_callbacks.value_texts import Path

_SPACE: Final = re.compile(r"[ \t]*")
_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_STRING: Final = re.compile(
    r'''
      """ (?: [^\\"]++ | \\. | "(?!"") )*+ "{3,5}   # up to two quotes may precede the closing three
    | \'\'\' (?: [^']++ | '(?!'') )*+ '{3,5}
    | " (?: [^\\"]++ | \\. )*+ "
    | ' [^']*+ '
    ''',
    re.VERBOSE | re.DOTALL,
)
_SCALAR: Final = re.compile(r"[^,\]}#\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in a text; line and column count from 1."""

    line: int
    column: int


class Positions:
    """The positions of all keys, tables and array elements of a document."""

    __slots__ = ("_line_starts", "_offsets")

    def __init__(self, text: str) -> None:
        """Parse ``text``, which must be valid TOML. Keys after values that are nested too deeply have no position."""
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._offsets = _Walk(text).document()

    def __contains__(self, path: Path) -> bool:
        return path in self._offsets

    def paths(self) -> frozenset[Path]:
        """Return all paths with a position: tables, keys and array elements, explicit or implied."""
        return frozenset(self._offsets)

    def find(self, path: Path) -> Position | None:
        """Return the position of a key, an array element, or the header or first mention of a table."""
        offset = self._offsets.get(path)
        if offset is None:
            return None
        line = bisect_right(self._line_starts, offset)
        return Position(line=line, column=offset - self._line_starts[line - 1] + 1)

    def nearest(self, path: Path) -> Position | None:
        """Return the position of ``path``, or else of the innermost enclosing table in the document."""
        for length in range(len(path), 0, -1):
            if position := self.find(path[:length]):
                return position
        return None


class _Walk:
    """A pass over a document. ``_at`` is the offset of the next character, ``_sizes`` the sizes of table arrays."""

    __slots__ = ("_at", "_offsets", "_sizes", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._offsets: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}

    def document(self) -> dict[Path, int]:
        with suppress(RecursionError):  # uses a few frames more than tomllib
            self._statements()
        return self._offsets

    def _statements(self) -> None:
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"not valid TOML at offset {self._at}")
        self._at = match.end()
        return match[0]

    def _takes(self, character: str) -> bool:
        """Skip ``character`` if it is next; return whether it was."""
        if self._text.startswith(character, self._at):
            self._at += len(character)
            return True
        return False

    def _header(self) -> Path:
        """Parse ``[a.b]`` or ``[[a.b]]``; return the path of the table."""
        of_array = self._text.startswith("[[", self._at)
        self._at += 2 if of_array else 1
        *outer, (name, offset) = self._keys()
        self._at += 2 if of_array else 1
        table: Path = ()
        for outer_name, outer_offset in outer:
            table = (*table, outer_name)
            self._offsets.setdefault(table, outer_offset)
            if size := self._sizes.get(table):
                table = (*table, size - 1)  # a name in a header refers to the latest element of an array
        table = (*table, name)
        if not of_array:
            self._offsets[table] = offset  # overwrites the position of a longer header that implied it
            return table
        self._offsets.setdefault(table, offset)
        index = self._sizes.get(table, 0)
        self._sizes[table] = index + 1
        table = (*table, index)
        self._offsets[table] = offset
        return table

    def _keys(self) -> list[tuple[str, int]]:
        """Parse a dotted key; return its names and their offsets."""
        keys: list[tuple[str, int]] = []
        while True:
            self._skip(_SPACE)
            offset = self._at
            quoted = self._text[offset] in "\"'"
            text = self._skip(_STRING if quoted else _BARE_KEY)
            keys.append((tomllib.loads(f"key = {text}")["key"] if quoted else text, offset))
            self._skip(_SPACE)
            if not self._takes("."):
                return keys

    def _pair(self, table: Path) -> None:
        for name, offset in self._keys():
            table = (*table, name)
            self._offsets.setdefault(table, offset)
        self._at += 1  # the equals sign
        self._value(table)

    def _value(self, path: Path) -> None:
        self._skip(_SPACE)
        if self._takes("["):
            self._array(path)
        elif self._takes("{"):
            self._inline_table(path)
        elif self._text[self._at] in "\"'":
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _array(self, path: Path) -> None:
        index = 0
        self._skip(_BLANK)
        while not self._takes("]"):
            element = (*path, index)
            self._offsets[element] = self._at
            self._value(element)
            index += 1
            self._skip(_BLANK)
            self._takes(",")
            self._skip(_BLANK)

    def _inline_table(self, path: Path) -> None:
        self._skip(_BLANK)  # TOML 1.1 allows newlines here
        while not self._takes("}"):
            self._pair(path)
            self._skip(_BLANK)
            self._takes(",")
            self._skip(_BLANK)
