"""The ``[[quotas]]`` tables of the file.

Used by `schema`. This module defines the form of quotas in the file; `headrace.quota_callbacks.definitions` defines
which values are valid. A table may have quota keys and entity types of plugins, whose names `quota_names` checks.
"""
# pydantic reads annotations at run time, so they are not postponed here.

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import ConfigDict, ModelWrapValidatorHandler, ValidationError, WrapValidator, model_validator

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, INT_MAX, QuotaSchema, ip_address
from headrace.quota_callbacks.entities import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    LONG_MAX,
    EntityName,
    QuotaEntity,
    QuotaKey,
    is_bracketed,
)
from headrace.quota_callbacks.options import (
    TRUE_OR_FALSE,
    Fault,
    JsonSchema,
    Parsed,
    choice,
    faults_of,
    fields_by_key,
    validation_error,
    whole,
)
from headrace.quota_callbacks.policies import EnforcementMode, NewConnections, Quota, QuotaPolicy
from headrace.quota_callbacks.units import SIZE_PATTERN, SIZE_UNITS, duration, parse_size_bytes
from headrace.quota_callbacks.verdicts import MAX_THROTTLE_MS

LIMIT_KEYS: Final = (*(key.value for key in QuotaKey), CONNECTION_CREATION_RATE)
"""The keys of a table that set a limit."""

_NAME: Final = f'expected a name, or "{DEFAULT}" for the default entity'
_RESERVED: Final = f'{_NAME}; a name in angle brackets is written as a table: {{{{ name = "{{}}" }}}}'
_LITERAL: Final = "name"
"""The key of a table whose value is a name as it is, even ``<default>``."""


def byte_rate(key: QuotaKey) -> Parsed:
    """Return the annotation for bytes a second: an int, since a double cannot represent every LONG."""
    units = ", ".join(SIZE_UNITS)
    number = {"type": "integer", "exclusiveMinimum": 0, "maximum": LONG_MAX}
    return Parsed(
        f'whole bytes a second, above 0 and at most {LONG_MAX}, or a size such as "2MiB" ({units})',
        lambda raw: _whole_bytes(key, raw),
        {"oneOf": [{"type": "string", "pattern": f"^{SIZE_PATTERN}$"}, number]},
    )


def positive(key: QuotaKey) -> Parsed:
    """Return the annotation for a finite number above 0."""
    schema = {"type": "number", "exclusiveMinimum": 0}
    return Parsed("a finite number above 0", lambda raw: float(_checked(key, raw)), schema)


def _whole_bytes(key: QuotaKey, raw: object) -> int:
    whole = round(_checked(key, _size_bytes(raw) if isinstance(raw, str) else raw))
    if whole == 0:  # Kafka allows a remainder of a millionth, also of 0
        raise ValueError
    return whole


def _size_bytes(raw: str) -> int:
    try:
        return parse_size_bytes(raw)
    except ValueError:
        raise ValueError from None  # the description of valid values is more precise


def _checked(key: QuotaKey, raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    try:
        BUILTIN_SCHEMA.check(key, raw)
    except ValueError:
        raise ValueError from None
    return raw


def plugin_limit(raw: object) -> float:
    """Return the limit of a key that a plugin defines: a number, or the bytes of a size. Raises `ValueError`."""
    try:
        value = _size_bytes(raw) if isinstance(raw, str) else raw
    except ValueError:
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f'expected a finite number above 0, or a size such as "2MiB" ({", ".join(SIZE_UNITS)})')
    return value


def parse_entity(raw: object) -> QuotaEntity:
    """Return the entity of a table, whose types may be those of plugins. Raises `ValueError` or ``ValidationError``."""
    if isinstance(raw, QuotaEntity):
        return raw
    if not isinstance(raw, Mapping) or not raw:
        raise ValueError
    names: dict[str, EntityName] = {}
    faults: list[Fault] = []
    for entity_type, name in raw.items():
        found = _parse_name(entity_type, name)
        if isinstance(found, Fault):
            faults.append(found)
        else:
            names[entity_type] = found
    if IP in names and len(names) > 1:
        faults.append(Fault(path=(IP,), rule="an ip stands alone, without a user and a client-id", found=raw[IP]))
    if faults:
        raise validation_error(faults)
    return QuotaEntity.of(names)


def _parse_name(entity_type: str, name: object) -> EntityName | Fault:
    path = (entity_type,)
    literal = _literal_name(name)
    if literal is None and (not isinstance(name, str) or not name):
        return Fault(path=path, rule=_NAME, found=name)
    if name == str(DEFAULT):
        return DEFAULT
    if literal is None and is_bracketed(str(name)):
        return Fault(path=path, rule=_RESERVED.format(name), found=name)
    exact = str(name) if literal is None else literal
    if entity_type != IP:
        return exact
    try:
        return str(ip_address(exact))
    except ValueError:
        return Fault(path=path, rule=f'expected an IP address, or "{DEFAULT}" for the default entity', found=name)


def _literal_name(raw: object) -> str | None:
    """Return the name of a table ``{ name = "..." }``; ``None`` for anything else."""
    if isinstance(raw, Mapping) and raw.keys() == {_LITERAL}:
        name = raw[_LITERAL]
        return name if isinstance(name, str) and name else None
    return None


def _serialize_entity(entity: QuotaEntity) -> dict[str, object]:
    return {entity_type: _serialize_name(name) for entity_type, name in entity.parts()}


def _serialize_name(name: EntityName) -> object:
    return {_LITERAL: name} if isinstance(name, str) and is_bracketed(name) else str(name)


_NAME_SCHEMA: Final[JsonSchema] = {
    "anyOf": [
        {"const": str(DEFAULT)},
        {"type": "string", "minLength": 1, "pattern": "^[^<]|[^>]$"},
        {
            "type": "object",
            "properties": {_LITERAL: {"type": "string", "minLength": 1}},
            "required": [_LITERAL],
            "additionalProperties": False,
        },
    ]
}

ENTITY: Final = Parsed(
    'a user, a client-id or both, such as { user = "alice", client-id = "<default>" }, or an ip',
    parse_entity,
    {
        "type": "object",
        "properties": dict.fromkeys(ENTITY_TYPES, _NAME_SCHEMA),
        "additionalProperties": False,
        "minProperties": 1,
        "dependentSchemas": {IP: {"maxProperties": 1}},
    },
    _serialize_entity,
)


def _between_keys(schema: JsonSchema) -> None:
    """Add the constraints between the keys of a table to its JSON Schema."""
    users_only = {"properties": {"entity": {"not": {"required": [CLIENT_ID]}}}}
    ips_only = {"properties": {"entity": {"required": [IP]}}}
    schema["anyOf"] = [{"required": [key]} for key in LIMIT_KEYS]
    schema["additionalProperties"] = False
    not_for_ips = {"properties": {"entity": {"not": {"required": [IP]}}}}
    schema["dependentSchemas"] = {
        **{key.value: not_for_ips for key in QuotaKey},
        QuotaKey.PRODUCER_IDS_RATE.value: {"allOf": [users_only, not_for_ips]},
        CONNECTION_CREATION_RATE: ips_only,
    }


def add_plugin_names(table: JsonSchema, schema: QuotaSchema) -> None:
    """Add the quota keys and entity types of plugins to the JSON Schema of a ``[[quotas]]`` table."""
    limit = {"oneOf": [{"type": "string", "pattern": f"^{SIZE_PATTERN}$"}, {"type": "number", "exclusiveMinimum": 0}]}
    for key in schema.keys.keys() - BUILTIN_SCHEMA.keys.keys():
        table["properties"][key] = {**limit, "description": schema.keys[key].help}
        table["anyOf"].append({"required": [key]})
    entity_types = table["properties"]["entity"]["properties"]
    for name in schema.entity_types.keys() - BUILTIN_SCHEMA.entity_types.keys():
        entity_types[name] = {**_NAME_SCHEMA, "description": schema.entity_types[name].help}


class ConfiguredQuota(Section, json_schema_extra=_between_keys):
    """One ``[[quotas]]`` table: an entity and at least one limit.

    Keys that are not fields are limits of plugins. Their names are not checked here (`quota_names`), and an invalid
    limit of such a key is left out.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float]

    entity: Annotated[
        QuotaEntity,
        ENTITY,
        Key("The entity: a user, a client id or a pair; <default> is all without a quota of their own."),
    ]
    producer_byte_rate: Annotated[
        float | None,
        byte_rate(QuotaKey.PRODUCER_BYTE_RATE),
        Key("Bytes a second that the entity may produce (KIP-13)."),
    ] = None
    consumer_byte_rate: Annotated[
        float | None, byte_rate(QuotaKey.CONSUMER_BYTE_RATE), Key("Bytes a second that the entity may fetch (KIP-13).")
    ] = None
    request_percentage: Annotated[
        float | None,
        positive(QuotaKey.REQUEST_PERCENTAGE),
        Key("Thread time in percent of one thread; 200 is two threads (KIP-124)."),
    ] = None
    controller_mutation_rate: Annotated[
        float | None,
        positive(QuotaKey.CONTROLLER_MUTATION_RATE),
        Key("Partitions created, added or deleted a second (KIP-599)."),
    ] = None
    producer_ids_rate: Annotated[
        float | None,
        positive(QuotaKey.PRODUCER_IDS_RATE),
        Key("New producer ids per producer.id.quota.window.size.seconds; for users only (KIP-936)."),
    ] = None
    connection_creation_rate: Annotated[
        int | None,
        whole(1, INT_MAX),
        Key("New connections a second from an ip; those above it are closed after a delay (KIP-612)."),
    ] = None

    enforcement: Annotated[
        EnforcementMode,
        choice(EnforcementMode),
        Key(
            "kafka: the broker's arithmetic, which throttles each connection independently; paced: one timeline for "
            "all connections of the entity, so that the limit holds for any number of connections."
        ),
    ] = EnforcementMode.KAFKA
    observe: Annotated[
        bool,
        TRUE_OR_FALSE,
        Key("Shadow mode: the quota is measured, logged, counted and traced, but not enforced."),
    ] = False
    burst_s: Annotated[
        float | None,
        duration("0s", "30d"),
        Key(
            "Paced only: the burst, as a duration at the limit. The default is 1s, and the whole window for "
            "controller_mutation_rate and producer_ids_rate."
        ),
    ] = None
    longest_throttle_s: Annotated[
        float | None,
        duration("1ms", f"{INT_MAX // 1000}s"),
        Key("The longest throttle time of a single request. It does not reduce the debt."),
    ] = None
    new_connections: Annotated[
        NewConnections,
        choice(NewConnections),
        Key(
            "What happens to connections that are opened while the entity is throttled. wait: their first request that "
            "is charged is held until the throttle ends, so that a client gains nothing by reconnecting; kafka: they "
            "are not held, as at a broker."
        ),
    ] = NewConnections.WAIT

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, raw: Any, read: ModelWrapValidatorHandler["ConfiguredQuota"]) -> "ConfiguredQuota":
        """Report invalid keys and violated constraints between keys together."""
        if not isinstance(raw, Mapping):
            return read(raw)
        faults = list(_faults_between_keys(raw))
        try:
            quota = read(_with_limits_of_plugins(raw))
        except ValidationError as error:
            faults = [*faults_of(error, cls), *faults]
        if faults:
            raise validation_error(faults)
        return quota

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, in the units of their keys."""
        limits = {key: getattr(self, key) for key in LIMIT_KEYS}
        of_plugins = self.__pydantic_extra__ or {}
        return {key: limit for key, limit in limits.items() if limit is not None} | of_plugins

    def policy(self) -> QuotaPolicy:
        """Return the policy of the limits."""
        longest_s = self.longest_throttle_s
        return QuotaPolicy(
            mode=self.enforcement,
            observe=self.observe,
            burst_s=self.burst_s,
            longest_throttle_ms=MAX_THROTTLE_MS if longest_s is None else round(longest_s * 1000),
            new_connections=self.new_connections,
        )


TABLE_KEYS: Final = dict.fromkeys(fields_by_key(ConfiguredQuota)).keys()
"""The keys of a table that are not those of plugins, in their order."""


def _with_limits_of_plugins(table: Mapping[str, object]) -> dict[str, object]:
    """Return a table with the valid limits of plugins as numbers, and without the invalid ones."""
    read = {key: value for key, value in table.items() if key in TABLE_KEYS}
    for key in table.keys() - TABLE_KEYS:
        with suppress(ValueError):
            read[key] = plugin_limit(table[key])
    return read


def merged_quotas(quotas: tuple[ConfiguredQuota, ...]) -> dict[QuotaEntity, dict[str, Quota]]:
    """Return all quotas by entity. An entity may have several tables, with different keys."""
    merged: dict[QuotaEntity, dict[str, Quota]] = {}
    for table in quotas:
        policy = table.policy()
        of_entity = merged.setdefault(table.entity, {})
        of_entity.update((key, Quota(value=limit, policy=policy)) for key, limit in table.limits().items())
    return merged


def _faults_between_keys(table: Mapping[str, object]) -> Iterator[Fault]:
    # not if there is an unknown key, which is probably a misspelled limit and is reported by itself
    if table.keys() <= {"entity", "enforcement", "observe", "burst", "longest_throttle", "new_connections"}:
        yield Fault(rule=f"no limit is set; expected at least one of {', '.join(LIMIT_KEYS)}")
    if "burst" in table and table.get("enforcement") != EnforcementMode.PACED:
        rule = 'only with enforcement = "paced"; otherwise the window determines the burst'
        yield Fault(path=("burst",), found=table["burst"], rule=rule)
    key = QuotaKey.PRODUCER_IDS_RATE.value
    with suppress(ValueError):  # an invalid entity is reported by itself
        entity = parse_entity(table.get("entity"))
        if entity.other:
            return
        if entity.client_id is not None and key in table:
            rule = f"for users only (KIP-936), not for {entity}; the entity must have no client-id"
            yield Fault(path=(key,), found=table[key], rule=rule)
        for key in LIMIT_KEYS:
            if key in table and (entity.ip is None) == (key == CONNECTION_CREATION_RATE):
                others = "an ip" if key == CONNECTION_CREATION_RATE else "users and client ids"
                yield Fault(path=(key,), found=table[key], rule=f"for {others} only, not for {entity}")


def _read_tables(raw: Any, _read: object) -> tuple[ConfiguredQuota, ...]:
    """Read all tables. A limit that is set twice for an entity is an error."""
    if not isinstance(raw, list | tuple):
        raise validation_error([Fault(rule="expected tables, each headed [[quotas]]", found=raw)])
    quotas: list[ConfiguredQuota] = []
    faults: list[Fault] = []
    first_set: dict[tuple[QuotaEntity, str], int] = {}
    for index, table in enumerate(raw):
        try:
            quota = ConfiguredQuota.model_validate(table)
        except ValidationError as error:
            found = faults_of(error, ConfiguredQuota, ("quotas", index))
            faults += (replace(fault, path=fault.path[1:]) for fault in found)
            continue
        quotas.append(quota)
        for key in quota.limits():
            first = first_set.setdefault((quota.entity, key), index)
            if first != index:
                rule = f"set twice for {quota.entity}"
                faults.append(Fault(path=(index, key), rule=rule, first=(first, key)))
    if faults:
        raise validation_error(faults)
    return tuple(quotas)


QUOTA_TABLES: Final = WrapValidator(_read_tables)
"""The annotation for the array of ``[[quotas]]`` tables."""
