"""Kafka's default quota callback (KIP-257, ``ClientQuotaManager.DefaultQuotaCallback``): eight levels of precedence.

Its hooks are called last, so that custom callbacks can return other tags or limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.builtin.precedence import QuotaLevels, Tags, named
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import KAFKA_POLICY, Limit, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping


class DefaultQuotaCallback:
    """The quotas of all keys, by entity."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._levels: dict[str, QuotaLevels] = {key: QuotaLevels() for key in QuotaKey}
        self._policies: dict[tuple[str, QuotaEntity], QuotaPolicy] = {}

    @hookimpl(trylast=True)
    def quota_metric_tags(self, key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the tags by the levels that have any quota; ``None`` while there is none."""
        levels = self._levels.get(key)
        tags = None if levels is None else levels.tags(user, client_id)
        return None if tags is None else {"user": tags.user, "client-id": tags.client_id}

    @hookimpl(trylast=True)
    def quota_limit(self, key: str, tags: Mapping[str, str]) -> Limit | None:
        """Return the limit of the bucket with these tags."""
        levels = self._levels.get(key)
        if levels is None:
            return None
        found = levels.limit(Tags(tags.get("user", ""), tags.get("client-id", "")))
        if found is None:
            return None
        value, entity = found
        return Limit(value, entity, self._policies.get((key, entity), KAFKA_POLICY))

    @hookimpl
    def update_quota(self, key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Put the quota of a user, a client id or a pair of both into force, in memory.

        Quotas of other entities belong to the plugins that define them.
        """
        if not _has_levels(entity):
            return False
        self._levels.setdefault(key, QuotaLevels()).update(entity, value)
        self._policies[key, named(entity)] = policy
        return True

    @hookimpl
    def remove_quota(self, key: str, entity: QuotaEntity) -> bool:
        """Remove the quota."""
        if not _has_levels(entity) or key not in self._levels:
            return False
        self._levels[key].remove(entity)
        self._policies.pop((key, named(entity)), None)
        return True


def _has_levels(entity: QuotaEntity) -> bool:
    return entity.ip is None and not entity.other
