"""The options of the plugin: the teams and their members."""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import ValidationError

from headrace.quota_callbacks.entities import is_bracketed
from headrace.quota_callbacks.options import Fault, Parsed, Table, faults_of, list_of, text, validation_error

_PATTERN: Final = text("a name, or a pattern in which * stands for any characters")


class Team(Table):
    """The table ``[plugins.options.team_quotas.teams.NAME]``."""

    users: Annotated[tuple[Annotated[str, _PATTERN], ...], list_of("a list of users, or patterns of them")] = ()
    client_ids: Annotated[
        tuple[Annotated[str, _PATTERN], ...], list_of("a list of client ids, or patterns of them")
    ] = ()


def _parse_teams(raw: object) -> dict[str, Team]:
    if not isinstance(raw, Mapping):
        raise ValueError  # noqa: TRY004  reported like every invalid value
    teams: dict[str, Team] = {}
    faults: list[Fault] = []
    for name, table in raw.items():
        if not name or is_bracketed(name):
            faults.append(Fault(path=(name,), rule="expected a name that is not empty and not in angle brackets"))
        try:
            teams[name] = Team.model_validate(table)
        except ValidationError as error:
            faults += faults_of(error, Team, (name,))
    if not faults:
        faults += _in_two_teams(teams)
    if faults:
        raise validation_error(faults)
    return teams


def _in_two_teams(teams: Mapping[str, Team]) -> list[Fault]:
    faults: list[Fault] = []
    first: dict[tuple[str, str], str] = {}
    for name, team in teams.items():
        for key in ("users", "client_ids"):
            for index, member in enumerate(getattr(team, key)):
                other = first.setdefault((key, member), name)
                if other != name:
                    rule = f"already a member of the team {other}"
                    faults.append(Fault(path=(name, key, index), found=member, rule=rule))
    return faults


class TeamOptions(Table):
    """The table ``[plugins.options.team_quotas]``."""

    teams: Annotated[
        Mapping[str, Team],
        Parsed("a table for each team, headed [plugins.options.team_quotas.teams.NAME]", _parse_teams, {}),
    ] = {}
