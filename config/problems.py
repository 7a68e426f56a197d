"""What can be wrong with a configuration, and how it is told.

Raised by `loading`, printed by `check` and the command line. Knows nothing of keys and files beyond their names.
Every problem is one line: where it stands, the key, the value found, and what was expected.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""A place in a document: names of tables and keys, and the indices of arrays, from the root."""

LONGEST_VALUE: Final = 80
"""Characters of a value that a problem shows: what fits a line beside the sentence."""

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and where.

    ``line`` and ``column`` count from 1. ``flag`` is set where the command line said it, ``source`` where a file did;
    neither where nobody said anything and a required key is missing.
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
        """The sort key: the command line first, then the file from top to bottom, then what stands nowhere."""
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
    """The file or the flags are well formed, but a key is unknown or missing, or a value does not fit."""


def dotted(path: Path) -> str:
    """Spell a path as one writes it in TOML, with the indices of arrays in brackets: ``quotas[2].entity.client-id``."""
    spelled = ""
    for step in path:
        if isinstance(step, int):
            spelled += f"[{step}]"
        else:
            name = step if _BARE_KEY.fullmatch(step) else json.dumps(step, ensure_ascii=False)
            spelled += f".{name}" if spelled else name
    return spelled


def spelled(value: object) -> str:
    """Spell a value as TOML does, shortened to `LONGEST_VALUE` characters, on one line."""
    text = _toml(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        inside = ", ".join(f"{dotted((name,))} = {_toml(item)}" for name, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, int) and abs(value) >= 10**LONGEST_VALUE:  # str() refuses integers of over 4,300 digits
        return f"{value:#x}"
    return str(value)
