"""The errors of a configuration, with their positions.

Raised by `loading`, printed by `check` and the command line. Independent of the declared keys. The text of a problem is
one line: position, key, value found, and expected value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config.positions import Positions
from headrace.quota_callbacks.options import NOTHING
from headrace.quota_callbacks.value_texts import dotted, value_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.quota_callbacks.options import Fault
    from headrace.quota_callbacks.value_texts import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error, and its position.

    ``line`` and ``column`` count from 1. The value is from ``flag``, the name of a flag or environment variable, or
    from the file ``source``. Both are None for a required key that is missing without a file.
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
        if self.key is None and self.column is not None:  # a syntax error; for keys the line suffices
            return f"{self.source}:{self.line}:{self.column}"
        return f"{self.source}:{self.line}"

    @property
    def order(self) -> tuple[bool, float, int]:
        """The sort key: flags and variables first, then the file by line, then problems without a position."""
        return (self.flag is None, math.inf if self.line is None else self.line, self.column or 0)


class ConfigError(Exception):
    """The configuration is invalid. ``problems`` has all errors, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda problem: problem.order))
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class ConfigFileError(ConfigError):
    """The file cannot be read: it is missing, a directory, not permitted, too large or not UTF-8."""


class ConfigSyntaxError(ConfigError):
    """The file is not valid TOML."""


class ConfigValueError(ConfigError):
    """A key is unknown or missing, or a value is invalid."""


class Locator:
    """The positions of the keys of a file, computed when the first fault is located."""

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
        """Return a fault as a problem with its position in the file."""
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


def problem_without_position(fault: Fault) -> Problem:
    """Return a fault as a problem, where the text of the file is not known any more."""
    return Problem(rule=fault.rule, key=dotted(fault.path) or None, found=found_in(fault))


def found_in(fault: Fault) -> str | None:
    """Return the text of the value of a fault; None without one. Secrets are hidden."""
    return None if fault.found is NOTHING else value_text(fault.path, fault.found)
