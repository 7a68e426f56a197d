"""From a file, flags and environment variables to a checked `Config`, or to every problem at once.

Called by the command line and by the proxy when it reloads. Reads a file and blocks while it does: on the event loop,
call it in a thread. A key has the value of its flag, or of its variable, or of the file, or its default, in this order.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydantic import ValidationError

from headrace.config.keys import keys
from headrace.config.overrides import OPTIONS, Override, environment_overrides, flag_overrides
from headrace.config.problems import (
    ConfigFileError,
    ConfigSyntaxError,
    ConfigValueError,
    Locator,
    Problem,
    found_in,
)
from headrace.config.rules import RULES
from headrace.config.schema import REMOVED, Config
from headrace.quota_callbacks.options import NOTHING, Fault, did_you_mean, dotted, faults_of, is_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
    from headrace.quota_callbacks.options import Path
    from headrace.quota_callbacks.policies import Quota

MAX_FILE_BYTES: Final = 16 * 2**20
"""A longer file is refused: it holds quotas for some hundred thousand entities, and /dev/zero has no end."""

STAND_INS: Final[Mapping[tuple[str, ...], object]] = {
    ("upstream", "bootstrap_servers"): ["127.0.0.1:9092"],
    ("listen", "address"): "127.0.0.1:9192",
}
"""For what a file must have, where it is read for its quotas alone, or to check the rest of one that lacks it."""

_AT_LINE: Final = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)$")
_AT_END: Final = re.compile(r" \(at end of document\)$")
_TWICE: Final = re.compile(r"Cannot declare \((.*)\) twice")
_IN_QUOTES: Final = re.compile(r"'([^']*)'")

Document = dict[str, Any]


def load(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    plugins: Iterable[str] | None = None,
) -> Config:
    """Read a file, or none (``path`` None), and what is laid over it.

    ``flags`` are dotted keys and values, as `overrides.FLAGS` lists them; one that is None was not given. ``plugins``
    are the names of those that are installed: options of any other are an error; None takes options of any name.
    Raises `ConfigError`: `ConfigFileError` if the file cannot be read, `ConfigSyntaxError` if it is not TOML, otherwise
    `ConfigValueError` with every problem.
    """
    if path is None:
        return _load("", None, flags, environment, plugins)
    source = os.fspath(path)
    return loads(read_text(source), source, flags, environment=environment, plugins=plugins)


def loads(
    text: str | bytes,
    source: str = "<string>",
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    plugins: Iterable[str] | None = None,
) -> Config:
    """As `load`, from the text of a file; ``source`` is how problems call it."""
    decoded = text if isinstance(text, str) else _decode(text, source)
    return _load(decoded, source, flags, environment, plugins)


def load_quotas(
    path: str | os.PathLike[str],
) -> tuple[dict[QuotaEntity, dict[QuotaKey, Quota]], dict[QuotaKey, Window]]:
    """Read the ``[[quotas]]`` and the windows of a file that may have no more than these. Raises as `load`."""
    source = os.fspath(path)
    text = read_text(source)
    document = parse_toml(text, source)
    _stand_in(document)
    config, faults = _checked(document)
    if config is None:
        locator = Locator(text, source)
        raise ConfigValueError(map(locator.locate, faults))
    return config.entity_quotas(), config.windows()


def _load(
    text: str,
    source: str | None,
    flags: Mapping[str, object] | None,
    environment: Mapping[str, str] | None,
    plugins: Iterable[str] | None,
) -> Config:
    written = {} if source is None else parse_toml(text, source)
    from_environment, unknown_variables = environment_overrides(environment or {})
    from_flags, unknown_flags = flag_overrides(flags or {})
    overrides = [*from_environment, *from_flags]
    document = copy.deepcopy(written)
    for override in overrides:
        override.put_into(document)
    config, faults = _checked(document, plugins)
    locator = Locator(text, source)
    here = "in a file" if source is None else "here"
    located = (_problem(_with_flag(fault, here), overrides, locator) for fault in faults)
    problems = [*unknown_variables, *unknown_flags, *located]
    if overrides:  # a bad value in the file is reported even if another wins
        _, hidden = _checked(written, plugins)
        problems += (
            locator.locate(fault)
            for fault in hidden
            if fault.found is not NOTHING and any(override.sets(fault.path) for override in overrides)
        )
    if config is None or problems:
        raise ConfigValueError(problems)
    return config


def _checked(document: Document, plugins: Iterable[str] | None = None) -> tuple[Config | None, list[Fault]]:
    """Return the configuration of a whole document, or every fault: of single keys, and between those without one."""
    document = copy.deepcopy(document)
    for leaf in keys(Config):
        if leaf.required:  # so that the key is what is missing, and not its table
            document.setdefault(leaf.path[0], {})
    config, faults = _validated(document)
    bad = {fault.path for fault in faults}
    if config is None:
        for path in bad:
            _remove(document, path)
        _stand_in(document)
        config, _ = _validated(document)
    if config is not None:
        faults += _faults_between_keys(config, bad)
        faults += _options_of_nobody(config, plugins)
    return (None if faults else config), faults


def _validated(document: Document) -> tuple[Config | None, list[Fault]]:
    try:
        return Config.model_validate(document), []
    except ValidationError as error:
        faults = faults_of(error, Config)
    return None, [replace(each, rule=REMOVED.get(each.path, each.rule)) for each in faults]


def _remove(document: Document, path: Path) -> None:
    """Take out the key that a path leads to or into."""
    inside: Any = document
    leaf_path = next((leaf.path for leaf in keys(Config) if path[: len(leaf.path)] == leaf.path), path)
    for step in leaf_path[:-1]:
        inside = inside.get(step, {}) if isinstance(inside, dict) else {}
    if isinstance(inside, dict):
        inside.pop(leaf_path[-1], None)


def _stand_in(document: Document) -> None:
    for path, value in STAND_INS.items():
        table = document.setdefault(path[0], {})
        if isinstance(table, dict):
            table.setdefault(path[-1], value)


def _faults_between_keys(config: Config, bad: set[Path]) -> Iterator[Fault]:
    """Yield what breaks a rule between keys; a rule is passed over while one of its keys is bad or missing."""
    known = {leaf.key: leaf for leaf in keys(Config)}
    for names, check in RULES:
        needed = [known[name] for name in names]
        if not any(_overlap(leaf.path, path) for leaf in needed for path in bad):
            yield from check(*(leaf.value_of(config) for leaf in needed))


def _overlap(one: Path, other: Path) -> bool:
    return all(ours == theirs for ours, theirs in zip(one, other, strict=False))


def _options_of_nobody(config: Config, plugins: Iterable[str] | None) -> Iterator[Fault]:
    """Yield the tables under ``plugins.options`` that no plugin would read."""
    if plugins is None:
        return
    known = [*plugins, *config.plugins.load]
    for name in config.plugins.options:
        if name not in known:
            hint = did_you_mean(name, known)
            rule = f"there is no such plugin; {hint + ' ' if hint else ''}installed or loaded: {', '.join(known)}"
            yield Fault(path=(*OPTIONS, name), rule=rule)


def _with_flag(fault: Fault, here: str) -> Fault:
    """Say where a key can be set that is required and was not."""
    leaf = next((leaf for leaf in keys(Config) if leaf.path == fault.path and leaf.about.flag), None)
    if leaf is None or not fault.rule.startswith("required"):
        return fault
    return replace(fault, rule=f"{fault.rule}; set it {here} or with {leaf.about.flag}")


def _problem(fault: Fault, overrides: list[Override], locator: Locator) -> Problem:
    set_by = [override for override in overrides if override.sets(fault.path)]
    if not set_by and fault.path not in locator:  # a table that variables have made
        set_by = [override for override in overrides if override.path[: len(fault.path)] == fault.path]
    if set_by:
        return Problem(rule=fault.rule, key=dotted(fault.path), found=found_in(fault), flag=set_by[-1].name)
    return locator.locate(fault)


# --- files ------------------------------------------------------------------------------------------------------------


def read_text(source: str, *, what: str = "configuration", longest_bytes: int = MAX_FILE_BYTES) -> str:
    """Read a file; blocks. Raises `ConfigFileError`; ``what`` is what a file that is too long is none of."""
    try:
        with open(source, "rb") as file:  # noqa: PTH123  a Path would spell the source otherwise than it was given
            data = file.read(longest_bytes + 1)
    except OSError as cause:
        why = (cause.strerror or str(cause)).lower()
        raise ConfigFileError([Problem(source=source, rule=f"cannot be read: {why}")]) from cause
    except ValueError as cause:  # a zero byte in the path
        raise ConfigFileError([Problem(source=repr(source), rule=f"cannot be read: {cause}")]) from cause
    if len(data) > longest_bytes:
        rule = f"cannot be read: longer than {longest_bytes} bytes; this is no {what}"
        raise ConfigFileError([Problem(source=source, rule=rule)])
    return _decode(data, source)


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")  # editors on Windows put a mark first
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        rule = f"not UTF-8: byte {data[cause.start]:#04x}; save the file as UTF-8"
        raise ConfigFileError([Problem(source=source, line=line, rule=rule)]) from cause


def parse_toml(text: str, source: str, parse_float: Callable[[str], Any] = float) -> Document:
    """Parse the text of a file. Raises `ConfigSyntaxError`."""
    text = text.replace("\r\n", "\n")  # as tomllib does, so that both count the same columns
    try:
        return tomllib.loads(text, parse_float=parse_float)
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
    if line is not None and (written := text.split("\n")[line - 1].strip()) and not is_secret(written):
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
