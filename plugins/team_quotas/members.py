"""Which team a client belongs to.

A member is a name, or a pattern in which ``*`` stands for any characters, also none. A client belongs to one team at
most. A team that its user matches precedes a team that its client id matches, since clients choose their client ids.
Among the members that match, a name precedes patterns, and among patterns the one with the most characters besides
``*``, then the alphabetically first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.entities import bounded_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.plugins.team_quotas.options import Team

ANY: Final = "*"


class Names:
    """The members of all teams of one kind: users, or client ids."""

    def __init__(self, members: Iterable[tuple[str, str]]) -> None:
        """``members`` are pairs of a member and its team."""
        self._exact: dict[str, str] = {}
        patterns: list[tuple[int, str, str]] = []
        for member, team in members:
            if ANY in member:
                patterns.append((-len(member.replace(ANY, "")), member, team))
            else:
                self._exact[bounded_name(member)] = team
        self._patterns = [(pattern.split(ANY), team) for _, pattern, team in sorted(patterns)]

    def team_of(self, name: str) -> str | None:
        """Return the team that a name belongs to; ``None`` if it belongs to none."""
        team = self._exact.get(name)
        if team is None:
            team = next((each for pieces, each in self._patterns if _matches(pieces, name)), None)
        return team


class Members:
    """The members of all teams."""

    def __init__(self, teams: Mapping[str, Team]) -> None:
        self._users = Names((member, name) for name, team in teams.items() for member in team.users)
        self._client_ids = Names((member, name) for name, team in teams.items() for member in team.client_ids)

    def team_of(self, user: str, client_id: str) -> str | None:
        """Return the team of a client; ``None`` if it belongs to none."""
        return self._users.team_of(user) or self._client_ids.team_of(client_id)


def _matches(pieces: list[str], name: str) -> bool:
    """Return whether ``name`` is made of ``pieces`` (two at least) with any characters between them.

    Each piece is taken at the first place where it occurs, which leaves the most for the others. So nothing is tried
    twice, whereas a regular expression takes seconds for a name that a client has chosen for it.
    """
    first, *inner, last = pieces
    end = len(name) - len(last)
    if end < len(first) or not name.startswith(first) or not name.endswith(last):
        return False
    at = len(first)
    for piece in inner:
        at = name.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True
