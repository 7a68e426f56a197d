"""The command ``headrace pipeline compact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.pipeline.cli import LAKE, day_options, report_progress, spark_options
from headrace.pipeline.lake.tables import MADE_BY, RELEASED, Lake, open_lake

if TYPE_CHECKING:
    from datetime import date

    from headrace.pipeline.lake.session import SparkOptions


@click.command()
@LAKE
@day_options
@spark_options
def command(*, spark: SparkOptions, lake: str, first: date | None, last: date | None) -> None:
    """Merge the small files of the tables into larger ones. Other jobs may run meanwhile.

    Ingest does this for each hour that has become final, so this is for hours that are not final yet, and for a lake
    that was migrated. With --from and --to, only tables with days are compacted. The old files are removed by retain.
    """
    tables = open_lake("compact", spark, lake)
    for table in MADE_BY:
        if table not in RELEASED:
            _compact(tables, table, first, last)
    with tables.release() as draft:
        for table in RELEASED:
            _compact(draft, table, first, last)


def _compact(tables: Lake, table: str, first: date | None, last: date | None) -> None:
    if tables.has(table):
        before, after = tables.compact(table, first, last)
        if before:
            report_progress(f"{table}: {before:,} files merged into {after:,}")
