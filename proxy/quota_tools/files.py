"""Files of quotas: ``[[quotas]]`` tables as in the configuration, or JSON; written by ``export`` and read by ``apply``.

A configuration file of the proxy can be read, too: only its ``[[quotas]]`` count. Unlike the configuration, files may
have quota keys and entity types that only a plugin of the proxy knows, and names of any length, since the cluster
checks them. Policies of a table (``enforcement``, ``observe`` and others) cannot be sent to a cluster, so they are left
out.
"""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.config.keys import keys
from headrace.config.loading import parse_toml, read_text
from headrace.config.problems import ConfigFileError, ConfigSyntaxError, ConfigValueError, Locator, Problem
from headrace.config.quotas import LIMIT_KEYS, ConfiguredQuota
from headrace.proxy.quota_tools.text import entity_text
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, ip_address
from headrace.quota_callbacks.entities import DEFAULT, LONG_MAX, QuotaEntity, is_bracketed
from headrace.quota_callbacks.options import NOTHING, Fault
from headrace.quota_callbacks.units import parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.quota_callbacks.entities import EntityName
    from headrace.quota_callbacks.value_texts import Path

    Quotas = Mapping[QuotaEntity, Mapping[str, float]]

STANDARD_INPUT: Final = "-"
MAX_FILE_BYTES: Final = 256 * 2**20
"""Maximum size of a file. The JSON of 1,000,000 entities with two values and names of 20 characters has this size."""
_POLICY_KEYS: Final = {leaf.key for leaf in keys(ConfiguredQuota)} - {"entity", *LIMIT_KEYS}
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_LITERAL: Final = "name"  # of a table { name = "<default>" }, as in the configuration
_BEYOND_BMP: Final = 0x10000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFile:
    """The quotas of a file, and the names of its policies, which cannot be sent to a cluster."""

    quotas: dict[QuotaEntity, dict[str, float]] = field(default_factory=dict)
    policies: tuple[str, ...] = ()


# --- reading ---


def read_quota_file(source: str) -> QuotaFile:
    """Return the quotas of a file, or of standard input for ``-``. Blocks. Raises `ConfigError` with all errors."""
    if source == STANDARD_INPUT:
        return parse_quotas(_standard_input(), source)
    return parse_quotas(read_text(source, what="quota", longest_bytes=MAX_FILE_BYTES), source)


def _standard_input() -> str:
    data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigFileError([Problem(source=STANDARD_INPUT, rule=f"longer than {MAX_FILE_BYTES} bytes")])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigFileError([Problem(source=STANDARD_INPUT, rule="not UTF-8")]) from error


def parse_quotas(text: str, source: str) -> QuotaFile:
    """Return the quotas of the text of a file. Raises `ConfigError` with all errors; ``source`` is its name there."""
    if text.lstrip().startswith("{"):  # as no TOML document does
        reader = _Reader(names_default=lambda name: name is None, default_rule="a name, or null for the default")
        reader.read_tables(_parse_json(text, source), lambda table: _json_values(table, reader))
        locate: Callable[[Fault], Problem] = lambda fault: _problem_of_json(fault, source)  # noqa: E731
    else:
        reader = _Reader(names_default=lambda name: name == str(DEFAULT), default_rule=f'a name, or "{DEFAULT}"')
        reader.read_tables(parse_toml(text, source).get("quotas", []), _toml_values)
        locate = Locator(text, source).locate
    if reader.faults:
        raise ConfigValueError(map(locate, reader.faults))
    return QuotaFile(quotas=reader.quotas, policies=tuple(sorted(reader.policies)))


def _parse_json(text: str, source: str) -> object:
    try:
        document = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise ConfigSyntaxError([Problem(source=source, rule=f"not valid JSON: {error}")]) from error
    if "quotas" not in document:
        raise ConfigValueError(
            [Problem(source=source, rule='expected an object with "quotas", as export --json prints')]
        )
    return document["quotas"]


def _problem_of_json(fault: Fault, source: str) -> Problem:
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.path).removeprefix(".")
    return Problem(
        source=source, key=place, rule=fault.rule, found=None if fault.found is NOTHING else repr(fault.found)
    )


def _toml_values(table: Mapping[str, Any]) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    return (), {key: value for key, value in table.items() if key != "entity"}


def _json_values(table: Mapping[str, Any], reader: _Reader) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    values = table.get("values")
    if not isinstance(values, dict):
        reader.add_fault(("values",), "expected an object with a value by quota key", values)
        return ("values",), {}
    return ("values",), values


class _Reader:
    """A collector of the quotas of a document, and of all faults."""

    def __init__(self, *, names_default: Callable[[object], bool], default_rule: str) -> None:
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.policies: set[str] = set()
        self.faults: list[Fault] = []
        self._names_default = names_default
        self._name_rule = f"expected {default_rule}"
        self._at: Path = ()

    def add_fault(self, path: Path, rule: str, found: object = NOTHING) -> None:
        """Add a fault in the table that is read."""
        self.faults.append(Fault(path=(*self._at, *path), rule=rule, found=found))

    def read_tables(
        self, tables: object, values_of: Callable[[Mapping[str, Any]], tuple[tuple[str, ...], Mapping[str, Any]]]
    ) -> None:
        """Read all tables. ``values_of`` returns the values of a table, and the path to them."""
        self._at = ("quotas",)
        if not isinstance(tables, list):
            self.add_fault((), "expected tables, each headed [[quotas]]", tables)
            return
        for index, table in enumerate(tables):
            self._at = ("quotas", index)
            if not isinstance(table, dict):
                self.add_fault((), "expected a table", table)
                continue
            path, values = values_of(table)
            entity = self._entity(table.get("entity"))
            for key, raw in values.items():
                self._read_value(entity, key, raw, (*path, key))

    def _entity(self, raw: object) -> QuotaEntity | None:
        if not isinstance(raw, dict) or not raw:
            self.add_fault(("entity",), "expected a user, a client-id or both, or another entity type", raw)
            return None
        parts = {each: self._name(each, name) for each, name in raw.items()}
        names = {each: name for each, name in parts.items() if name is not None}
        if len(names) < len(parts):
            return None
        try:
            return QuotaEntity.of(names)
        except ValueError as error:
            self.add_fault(("entity",), str(error))
            return None

    def _name(self, entity_type: str, raw: object) -> EntityName | None:
        if self._names_default(raw):
            return DEFAULT
        literal = raw.get(_LITERAL) if isinstance(raw, dict) and raw.keys() == {_LITERAL} else None
        name = raw if literal is None else literal
        if not isinstance(name, str) or not name:
            self.add_fault(("entity", entity_type), self._name_rule, raw)
            return None
        if literal is None and is_bracketed(name) and self._names_default(str(DEFAULT)):
            rule = f'{self._name_rule}; a name in angle brackets is written as a table: {{ name = "{name}" }}'
            self.add_fault(("entity", entity_type), rule, raw)
            return None
        return name

    def _read_value(self, entity: QuotaEntity | None, key: str, raw: object, path: Path) -> None:
        if key in _POLICY_KEYS:
            self.policies.add(key)
            return
        try:
            value = _value(key, raw, entity)
        except (ValueError, OverflowError) as error:
            self.add_fault(path, str(error), raw)
            return
        if entity is None:
            return
        values = self.quotas.setdefault(entity, {})
        if key in values:
            self.add_fault(path, f"set twice for {entity}", raw)
        values[key] = value


def _value(key: str, raw: object, entity: QuotaEntity | None) -> float:
    """Return the value of a key. Raises `ValueError` and `OverflowError`.

    The values of keys that are not built in are checked by the cluster alone.
    """
    value = raw
    if isinstance(raw, str):
        try:
            value = parse_size_bytes(raw)
        except ValueError:
            raise ValueError('expected a number, or a size such as "2MiB"') from None
        if key in BUILTIN_SCHEMA.keys and BUILTIN_SCHEMA.keys[key].value_type.largest != LONG_MAX:
            raise ValueError("expected a number")
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    builtin = entity is None or all(each in BUILTIN_SCHEMA.entity_types for each, _ in entity.parts())
    if key in BUILTIN_SCHEMA.keys:
        BUILTIN_SCHEMA.check(key, value, entity if builtin else None)
    return float(value)


# --- writing ---


def writable(quotas: Quotas) -> tuple[dict[QuotaEntity, dict[str, float]], list[str]]:
    """Return the quotas that a file can have, and a sentence about each value that is left out."""
    left_out = [
        f"{entity_text(entity)} {key} is left out: its value is {value}"
        for entity, values in quotas.items()
        for key, value in values.items()
        if not math.isfinite(value)
    ]
    kept = {
        entity: {key: value for key, value in values.items() if math.isfinite(value)}
        for entity, values in quotas.items()
    }
    return {entity: values for entity, values in kept.items() if values}, left_out


def refused_by_configuration(quotas: Quotas) -> Iterator[str]:
    """Yield a sentence about each entity that the configuration file accepts only with a plugin, or not at all."""
    for entity, values in quotas.items():
        unknown = [key for key in values if key not in BUILTIN_SCHEMA.keys]
        types = [each for each, _ in entity.parts() if each not in BUILTIN_SCHEMA.entity_types]
        if unknown or types:
            names = ", ".join([*types, *unknown])
            yield f"{entity_text(entity)}: the configuration accepts {names} only with the plugin that defines it"
        elif isinstance(entity.ip, str):
            try:
                ip_address(entity.ip)
            except ValueError:
                yield f"{entity_text(entity)}: the configuration accepts addresses, but no host names"


def toml_lines(quotas: Quotas) -> Iterator[str]:
    """Yield the lines of ``[[quotas]]`` tables, one table for each entity, in the given order."""
    for count, (entity, values) in enumerate(quotas.items()):
        if count:
            yield ""
        yield "[[quotas]]"
        yield f"entity = {{ {', '.join(f'{_key(each)} = {_name(name)}' for each, name in entity.parts())} }}"
        yield from (f"{_key(key)} = {_number(key, value)}" for key, value in sorted(values.items()))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quoted(key)


def _name(name: EntityName) -> str:
    if isinstance(name, str) and is_bracketed(name):
        return f"{{ {_LITERAL} = {_quoted(name)} }}"
    return _quoted(str(name))


def _number(key: str, value: float) -> str:
    definition = BUILTIN_SCHEMA.keys.get(key)
    if definition is not None and definition.integral:
        largest = definition.value_type.largest
        return str(min(max(round(value), 1), LONG_MAX if largest is None else largest))
    return str(int(value)) if value.is_integer() and abs(value) <= LONG_MAX else repr(value)


def _quoted(text: str) -> str:
    """Return a TOML basic string without unprintable characters, which could change what a terminal shows."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in ('"', "\\"):
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < _BEYOND_BMP else f"\\U{code:08x}"
