"""The command ``headrace pipeline retain``."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from headrace.pipeline.cli import LAKE, job_options
from headrace.pipeline.lake.retained import note_removed
from headrace.pipeline.lake.tables import DAY_COLUMNS, MADE_BY, RELEASED, VERSION_HOURS, Lake, open_lake
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.commands import Command
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

COMPUTED: Final = (("rollup_day", "usage", 0), ("chargeback", "rollup_day", 31))
"""Tables that rollup computes from another one, and for how many days more they have to be kept: a bill of a month has
its first day."""


def _dashed(table: str) -> str:
    return table.replace("_", "-")


def _options(command: Callable[..., Result]) -> Callable[..., Result]:
    @functools.wraps(command)
    def run(*, spark: SparkOptions, lake: str, **days: int | None) -> Result:
        given = {name: number for name, number in days.items() if number is not None}
        return command(spark=spark, lake=lake, days=given)

    for table in reversed(TABLES):
        text = f"Keep so many days of the table {table}.  [default: all]"
        run = click.option(f"--{_dashed(table)}", type=click.IntRange(min=1), metavar="DAYS", help=text)(run)
    return run


@click.command(cls=Command)
@LAKE
@job_options
@_options
def command(*, spark: SparkOptions, lake: str, days: dict[str, int]) -> Result:
    """Remove old days of the tables, and the files that no version of the last week needs.

    A table without an option keeps all its days. Derived tables keep their rows: bills stay after their usage was
    removed. The records of instances that have ended have no day and are never removed.
    """
    _check_computed(days)
    tables = open_lake("retain", spark, lake)
    today = datetime.now(UTC).date()
    first_kept = {table: today - timedelta(days=number) for table, number in days.items()}
    old = {table: f"{DAY_COLUMNS.get(table, 'date')} < '{day}'" for table, day in first_kept.items()}
    if "marks" in old:
        old["marks"] += f" AND kind <> '{Kind.END.value}'"
    has_old = {
        table for table in old if tables.has(table) and not tables.table(table).toDF().where(old[table]).isEmpty()
    }
    # Before: what is missing then is not taken for a gap.
    note_removed(tables, {table: day for table, day in first_kept.items() if table in has_old})
    removed = {table: _remove(tables, table, old[table]) for table in old.keys() - set(RELEASED)}
    # Also without rows to remove: files of the released versions that a killed job has replaced would be removed below.
    with tables.release() as draft:
        removed |= {table: _remove(draft, table, old[table]) for table in old.keys() & set(RELEASED)}
    for table in (*MADE_BY, "releases"):
        if tables.has(table):
            tables.table(table).vacuum(VERSION_HOURS)
    report_progress(f"files that no version of the last {VERSION_HOURS // 24} days needs are removed")
    return {"rows_removed": removed}


def _check_computed(days: dict[str, int]) -> None:
    """Raise `click.UsageError` if rows would be removed that the next rollup computes again from another table."""
    for computed, source, more in COMPUTED:
        kept, needed = days.get(computed), days.get(source)
        if kept is not None and (needed is None or kept < needed + more):
            expected = f"{needed + more} days or more" if needed is not None else "no such option, as all of it is kept"
            raise click.UsageError(
                f"--{_dashed(computed)} {kept}: rollup computes {computed} again from {source}"
                f"{'' if needed is None else f', of which {needed} days are kept'}; expected {expected}"
            )


def _remove(tables: Lake, table: str, condition: str) -> int:
    """Remove rows of a table, if it exists; return their number."""
    if not tables.has(table):
        return 0
    rows = tables.remove_rows(table, condition)
    report_progress(f"{table}: {rows:,} rows removed")
    return rows
