"""The quota keys and entity types, the values a key may have, and the entities it applies to.

Those of Kafka and ``producer_ids_rate`` are built in (`BUILTIN_SCHEMA`). Plugins add their own by the hook
`quota_definitions`, and the proxy combines all of them to one `QuotaSchema`, which the configuration, the client-quota
APIs, the tools and the metrics use. Nothing here knows which quotas are set.

The texts of errors are Kafka's where Kafka has the rule, since AlterClientQuotas returns them to clients.
Source: KIP-546, KIP-612, KIP-936, ``ClientQuotaControlManager``, ``QuotaConfig``.
"""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.quota_callbacks.entities import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    IP,
    LONG_MAX,
    USER,
    EntityName,
    QuotaEntity,
    QuotaKey,
    bounded_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

INT_MAX: Final = 2**31 - 1
"""Maximum of an INT32 of Kafka's protocol, and of an INT in a broker's configuration."""

BYTES_PER_SECOND: Final = "bytes/s"
_UNIT_CHARACTERS: Final = 32
_FRACTION: Final = 1e-6  # ClientQuotaControlManager.getErrorForIntegralQuotaValue
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")

EntityTypes: TypeAlias = frozenset[str]
"""A combination of entity types, such as user and client-id: the types of the parts of one entity."""


class ValueType(Enum):
    """The type of a quota key's values (``ConfigDef.Type``). All are doubles in the protocol."""

    LONG = LONG_MAX
    INT = INT_MAX
    DOUBLE = None

    @property
    def largest(self) -> int | None:
        """The largest value of an integral type."""
        largest: int | None = self.value
        return largest


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityTypeDefinition:
    """An entity type."""

    name: str
    """The name in the protocol and in files, for example ``client-id``: a letter, then letters, digits, ``_``, ``.``,
    ``-``; 64 characters at most."""
    help: str
    """What a name of this type stands for, in one sentence."""
    check: Callable[[str], None] | None = None
    """Raises `ValueError` for a name that cannot be configured, with a message for the client. Not called for the
    default entity. Must not block. Kafka refuses only empty names, which this function does not get."""
    keys: frozenset[str] = frozenset()
    """Names of keys, built-in ones or those of other plugins, that an entity of this type alone can have besides the
    keys whose own definition names the type. The plugin that defines the type enforces them for it, unless it has
    `metric_tags`."""
    matching: Callable[[Mapping[str, str]], Iterable[str]] | None = None
    """Returns the names of this type whose quotas apply to a client or resource, the highest precedence first, without
    the default, which is last; nothing if no quota of this type applies. The argument has what is known of it: names by
    entity type. Without this function, the name of this type applies, if there is one. Used by ``headrace quotas
    resolve``; must not block."""
    metric_tags: Callable[[str, str, str], Mapping[str, str] | None] | None = None
    """Returns the metric tags of the bucket of this type that requests are charged to, given a key, a user and a client
    id; ``None`` if they have no such quota. With this function, the callbacks that enforce `keys` for users and client
    ids enforce them for this type, too. It is called as the hook `quota_metric_tags` is, for keys that an entity of the
    type can have; if it raises, or returns anything else, that is logged as an error of the plugin, and the quota does
    not apply. The tags must contain the name of the type; the plugin returns their limit from `quota_limit`."""

    def names_for(self, names: Mapping[str, str]) -> tuple[str, ...]:
        """Return what `matching` returns, or else the name of this type in ``names``, if there is one."""
        if self.matching is not None:
            return tuple(self.matching(names))
        return (names[self.name],) if self.name in names else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaKeyDefinition:
    """A quota key."""

    name: str
    """The name in the protocol and in files, for example ``producer_byte_rate``; see `EntityTypeDefinition.name`."""
    value_type: ValueType
    entity_types: frozenset[EntityTypes]
    """The entities that can have the key: every allowed combination of entity types."""
    help: str
    """What the key limits, and its unit, in one sentence."""
    unit: str = ""
    """The unit of a value, for ``headrace why``, such as ``requests/s``; 32 printable characters at most. Values of the
    unit `BYTES_PER_SECOND` are shown in KiB, MiB and so on."""
    check: Callable[[QuotaEntity, float], None] | None = None
    """Raises `ValueError` for a value that the entity cannot have, with a message for the client. Called for values
    that are valid for `value_type`. Must not block."""

    @property
    def integral(self) -> bool:
        """Whether values are whole numbers. A fraction up to 1e-6 is allowed, as in Kafka."""
        return self.value_type is not ValueType.DOUBLE

    def check_value(self, value: float) -> None:
        """Raise `ValueError` unless the value is valid for the type of the key. The message is Kafka's.

        Kafka allows NaN for every key and infinity for a DOUBLE. These are refused, since no limit can be computed
        from them. An int is compared exactly, and a float as Kafka does: 2**63 as a double is ``Long.MAX_VALUE``.
        Raises `OverflowError` for an int that no double can hold.
        """
        largest = self.value_type.largest
        if value <= 0:
            raise ValueError(f"Quota {self.name} must be greater than 0")
        if largest is not None and value > (largest if isinstance(value, int) else float(largest)):
            kind = "a LONG" if self.value_type is ValueType.LONG else "an INT"
            raise ValueError(f"Proposed value for {self.name} is too large for {kind}.")
        if not math.isfinite(value):
            raise ValueError(f"Quota {self.name} must be a finite number")
        if self.integral and math.fmod(value, 1.0) > _FRACTION:
            raise ValueError(f"{self.name} cannot be a fractional value.")


class QuotaSchema:
    """All quota keys and entity types that exist. Immutable."""

    def __init__(
        self, *, keys: Iterable[QuotaKeyDefinition] = (), entity_types: Iterable[EntityTypeDefinition] = ()
    ) -> None:
        """Raises `ValueError` for an invalid definition, and for a name that is defined twice."""
        self._keys: dict[str, QuotaKeyDefinition] = {}
        self._entity_types: dict[str, EntityTypeDefinition] = {}
        for entity_type in entity_types:
            _check_new("entity type", entity_type.name, self._entity_types)
            self._entity_types[entity_type.name] = entity_type
        for key in keys:
            _check_new("quota key", key.name, self._keys)
            if not key.unit.isprintable() or len(key.unit) > _UNIT_CHARACTERS:
                raise ValueError(
                    f"the unit of the quota key {key.name} must have at most {_UNIT_CHARACTERS} printable characters"
                )
            self._check_combinations(key)
            self._keys[key.name] = key
        for entity_type in self._entity_types.values():
            if missing := entity_type.keys - self._keys.keys():
                raise ValueError(f"the entity type {entity_type.name} has an unknown quota key {min(missing)!r}")

    @property
    def keys(self) -> Mapping[str, QuotaKeyDefinition]:
        """The quota keys by name."""
        return MappingProxyType(self._keys)

    @property
    def entity_types(self) -> Mapping[str, EntityTypeDefinition]:
        """The entity types by name."""
        return MappingProxyType(self._entity_types)

    def extended(self, definitions: Iterable[QuotaKeyDefinition | EntityTypeDefinition]) -> QuotaSchema:
        """Return a schema that has these definitions, too. The order does not matter. Raises as the constructor."""
        keys, entity_types = list(self._keys.values()), list(self._entity_types.values())
        for definition in definitions:
            if isinstance(definition, QuotaKeyDefinition):
                keys.append(definition)
            else:
                entity_types.append(definition)
        return QuotaSchema(keys=keys, entity_types=entity_types)

    def keys_of(self, entity_types: EntityTypes) -> Mapping[str, QuotaKeyDefinition]:
        """Return the keys that an entity with parts of these types can have; empty if there is no such entity."""
        return self._by_combination.get(entity_types, _NO_KEYS)

    def check(self, key: str, value: float, entity: QuotaEntity | None = None) -> None:
        """Raise `ValueError` unless the value is valid, and the entity, if there is one, can have the key.

        For callers other than the client-quota APIs. Raises `KeyError` for an unknown key, and `OverflowError` for an
        int that no double can hold.
        """
        definition = self._keys[key]
        definition.check_value(value)
        if entity is None:
            return
        entity_types = frozenset(entity_type for entity_type, _ in entity.parts())
        if key not in self.keys_of(entity_types):
            raise ValueError(f"{self._rule_of(key)}, not for {entity}")
        if definition.check is not None:
            definition.check(entity, value)

    def misplaced(self, key: str, entity_types: EntityTypes) -> str:
        """Return which entities can have a key, as a clause, if an entity with parts of these types cannot.

        Empty if it can, and for a key or an entity type that this schema does not have.
        """
        known = key in self._keys and entity_types <= self._entity_types.keys()
        return self._rule_of(key) if known and key not in self.keys_of(entity_types) else ""

    def _rule_of(self, key: str) -> str:
        having = [types for types, keys in self._by_combination.items() if key in keys]
        allowed = sorted(" with ".join(_sorted(each)) for each in having)
        return f"{key} is for {' or '.join(allowed)} only"

    @cached_property
    def _by_combination(self) -> dict[EntityTypes, Mapping[str, QuotaKeyDefinition]]:
        found: dict[EntityTypes, dict[str, QuotaKeyDefinition]] = {}
        for key in self._keys.values():
            for combination in key.entity_types:
                found.setdefault(combination, {})[key.name] = key
        for entity_type in self._entity_types.values():
            for name in sorted(entity_type.keys):
                found.setdefault(frozenset({entity_type.name}), {})[name] = self._keys[name]
        return {combination: MappingProxyType(keys) for combination, keys in found.items()}

    def _check_combinations(self, key: QuotaKeyDefinition) -> None:
        if not key.entity_types or frozenset() in key.entity_types:
            raise ValueError(f"the quota key {key.name} must apply to at least one entity type")
        for combination in key.entity_types:
            if unknown := combination - self._entity_types.keys():
                raise ValueError(f"the quota key {key.name} applies to an unknown entity type {min(unknown)!r}")
            if IP in combination and len(combination) > 1:
                raise ValueError(f"the quota key {key.name} applies to an ip with another part, which no entity has")


_NO_KEYS: Final[Mapping[str, QuotaKeyDefinition]] = MappingProxyType({})


def _check_new(what: str, name: str, known: Mapping[str, object]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the {what} {name!r} must be a letter and up to 63 further letters, digits, and characters of '_.-'"
        )
    if name in known:
        raise ValueError(f"the {what} {name} is defined twice")


def _sorted(combination: EntityTypes) -> list[str]:
    """Return entity types in the usual order: user before client-id, the others by name."""
    return sorted(combination, key=lambda each: (each != USER, each != CLIENT_ID, each))


def ip_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address for which a name of the entity type ``ip`` stands.

    Several names can stand for one address: an IPv6 address has several forms, and an IPv4 address that is embedded in
    an IPv6 address is that IPv4 address, as in Java. Raises `ValueError`, with Kafka's message, for anything but the
    usual forms of an address. Kafka takes host names, too, and resolves them whenever a broker reads the quota; that
    would block the proxy, and the limit would depend on the name server. It also takes what ``InetAddress`` takes, such
    as ``127.1``, ``010.0.0.1``, ``[::1]`` and ``fe80::1%1``.
    """
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise ValueError(f"{name} is not a valid IP or resolvable host.") from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"{name} is not a valid IP or resolvable host.")
        return address.ipv4_mapped or address
    return address


def canonical_ip(name: str) -> str:
    """Return the usual form of an address (`ip_address`), in which two names of one address are equal.

    A name that is not an address, such as a host name that was set at a broker, is returned unchanged.
    """
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def entity_in_force(entity: QuotaEntity) -> QuotaEntity:
    """Return the entity by which the quotas of ``entity`` are enforced; the same object if it is the same entity.

    The configuration, stores and APIs keep names as they were written. Quotas are enforced by the names that requests
    and connections have: very long ones are shortened (`bounded_name`), and addresses have their usual form
    (`canonical_ip`). So several entities can have one entity in force.
    """
    found: dict[str, EntityName] = {}
    differs = False
    for entity_type, name in entity.parts():
        used = name
        if isinstance(name, str):
            used = canonical_ip(name) if entity_type == IP else bounded_name(name)
            differs = differs or used != name
        found[entity_type] = used
    return QuotaEntity.of(found) if differs else entity


def _check_ip(name: str) -> None:
    ip_address(name)


USER_AND_CLIENT_ID: Final = frozenset({frozenset({USER}), frozenset({CLIENT_ID}), frozenset({USER, CLIENT_ID})})
"""Users, client ids, and pairs of both: the entities of Kafka's own quota keys, other than that of IP addresses."""

BUILTIN_SCHEMA: Final = QuotaSchema(
    entity_types=(
        EntityTypeDefinition(name=USER, help="The name of an authenticated user."),
        EntityTypeDefinition(name=CLIENT_ID, help="The client id that a client sends."),
        EntityTypeDefinition(name=IP, help="The address from which a client connects.", check=_check_ip),
    ),
    keys=(
        QuotaKeyDefinition(
            name=QuotaKey.PRODUCER_BYTE_RATE.value,
            value_type=ValueType.LONG,
            entity_types=USER_AND_CLIENT_ID,
            help="Bytes a second that the entity may produce (KIP-13).",
            unit=BYTES_PER_SECOND,
        ),
        QuotaKeyDefinition(
            name=QuotaKey.CONSUMER_BYTE_RATE.value,
            value_type=ValueType.LONG,
            entity_types=USER_AND_CLIENT_ID,
            help="Bytes a second that the entity may fetch (KIP-13).",
            unit=BYTES_PER_SECOND,
        ),
        QuotaKeyDefinition(
            name=QuotaKey.REQUEST_PERCENTAGE.value,
            value_type=ValueType.DOUBLE,
            entity_types=USER_AND_CLIENT_ID,
            help="Thread time in percent of one thread (KIP-124).",
        ),
        QuotaKeyDefinition(
            name=QuotaKey.CONTROLLER_MUTATION_RATE.value,
            value_type=ValueType.DOUBLE,
            entity_types=USER_AND_CLIENT_ID,
            help="Partitions created, added or deleted a second (KIP-599).",
        ),
        QuotaKeyDefinition(
            name=QuotaKey.PRODUCER_IDS_RATE.value,
            value_type=ValueType.DOUBLE,
            entity_types=frozenset({frozenset({USER})}),
            help="New producer ids per window (KIP-936).",
        ),
        QuotaKeyDefinition(
            name=CONNECTION_CREATION_RATE,
            value_type=ValueType.INT,
            entity_types=frozenset({frozenset({IP})}),
            help="New connections a second from the address (KIP-612).",
        ),
    ),
)
"""The quota keys and entity types of Kafka, and ``producer_ids_rate``."""
