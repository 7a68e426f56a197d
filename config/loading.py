"""Loading a `Config` from a file, flags and environment variables, with a report of all problems at once.

Called by the command line, by the proxy at a reload, and by the pipeline for quotas. Blocks while it reads the file:
call it in a thread, not on the event loop. A flag takes precedence over an environment variable, that over the file,
and that over the default.
"""

from __future__ import annotations

import copy
import os
import re
import tomllib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

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
from headrace.config.quota_names import faults_of_names, probable_errors, tables_with_other_names
from headrace.config.quotas import LIMIT_KEYS
from headrace.config.rules import faults_between_keys
from headrace.config.schema import REMOVED, Config, UncheckedQuotas
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.files import read_ordinary_file, reason_of
from headrace.quota_callbacks.options import NOTHING, Fault, did_you_mean, faults_of
from headrace.quota_callbacks.value_texts import dotted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from headrace.quota_callbacks.buckets.sampled_rate import Window
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.policies import Quota
    from headrace.quota_callbacks.value_texts import Path

MAX_FILE_BYTES: Final = 16 * 2**20
"""Maximum size of a file: sufficient for the quotas of several hundred thousand entities, and a bound for /dev/zero."""

PLACEHOLDERS: Final[Mapping[tuple[str, ...], object]] = {
    ("upstream", "bootstrap_servers"): ["127.0.0.1:9092"],
    ("listen", "address"): "127.0.0.1:9192",
}
"""Values for missing required keys, if only the quotas are read, and to check the other keys of an incomplete file."""

_AT_LINE: Final = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)$")
_AT_END: Final = re.compile(r" \(at end of document\)$")
_TWICE: Final = re.compile(r"Cannot declare \((.*)\) twice")
_IN_QUOTES: Final = re.compile(r"'([^']*)'")

Document = dict[str, Any]
PluginFaults: TypeAlias = "Callable[[Config], Iterable[Fault]]"
"""Finds why plugins reject their options. Invalid keys of the configuration that it gets have their defaults."""


def load(
    path: str | os.PathLike[str] | None,
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    plugins: Collection[str] | None = None,
    plugin_faults: PluginFaults | None = None,
    schema: QuotaSchema | None = BUILTIN_SCHEMA,
) -> Config:
    """Return the configuration of a file (none if ``path`` is None) with flags and environment variables.

    ``flags`` are values by dotted key, as in `overrides.FLAGS`; None stands for a flag that was not given. ``plugins``
    are the names of the installed plugins; options for others are an error, unless ``plugins`` is None.
    ``plugin_faults`` finds what the plugins themselves reject, to be reported together with the file's own errors.
    ``schema`` has the quota keys and entity types that exist; with None, `quota_names.check_quota_names` has to be
    called later.
    Raises `ConfigError`: `ConfigFileError` if the file cannot be read, `ConfigSyntaxError` if it is not TOML, otherwise
    `ConfigValueError` with every problem.
    """
    if path is None:
        return _load("", None, flags, environment, plugins, plugin_faults, schema)
    source = os.fspath(path)
    return _load(read_text(source), source, flags, environment, plugins, plugin_faults, schema)


def loads(
    text: str | bytes,
    source: str = "<string>",
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    plugins: Collection[str] | None = None,
    schema: QuotaSchema | None = BUILTIN_SCHEMA,
) -> Config:
    """Return the configuration of the text of a file, as `load`; ``source`` is its name in error messages."""
    decoded = text if isinstance(text, str) else _decode(text, source)
    return _load(decoded, source, flags, environment, plugins, None, schema)


def load_quotas(
    path: str | os.PathLike[str],
) -> tuple[dict[QuotaEntity, dict[QuotaKey, Quota]], dict[QuotaKey, Window]]:
    """Return the quotas of callbacks and the windows of a file, which may lack all other required keys.

    Raises as `load`. Quotas of IP addresses are left out, since the proxy enforces them at its listeners, and so are
    those with keys and entity types of plugins, since no plugin is loaded.
    """
    source = os.fspath(path)
    text = read_text(source)
    document = parse_toml(text, source)
    _add_placeholders(document)
    config, faults = _checked(document, schema=None)
    if config is None:
        locator = Locator(text, source)
        raise ConfigValueError(map(locator.locate, faults))
    quotas = {
        entity: {QuotaKey(key): quota for key, quota in limits.items() if key in LIMIT_KEYS}
        for entity, limits in config.entity_quotas().items()
        if entity.ip is None and not entity.other and not limits.keys().isdisjoint(LIMIT_KEYS)
    }
    return quotas, config.windows()


def _load(
    text: str,
    source: str | None,
    flags: Mapping[str, object] | None,
    environment: Mapping[str, str] | None,
    plugins: Collection[str] | None,
    plugin_faults: PluginFaults | None,
    schema: QuotaSchema | None,
) -> Config:
    written = {} if source is None else parse_toml(text, source)
    from_environment, unknown_variables = environment_overrides(environment or {}, written)
    from_flags, unknown_flags = flag_overrides(flags or {})
    overrides = [*from_environment, *from_flags]
    document = copy.deepcopy(written)
    for override in overrides:
        override.put_into(document)
    config, faults = _checked(document, plugins, plugin_faults, schema)
    locator = Locator(text, source)
    here = "in a file" if source is None else "here"
    located = (_problem(_with_flag(fault, here), overrides, locator) for fault in faults)
    problems = [*unknown_variables, *unknown_flags, *located]
    if overrides:  # an invalid value in the file is reported even if it is overridden
        _, hidden = _checked(written, plugins, schema=schema)
        problems += (
            locator.locate(fault)
            for fault in hidden
            if fault.found is not NOTHING and any(override.sets(fault.path) for override in overrides)
        )
    if config is None or problems:
        raise ConfigValueError(problems)
    if schema is None and config.quotas:
        locate = partial(_problem, overrides=overrides, locator=locator)
        waiting = UncheckedQuotas(with_other_names=tables_with_other_names(document), locate=locate)
        config.quotas_were_checked(waiting=waiting)
    return config


def _checked(
    document: Document,
    plugins: Collection[str] | None = None,
    plugin_faults: PluginFaults | None = None,
    schema: QuotaSchema | None = BUILTIN_SCHEMA,
) -> tuple[Config | None, list[Fault]]:
    """Return the configuration of a document, or all faults: of single keys, between valid keys, and of plugins."""
    document = copy.deepcopy(document)
    quotas = document.get("quotas")
    for leaf in keys(Config):
        if leaf.required:  # so that the key is reported as missing, not its table
            document.setdefault(leaf.path[0], {})
    config, faults = _validated(document)
    bad = {fault.path for fault in faults}
    if config is None:
        for path in bad:
            _remove(document, path)
        _add_placeholders(document)
        config, _ = _validated(document)
    if config is not None:
        faults += faults_between_keys(config, bad)
        faults += _options_without_plugin(config, plugins)
        faults += plugin_faults(config) if plugin_faults is not None else ()
    tables = tables_with_other_names({"quotas": quotas})
    if schema is not None:
        faults += faults_of_names(tables, schema)
    elif faults:
        faults += probable_errors(tables)
    return (None if faults else config), faults


def _validated(document: Document) -> tuple[Config | None, list[Fault]]:
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        faults = faults_of(error, Config)
        return None, [replace(each, rule=REMOVED.get(each.path, each.rule)) for each in faults]
    if config.workers is not None and "data_plane_threads" not in document:
        config = config.model_copy(update={"data_plane_threads": config.workers})
    return config, []


def _remove(document: Document, path: Path) -> None:
    """Remove the key at or above a path; of ``plugins.options`` only the options of the plugin in the path."""
    inside: Any = document
    leaf_path = next((leaf.path for leaf in keys(Config) if path[: len(leaf.path)] == leaf.path), path)
    if leaf_path == OPTIONS:
        leaf_path = path[: len(OPTIONS) + 1]
    for step in leaf_path[:-1]:
        inside = inside.get(step, {}) if isinstance(inside, dict) else {}
    if isinstance(inside, dict):
        inside.pop(leaf_path[-1], None)


def _add_placeholders(document: Document) -> None:
    for path, value in PLACEHOLDERS.items():
        table = document.setdefault(path[0], {})
        if isinstance(table, dict):
            table.setdefault(path[-1], value)


def _options_without_plugin(config: Config, plugins: Collection[str] | None) -> Iterator[Fault]:
    """Yield a fault for every table in ``plugins.options`` that belongs to no plugin."""
    if plugins is None:
        return
    chosen = config.plugins
    known = [*(plugins if chosen.autoload else ()), *chosen.load]
    for name in chosen.options:
        if not chosen.autoload and name in plugins and name not in known:
            rule = "this plugin is not loaded, since plugins.autoload is false; add its name to plugins.load"
            yield Fault(path=(*OPTIONS, name), rule=rule)
        elif name not in known:
            hint = did_you_mean(name, known)
            rule = f"there is no such plugin; {hint + ' ' if hint else ''}installed or loaded: {', '.join(known)}"
            yield Fault(path=(*OPTIONS, name), rule=rule)


def _with_flag(fault: Fault, here: str) -> Fault:
    """Add to the fault of a missing required key where it can be set."""
    leaf = next((leaf for leaf in keys(Config) if leaf.path == fault.path and leaf.about.flag), None)
    if leaf is None or not fault.rule.startswith("required"):
        return fault
    return replace(fault, rule=f"{fault.rule}; set it {here} or with {leaf.about.flag}")


def _problem(fault: Fault, overrides: list[Override], locator: Locator) -> Problem:
    if not fault.path:  # of a plugin, and not of an option
        return Problem(rule=fault.rule)
    set_by = [override for override in overrides if override.sets(fault.path)]
    if not set_by and fault.path not in locator:  # a table that only variables set
        set_by = [override for override in overrides if override.path[: len(fault.path)] == fault.path]
    if set_by:
        return Problem(rule=fault.rule, key=dotted(fault.path), found=found_in(fault), flag=set_by[-1].name)
    return locator.locate(fault)


# --- files ------------------------------------------------------------------------------------------------------------


def read_text(source: str, *, what: str = "configuration", longest_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file; blocks. Raises `ConfigFileError`.

    ``what`` is the kind of file, for the error message of one that is too long.
    """
    try:
        data = read_ordinary_file(source, longest_bytes, what)
    except OSError as cause:
        why = reason_of(cause)
        raise ConfigFileError([Problem(source=source, rule=f"cannot be read: {why}")]) from cause
    except ValueError as cause:  # a zero byte in the path
        raise ConfigFileError([Problem(source=repr(source), rule=f"cannot be read: {cause}")]) from cause
    return _decode(data, source)


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")  # editors on Windows write a byte order mark
    except UnicodeDecodeError as cause:
        line = data.count(b"\n", 0, cause.start) + 1
        rule = f"not UTF-8: byte {data[cause.start]:#04x}; save the file as UTF-8"
        raise ConfigFileError([Problem(source=source, line=line, rule=rule)]) from cause


def parse_toml(text: str, source: str, parse_float: Callable[[str], Any] = float) -> Document:
    """Return the content of a TOML document. Raises `ConfigSyntaxError`."""
    text = text.replace("\r\n", "\n")  # as tomllib does, so that columns agree
    try:
        return tomllib.loads(text, parse_float=parse_float)
    except RecursionError as cause:
        raise ConfigSyntaxError(
            [Problem(source=source, rule="not valid TOML: values are nested too deeply")]
        ) from cause
    except ValueError as cause:  # TOMLDecodeError, or an integer of thousands of digits
        _raise_syntax_error(cause, text, source)


def _raise_syntax_error(cause: ValueError, text: str, source: str) -> NoReturn:
    message = str(cause)
    line: int | None = None
    column: int | None = None
    if match := _AT_LINE.search(message):
        line, column = int(match[1]), int(match[2])
    elif _AT_END.search(message):
        line = text.count("\n") + 1
        column = len(text) - (text.rfind("\n") + 1) + 1
    rule = f"not valid TOML: {_syntax_rule(cause)}"  # without the line's text, which may be part of a secret
    problem = Problem(source=source, line=line, column=column, rule=rule)
    raise ConfigSyntaxError([problem]) from cause


def _syntax_rule(cause: ValueError) -> str:
    """Return the message of `tomllib` without the position, reworded where it refers to internals."""
    if not isinstance(cause, tomllib.TOMLDecodeError):
        return "a whole number has too many digits"
    message = _AT_END.sub(", at the end of the file", _AT_LINE.sub("", str(cause)))
    if match := _TWICE.fullmatch(message):
        return f"the table [{dotted(tuple(re.findall(_IN_QUOTES, match[1])))}] is declared twice"
    message = message.replace("Cannot overwrite a value", "this key is set already")
    return message[:1].lower() + message[1:]
