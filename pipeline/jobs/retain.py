"""The command ``headrace pipeline retain``."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from headrace.pipeline.cli import LAKE, report_progress, spark_options
from headrace.pipeline.lake.tables import MADE_BY, RELEASED, VERSION_HOURS, Lake, open_lake
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipeline.lake.session import SparkOptions

TABLES: Final = (
    "usage", "marks", "quarantine", "rollup_hour", "rollup_day", "chargeback", "anomalies", "anomaly_windows",
    "anomaly_sketches",
)  # fmt: skip
"""The tables that have days."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*, spark: SparkOptions, lake: str, **days: int | None) -> None:
        command(spark=spark, lake=lake, days={name: number for name, number in days.items() if number is not None})

    for table in reversed(TABLES):
        text = f"Keep so many days of the table {table}.  [default: all]"
        run = click.option(f"--{table.replace('_', '-')}", type=click.IntRange(min=1), metavar="DAYS", help=text)(run)
    return run


@click.command()
@LAKE
@spark_options
@_options
def command(*, spark: SparkOptions, lake: str, days: dict[str, int]) -> None:
    """Remove old days of the tables, and the files that no version of the last week needs.

    A table without an option keeps all its days; what other tables were made from can be removed before them: bills
    stay when the usage is gone. The end marks of instances have no day, and stay.
    """
    tables = open_lake("retain", spark, lake)
    today = datetime.now(UTC).date()
    removed = {table: f"date < '{today - timedelta(days=number)}'" for table, number in days.items()}
    if "marks" in removed:
        removed["marks"] += f" AND kind <> '{Kind.END.value}'"
    for table in removed.keys() - set(RELEASED):
        _remove(tables, table, removed[table])
    if removed.keys() & set(RELEASED):
        with tables.release() as draft:
            for table in removed.keys() & set(RELEASED):
                _remove(draft, table, removed[table])
    for table in (*MADE_BY, "releases"):
        if tables.has(table):
            tables.table(table).vacuum(VERSION_HOURS)
    report_progress(f"files that no version of the last {VERSION_HOURS // 24} days needs are removed")


def _remove(tables: Lake, table: str, condition: str) -> None:
    if tables.has(table):
        report_progress(f"{table}: {tables.remove_rows(table, condition):,} rows removed")
