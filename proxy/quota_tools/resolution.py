"""Which quotas apply to a client: for each key the effective value, its entity, and what it overrides. Pure.

The precedence is that of Kafka (``ClientQuotaManager.DefaultQuotaCallback``), which the proxy has in
`headrace.quota_callbacks.builtin.precedence`; a test compares both for random quotas. KIP-546 meant a broker to answer
this (ResolveClientQuotas), and none does. So a client of the API has to, and can for clients that were never seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.definitions import ip_address
from headrace.quota_callbacks.entities import CLIENT_ID, DEFAULT, IP, USER, Default, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.quota_callbacks.entities import EntityName

RESOLVABLE_TYPES: Final = (USER, CLIENT_ID, IP)

_PRECEDENCE: Final = (
    *(("n", "n"), ("n", "*"), ("n", "-"), ("*", "n"), ("*", "*"), ("*", "-")),
    *(("-", "n"), ("-", "*")),
)
"""Kafka's levels: whether user and client id are named (n), the default (*), or no part of the entity (-)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client whose quotas are resolved: a user with a client id, or an IP address.

    `DEFAULT` is a name that has no quotas of its own; an empty client id that of a client that sends none.
    """

    user: EntityName = DEFAULT
    client_id: EntityName = DEFAULT
    ip: EntityName | None = None
    """If it is set, only the quotas of addresses are resolved."""

    @classmethod
    def of(cls, parts: Mapping[str, EntityName]) -> Client:
        """Return the client with these names by entity type. A user or client id that is not there is `DEFAULT`.

        Raises `ValueError` for other entity types, for no type, for an ip beside another, and for an empty name other
        than a client id.
        """
        if unknown := sorted(parts.keys() - set(RESOLVABLE_TYPES)):
            raise ValueError(f"quotas can be resolved for {', '.join(RESOLVABLE_TYPES)}, not for {unknown[0]}")
        if not parts:
            raise ValueError("no entity is given; expected --names, such as user=alice, or --defaults, such as user")
        if IP in parts and len(parts) > 1:
            raise ValueError("a quota entity with an ip must have no other part")
        if parts.get(USER) == "" or parts.get(IP) == "":
            raise ValueError("an entity name must not be empty; only client-id= is, for a client that sends none")
        return cls(user=parts.get(USER, DEFAULT), client_id=parts.get(CLIENT_ID, DEFAULT), ip=parts.get(IP))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuota:
    """The effective quota of one key."""

    key: str
    value: float
    source: QuotaEntity
    overridden: tuple[tuple[QuotaEntity, float], ...]
    """Quotas that also match the client, in the order of precedence."""


def resolve(quotas: Mapping[QuotaEntity, Mapping[str, float]], client: Client) -> list[ResolvedQuota]:
    """Return the effective quotas of a client, sorted by key. A key without a matching quota is unlimited.

    ``quotas`` may have entities that do not match. Those with entity types of plugins are ignored.
    """
    found: dict[str, list[tuple[QuotaEntity, float]]] = {}
    for entity in _matching(quotas, client):
        for key, value in quotas.get(entity, {}).items():
            found.setdefault(key, []).append((entity, value))
    return [
        ResolvedQuota(key=key, value=value, source=source, overridden=tuple(others))
        for key, ((source, value), *others) in sorted(found.items())
    ]


def more_specific(quotas: Mapping[QuotaEntity, Mapping[str, float]], client: Client) -> list[QuotaEntity]:
    """Return the entities that would change the result if the user or client id that is `DEFAULT` were named.

    For example pairs of a user with client ids of their own, if only the user was given.
    """
    if client.ip is not None:
        return []
    ranks = {quota.key: _rank(quota.source) for quota in resolve(quotas, client)}
    return [
        entity
        for entity, values in quotas.items()
        if _names_more(entity, client) and any(key not in ranks or _rank(entity) < ranks[key] for key in values)
    ]


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


def _matching(quotas: Mapping[QuotaEntity, Mapping[str, float]], client: Client) -> Iterator[QuotaEntity]:
    """Yield the entities that match the client, from the highest precedence to the lowest."""
    if client.ip is not None:
        yield from _matching_addresses(quotas, client.ip)
        return
    users, client_ids = _names(client.user), _names(client.client_id)
    if client.client_id == "":  # a client id that is not sent has no part in pairs, and not even the default
        client_ids = ()
    for user in users:
        yield from (QuotaEntity(user=user, client_id=each) for each in client_ids)
        yield QuotaEntity(user=user)
    yield from (QuotaEntity(client_id=each) for each in client_ids)


def _names(name: EntityName) -> tuple[EntityName, ...]:
    return (DEFAULT,) if isinstance(name, Default) else (name, DEFAULT)


def _matching_addresses(quotas: Mapping[QuotaEntity, Mapping[str, float]], wanted: EntityName) -> Iterator[QuotaEntity]:
    """Yield the entities of an address, in any of its spellings, and then the default."""
    if not isinstance(wanted, Default):
        exact = QuotaEntity(ip=wanted)
        yield exact
        address = _address(wanted)
        for entity in quotas:
            if (
                isinstance(entity.ip, str)
                and entity != exact
                and address is not None
                and _address(entity.ip) == address
            ):
                yield entity
    yield QuotaEntity(ip=DEFAULT)


def _address(name: str) -> object | None:
    """Return the address that a name stands for; ``None`` for a host name, which Kafka also accepts."""
    try:
        return ip_address(name)
    except ValueError:
        return None
