"""Arguments of the quota commands as values: entities, filters, and new values of quota keys. Pure functions.

Lists are separated by commas, as KIP-546 has them: ``--names user=alice,client-id=app``, ``--defaults user``, ``--add
producer_byte_rate=2MiB,request_percentage=50``, ``--delete consumer_byte_rate``. Names are opaque, so everything after
the first ``=`` of an element belongs to the name. A comma in a name is written ``\\,`` and a backslash ``\\\\``; a
backslash before any other character stands for itself, so ``DOMAIN\\alice`` needs no escaping. Each option can also be
given several times.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.proxy.kafka_client.quotas import ANY_NAME, QuotaFilter
from headrace.proxy.quota_tools.errors import ArgumentError
from headrace.proxy.quota_tools.resolution import Client
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, ValueType
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity
from headrace.quota_callbacks.options import did_you_mean
from headrace.quota_callbacks.units import SIZE_UNITS, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.proxy.kafka_client.quotas import NameMatch
    from headrace.quota_callbacks.entities import EntityName

T = TypeVar("T")

_ESCAPED: Final = re.compile(r"\\([\\,])")
_ELEMENT: Final = re.compile(r"(?:\\[\\,]|[^,])*")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_COMMA_HINT: Final = r"a comma that belongs to a name is written \,"


def split_list(text: str) -> list[str]:
    """Return the elements of a list, without the escaping of commas and backslashes."""
    elements, position = [], 0
    while position <= len(text):
        found = _ELEMENT.match(text, position)
        assert found is not None  # noqa: S101 -- the pattern also matches an empty text
        elements.append(_ESCAPED.sub(r"\1", found[0]))
        position = found.end() + 1
    return elements


def parse_names(lists: Iterable[str], *, option: str = "--names") -> dict[str, str]:
    """Return the names by entity type. A name may be empty. Raises `ArgumentError`."""
    names: dict[str, str] = {}
    for element in _elements(lists, option):
        entity_type, equals, name = element.partition("=")
        if not equals:
            raise ArgumentError(f"{option}: expected TYPE=NAME, not {element!r}; {_COMMA_HINT}")
        _add(names, _entity_type(entity_type, option), name, option)
    return names


def parse_types(lists: Iterable[str], *, option: str) -> list[str]:
    """Return entity types. Raises `ArgumentError`."""
    types: dict[str, str] = {}
    for element in _elements(lists, option):
        if "=" in element:
            raise ArgumentError(f"{option}: expected entity types such as user, not {element!r}; use --names for names")
        _add(types, _entity_type(element, option), "", option)
    return list(types)


def parse_values(lists: Iterable[str], *, option: str = "--add") -> dict[str, float]:
    """Return new values by quota key. Raises `ArgumentError`.

    Values are numbers, or sizes such as ``2MiB`` as in the configuration file. Whether the cluster has the key, and
    accepts the value, is for the cluster to say, since plugins define keys of their own.
    """
    values: dict[str, float] = {}
    for element in _elements(lists, option):
        key, equals, text = element.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ArgumentError(f"{option}: expected KEY=VALUE, such as producer_byte_rate=2MiB, not {element!r}")
        _add(values, key, parse_value(key, text.strip()), option)
    return values


def parse_keys(lists: Iterable[str], *, option: str = "--delete") -> list[str]:
    """Return quota keys. Raises `ArgumentError`."""
    keys: dict[str, str] = {}
    for element in _elements(lists, option):
        if "=" in element or not element.strip():
            raise ArgumentError(f"{option}: expected quota keys such as producer_byte_rate, not {element!r}")
        _add(keys, element.strip(), "", option)
    return list(keys)


def parse_value(key: str, text: str) -> float:
    """Return the value of a quota key. Raises `ArgumentError` unless it is a finite number, or a size for a key of
    whole numbers."""
    known = BUILTIN_SCHEMA.keys.get(key)
    takes_sizes = known is None or known.value_type is ValueType.LONG
    if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
        return value
    if takes_sizes:
        try:
            return float(parse_size_bytes(text))
        except ValueError:
            expected = f"a number, or a size such as 2MiB ({', '.join(SIZE_UNITS)})"
    else:
        expected = "a number"
    raise ArgumentError(f"{key} = {text!r}: expected {expected}")


def entity_of(names: Mapping[str, str], defaults: Iterable[str]) -> QuotaEntity:
    """Return the entity with these names and defaults. Raises `ArgumentError`."""
    parts: dict[str, EntityName] = {**names}
    for entity_type in defaults:
        if entity_type in parts:
            raise ArgumentError(f"{entity_type} is in --names and in --defaults; give one of them")
        parts[entity_type] = DEFAULT
    if not parts:
        raise ArgumentError("no entity is given; expected --names, such as user=alice, or --defaults, such as user")
    try:
        return QuotaEntity.of(parts)
    except ValueError as error:
        raise ArgumentError(str(error).replace('written "<default>"', "given by --defaults")) from error


def filter_of(
    names: Iterable[str], defaults: Iterable[str], any_types: Iterable[str] = (), *, strict: bool = False
) -> QuotaFilter:
    """Return the filter of the options of ``describe``. Raises `ArgumentError`."""
    wanted: dict[str, NameMatch] = {**_named(names)}
    for option, types, match in (
        ("--defaults", parse_types(defaults, option="--defaults"), DEFAULT),
        ("--any", parse_types(any_types, option="--any"), ANY_NAME),
    ):
        for entity_type in types:
            if entity_type in wanted:
                raise ArgumentError(f"{option}: {entity_type} is given by another option, too")
            wanted[entity_type] = match
    if strict and not wanted:
        raise ArgumentError("--strict needs --names, --defaults or --any: without them, no quotas would match")
    return QuotaFilter.of(wanted, strict=strict)


def client_of(names: Iterable[str], defaults: Iterable[str]) -> Client:
    """Return the client of the options of ``resolve``, which may have any entity types. Raises `ArgumentError`."""
    parts: dict[str, EntityName] = {**parse_names(names)}
    for entity_type in parse_types(defaults, option="--defaults"):
        if entity_type in parts:
            raise ArgumentError(f"{entity_type} is in --names and in --defaults; give one of them")
        parts[entity_type] = DEFAULT
    try:
        return Client.of(parts)
    except ValueError as error:
        raise ArgumentError(str(error)) from error


def alteration_of(
    names: Iterable[str], defaults: Iterable[str], add: Iterable[str], delete: Iterable[str]
) -> tuple[QuotaEntity, dict[str, float | None]]:
    """Return the entity and its new values, from the options of ``alter``. Raises `ArgumentError`."""
    entity = entity_of(_named(names), parse_types(defaults, option="--defaults"))
    values: dict[str, float | None] = {**parse_values(add)}
    for key in parse_keys(delete):
        if key in values:
            raise ArgumentError(f"{key} is in --add and in --delete; give one of them")
        values[key] = None
    if not values:
        raise ArgumentError("nothing to alter; give --add, such as producer_byte_rate=2MiB, or --delete")
    return entity, values


def _named(names: Iterable[str]) -> Mapping[str, str]:
    """Return the names by entity type. Raises `ArgumentError` for an empty one, which only a client can have."""
    found = parse_names(names)
    for entity_type, name in found.items():
        if not name:
            raise ArgumentError(f"--names: the name of {entity_type} is empty; the default is given by --defaults")
    return found


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" for an unknown word; empty if the word is known, or like none that is."""
    words = list(known)
    hint = "" if word in words else did_you_mean(word, words)
    return f" ({hint})" if hint else ""


def _elements(lists: Iterable[str], option: str) -> Iterator[str]:
    for text in lists:
        for element in split_list(text):
            if not element.strip():
                raise ArgumentError(f"{option}: an element of {text!r} is empty; {_COMMA_HINT}")
            yield element


def _entity_type(text: str, option: str) -> str:
    """Return an entity type. It may be one that a plugin defines, so only a wrong form is an error here."""
    entity_type = text.strip()
    if not entity_type:
        raise ArgumentError(f"{option}: an entity type is missing; known: {', '.join(BUILTIN_SCHEMA.entity_types)}")
    return entity_type


def _add(found: dict[str, T], word: str, value: T, option: str) -> None:
    if word in found:
        raise ArgumentError(f"{option}: {word} is given twice")
    found[word] = value
