"""The hook implementations.

The plugin determines which team a client belongs to, and the limits of teams. Requests are charged to the buckets of
teams by the callbacks that charge users (`EntityTypeDefinition.metric_tags`). So a team's quota is enforced beside the
one of the user, and the longest throttle counts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from headrace.plugins.team_quotas.members import Members
from headrace.plugins.team_quotas.options import TeamOptions
from headrace.quota_callbacks.definitions import EntityTypeDefinition
from headrace.quota_callbacks.entities import ANONYMOUS, CLIENT_ID, DEFAULT, USER, EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.options import read_options
from headrace.quota_callbacks.policies import Limit, Quota, QuotaPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.plugins.team_quotas.options import Team
    from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
    from headrace.quota_callbacks.options import Table


log = structlog.get_logger("headrace.team_quotas")

TEAM: Final = "team"
KEYS: Final = frozenset(key.value for key in QuotaKey)


class TeamQuotas:
    """The plugin that defines the entity type ``team``. It does nothing while no team is configured."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self._teams: frozenset[str] = frozenset()
        self._members = Members({})
        self._quotas: dict[tuple[str, EntityName], Quota] = {}
        self._buckets: ClientQuotas | None = None

    @hookimpl
    def options_table(self) -> type[Table]:
        """Return the class of the options."""
        return TeamOptions

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the teams and their members."""
        self._set_teams(_read(context.options))
        self._buckets = context.quotas

    @hookimpl
    def changed_options(self, options: Mapping[str, Any]) -> Callable[[], None] | None:
        """Read the teams and their members again; the first team, and the end of the last one, need a restart."""
        teams = _read(options)
        return partial(self._change_teams, teams) if bool(teams) == bool(self._teams) else None

    def _set_teams(self, teams: Mapping[str, Team]) -> None:
        self._teams = frozenset(teams)
        self._members = Members(teams)

    def _change_teams(self, teams: Mapping[str, Team]) -> None:
        removed = self._teams - teams.keys()
        for key, name in self._quotas:  # those that the same reload removes are removed after this
            if name in removed:
                log.warning(
                    "a quota applies to no client: its team is removed; remove the quota, too", team=name, key=key
                )
        self._set_teams(teams)
        if self._buckets is not None:
            self._buckets.quotas_changed()

    @hookimpl
    def quota_definitions(self) -> tuple[EntityTypeDefinition, ...]:
        """Return the entity type, if there is any team."""
        if not self._teams:
            return ()
        help_text = "A team of plugins.options.team_quotas: all its clients together."
        definition = EntityTypeDefinition(
            name=TEAM, help=help_text, keys=KEYS, matching=self._matching, metric_tags=self._metric_tags
        )
        return (definition,)

    def _matching(self, names: Mapping[str, str]) -> Iterable[str]:
        """Return the named team, or else that of the client; nothing if it belongs to none."""
        team = names.get(TEAM)
        if team is None and (USER in names or CLIENT_ID in names):
            team = self._members.team_of(names.get(USER, ANONYMOUS), names.get(CLIENT_ID, ""))
        return () if team is None else (team,)

    # --- quotas ---

    @hookimpl
    def update_quota(self, key: str, entity: QuotaEntity, value: float, policy: QuotaPolicy) -> bool:
        """Keep the quota of a team."""
        name = entity.sole(TEAM)
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
        name = entity.sole(TEAM)
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

    def _metric_tags(self, key: str, user: str, client_id: str) -> Mapping[str, str] | None:
        """Return the bucket of the client's team; ``None`` without a team, or without a quota for it."""
        team = self._members.team_of(user, client_id)
        if team is None or ((key, team) not in self._quotas and (key, DEFAULT) not in self._quotas):
            return None
        return {TEAM: team}


def _read(options: Mapping[str, Any]) -> Mapping[str, Team]:
    return read_options(TeamOptions, options, "team_quotas").teams
