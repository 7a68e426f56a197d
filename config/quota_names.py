"""Names of quota keys and entity types in the ``[[quotas]]`` tables: which of them exist is defined by plugins, too.

`loading` reads tables with any names, and reports the unknown ones with `faults_of_names`. Where the plugins that the
file itself chooses have to be loaded first, it keeps the tables with the configuration (`UncheckedQuotas`), and
`check_quota_names` reports them then, with their positions in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from headrace.config.quotas import LIMIT_KEYS, TABLE_KEYS, parse_entity, plugin_limit
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, ENTITY_TYPES
from headrace.quota_callbacks.options import Fault, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config.schema import Config, QuotaTables
    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import QuotaEntity
    from headrace.quota_callbacks.value_texts import Path

_CLOSE: Final = 0.7
"""Minimum similarity of a suggested key, as in `headrace.quota_callbacks.options`."""


def tables_with_other_names(document: Mapping[str, Any]) -> QuotaTables:
    """Return the ``[[quotas]]`` tables that have a key or an entity type which is not built in."""
    raw = document.get("quotas")
    if not isinstance(raw, list | tuple):
        return {}
    return {index: table for index, table in enumerate(raw) if isinstance(table, Mapping) and _has_other_names(table)}


def _has_other_names(table: Mapping[str, Any]) -> bool:
    return not table.keys() <= TABLE_KEYS or not set(_entity_of(table)).issubset(ENTITY_TYPES)


def _entity_of(table: Mapping[str, Any]) -> Mapping[str, Any]:
    entity = table.get("entity")
    return entity if isinstance(entity, Mapping) else {}


def check_quota_names(config: Config, schema: QuotaSchema) -> None:
    """Check the quotas of ``config`` that have names which are not built in. Raises `ConfigValueError`.

    Has no effect on a configuration that was loaded with a schema, or checked before.
    """
    if faults := [*faults_of_names(config.tables_with_other_names, schema)]:
        raise config.error_of(faults)
    config.quotas_were_checked()


def probable_errors(tables: QuotaTables) -> Iterator[Fault]:
    """Yield the names that are probably misspelled built-in ones, for a file whose plugins cannot be loaded yet."""
    return (fault for fault in faults_of_names(tables, BUILTIN_SCHEMA) if "did you mean" in fault.rule)


def faults_of_names(tables: QuotaTables, schema: QuotaSchema) -> Iterator[Fault]:
    """Yield the faults of tables with names that are not built in: unknown names, and what the definitions refuse."""
    for index, table in tables.items():
        path: Path = ("quotas", index)
        unknown = [*_unknown_names(table, schema, path)]
        yield from unknown
        if not unknown:
            yield from _refused(table, schema, path)


def _unknown_names(table: Mapping[str, Any], schema: QuotaSchema, path: Path) -> Iterator[Fault]:
    for entity_type in _entity_of(table):
        if entity_type not in schema.entity_types:
            hint = did_you_mean(entity_type, schema.entity_types) or f"known: {', '.join(schema.entity_types)}"
            yield Fault(path=(*path, "entity", entity_type), rule=f"unknown entity type; {hint}")
    for key in table:
        if key not in TABLE_KEYS and key not in schema.keys:
            yield Fault(path=(*path, key), rule=f"unknown key; {_suggestion(key, schema)}")


def _suggestion(key: str, schema: QuotaSchema) -> str:
    of_plugins = [each for each in schema.keys if each not in LIMIT_KEYS]
    limits_end = 1 + len(LIMIT_KEYS)  # after "entity"
    known = [*list(TABLE_KEYS)[:limits_end], *of_plugins, *list(TABLE_KEYS)[limits_end:]]
    if close := get_close_matches(key.lower(), known, n=1, cutoff=_CLOSE):
        return f"did you mean {close[0]}?"
    return f"known here: {', '.join(known)}"


def _refused(table: Mapping[str, Any], schema: QuotaSchema, path: Path) -> Iterator[Fault]:
    """Yield what the definitions of plugins refuse; an invalid entity or built-in limit is reported by `quotas`."""
    try:
        entity = parse_entity(table.get("entity"))
    except (ValueError, ValidationError):
        return
    for entity_type, name in entity.other:
        check = schema.entity_types[entity_type].check
        if check is not None and name is not DEFAULT:
            try:
                check(str(name))
            except ValueError as error:
                place = (*path, "entity", entity_type)
                yield Fault(path=place, found=table["entity"][entity_type], rule=str(error))
    for key, raw in table.items():
        if key in schema.keys and (key not in LIMIT_KEYS or entity.other):
            yield from _refused_limit(entity, key, raw, schema, (*path, key))


def _refused_limit(entity: QuotaEntity, key: str, raw: object, schema: QuotaSchema, path: Path) -> Iterator[Fault]:
    try:
        value = plugin_limit(raw)
    except ValueError as error:
        if key not in LIMIT_KEYS:
            yield Fault(path=path, found=raw, rule=str(error))
        return
    try:
        schema.check(key, value, entity)
    except (ValueError, OverflowError) as error:
        yield Fault(path=path, found=raw, rule=str(error))
