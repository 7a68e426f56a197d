"""The command ``headrace pipeline instances``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.cli import LAKE, day_options, job_options
from headrace.pipeline.ingestion.instances import instances
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.retained import removed_before
from headrace.pipeline.lake.tables import of_days, open_lake
from headrace.pipeline.output import report_progress, report_result
from headrace.quota_callbacks.commands import Command
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from datetime import date

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

SHOWN = 1000
"""Maximum number of rows printed: about those of a fleet of 30 processes that restarts every night for a month."""


@click.command(cls=Command)
@LAKE
@day_options
@job_options
def command(*, spark: SparkOptions, lake: str, first: date | None, last: date | None) -> Result:
    """List the instances (runs of one process of the proxy) with the records of each, and those that are missing.

    MISSING counts sequence numbers without a record, LOST the records that the instance could not write. An instance
    whose ENDED is "no" was killed or still runs: its last second may be missing. With --from and --to, which a large
    lake needs, all columns are of these days alone, and MISSING is between their first sequence number and their last.
    """
    tables = open_lake("instances", spark, lake)
    marks = tables.read_or_empty("marks", schemas.MARKS)
    ends = marks.where(sf.col("kind") == Kind.END.value)  # end marks have no second, and so no day
    usage = of_days(tables.read("usage", schemas.USAGE), first, last)
    lost = of_days(marks.where(sf.col("kind") != Kind.END.value), first, last)
    kept_from = removed_before(tables).get("usage")
    found = instances(usage, lost.unionByName(ends), whole=first is None and last is None, kept_from=kept_from)
    rows = found.orderBy("first_second", "instance").limit(SHOWN + 1).collect()
    report_result("instance  first_second  last_second  seen  missing  gaps  lost  ended")
    for row in rows[:SHOWN]:
        report_result(
            f"{row.instance}  {row.first_second}  {row.last_second}  {row.seen}  {row.missing}  {row.gaps}  {row.lost}"
            f"  {'yes' if row.ended else 'no'}"
        )
    if len(rows) > SHOWN:
        report_progress(f"these are the first {SHOWN:,}; use --from and --to to select days")
    return {"instances": [row.asDict() for row in rows[:SHOWN]], "more": len(rows) > SHOWN}
