"""Which quota applies to a topic.

A quota is for a topic by its name (``orders``), for all topics whose names have a prefix (``orders.*``), or for all
topics (the default entity). A name precedes prefixes, a longer prefix precedes a shorter one, and the default is last.
Each topic has a bucket of its own, whichever quota applies to it. The name of a topic never contains ``*``, so that
names and prefixes cannot be confused.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.entities import DEFAULT, EntityName

if TYPE_CHECKING:
    from headrace.quota_callbacks.policies import Quota

MAX_NAME_LENGTH: Final = 249
"""``Topic.MAX_NAME_LENGTH``."""
_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_NAME_LENGTH}}}\*?")  # Topic.LEGAL_CHARS
ANY: Final = "*"


def check_topic(name: str) -> None:
    """Raise `ValueError` if ``name`` is neither the name of a topic nor a prefix with ``*`` after it."""
    if not _NAME.fullmatch(name):
        raise ValueError(f'{name} is neither the name of a topic nor a prefix with * after it, such as "orders.*"')


def names_of(topic: str) -> tuple[str, ...]:
    """Return all names by which a quota can be set that applies to a topic, the highest precedence first."""
    if topic.endswith(ANY):
        return (topic,)
    return (topic, *(topic[:length] + ANY for length in range(len(topic), 0, -1)))


class TopicQuotaTable:
    """The quotas of one key."""

    def __init__(self) -> None:
        self._quotas: dict[EntityName, Quota] = {}
        self._with_length: Counter[int] = Counter()
        """The number of quotas of prefixes, by the length of the prefix."""
        self._lengths: tuple[int, ...] = ()
        """These lengths, the longest first."""

    def __len__(self) -> int:
        return len(self._quotas)

    def update(self, name: EntityName, quota: Quota) -> None:
        """Set the quota of a topic, a prefix or the default."""
        if name not in self._quotas:
            self._count(name, 1)
        self._quotas[name] = quota

    def remove(self, name: EntityName) -> bool:
        """Remove a quota; return whether there was one."""
        removed = self._quotas.pop(name, None) is not None
        if removed:
            self._count(name, -1)
        return removed

    def find(self, topic: str) -> tuple[EntityName, Quota] | None:
        """Return the quota that applies to a topic, and the name that it is set for; ``None`` without one."""
        quotas = self._quotas
        prefixes = (topic[:length] + ANY for length in self._lengths if length <= len(topic))
        names: tuple[EntityName, ...] = (topic, *prefixes, DEFAULT)
        return next(((name, quotas[name]) for name in names if name in quotas), None)

    def _count(self, name: EntityName, change: int) -> None:
        """Count a quota that was added or removed, if it is for a prefix."""
        if not isinstance(name, str) or not name.endswith(ANY):
            return
        length = len(name) - 1
        self._with_length[length] += change
        if self._with_length[length] == 0:
            del self._with_length[length]
        self._lengths = tuple(sorted(self._with_length, reverse=True))
