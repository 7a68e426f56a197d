"""From a file, flags or both to a checked `Config`, or to every problem at once.

Called by the command line and by the proxy when it reloads. Reads a file and blocks while it does: on the event loop,
call it in a thread. Flags are layered over the file: a key given by both has the flag's value.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from config.keys import Leaf, Reading, build, leaves, read_table
from config.kinds import NOTHING, Fault
from config.positions import Position, Positions
from config.problems import (
    ConfigFileError,
    ConfigSyntaxError,
    ConfigValueError,
    Path,
    Problem,
    dotted,
    spelled,
)
from config.rules import RULES
from config.schema import Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from quota_callbacks.entities import QuotaEntity, QuotaKey
    from quota_callbacks.policies import Quota
    from quota_callbacks.sampled_rate import Window

MAX_FILE_BYTES: Final = 16 * 2**20
"""A longer file is refused: it holds quotas for some hundred thousand entities, and /dev/zero has no end."""

NO_PROXY: Final = {
    "upstream.bootstrap_servers": "127.0.0.1:9092",
    "listen.address": "127.0.0.1:9192",
    "listen.advertised_host": "127.0.0.1",
}
"""For what a file must have, where it is read for its quotas alone."""

_AT_LINE: Final = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)$")
_AT_END: Final = re.compile(r" \(at end of document\)$")
_TWICE: Final = re.compile(r"Cannot declare \((.*)\) twice")
_IN_QUOTES: Final = re.compile(r"'([^']*)'")


def load(path: str | os.PathLike[str] | None, flags: Mapping[str, object] | None = None) -> Config:
    """Read a file, or none (``path`` None), and ``flags``: dotted keys and values, as `flags.FLAGS` lists them.

    A flag that is None was not given. Raises `ConfigError`: `ConfigFileError` if the file cannot be read,
    `ConfigSyntaxError` if it is not TOML, otherwise `ConfigValueError` with every problem of the file and the flags.
    """
    if path is None:
        return _load("", None, flags or {})
    source = os.fspath(path)
    return loads(_read(source), source, flags)


def loads(text: str | bytes, source: str = "<string>", flags: Mapping[str, object] | None = None) -> Config:
    """As `load`, from the text of a file; ``source`` is how problems call it."""
    return _load(text if isinstance(text, str) else _decode(text, source), source, flags or {})


def load_quotas(
    path: str | os.PathLike[str],
) -> tuple[dict[QuotaEntity, dict[QuotaKey, Quota]], dict[QuotaKey, Window]]:
    """The ``[[quotas]]`` and the windows of a file that may have no more than these. Raises as `load`."""
    source = os.fspath(path)
    config = _load(_decode(_read(source), source), source, {}, stand_ins=NO_PROXY)
    return config.entity_quotas(), config.windows()


def _load(
    text: str, source: str | None, flags: Mapping[str, object], stand_ins: Mapping[str, object] | None = None
) -> Config:
    loading = _Loading(source=source, flags=flags)
    if source is not None:
        loading.read_file(text, source)
    if stand_ins:
        loading.flags = {leaf.key: stand_ins[leaf.key] for leaf in loading.reading.missing(Config)}
    loading.read_flags()
    loading.look_for_missing()
    loading.check_rules()
    if loading.problems:
        raise ConfigValueError(loading.problems)
    return build(Config, loading.reading.values)


@dataclass(slots=True, kw_only=True)
class _Loading:
    """One call of `load`: what has been read so far and what was wrong with it."""

    source: str | None
    flags: Mapping[str, object]
    text: str = ""
    positions: Positions | None = None
    """Looked for when the first problem is reported: a good file needs none."""
    reading: Reading = field(default_factory=Reading)
    by_flag: dict[Leaf, str] = field(default_factory=dict)
    """How the keys that flags have set are called on the command line."""
    problems: list[Problem] = field(default_factory=list)

    def read_file(self, text: str, source: str) -> None:
        self.text = text.replace("\r\n", "\n")  # as tomllib does, so that both count the same columns
        self.reading = read_table(Config, _parse(self.text, source))
        self._report(self.reading.faults)

    def read_flags(self) -> None:
        known = {leaf.key: leaf for leaf in leaves(Config)}
        for key, given in self.flags.items():
            if given is None:
                continue
            leaf = known.get(key)
            if leaf is None:
                self.problems.append(Problem(flag=key, rule="unknown key"))
                continue
            self.by_flag[leaf] = leaf.setting.flag or key
            self.reading.values.pop(leaf, None)
            self.reading.bad.discard(leaf)
            reading = Reading(values=self.reading.values, bad=self.reading.bad)
            reading.take(leaf, leaf.setting.kind.from_flag(given))
            self._report(reading.faults)

    def look_for_missing(self) -> None:
        for leaf in self.reading.missing(Config):
            rule = f"required; expected {leaf.setting.kind.expected}"
            if leaf.setting.flag is not None:
                rule += f"; set it {'in a file' if self.source is None else 'here'} or with {leaf.setting.flag}"
            self._report([Fault(path=leaf.path, rule=rule)])

    def check_rules(self) -> None:
        known = {leaf.key: leaf for leaf in leaves(Config)}
        for keys, check in RULES:
            needed = [known[key] for key in keys]
            values = [self.reading.values.get(leaf, leaf.default) for leaf in needed]
            if NOTHING not in values and not self.reading.bad.intersection(needed):
                self._report(check(*values))

    def _report(self, faults: Iterable[Fault]) -> None:
        for fault in faults:
            flag = next(
                (name for leaf, name in self.by_flag.items() if leaf.path == fault.path[: len(leaf.path)]), None
            )
            self.problems.append(self._problem(fault) if flag is None else _flag_problem(fault, flag))

    def _problem(self, fault: Fault) -> Problem:
        position = self._position(fault.path)
        rule = fault.rule
        if fault.first is not None and (first := self._position(fault.first)):
            rule += f"; the first is {dotted(fault.first)} at line {first.line}"
        return Problem(
            rule=rule,
            key=dotted(fault.path),
            found=_found(fault),
            source=self.source,
            line=None if position is None else position.line,
            column=None if position is None else position.column,
        )

    def _position(self, path: Path) -> Position | None:
        if self.positions is None:
            self.positions = Positions(self.text)
        return self.positions.nearest(path)


def _flag_problem(fault: Fault, flag: str) -> Problem:
    return Problem(rule=fault.rule, key=dotted(fault.path), found=_found(fault), flag=flag)


def _found(fault: Fault) -> str | None:
    return None if fault.found is NOTHING else spelled(fault.found)


def _read(source: str) -> bytes:
    try:
        with open(source, "rb") as file:  # noqa: PTH123  a Path would spell the source otherwise than it was given
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as cause:
        why = (cause.strerror or str(cause)).lower()
        raise ConfigFileError([Problem(source=source, rule=f"cannot be read: {why}")]) from cause
    except ValueError as cause:  # a zero byte in the path
        raise ConfigFileError([Problem(source=repr(source), rule=f"cannot be read: {cause}")]) from cause
    if len(data) > MAX_FILE_BYTES:
        rule = f"cannot be read: longer than {MAX_FILE_BYTES} bytes; this is no configuration"
        raise ConfigFileError([Problem(source=source, rule=rule)])
    return data


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")  # editors on Windows put a mark first
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        rule = f"not UTF-8: byte {data[cause.start]:#04x}; save the file as UTF-8"
        raise ConfigFileError([Problem(source=source, line=line, rule=rule)]) from cause


def _parse(text: str, source: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as cause:
        raise ConfigSyntaxError(
            [Problem(source=source, rule="not valid TOML: values are nested too deeply")]
        ) from cause
    except ValueError as cause:  # TOMLDecodeError is one; an integer of thousands of digits is another
        _raise_syntax_error(cause, text, source)


def _raise_syntax_error(cause: ValueError, text: str, source: str) -> NoReturn:
    said = str(cause)
    line: int | None = None
    column: int | None = None
    if match := _AT_LINE.search(said):
        line, column = int(match[1]), int(match[2])
    elif _AT_END.search(said):
        line = text.count("\n") + 1
        column = len(text) - (text.rfind("\n") + 1) + 1
    rule = f"not valid TOML: {_syntax_rule(cause)}"
    if line is not None and (written := text.split("\n")[line - 1].strip()):
        rule += f": {written[:80]}"
    problem = Problem(source=source, line=line, column=column, rule=rule)
    raise ConfigSyntaxError([problem]) from cause


def _syntax_rule(cause: ValueError) -> str:
    """What `tomllib` said, for people: without the position, and plainer where it speaks of its own insides."""
    if not isinstance(cause, tomllib.TOMLDecodeError):
        return "a whole number has too many digits"
    said = _AT_END.sub(", at the end of the file", _AT_LINE.sub("", str(cause)))
    if match := _TWICE.fullmatch(said):
        return f"the table [{dotted(tuple(re.findall(_IN_QUOTES, match[1])))}] is declared twice"
    said = said.replace("Cannot overwrite a value", "this key is set already")
    return said[:1].lower() + said[1:]
