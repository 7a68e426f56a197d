"""Users in teams, each with one bucket that all of its members share, by KIP-257's two questions.

    [plugins]
    load = ["examples.team_quotas:TeamQuotas"]

    [plugins.options."examples.team_quotas:TeamQuotas".teams.blue]
    members = ["alice", "bob"]
    producer_byte_rate = 1048576

The built-in callbacks go on charging, muting and explaining; this one only says what is charged together, and what the
limit is. Users of no team are held to the quotas of the configuration, as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.quota_callbacks.entities import QuotaKey, check_quota_value
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, PluginContext, hookimpl
from headrace.quota_callbacks.policies import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping


class TeamQuotas:
    """Answers for members of teams, and leaves everybody else to the next callback."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.team_of: dict[str, str] = {}
        self.limits: dict[tuple[str, QuotaKey], float] = {}

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        """Take the teams, their members and limits."""
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
        """The bucket of the user's team, if the team has a limit of this kind."""
        team = self.team_of.get(user)
        return {"team": team} if team is not None and (team, key) in self.limits else None

    @hookimpl
    def quota_limit(self, key: QuotaKey, tags: Mapping[str, str]) -> float | None:
        """The team's limit."""
        team = tags.get("team")
        if team is None:
            return None
        return Limit(self.limits[team, key], f"team={team}")
