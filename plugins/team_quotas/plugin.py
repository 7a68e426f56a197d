"""The hook implementations.

Bytes are charged by the built-in callback `ByteRate`, of which the plugin has one of its own, to the buckets of teams
(`QuotaScope`). So a team's quota is enforced beside the one of the user, and the longest throttle counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.team_quotas.members import Members
from headrace.plugins.team_quotas.options import TeamOptions
from headrace.quota_callbacks.buckets.quota_scope import QuotaScope
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.definitions import EntityTypeDefinition
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.policies import Limit, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.quota_callbacks.requests import Interest, Request
    from headrace.quota_callbacks.verdicts import Throttle

log = structlog.get_logger("headrace.team_quotas")

TEAM: Final = "team"
KEYS: Final = frozenset({QuotaKey.PRODUCER_BYTE_RATE.value, QuotaKey.CONSUMER_BYTE_RATE.value})


class TeamQuotas:
    """Defines the entity type ``team``, and enforces its quotas. Does nothing while no team is configured."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._teams: frozenset[str] = frozenset()
        self._members = Members({})
        self._quotas: dict[tuple[str, EntityName], Quota] = {}
        self._byte_rate = ByteRate()

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the teams and their members."""
        teams = read_options(TeamOptions, context.options, "team_quotas").teams
        self._teams = frozenset(teams)
        self._members = Members(teams)
        self._byte_rate.charge_to(QuotaScope(TEAM, context.quotas, self._tags))

    @hookimpl
    def quota_definitions(self) -> tuple[EntityTypeDefinition, ...]:
        """Return the entity type, if there is any team."""
        if not self._teams:
            return ()
        help_text = "A team of plugins.options.team_quotas: all its clients together."
        return (EntityTypeDefinition(name=TEAM, help=help_text, keys=KEYS),)

    # --- quotas ---

    @hookimpl
    def update_quota(self, key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Keep the quota of a team."""
        name = _team_in(entity)
        if name is None:
            return False
        if name is not DEFAULT and name not in self._teams:
            teams = ", ".join(sorted(self._teams))
            log.warning("a quota applies to no client: there is no such team", team=name, key=key, teams=teams)
        self._quotas[key, name] = Quota(value=value, policy=policy)
        return True

    @hookimpl
    def remove_quota(self, key: str, entity: QuotaEntity) -> bool:
        """Discard the quota of a team."""
        name = _team_in(entity)
        return name is not None and self._quotas.pop((key, name), None) is not None

    @hookimpl
    def quota_limit(self, key: str, tags: Mapping[str, str]) -> float | None:
        """Return the limit of a team's bucket: its own quota, or else the default of all teams."""
        team = tags.get(TEAM)
        if team is None:
            return None
        names: tuple[EntityName, ...] = (team, DEFAULT)
        for name in names:
            if (quota := self._quotas.get((key, name))) is not None:
                return Limit(quota.value, QuotaEntity(other=((TEAM, name),)), quota.policy)
        return None

    def _tags(self, key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the bucket of the client's team; ``None`` without a team, or without a quota for it."""
        team = self._members.team_of(user, client_id)
        if team is None or ((key, team) not in self._quotas and (key, DEFAULT) not in self._quotas):
            return None
        return {TEAM: team}

    # --- requests ---

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        """Return what `ByteRate` needs; nothing while no team is configured."""
        return self._byte_rate.request_interest() if self._teams else ()

    @hookimpl
    def request_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce request to the team."""
        return self._byte_rate.request_received(request, now_ms) if self._quotas else None

    @hookimpl
    def request_arrived(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge a Produce request that was incomplete in `request_received`."""
        return self._byte_rate.request_arrived(request, now_ms)

    @hookimpl
    def response_received(self, request: Request, now_ms: int) -> Throttle | None:
        """Charge the bytes of a Fetch to the team."""
        return self._byte_rate.response_received(request, now_ms)

    @hookimpl
    def request_abandoned(self, request: Request, now_ms: int) -> None:
        """Give back what was charged or reserved for a request without a reply."""
        self._byte_rate.request_abandoned(request, now_ms)


def _team_in(entity: QuotaEntity) -> EntityName | None:
    """Return the team of an entity; ``None`` for another one."""
    return entity.other[0][1] if len(entity.other) == 1 and entity.other[0][0] == TEAM else None
