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

headrace_hooks = HOOK_VERSION


class DefaultQuotaCallback:
    """The quotas of all keys, by entity."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._levels = {key: QuotaLevels() for key in QuotaKey}
        self._policies: dict[tuple[QuotaKey, QuotaEntity], QuotaPolicy] = {}

    @hookimpl(trylast=True)
    def quota_metric_tags(self, key: QuotaKey, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the tags by the levels that have any quota; ``None`` while there is none."""
        tags = self._levels[key].tags(user, client_id)
        return None if tags is None else {"user": tags.user, "client-id": tags.client_id}

    @hookimpl(trylast=True)
    def quota_limit(self, key: QuotaKey, tags: Mapping[str, str]) -> float | None:
        """Return the limit of the bucket with these tags."""
        found = self._levels[key].limit(Tags(tags.get("user", ""), tags.get("client-id", "")))
        if found is None:
            return None
        value, entity = found
        return Limit(value, entity, self._policies.get((key, entity), KAFKA_POLICY))

    @hookimpl
    def update_quota(self, key: QuotaKey, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Store the quota."""
        self._levels[key].update(entity, value)
        self._policies[key, named(entity)] = policy
        return True

    @hookimpl
    def remove_quota(self, key: QuotaKey, entity: QuotaEntity) -> bool:
        """Remove the quota."""
        self._levels[key].remove(entity)
        self._policies.pop((key, named(entity)), None)
        return True
