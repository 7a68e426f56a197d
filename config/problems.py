"""What can be wrong with a configuration, and where.

Raised by `loading`, printed by `check` and the command line. Knows nothing of keys and files beyond their names.
Every problem is one line: where it stands, the key, the value found, and what was expected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.positions import Positions
from headrace.quota_callbacks.options import NOTHING, dotted, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.quota_callbacks.options import Fault, Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where.

    ``line`` and ``column`` count from 1. ``flag`` is the flag or the environment variable that said it, ``source`` the
    file that did; neither is set where nobody said anything and a required key is missing.
    """

    rule: str
    key: str | None = None
    found: str | None = None
    source: str | None = None
    line: int | None = None
    column: int | None = None
    flag: str | None = None

    def __str__(self) -> str:
        if self.flag is not None:
            what = self.flag if self.found is None else f"{self.flag} {self.found}"
            return f"{what}: {self.rule}"
        place = self._place()
        subject = self.key if self.found is None or self.key is None else f"{self.key} = {self.found}"
        return ": ".join(part for part in (place, subject, self.rule) if part)

    def _place(self) -> str:
        if self.source is None:
            return ""
        if self.line is None:
            return self.source
        if self.key is None and self.column is not None:  # a syntax error; a key is found without its column
            return f"{self.source}:{self.line}:{self.column}"
        return f"{self.source}:{self.line}"

    @property
    def order(self) -> tuple[bool, float, int]:
        """The sort key: flags and variables first, then the file from top to bottom, then what stands nowhere."""
        return (self.flag is None, math.inf if self.line is None else self.line, self.column or 0)


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` says why, all of it, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda problem: problem.order))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class ConfigFileError(ConfigError):
    """The file cannot be read: it is missing, a directory, forbidden, too large or not UTF-8."""


class ConfigSyntaxError(ConfigError):
    """The file is not TOML."""


class ConfigValueError(ConfigError):
    """The file, a flag or a variable is well formed, but a key is unknown or missing, or a value does not fit."""


class Locator:
    """The lines of one file's keys, which are looked for when the first fault is located: a good file needs none."""

    __slots__ = ("_found", "_source", "_text")

    def __init__(self, text: str, source: str | None) -> None:
        self._text = text.replace("\r\n", "\n")  # as tomllib does
        self._source = source
        self._found: Positions | None = None

    @property
    def _positions(self) -> Positions:
        if self._found is None:
            self._found = Positions(self._text)
        return self._found

    def __contains__(self, path: Path) -> bool:
        return path in self._positions

    def locate(self, fault: Fault) -> Problem:
        """Return the fault as a problem of the file."""
        position = self._positions.nearest(fault.path)
        rule = fault.rule
        if fault.first is not None and (first := self._positions.nearest(fault.first)):
            rule += f"; the first is {dotted(fault.first)} at line {first.line}"
        return Problem(
            rule=rule,
            key=dotted(fault.path) or None,
            found=found_in(fault),
            source=self._source,
            line=None if position is None else position.line,
            column=None if position is None else position.column,
        )


def found_in(fault: Fault) -> str | None:
    """Spell the value that a fault has found, unless it is a secret."""
    return None if fault.found is NOTHING else shown(fault.path, fault.found)
