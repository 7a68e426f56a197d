"""Which quota applies to a request and which bucket it is charged to: Kafka's eight levels of precedence.

A `QuotaLevels` has the quotas of one key. Reproduces ``ClientQuotaManager.DefaultQuotaCallback``: the bucket is
identified by *metric tags*, which depend on the levels that have any quota; the limit depends on which tags are set.
A look-up takes a few dictionary accesses, independent of the number of entities.
"""

from __future__ import annotations

import re
from enum import IntFlag
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tags(NamedTuple):
    """The metric tags of a bucket. An empty tag means that the bucket is shared by all entities of that type."""

    user: str
    """Percent-encoded as ``org.apache.kafka.common.utils.Sanitizer`` does."""
    client_id: str
    """Not encoded."""


class Level(IntFlag):
    """The entity types that have a quota (``QuotaTypes`` in ``ClientQuotaManager``)."""

    NONE = 0
    CLIENT = 1
    USER = 2
    PAIR = 4


_UNCHANGED: Final = re.compile(r"[A-Za-z0-9_.-]*")  # most names: five times as fast as `quote`
_Pair = tuple[EntityName | None, EntityName | None]


def sanitize(user: str) -> str:
    """Percent-encode a user name for a metric tag (``Sanitizer.sanitize``: a space is ``%20``, ``*`` is ``%2A``)."""
    return user if _UNCHANGED.fullmatch(user) else quote(user, safe="").replace("~", "%7E")


class QuotaLevels:
    """The quotas of one key, by entity."""

    __slots__ = ("_by_entity", "_counts", "levels")

    def __init__(self) -> None:
        self._by_entity: dict[_Pair, float] = {}
        self._counts = [0] * (max(Level) + 1)
        self.levels: int = Level.NONE

    def update(self, entity: QuotaEntity, value: float) -> None:
        """Set the quota of ``entity``."""
        pair = _pair(entity)
        if pair not in self._by_entity:
            self._count(entity, 1)
        self._by_entity[pair] = value

    def remove(self, entity: QuotaEntity) -> None:
        """Remove the quota of ``entity``, if it has one (as ``AlterClientQuotas`` does)."""
        if self._by_entity.pop(_pair(entity), None) is not None:
            self._count(entity, -1)

    def __iter__(self) -> Iterator[tuple[_Pair, float]]:
        return iter(self._by_entity.items())

    def __len__(self) -> int:
        return len(self._by_entity)

    def tags(self, user: str, client_id: str) -> Tags | None:
        """Return the bucket that ``user`` and ``client_id`` are charged to; ``None`` while the key has no quota."""
        levels = self.levels
        if levels == Level.NONE:
            return None
        name = sanitize(user)
        if levels == Level.CLIENT:
            return Tags("", client_id)
        if levels == Level.USER:
            return Tags(name, "")
        if levels == Level.PAIR:
            return Tags(name, client_id)
        return self._mixed_tags(name, client_id)

    def _mixed_tags(self, user: str, client_id: str) -> Tags:
        quotas = self._by_entity
        if (client_id and (user, client_id) in quotas) or (user, DEFAULT) in quotas:
            return Tags(user, client_id)
        if (user, None) in quotas:
            return Tags(user, "")
        if (client_id and (DEFAULT, client_id) in quotas) or (DEFAULT, DEFAULT) in quotas:
            return Tags(user, client_id)
        if (DEFAULT, None) in quotas:
            return Tags(user, "")
        return Tags("", client_id)

    def limit(self, tags: Tags) -> tuple[float, QuotaEntity] | None:
        """Return the limit of a bucket and its entity; ``None`` is unlimited (but still recorded)."""
        for pair in _candidates(tags):
            value = self._by_entity.get(pair)
            if value is not None:
                return value, QuotaEntity(user=pair[0], client_id=pair[1])
        return None

    def _count(self, entity: QuotaEntity, step: int) -> None:
        level = Level.PAIR
        if entity.client_id is None:
            level = Level.USER
        elif entity.user is None:
            level = Level.CLIENT
        self._counts[level] += step
        self.levels = self.levels | level if self._counts[level] else self.levels & ~level


def named(entity: QuotaEntity) -> QuotaEntity:
    """Return ``entity`` with its user percent-encoded, as `QuotaLevels.limit` returns it."""
    user, client_id = _pair(entity)
    return entity if user == entity.user else QuotaEntity(user=user, client_id=client_id)


def _pair(entity: QuotaEntity) -> _Pair:
    user = entity.user
    return (sanitize(user) if isinstance(user, str) else user, entity.client_id)


_NO_CANDIDATES: Final[tuple[_Pair, ...]] = ()


def _candidates(tags: Tags) -> tuple[_Pair, ...]:
    user, client_id = tags
    if user and client_id:
        return ((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT))
    if user:
        return ((user, None), (DEFAULT, None))
    if client_id:
        return ((None, client_id), (None, DEFAULT))
    return _NO_CANDIDATES
