"""Teams of users, in which all members share one bucket, with the two hooks that correspond to KIP-257's methods.

    [plugins]
    load = ["examples.team_quotas:TeamQuotas"]

    [plugins.options."examples.team_quotas:TeamQuotas".teams.blue]
    members = ["alice", "bob"]
    producer_byte_rate = 1048576

The built-in callbacks still charge, mute and explain; this plugin only determines which requests share a bucket, and
its limit. The configured quotas still apply to users without a team.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.definitions import check_quota_value
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.policies import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping


class TeamQuotas:
    """Returns the bucket and the limit of a team; leaves other users to the next callback."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.team_of: dict[str, str] = {}
        self.limits: dict[tuple[str, QuotaKey], float] = {}

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Read the teams, their members and limits."""
        for team, options in context.options.get("teams", {}).items():
            for member in options.get("members", ()):
                if self.team_of.setdefault(member, team) != team:
                    raise ValueError(f"{member} is in two teams, {self.team_of[member]} and {team}")
            for key in QuotaKey:
                if key.value in options:
                    check_quota_value(key, options[key.value])
                    self.limits[team, key] = options[key.value]

    @hookimpl
    def quota_metric_tags(self, key: QuotaKey, user: str) -> Mapping[str, str] | None:
        """Return the bucket of the user's team, or ``None`` if the team has no limit of this kind."""
        team = self.team_of.get(user)
        return {"team": team} if team is not None and (team, key) in self.limits else None

    @hookimpl
    def quota_limit(self, key: QuotaKey, tags: Mapping[str, str]) -> float | None:
        """Return the team's limit."""
        team = tags.get("team")
        if team is None:
            return None
        return Limit(self.limits[team, key], f"team={team}")
