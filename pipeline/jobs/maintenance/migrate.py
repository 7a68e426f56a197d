"""The command ``headrace pipeline migrate``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from headrace.pipeline.cli import LAKE, job_options
from headrace.pipeline.ingestion.watermark import SourceState, Watermark
from headrace.pipeline.lake.stores import exists, files_below, qualified, read_text, remove
from headrace.pipeline.lake.tables import MADE_BY, Lake, is_old_table, open_lake
from headrace.pipeline.output import report_progress
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

RENAMED: Final = {"anomalies": {"told": "description"}, "costs": {"taken": "accepted"}}
"""Columns with names of versions before 0.1.0, by table, and their present names."""
OLD_WATERMARK: Final = "_ingest/watermark.json"
OLD_LOCK: Final = "_ingest/lock.json"

_PARTITIONS: Final = {
    "usage": "date DATE, hour INT",
    "marks": "date DATE",
    "quarantine": "date DATE",
    "rollup_hour": "date DATE",
    "rollup_day": "date DATE",
    "chargeback": "period STRING, date DATE",
    "anomalies": "date DATE",
}


@click.command(cls=Command)
@LAKE
@job_options
def command(*, spark: SparkOptions, lake: str) -> Result:
    """Convert a lake of a version before Delta Lake, in place: its Parquet files get a log beside them.

    No other job may use the lake meanwhile. Nothing is copied, apart from tables whose columns were renamed. Run it
    again to continue a migration that was interrupted. If the lake is converted already, it does nothing.
    """
    return {"converted": migrate(open_lake("migrate", spark, lake))}


def migrate(lake: Lake) -> list[str]:
    """Convert the tables and the watermark of a lake; report each table. Return the tables that were converted."""
    converted = []
    for table in MADE_BY:
        if _convert(lake, table):
            converted.append(table)
            report_progress(f"{table}: {lake.version(table) + 1:,} versions, {lake.table(table).toDF().count():,} rows")
    lake.release_converted()
    _convert_watermark(lake)
    report_progress(f"{lake.root} is converted")
    return converted


def _convert(lake: Lake, table: str) -> bool:
    """Convert one table; return ``False`` if there was nothing to do."""
    from delta.tables import DeltaTable

    path = lake.path(table)
    if not exists(lake.spark, path):
        return False
    is_new = not DeltaTable.isDeltaTable(lake.spark, path)
    if is_new:
        if not is_old_table(lake.spark, path):
            return False
        remove(lake.spark, f"{path}/_temporary")  # what a killed job has left
        if not any(name.endswith(".parquet") for name in files_below(lake.spark, path)):
            remove(lake.spark, path)
            return False
        by = [_PARTITIONS[table]] if table in _PARTITIONS else []
        DeltaTable.convertToDelta(lake.spark, f"parquet.`{qualified(lake.spark, path)}`", *by)
    return _rename(lake, table) or is_new


def _rename(lake: Lake, table: str) -> bool:
    """Give columns their present names; return ``False`` if they have them."""
    from pyspark.sql import functions as sf

    frame = lake.table(table).toDF()
    old = {old: new for old, new in RENAMED.get(table, {}).items() if old in frame.columns}
    if not old:
        return False
    for before, now in old.items():
        both = [sf.col(name) for name in (now, before) if name in frame.columns]
        frame = frame.withColumn(now, sf.coalesce(*both)).drop(before)
    by = [name for name in ("date",) if table in _PARTITIONS]
    lake.replace_whole(table, frame.repartition(1), *by)
    return True


def _convert_watermark(lake: Lake) -> None:
    """Convert the file of all sources into one of each; the newest second is kept under the name ``migrated``."""
    path = lake.path(OLD_WATERMARK)
    remove(lake.spark, lake.path(OLD_LOCK))
    if not exists(lake.spark, path):
        return
    old = json.loads(read_text(lake.spark, path))
    watermark = Watermark(lake)
    for source, run in old["runs"].items():
        watermark.write(source, SourceState(running=True, before=run["before"], newest=run["newest"]))
    watermark.write("migrated", SourceState(second=old["second"]))
    remove(lake.spark, path)
