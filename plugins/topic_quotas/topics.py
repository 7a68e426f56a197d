"""Which quota applies to a topic.

A quota is for a topic by its name (``orders``), for all topics whose names begin alike (``orders.*``), or for all
topics (the default entity). A name precedes beginnings, a longer beginning precedes a shorter one, and the default is
last. Each topic has a bucket of its own, whichever quota applies to it. No name of a topic contains ``*``, so that
names and beginnings cannot be confused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.entities import DEFAULT, EntityName

if TYPE_CHECKING:
    from headrace.quota_callbacks.policies import Quota

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\*?")  # Topic.LEGAL_CHARS and MAX_NAME_LENGTH
ANY: Final = "*"


def check_topic(name: str) -> None:
    """Raise `ValueError` for what is neither a topic's name nor a beginning of names."""
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name} is neither the name of a topic nor the beginning of names, such as "orders.*"')


class TopicQuotaTable:
    """The quotas of one key."""

    def __init__(self) -> None:
        self._quotas: dict[EntityName, Quota] = {}
        self._lengths: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._quotas)

    def update(self, name: EntityName, quota: Quota) -> None:
        """Set the quota of a topic, a beginning or the default."""
        self._quotas[name] = quota
        self._count_lengths()

    def remove(self, name: EntityName) -> bool:
        """Remove a quota; return whether there was one."""
        removed = self._quotas.pop(name, None) is not None
        self._count_lengths()
        return removed

    def find(self, topic: str) -> tuple[EntityName, Quota] | None:
        """Return the quota that applies to a topic, and the name that it is set for; ``None`` without one."""
        quotas = self._quotas
        beginnings = (topic[:length] + ANY for length in self._lengths if length <= len(topic))
        names: tuple[EntityName, ...] = (topic, *beginnings, DEFAULT)
        return next(((name, quotas[name]) for name in names if name in quotas), None)

    def _count_lengths(self) -> None:
        """Note the lengths of the beginnings, the longest first."""
        lengths = {len(name) - 1 for name in self._quotas if isinstance(name, str) and name.endswith(ANY)}
        self._lengths = tuple(sorted(lengths, reverse=True))
