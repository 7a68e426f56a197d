"""The parts of teams in a shared cost (`headrace.pipeline.analysis.prices.SharedCost`), exact to the last decimal.

A cost is split twice: among the teams, and each team's part among the clusters that it used. So a team's part is the
same whether bills are by cluster or not. Pure Python: there is a row for each team and cluster of a period, not for
each sender.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from headrace.pipeline.analysis.prices import NO_TEAM, UNATTRIBUTED, Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date

    from headrace.pipeline.analysis.prices import SharedCost

NameT = TypeVar("NameT", str, "str | None")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUsage:
    """The usage of a cluster by a team in a period."""

    cluster: str | None
    team: str
    measures: Mapping[Split, Decimal]
    """Usage by each `Split` but ``EQUAL``, with at most three decimals."""


def month_part(cost: SharedCost, day: date, decimals: int) -> Decimal:
    """Return the part of a day in a month's cost.

    The parts of the days of a month sum to the cost: each is the difference of two rounded sums from the first day on.
    """
    days = calendar.monthrange(day.year, day.month)[1]
    units = _units(cost.amount, decimals)
    until, before = ((2 * units * number + days) // (2 * days) for number in (day.day, day.day - 1))
    return Decimal(until - before).scaleb(-decimals)


def parts_of(
    cost: SharedCost, amount: Decimal, usage: Iterable[TeamUsage], decimals: int
) -> dict[tuple[str | None, str], Decimal]:
    """Return the parts in ``amount`` by cluster and team; they sum to it.

    ``usage`` is of one period. Only usage of the clusters of the cost counts; if there is none, no team gets a part.
    """
    weights: dict[str, dict[str | None, int]] = {}
    for each in usage:
        if not cost.clusters or each.cluster in cost.clusters:
            weight = 1 if cost.split is Split.EQUAL else _units(each.measures[cost.split], 3)
            weights.setdefault(each.team, {})[each.cluster] = weight
    of_teams = {team: sum(of_team.values()) for team, of_team in weights.items()}
    if cost.split is Split.EQUAL or not any(of_teams.values()):
        of_teams = _the_same_for(of_teams)
    parts = {}
    for team, units in split_exactly(_units(amount, decimals), of_teams).items():
        of_team = weights[team]
        if not any(of_team.values()):
            of_team = dict.fromkeys(of_team, 1)
        for cluster, part in split_exactly(units, of_team).items():
            parts[cluster, team] = Decimal(part).scaleb(-decimals)
    return parts


def _the_same_for(teams: Iterable[str]) -> dict[str, int]:
    """Return equal weights of the teams. Usage without a team gets a weight only if no team has usage."""
    everyone = list(teams)
    named = [team for team in everyone if team not in (NO_TEAM, UNATTRIBUTED)]
    return dict.fromkeys(named or everyone, 1)


def split_exactly(total: int, weights: Mapping[NameT, int]) -> dict[NameT, int]:
    """Split ``total`` in proportion to weights of at least 0, one of which is above 0; the parts sum to it.

    By the largest remainder: each part is rounded down, and what is left goes, one each, to the parts that lost most by
    that; of equal ones, to the first in the order of names.
    """
    whole = sum(weights.values())
    divided = {name: divmod(total * weight, whole) for name, weight in weights.items()}
    left = total - sum(part for part, _ in divided.values())
    by_loss: Sequence[NameT] = sorted(divided, key=lambda name: (-divided[name][1], name or ""))
    more = set(by_loss[:left])
    return {name: part + (name in more) for name, (part, _) in divided.items()}


def _units(amount: Decimal, decimals: int) -> int:
    """Return an amount as a number of its last decimal, of which it has no more."""
    return int(amount.scaleb(decimals))
