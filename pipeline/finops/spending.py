"""The share of its budget that each team has spent, by the bills of a month, and the alerts that are due.

Bills are few, one for each team and cluster, so those of a month are collected.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.prices import SHARED
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import date, datetime

    from pyspark.sql import DataFrame

    from headrace.pipeline.finops.budget_files import Budgets, TeamBudget


class Spending(NamedTuple):
    """A row of the table ``budgets`` (`schemas.BUDGETS`)."""

    month: date
    cluster: str | None
    team: str
    budget: Decimal
    spent: Decimal
    share: float
    forecast: Decimal
    state: int | None
    currency: str
    checked: datetime
    delivered: int | None

    @property
    def alert(self) -> str:
        """The id of the alert in force. It is the same in each run, so that a receiver can recognize a repeated
        alert."""
        return f"{self.month:%Y-%m}/{self.cluster or '*'}/{self.team}/{self.budget.normalize():f}/{self.state}"

    @property
    def is_new(self) -> bool:
        """Whether there is an alert that was not delivered."""
        return self.state is not None and (self.delivered is None or self.state > self.delivered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The part of a month that is rolled up."""

    days: Fraction
    """Number of days with usage; the last one counts up to its last hour with usage."""
    remaining: Fraction
    """Number of days from then to the end of the month."""
    records: int = 0
    """Number of usage records that are rolled up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The amounts of a team's bill that the budget depends on."""

    cluster: str | None
    team: str
    total: Decimal
    shared: Decimal
    """The part of the total that is for shared costs."""
    minimum: Decimal
    """The amount by which the team's minimum has raised the total."""

    def forecast(self, progress: Progress) -> Decimal:
        """Return the total at the end of the month if usage goes on as it was so far.

        Shared costs are those of the whole month already, and so is a minimum.
        """
        used = self.total - self.shared - self.minimum
        growth = 1 + progress.remaining / progress.days
        expected = used * growth.numerator / growth.denominator
        return max(expected, used + self.minimum) + self.shared


def progress_of(days: DataFrame, hours: DataFrame, month: date, today: date) -> Progress | None:
    """Return how much of ``month``, by its first day, is rolled up; ``None`` for nothing.

    ``days`` and ``hours`` are the rollups (`schemas.ROLLUP_DAY`, `schemas.ROLLUP_HOUR`). A month that ended before
    ``today`` has no remaining days.
    """
    length = calendar.monthrange(month.year, month.month)[1]
    of_month = days.where(sf.trunc("date", "month") == sf.lit(month))
    sums = (sf.count_distinct("date").alias("days"), sf.max("date").alias("last"), sf.sum("records").alias("records"))
    found = of_month.agg(*sums).collect()[0]
    if found.last is None:
        return None
    last_hour = (
        hours.where(sf.col("date") == sf.lit(found.last)).agg(sf.hour(sf.max("hour")).alias("hour")).collect()[0]
    )
    part = Fraction(1 if last_hour.hour is None else last_hour.hour + 1, 1 if last_hour.hour is None else 24)
    remaining = Fraction(0) if month < today.replace(day=1) else length - (found.last.day - 1) - part
    return Progress(days=found.days - 1 + part, remaining=remaining, records=found.records or 0)


def billed_records(by_month: DataFrame, month: date) -> int:
    """Return the number of usage records that the bills of a month are of; ``by_month`` are all bills by month."""
    totals = by_month.where((sf.col("date") == sf.lit(month)) & (sf.col("item") == "total"))
    return int(totals.agg(sf.coalesce(sf.sum("records"), sf.lit(0))).collect()[0][0])


def bills_of(by_month: DataFrame, month: date, budgets: Budgets, path: str) -> list[Bill]:
    """Return the bills of a month of the teams that have a budget; ``by_month`` are all bills by month
    (`schemas.CHARGEBACK`).

    Raises `InputError` if there are no bills by month at all, or if those of the month have another currency than the
    ``budgets``, whose file is ``path``.
    """
    of_month = by_month.where(sf.col("date") == sf.lit(month))
    currencies = {row.currency for row in of_month.select("currency").distinct().collect()}
    if not currencies and by_month.isEmpty():
        raise InputError("there are no bills by month; headrace pipeline rollup --prices writes them")
    if currencies - {budgets.currency}:
        found = " and ".join(sorted(currencies))
        raise InputError(f'{path}: currency = "{budgets.currency}": the bills of {month:%Y-%m} are in {found}')
    item, amount = sf.col("item"), sf.col("amount")
    parts = {"total": item == "total", "shared": item.startswith(SHARED), "minimum": item == "minimum"}
    sums = [sf.coalesce(sf.sum(sf.when(holds, amount)), sf.lit(Decimal(0))).alias(n) for n, holds in parts.items()]
    bills = of_month.where(sf.col("team").isin(list(budgets.teams))).groupBy("cluster", "team").agg(*sums)
    return [Bill(**row.asDict()) for row in bills.collect()]


def spending(
    bills: Iterable[Bill],
    budgets: Budgets,
    progress: Progress | None,
    *,
    month: date,
    checked: datetime,
    delivered: Mapping[tuple[str, str | None, Decimal], int],
) -> Iterator[Spending]:
    """Yield what each team has spent, in the order of names.

    ``delivered`` has the highest percentage whose alert was delivered, by team, cluster and budget. Raises `InputError`
    for the budget of a cluster if the bills are across clusters.
    """
    by_team: dict[str, list[Bill]] = {}
    for each in bills:
        by_team.setdefault(each.team, []).append(each)
    for team, budget in sorted(budgets.teams.items()):
        counted = [each for each in by_team.get(team, ()) if _counts(each, budget, team)]
        spent = sum((each.total for each in counted), Decimal(0))
        expected = [each.total if progress is None else each.forecast(progress) for each in counted]
        reached = [percent for percent in budget.alert_percent if spent * 100 >= budget.amount * percent]
        yield Spending(
            month=month,
            cluster=budget.cluster,
            team=team,
            budget=budget.amount,
            spent=spent,
            share=float(spent / budget.amount),
            forecast=round(sum(expected, Decimal(0)), schemas.AMOUNT.scale),
            state=max(reached, default=None),
            currency=budgets.currency,
            checked=checked,
            delivered=delivered.get((team, budget.cluster, budget.amount)),
        )


def _counts(bill: Bill, budget: TeamBudget, team: str) -> bool:
    if budget.cluster is not None and bill.cluster is None:
        raise InputError(
            f"the budget of team {team} is for cluster {budget.cluster}, and its bill for all clusters; leave out the"
            " cluster, or write bills by cluster: headrace pipeline rollup without --across-clusters"
        )
    return budget.cluster is None or bill.cluster == budget.cluster
