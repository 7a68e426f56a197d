"""Quota keys and quota entities: the value types that the configuration, callbacks and buckets share.

Independent of requests, arithmetic and time. Source: KIP-13, KIP-124, KIP-546 (``ClientQuotaEntity``),
``org.apache.kafka.server.config.QuotaConfig``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class Default(Enum):
    """The default entity of an entity type: ``<default>`` in Kafka's tools, a null name in the protocol."""

    DEFAULT = "<default>"

    def __str__(self) -> str:
        return self.value


DEFAULT: Final = Default.DEFAULT

EntityName: TypeAlias = str | Default

ANONYMOUS: Final = "ANONYMOUS"
"""The user name of a connection that has not authenticated (``KafkaPrincipal.ANONYMOUS``)."""


MAX_NAME_BYTES: Final = 255
"""Maximum size of a client id, user or topic in tables and outputs, in UTF-8. A client chooses its client id, which may
have 32,767 bytes; Kafka's own topic names have 249 at most."""
SHORT_NAME: Final = MAX_NAME_BYTES // 4
"""A name of so many characters fits, whatever they are: UTF-8 has four bytes at most for one."""
_DIGEST_DIGITS: Final = 32
_MARK: Final = "...sha256:"


def bounded_name(name: str) -> str:
    """Return a name as it is if it has at most `MAX_NAME_BYTES`; otherwise its beginning and a digest of all of it.

    Names that differ, differ in the result, too; and the result is returned as it is. Everything that keeps, compares
    or shows the names that clients choose uses this form; what is forwarded to brokers does not change.
    """
    if len(name) <= SHORT_NAME:
        return name
    data = name.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_NAME_BYTES:
        return name
    beginning = data[: MAX_NAME_BYTES - len(_MARK) - _DIGEST_DIGITS].decode("utf-8", "ignore")
    return f"{beginning}{_MARK}{sha256(data).hexdigest()[:_DIGEST_DIGITS]}"


class QuotaKey(StrEnum):
    """The quota keys, spelled as in ``kafka-configs`` and in the configuration file."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    """Bytes a second that an entity may produce (KIP-13)."""
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    """Bytes a second that an entity may fetch (KIP-13)."""
    REQUEST_PERCENTAGE = "request_percentage"
    """Thread time, in percent of one thread (KIP-124)."""
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    """Partitions created, added or deleted a second (KIP-599)."""
    PRODUCER_IDS_RATE = "producer_ids_rate"
    """New producer ids per window; for users only (KIP-936)."""


_BUILTIN_KEYS: Final = frozenset(QuotaKey)


def quota_key(name: str) -> str:
    """Return the `QuotaKey` with this name, or the name itself for a key of a plugin.

    Hooks and buckets get their keys in this form, so that a built-in key is always a `QuotaKey`. Both forms of a name
    are equal and have the same hash.
    """
    return QuotaKey(name) if name in _BUILTIN_KEYS else name


CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
"""The key of the rate of new connections from an address (KIP-612). No callback enforces it; the proxy itself does."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
"""The built-in entity types, spelled as in the protocol and in Kafka's tools (KIP-546, KIP-612)."""


def is_bracketed(name: str) -> bool:
    """Return whether a name could be mistaken for the default entity: it is in angle brackets."""
    return name.startswith("<") and name.endswith(">")


def shown_name(name: EntityName) -> str:
    """Return a name for people: ``<default>`` is the default entity, and ``"<default>"`` an entity of that name."""
    return f'"{name}"' if isinstance(name, str) and is_bracketed(name) else str(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """What a quota applies to: a name, or `DEFAULT`, for one or several entity types (``ClientQuotaEntity``).

    ``None`` means that the entity has no such part. ``other`` has the parts of entity types that plugins define, sorted
    by type. Raises `ValueError` for an entity without parts, an empty name, and an IP address beside another part.
    """

    user: EntityName | None = None
    client_id: EntityName | None = None
    ip: EntityName | None = None
    other: tuple[tuple[str, EntityName], ...] = ()

    def __post_init__(self) -> None:
        parts = self.parts()
        if not parts:
            raise ValueError("a quota entity needs at least one part, such as a user or a client-id")
        if any(name == "" for _, name in parts):
            raise ValueError('an entity name must not be empty; the default entity is written "<default>"')
        if self.ip is not None and len(parts) > 1:
            raise ValueError("a quota entity with an ip must have no other part")

    @classmethod
    def of(cls, parts: Mapping[str, EntityName]) -> QuotaEntity:
        """Return the entity with these names by entity type. Raises `ValueError` as the constructor does."""
        other = tuple(sorted((each, name) for each, name in parts.items() if each not in ENTITY_TYPES))
        return cls(user=parts.get(USER), client_id=parts.get(CLIENT_ID), ip=parts.get(IP), other=other)

    def parts(self) -> tuple[tuple[str, EntityName], ...]:
        """Return the entity types and names that the entity has: the built-in ones first."""
        builtin = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return (*((each, name) for each, name in builtin if name is not None), *self.other)

    def sole(self, entity_type: str) -> EntityName | None:
        """Return the name of the entity's only part if that is of this type, which a plugin defines; else ``None``."""
        return self.other[0][1] if len(self.other) == 1 and self.parts()[0][0] == entity_type else None

    def __str__(self) -> str:
        return ", ".join(f"{entity_type}={shown_name(name)}" for entity_type, name in self.parts())


LONG_MAX: Final = 2**63 - 1
"""Java's ``Long.MAX_VALUE``: the largest value of a byte rate."""
