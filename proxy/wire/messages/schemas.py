"""Kafka's message schemas: the fields of one message in one version, with version ranges already resolved.

Reads `kafka_messages.json`, which is generated from Kafka's definitions. The file is split into lines on first use, and
a line is parsed when its message is first requested, so that unused messages cost no time and little memory. Called by
the codecs of `headrace.proxy.wire.messages` and by tests; must not depend on how values are encoded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from headrace.proxy.wire.errors import UnknownMessage

_DATA_FILE: Final = Path(__file__).with_name("kafka_messages.json")
_NAME_AT: Final = len(b'{"name":"')

# Values of missing fields, from FieldSpec.fieldDefault of Kafka's generator. A struct has the defaults of its fields.
_DEFAULTS: Final[dict[str, bool | int | float | str | bytes]] = {
    "bool": False,
    "bytes": b"",
    "float64": 0.0,
    "records": b"",
    "string": "",
    "uuid": bytes(16),
}

Default = bool | int | float | str | bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a struct, in one version."""

    name: str
    """The name in snake case, such as ``throttle_time_ms``."""
    kind: str
    """The type, such as ``int32``, ``string`` or ``struct``; for an array the type of its elements."""
    is_array: bool
    nullable: bool
    flexible: bool
    """Whether lengths are compact and structs end in tagged fields (KIP-482)."""
    tag: int | None
    """The tag of a tagged field, ``None`` for an ordinary field."""
    default: Default
    """The default of a scalar, ``None`` for null; for structs and arrays see ``default_is_null``."""
    default_is_null: bool
    fields: tuple[Field, ...]
    """The fields of the struct, or of the array's structs; empty for other types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A message in one version."""

    name: str
    version: int
    flexible: bool
    fields: tuple[Field, ...]
    """The fields of this version in their order in a message, including tagged fields."""


@cache
def _lines() -> dict[str, tuple[bytes, ...]]:
    """Return the lines of each message by name: one, or two if an older definition covers the lower versions."""
    found: dict[str, tuple[bytes, ...]] = {}
    for line in _DATA_FILE.read_bytes().splitlines()[1:]:  # the first line is the license notice
        name = line[_NAME_AT : line.index(b'"', _NAME_AT)].decode()
        found[name] = (*found.get(name, ()), line)
    return found


@cache
def _editions(name: str) -> tuple[dict[str, Any], ...]:
    """Return the parsed definitions of a message, in ascending order of versions."""
    try:
        return tuple(json.loads(line) for line in _lines()[name])
    except KeyError:
        raise UnknownMessage(f"no schema for a message {name!r}") from None


def message_names() -> tuple[str, ...]:
    """Return the names of all messages with a schema, such as ``ProduceRequest`` or ``ResponseHeader``."""
    return tuple(_lines())


def versions(name: str) -> range:
    """Return the versions of a message for which there is a schema. Raises `UnknownMessage`."""
    editions = _editions(name)
    return range(editions[0]["versions"][0], editions[-1]["versions"][1] + 1)


@cache
def schema(name: str, version: int) -> Schema:
    """Return the schema of a message in one version. Raises `UnknownMessage` if there is none."""
    for edition in _editions(name):
        if edition["versions"][0] <= version <= edition["versions"][1]:
            flexible = version >= edition.get("flexible", 1 << 15)
            return Schema(
                name=name,
                version=version,
                flexible=flexible,
                fields=_fields(edition["fields"], version, flexible=flexible),
            )
    known = versions(name)
    raise UnknownMessage(f"no schema for {name} v{version}: known are {known.start} to {known.stop - 1}")


def _fields(raw: list[dict[str, Any]], version: int, *, flexible: bool) -> tuple[Field, ...]:
    return tuple(_field(field, version, flexible=flexible) for field in raw if _within(field.get("versions"), version))


def _field(raw: dict[str, Any], version: int, *, flexible: bool) -> Field:
    kind: str = raw["type"].removeprefix("[]")
    is_array = raw["type"].startswith("[]")
    nullable = "nullable" in raw and _within(raw["nullable"], version)
    default: Default = raw.get("default", None if is_array or kind == "struct" else _DEFAULTS.get(kind, 0))
    default_is_null = default == "null"
    return Field(
        name=raw["name"],
        kind=kind,
        is_array=is_array,
        nullable=nullable,
        flexible=flexible and raw.get("flexible", True),
        tag=raw["tag"] if "tag" in raw and _within(raw["tagged"], version) else None,
        default=None if default_is_null else default,
        default_is_null=default_is_null,
        fields=_fields(raw.get("fields", []), version, flexible=flexible),
    )


def _within(limits: list[int] | None, version: int) -> bool:
    return limits is None or limits[0] <= version <= limits[1]
