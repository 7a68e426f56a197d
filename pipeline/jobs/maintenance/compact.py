"""The command ``headrace pipeline compact``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.pipeline.cli import LAKE, day_options, job_options
from headrace.pipeline.lake.tables import MADE_BY, RELEASED, Lake, open_lake
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from datetime import date

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result


@click.command(cls=Command)
@LAKE
@day_options
@job_options
def command(*, spark: SparkOptions, lake: str, first: date | None, last: date | None) -> Result:
    """Merge the small files of the tables into larger ones. Other jobs may run meanwhile.

    Ingest does this for each hour that has become final, so this is for hours that are not final yet, and for a lake
    that was migrated. With --from and --to, only tables with days are compacted. The old files are removed by retain.
    """
    tables = open_lake("compact", spark, lake)
    merged = {table: _compact(tables, table, first, last) for table in MADE_BY if table not in RELEASED}
    with tables.release() as draft:
        merged |= {table: _compact(draft, table, first, last) for table in RELEASED}
    return {"files_merged": {table: count for table, count in merged.items() if count}}


def _compact(tables: Lake, table: str, first: date | None, last: date | None) -> int:
    """Compact a table, if it exists; return the number of files that were merged."""
    if not tables.has(table):
        return 0
    before, after = tables.compact(table, first, last)
    if before:
        report_progress(f"{table}: {before:,} files merged into {after:,}")
    return before
