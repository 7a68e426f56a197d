"""Budgets: TOML files with the amount that a team may spend in a month.

    currency = "EUR"

    [teams.payments]
    amount = 500
    alert_percent = [50, 80, 100]

`headrace.pipeline.analysis.decimal_files` reads them.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated

from headrace.pipeline.analysis.decimal_files import CURRENCY, MAX_AMOUNT, decimal_number, read_decimal_file
from headrace.quota_callbacks.options import Expect, Fault, Table, list_of, text, whole


class TeamBudget(Table):
    """The table ``[teams.NAME]``. The name may also be that of usage without a team, as in bills."""

    amount: Annotated[Decimal, decimal_number(MAX_AMOUNT - 1, positive=True)]
    """Amount for a month."""
    alert_percent: Annotated[
        tuple[Annotated[int, whole(1, 1000)], ...], list_of("a list of percentages, such as [80, 100]", shortest=1)
    ] = (80, 100)
    """Percentages of the amount; there is an alert when spending reaches one of them."""
    cluster: Annotated[str | None, text("the id of a cluster")] = None
    """The cluster whose bills count; ``None``: all."""


class Budgets(Table):
    """A whole file of budgets."""

    currency: Annotated[str, CURRENCY]
    """Currency of all amounts, which must be that of the bills."""
    teams: Annotated[Mapping[str, TeamBudget], Expect("tables, each headed [teams.NAME]")] = {}
    """Budgets by team."""


def read_budgets(path: str) -> Budgets:
    """Read budgets from a local file. Raises `InputError` with all faults, one per line."""
    return read_decimal_file(path, "file of budgets", Budgets, _faults_between_keys)


def _faults_between_keys(budgets: Budgets) -> Iterator[Fault]:
    if not budgets.teams:
        yield Fault(rule="no budgets; expected tables, each headed [teams.NAME]")
