"""Teams: which users, client ids and topics belong to which team, from a CSV file or from a compacted topic.

`headrace.pipeline.analysis.rollup` assigns usage by them. Both sources have the same rules and the same limits.
"""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.pipeline.analysis.prices import NO_TEAM, UNATTRIBUTED
from headrace.pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_TEAM_ROWS: Final = 1_000_000
"""Maximum number of lines in a teams file: each executor receives all of it."""
MAX_FAULTS_SHOWN: Final = 20
"""Maximum number of faults that one error lists."""

HEADERS: Final = ("user,client_id,topic,team", "user,client_id,team")
"""The columns of a teams file; it may lack topics."""
_Owned = tuple[str | None, str | None, str | None]
"""User, client id and topic."""


class TeamRow(NamedTuple):
    """A line of a teams file (`headrace.pipeline.lake.schemas.TEAMS`): a topic, or a user, a client id or both."""

    user: str | None
    client_id: str | None
    topic: str | None
    team: str


class TeamRows:
    """Valid rows, and the faults of the others. Raises `InputError` beyond `MAX_TEAM_ROWS`."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._rows: dict[_Owned, tuple[str, str]] = {}
        """Place and team, by what is owned."""
        self._faults: list[str] = []

    def add(self, place: str, values: Mapping[str, str | None]) -> None:
        """Add a row that is found at ``place``, such as "line 3"; empty and missing values are ``None``."""
        owner, team = (values.get("user"), values.get("client_id"), values.get("topic")), values.get("team")
        fault = self._fault(owner, team)
        if fault is not None:
            self.reject(place, fault)
        elif team is not None:
            self._rows.setdefault(owner, (place, team))
        if len(self._rows) > MAX_TEAM_ROWS:
            raise InputError(
                f"{self._source}: more than {MAX_TEAM_ROWS:,} lines; assign whole users or client ids to teams"
            )

    def reject(self, place: str, fault: str) -> None:
        """Note what is wrong with a row."""
        where = f":{place.removeprefix('line ')}" if place.startswith("line ") else f": {place}"
        self._faults.append(f"{self._source}{where}: {fault}")

    def rows(self) -> list[TeamRow]:
        """Return the rows. Raises `InputError` with the faults, at most `MAX_FAULTS_SHOWN` of them."""
        if self._faults:
            left = len(self._faults) - MAX_FAULTS_SHOWN
            more = [f"{self._source}: and {left:,} more"] if left > 0 else []
            raise InputError("\n".join(self._faults[:MAX_FAULTS_SHOWN] + more))
        return [TeamRow(*owner, team) for owner, (_, team) in self._rows.items()]

    def _fault(self, owner: _Owned, team: str | None) -> str | None:
        user, client_id, topic = owner
        if team is None:
            return "no team"
        if team in (NO_TEAM, UNATTRIBUTED):
            return f"team {team}: this name is reserved for usage without a team; expected another"
        if topic is not None and (user is not None or client_id is not None):
            return f"team {team} with topic {topic} and a user or client_id; expected the topic alone, or no topic"
        if not any(each is not None for each in owner):
            return f"team {team} without user, client_id and topic; expected a user, a client_id or both, or a topic"
        first = self._rows.get(owner)
        if first is not None and first[1] != team:
            what = "sender" if topic is None else "topic"
            return f"team {team}, but {first[0]} gives the same {what} team {first[1]}; expected one team"
        return None


def read_teams(text: str, path: str) -> list[TeamRow]:
    """Parse a teams file: CSV with the columns of one of `HEADERS`. Raises `InputError` with the faulty lines."""
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    found = TeamRows(path)
    try:
        header = [name.strip() for name in next(lines, [])]
        if ",".join(header) not in HEADERS:
            got = ",".join(header) or "nothing"
            raise InputError(f"{path}:1: expected the columns {' or '.join(HEADERS)}; got {got}")
        for cells in lines:
            place = f"line {lines.line_num}"
            values = [cell.strip() or None for cell in cells]
            if not any(values):
                continue
            if len(values) != len(header):
                found.reject(place, f"{len(values)} columns; expected {len(header)}: {','.join(header)}")
                continue
            found.add(place, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: not CSV: {error}") from error
    return found.rows()


def parse_messages(messages: Iterable[tuple[str, str]], topic: str) -> list[TeamRow]:
    """Parse the messages of a topic of teams: each is a place, such as "partition 0, offset 5", and a JSON object.

    Raises `InputError` with the faulty messages.
    """
    found = TeamRows(f"--teams-topic {topic}")
    for place, message in messages:
        try:
            value = json.loads(message)
        except ValueError:
            value = None
        if not _is_row(value):
            members = ", ".join(TeamRow._fields)
            found.reject(place, f"expected a JSON object with texts or null as {members}, and nothing else")
            continue
        found.add(place, {name: (text or "").strip() or None for name, text in value.items()})
    return found.rows()


def _is_row(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= set(TeamRow._fields)
        and all(each is None or isinstance(each, str) for each in value.values())
    )
