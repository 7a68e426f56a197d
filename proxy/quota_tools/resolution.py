"""Which quotas apply to a client: for each key the effective value, its entity, and what it overrides. Pure.

The precedence is that of Kafka (``ClientQuotaManager.DefaultQuotaCallback``), which the proxy has in
`headrace.quota_callbacks.builtin.precedence`; a test compares both for random quotas. KIP-546 intended that a broker
answers this (ResolveClientQuotas), but no broker does. So it is computed here, also for clients that were never seen.

Several entities can be one in force (`entity_in_force`): two forms of an IPv6 address, or a long name and its shortened
form. Of these the lowest quota applies, as at the proxy (`headrace.proxy.quotas.definitions`).

Quotas of entity types of plugins apply beside those of users and client ids, each type by itself. The definition of a
type determines which names of it apply (`EntityTypeDefinition.matching`). Of a type whose definition is not known
here, the quotas of exactly the given name apply, and those of the default: this is what a type without such a rule has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA, canonical_ip, entity_in_force
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, Default, QuotaEntity, bounded_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.quota_callbacks.definitions import QuotaSchema
    from headrace.quota_callbacks.entities import EntityName

    Quotas = Mapping[QuotaEntity, Mapping[str, float]]

_PRECEDENCE: Final = (
    *(("n", "n"), ("n", "*"), ("n", "-"), ("*", "n"), ("*", "*"), ("*", "-")),
    *(("-", "n"), ("-", "*")),
)
"""Kafka's levels: whether user and client id are named (n), the default (*), or no part of the entity (-)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client whose quotas are resolved: a user with a client id, an IP address, or names of plugins' entity types.

    `DEFAULT` stands for a name that has no quotas of its own, and an empty client id for a client that sends none.
    Names are those in force, as `of` makes them: long ones are shortened, and an address has its usual form.
    """

    user: EntityName = DEFAULT
    client_id: EntityName = DEFAULT
    ip: EntityName | None = None
    """If it is set, only the quotas of addresses are resolved."""
    others: Mapping[str, EntityName] = field(default_factory=dict)
    """Names by entity type of a plugin."""
    others_only: bool = False
    """Whether neither a user nor a client id is given, so that only quotas of plugins' entity types are resolved."""

    @classmethod
    def of(cls, parts: Mapping[str, EntityName]) -> Client:
        """Return the client with these names by entity type. A user or client id that is not there is `DEFAULT`.

        Raises `ValueError` for no entity type, for an ip beside another, and for an empty name other than a client id.
        """
        if not parts:
            raise ValueError("no entity is given; expected --names, such as user=alice, or --defaults, such as user")
        if IP in parts and len(parts) > 1:
            raise ValueError("a quota entity with an ip must have no other part")
        if any(name == "" for entity_type, name in parts.items() if entity_type != CLIENT_ID):
            raise ValueError("an entity name must not be empty; only client-id= is, for a client that sends none")
        parts = {each: _name_in_force(each, name) for each, name in parts.items()}
        return cls(
            user=parts.get(USER, DEFAULT),
            client_id=parts.get(CLIENT_ID, DEFAULT),
            ip=parts.get(IP),
            others={each: name for each, name in parts.items() if each not in BUILTIN_SCHEMA.entity_types},
            others_only=parts.keys().isdisjoint(BUILTIN_SCHEMA.entity_types),
        )

    def names(self) -> dict[str, str]:
        """Return the names by entity type, without those that are `DEFAULT`."""
        parts = {USER: self.user, CLIENT_ID: self.client_id, IP: self.ip, **self.others}
        return {each: name for each, name in parts.items() if isinstance(name, str)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuota:
    """The effective quota of one key."""

    key: str
    value: float
    source: QuotaEntity
    overridden: tuple[tuple[QuotaEntity, float], ...]
    """Quotas that also match the client, in the order of precedence; those of one entity in force, the lowest first."""


def resolve(quotas: Quotas, client: Client, schema: QuotaSchema = BUILTIN_SCHEMA) -> list[ResolvedQuota]:
    """Return the effective quotas of a client, sorted by key. A key without a matching quota is unlimited.

    A key can be there several times, since quotas of plugins' entity types apply beside the others. ``quotas`` may have
    entities that do not match. Of entity types that ``schema`` does not have, the quotas of exactly the client's name
    and of the default apply; without a name they are ignored.
    """
    in_force = _by_entity_in_force(quotas)
    resolved = [] if client.others_only else _effective(in_force, _matching(client))
    for entities in _matching_others(client, schema):
        resolved += _effective(in_force, entities)
    return sorted(resolved, key=lambda each: each.key)


def _by_entity_in_force(quotas: Quotas) -> dict[QuotaEntity, list[tuple[QuotaEntity, Mapping[str, float]]]]:
    found: dict[QuotaEntity, list[tuple[QuotaEntity, Mapping[str, float]]]] = {}
    for entity, values in quotas.items():
        found.setdefault(entity_in_force(entity), []).append((entity, values))
    return found


def _effective(
    in_force: Mapping[QuotaEntity, Iterable[tuple[QuotaEntity, Mapping[str, float]]]], entities: Iterable[QuotaEntity]
) -> list[ResolvedQuota]:
    """Return for each key the lowest value of the first of these entities that has one."""
    found: dict[str, list[tuple[QuotaEntity, float]]] = {}
    for entity in entities:
        of_entity = [(key, value, name) for name, values in in_force.get(entity, ()) for key, value in values.items()]
        for key, value, name in sorted(of_entity, key=lambda each: each[1]):
            found.setdefault(key, []).append((name, value))
    return [
        ResolvedQuota(key=key, value=value, source=source, overridden=tuple(others))
        for key, ((source, value), *others) in found.items()
    ]


def more_specific(quotas: Quotas, client: Client) -> list[QuotaEntity]:
    """Return the entities that would change the result if the user or client id that is `DEFAULT` were named.

    For example pairs of a user with client ids of their own, if only the user was given.
    """
    if client.ip is not None or client.others_only:
        return []
    effective = _effective(_by_entity_in_force(quotas), _matching(client))
    ranks = {quota.key: _rank(quota.source) for quota in effective}
    return [
        entity
        for entity, values in quotas.items()
        if _names_more(entity_in_force(entity), client)
        and any(key not in ranks or _rank(entity) < ranks[key] for key in values)
    ]


def unknown_types(client: Client, schema: QuotaSchema = BUILTIN_SCHEMA) -> list[str]:
    """Return the entity types of the client's names that ``schema`` does not have, sorted."""
    return sorted(client.others.keys() - schema.entity_types.keys())


def resolution_warnings(quotas: Quotas, client: Client, schema: QuotaSchema = BUILTIN_SCHEMA) -> Iterator[str]:
    """Yield a clause about the entity types that ``schema`` does not have, for which `resolve` can be wrong."""
    if named := unknown_types(client, schema):
        yield f"of {', '.join(named)}, only quotas of exactly this name and of the default are found"
    types = {each for entity in quotas for each, _ in entity.other} - schema.entity_types.keys() - {*named}
    if types:
        yield f"the cluster has quotas of {', '.join(sorted(types))}, which may apply, too"


def _names_more(entity: QuotaEntity, client: Client) -> bool:
    """Return whether an entity does not match the client, but could if the client had another name for `DEFAULT`."""
    if entity.ip is not None or entity.other:
        return False
    pairs = ((entity.user, client.user), (entity.client_id, client.client_id))
    return all(_could_be(*pair) for pair in pairs) and not all(_is(*pair) for pair in pairs)


def _rank(entity: QuotaEntity) -> int:
    """Return the place of an entity of users and client ids in the order of precedence."""
    kinds = tuple("-" if name is None else "*" if name is DEFAULT else "n" for name in (entity.user, entity.client_id))
    return _PRECEDENCE.index(kinds)


def _is(name: EntityName | None, given: EntityName) -> bool:
    return name is None or name is DEFAULT or name == given


def _could_be(name: EntityName | None, given: EntityName) -> bool:
    return _is(name, given) or given is DEFAULT


def _matching(client: Client) -> Iterator[QuotaEntity]:
    """Yield the entities in force that match the client, from the highest precedence to the lowest."""
    if client.ip is not None:
        yield from (QuotaEntity(ip=each) for each in _names(client.ip))
        return
    users, client_ids = _names(client.user), _names(client.client_id)
    if client.client_id == "":  # a client id that is not sent has no part in pairs, and not even the default
        client_ids = ()
    for user in users:
        yield from (QuotaEntity(user=user, client_id=each) for each in client_ids)
        yield QuotaEntity(user=user)
    yield from (QuotaEntity(client_id=each) for each in client_ids)


def _matching_others(client: Client, schema: QuotaSchema) -> Iterator[list[QuotaEntity]]:
    """Yield for each entity type of a plugin the entities that match the client, from the highest precedence on."""
    known = client.names()
    for definition in schema.entity_types.values():
        if definition.name in BUILTIN_SCHEMA.entity_types:
            continue
        names: tuple[EntityName, ...] = definition.names_for(known)
        if names or definition.name in client.others:
            yield _others(definition.name, (*names, DEFAULT))
    for entity_type, name in client.others.items():
        if entity_type not in schema.entity_types:
            yield _others(entity_type, _names(name))


def _others(entity_type: str, names: Iterable[EntityName]) -> list[QuotaEntity]:
    return [entity_in_force(QuotaEntity(other=((entity_type, name),))) for name in names]


def _names(name: EntityName) -> tuple[EntityName, ...]:
    return (DEFAULT,) if isinstance(name, Default) else (name, DEFAULT)


def _name_in_force(entity_type: str, name: EntityName) -> EntityName:
    if isinstance(name, Default):
        return name
    return canonical_ip(name) if entity_type == IP else bounded_name(name)
