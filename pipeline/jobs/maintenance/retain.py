"""The command ``headrace pipeline retain``."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from headrace.pipeline.cli import LAKE, job_options
from headrace.pipeline.lake.tables import DAY_COLUMNS, MADE_BY, RELEASED, VERSION_HOURS, Lake, open_lake
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

TABLES: Final = (
    "usage", "marks", "quarantine", "rollup_hour", "rollup_day", "chargeback", "budgets", "anomalies",
    "anomaly_windows", "anomaly_sketches", "anomaly_past",
)  # fmt: skip
"""The tables that have days, or months by their first day."""


def _options(command: Callable[..., Result]) -> Callable[..., Result]:
    @functools.wraps(command)
    def run(*, spark: SparkOptions, lake: str, **days: int | None) -> Result:
        given = {name: number for name, number in days.items() if number is not None}
        return command(spark=spark, lake=lake, days=given)

    for table in reversed(TABLES):
        text = f"Keep so many days of the table {table}.  [default: all]"
        run = click.option(f"--{table.replace('_', '-')}", type=click.IntRange(min=1), metavar="DAYS", help=text)(run)
    return run


@click.command()
@LAKE
@job_options
@_options
def command(*, spark: SparkOptions, lake: str, days: dict[str, int]) -> Result:
    """Remove old days of the tables, and the files that no version of the last week needs.

    A table without an option keeps all its days. The tables that others were computed from can have fewer days: bills
    stay when their usage was removed. The end marks of instances have no day, and stay.
    """
    tables = open_lake("retain", spark, lake)
    today = datetime.now(UTC).date()
    old = {
        table: f"{DAY_COLUMNS.get(table, 'date')} < '{today - timedelta(days=number)}'"
        for table, number in days.items()
    }
    if "marks" in old:
        old["marks"] += f" AND kind <> '{Kind.END.value}'"
    removed = {table: _remove(tables, table, old[table]) for table in old.keys() - set(RELEASED)}
    # Also without rows to remove: files of the released versions that a killed job has replaced would be removed below.
    with tables.release() as draft:
        removed |= {table: _remove(draft, table, old[table]) for table in old.keys() & set(RELEASED)}
    for table in (*MADE_BY, "releases"):
        if tables.has(table):
            tables.table(table).vacuum(VERSION_HOURS)
    report_progress(f"files that no version of the last {VERSION_HOURS // 24} days needs are removed")
    return {"rows_removed": removed}


def _remove(tables: Lake, table: str, condition: str) -> int:
    """Remove rows of a table, if it exists; return their number."""
    if not tables.has(table):
        return 0
    rows = tables.remove_rows(table, condition)
    report_progress(f"{table}: {rows:,} rows removed")
    return rows
