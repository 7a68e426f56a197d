"""KIP-257's callbacks as Kafka ships them (``ClientQuotaManager.DefaultQuotaCallback``): precedence over eight levels.

Registered last, so that a custom callback that names tags or limits is asked first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.builtin.precedence import QuotaLevels, Tags, named
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import KAFKAS_WAY, Limit, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

headrace_hooks = HOOK_VERSION


class DefaultQuotaCallback:
    """Holds the quotas of every key by entity."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._levels = {key: QuotaLevels() for key in QuotaKey}
        self._policies: dict[tuple[QuotaKey, QuotaEntity], QuotaPolicy] = {}

    @hookimpl(trylast=True)
    def quota_metric_tags(self, key: QuotaKey, user: str, client_id: str) -> Mapping[str, str] | None:
        """Tags by the levels that hold any quota; nothing while there is none."""
        tags = self._levels[key].tags(user, client_id)
        return None if tags is None else {"user": tags.user, "client-id": tags.client_id}

    @hookimpl(trylast=True)
    def quota_limit(self, key: QuotaKey, tags: Mapping[str, str]) -> float | None:
        """The limit by the shape of the bucket."""
        found = self._levels[key].limit(Tags(tags.get("user", ""), tags.get("client-id", "")))
        if found is None:
            return None
        value, entity = found
        return Limit(value, entity, self._policies.get((key, entity), KAFKAS_WAY))

    @hookimpl
    def update_quota(self, key: QuotaKey, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Keep the quota."""
        self._levels[key].update(entity, value)
        self._policies[key, named(entity)] = policy
        return True

    @hookimpl
    def remove_quota(self, key: QuotaKey, entity: QuotaEntity) -> bool:
        """Forget the quota."""
        self._levels[key].remove(entity)
        self._policies.pop((key, named(entity)), None)
        return True
