"""The command ``headrace pipeline budgets``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from pyspark.sql import functions as sf

from headrace.pipeline.cli import LAKE, job_options
from headrace.pipeline.errors import InputError, OutputError
from headrace.pipeline.finops.budget_files import read_budgets
from headrace.pipeline.finops.spending import Spending, billed_records, bills_of, progress_of, spending
from headrace.pipeline.finops.textfile import metrics
from headrace.pipeline.finops.webhook import check_webhook, post
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake, open_lake
from headrace.pipeline.output import as_json, check_output, report_progress, report_result, write_file
from headrace.quota_callbacks.commands import Command
from headrace.quota_callbacks.options import read_secret

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date
    from decimal import Decimal

    from headrace.pipeline.finops.budget_files import Budgets
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

TABLE: Final = "budgets"
PREVIOUS_DAYS: Final = 3
"""Number of days of a month on which the month before is checked, too. ``ingest`` accepts records up to a day late
(``--watermark``), so usage of the last hour may arrive on the first day; the rollup of the next night bills it on the
second, or on the third if the run of one night has failed.
"""


@click.command(cls=Command)
@LAKE
@click.option(
    "--budgets", "path", required=True, metavar="FILE", type=click.Path(dir_okay=False), help="Budgets of teams (TOML)."
)
@click.option(
    "--month",
    type=click.DateTime(["%Y-%m"]),
    metavar="MONTH",
    help="The month, such as 2026-11.  [default: the present one, UTC, and on its first"
    f" {PREVIOUS_DAYS} days also the one before]",
)
@click.option(
    "--prometheus", metavar="FILE", help="Text file for node_exporter's textfile collector; its name ends with .prom."
)
@click.option("--webhook", metavar="URL", help="Address to which alerts are posted as JSON, each once.")
@click.option("--webhook-token-file", "token_file", metavar="FILE", help="File with a bearer token for the webhook.")
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    path: str,
    month: datetime | None,
    prometheus: str | None,
    webhook: str | None,
    token_file: str | None,
) -> Result:
    """Compare the bills of a month with budgets. Print the teams that have reached an alert, and send new alerts to a
    webhook.

    The table budgets has what each team has spent, a forecast to the end of the month, and which alerts were delivered:
    those that were not are sent by the next run.
    """
    if token_file is not None and webhook is None:
        raise click.UsageError("--webhook-token-file is for the address --webhook")
    check_output("--prometheus", prometheus)
    token = _token(token_file)
    if webhook is not None:
        check_webhook(webhook, token)
    budgets = read_budgets(path)
    there = open_lake("budgets", spark, lake)
    checked = datetime.now(UTC).replace(microsecond=0)
    first = (checked if month is None else month).date().replace(day=1)
    rows = _check(there, budgets, path, first, checked)
    before: list[Spending] = []
    previous = (first - timedelta(days=1)).replace(day=1)
    is_checked = checked.day <= PREVIOUS_DAYS or (webhook is not None and _has_undelivered(there, previous))
    if month is None and is_checked and (same := _unchanged(there, budgets, previous)).teams:
        before = _check(there, same, path, previous, checked)
    if prometheus is not None:
        write_file(there.spark, prometheus, metrics(rows))
    earlier = _alert(there, before, previous, webhook, token) if before else None
    result = _alert(there, rows, first, webhook, token)
    if earlier is not None:
        result["previous"] = earlier
    return result


def _has_undelivered(lake: Lake, month: date) -> bool:
    """Return whether an alert of ``month`` was not delivered."""
    rows = lake.read_or_empty(TABLE, schemas.BUDGETS).where(f"month = '{month}'")
    return not rows.where("state > coalesce(delivered, 0)").isEmpty()


def _check(lake: Lake, budgets: Budgets, path: str, month: date, checked: datetime) -> list[Spending]:
    """Write what the teams have spent in a month to the table, and return it."""
    bills_by_month = lake.read("chargeback", schemas.CHARGEBACK).where("period = 'month'")
    bills = bills_of(bills_by_month, month, budgets, path)
    days = lake.read_or_empty("rollup_day", schemas.ROLLUP_DAY)
    hours = lake.read_or_empty("rollup_hour", schemas.ROLLUP_HOUR)
    progress = progress_of(days, hours, month, checked.date())
    if progress is not None and progress.records > billed_records(bills_by_month, month):
        report_progress(
            f"the bills of {month:%Y-%m} lack usage that is rolled up, so the forecast is too low: run headrace"
            " pipeline rollup --prices first"
        )
    delivered = _delivered(lake, month)
    rows = list(spending(bills, budgets, progress, month=month, checked=checked, delivered=delivered))
    _write(lake, rows)
    return rows


def _unchanged(lake: Lake, budgets: Budgets, month: date) -> Budgets:
    """Return the budgets that an earlier run has checked for ``month``, with the present cluster, amount and currency.
    A budget that is new or was changed does not apply to past months."""
    columns = ("team", "cluster", "budget", "currency")
    rows = lake.read_or_empty(TABLE, schemas.BUDGETS).where(f"month = '{month}'").select(*columns).collect()
    known = {tuple(row) for row in rows}
    same = {
        team: each
        for team, each in budgets.teams.items()
        if (team, each.cluster, each.amount, budgets.currency) in known
    }
    return budgets.model_copy(update={"teams": same})


def _alert(lake: Lake, rows: Sequence[Spending], month: date, webhook: str | None, token: str | None) -> Result:
    """Report the alerts of a month, and send the new ones to the webhook. Raises `OutputError`."""
    alerts = [row for row in rows if row.state is not None]
    _report(rows, alerts, month)
    new: list[Spending] = []
    if webhook is not None and any(row.is_new for row in alerts):
        rows = _with_delivered(lake, rows)  # another run may have delivered some meanwhile
        new = [row for row in rows if row.is_new]
    if webhook is not None and new:
        _deliver(webhook, token, new)
        _write(lake, [row._replace(delivered=row.state) if row in new else row for row in rows])
    return {
        "month": f"{month:%Y-%m}",
        "teams": [_row(row) for row in rows],
        "alerts": len(alerts),
        "delivered": len(new),
    }


def _token(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return read_secret(path)
    except ValueError as error:
        raise InputError(f"--webhook-token-file {path}: {error}") from error


def _delivered(lake: Lake, month: date) -> dict[tuple[str, str | None, Decimal], int]:
    """Return the highest percentage whose alert was delivered in this month, by team, cluster and budget."""
    rows = lake.read_or_empty(TABLE, schemas.BUDGETS).where(f"month = '{month}' AND delivered IS NOT NULL").collect()
    return {(row.team, row.cluster, row.budget): row.delivered for row in rows}


def _with_delivered(lake: Lake, rows: Sequence[Spending]) -> list[Spending]:
    """Return the rows with the alerts that the table has as delivered by now, if these are higher."""
    known = _delivered(lake, rows[0].month)
    present = ((row, known.get((row.team, row.cluster, row.budget))) for row in rows)
    return [
        row if number is None or number <= (row.delivered or 0) else row._replace(delivered=number)
        for row, number in present
    ]


def _write(lake: Lake, rows: Sequence[Spending]) -> None:
    """Replace the rows of a month. Of a month that is over, rows of other teams stay, which had budgets then."""
    rows = _with_delivered(lake, rows)
    frame = lake.spark.createDataFrame(rows, schemas.BUDGETS)
    month, checked = rows[0].month, rows[0].checked.date()
    if month < checked.replace(day=1):
        there = lake.read_or_empty(TABLE, schemas.BUDGETS).where(f"month = '{month}'")
        frame = frame.unionByName(there.where(~sf.col("team").isin([row.team for row in rows])))
    lake.replace(TABLE, frame.coalesce(1), "month")


def _report(rows: Sequence[Spending], alerts: Sequence[Spending], month: date) -> None:
    report_progress(f"{len(rows):,} budgets of {month:%Y-%m}, {len(alerts):,} of them with an alert")
    for row in sorted(alerts, key=lambda each: -each.share):
        where = "" if row.cluster is None else f" (cluster {row.cluster})"
        report_result(
            f"{row.team}{where}: {row.spent:,.2f} of {row.budget:,.2f} {row.currency} ({100 * row.share:.0f} %) are"
            f" spent, the alert is at {row.state} %; {row.forecast:,.2f} {row.currency} at the end of the month"
        )


def _deliver(webhook: str, token: str | None, new: Sequence[Spending]) -> None:
    """Send the alerts. Raises `OutputError`."""
    document: dict[str, Any] = {
        "month": f"{new[0].month:%Y-%m}",
        "checked": new[0].checked,
        "alerts": [{"id": row.alert, "percent": row.state, **_row(row)} for row in new],
    }
    try:
        post(webhook, as_json(document), token)
    except OutputError as error:
        raise OutputError(f"{error}; {len(new):,} alerts were not delivered, the next run sends them") from error
    report_progress(f"{len(new):,} alerts were delivered")


def _row(row: Spending) -> dict[str, Any]:
    names = ("team", "cluster", "budget", "spent", "share", "forecast", "state", "currency")
    return {name: getattr(row, name) for name in names}
