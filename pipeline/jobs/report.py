"""``headrace pipeline report``."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline import schemas
from pipeline.cli import LAKE, spark_options, told
from pipeline.errors import InputError, OutputError
from pipeline.lake import Lake, exists, write_text
from pipeline.report import TITLE, Days, report
from pipeline.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.session import SparkOptions

DAY = click.DateTime(["%Y-%m-%d"])
SCHEMAS = {
    "usage": schemas.USAGE,
    "marks": schemas.MARKS,
    "quarantine": schemas.QUARANTINE,
    "recommendations": schemas.RECOMMENDATIONS,
    "what_if": schemas.WHAT_IF,
    "costs": schemas.COSTS,
    "anomalies": schemas.ANOMALIES,
}
"""Of what is read as it is to be; bills are shown as they are."""


@click.command()
@LAKE
@click.option("--output", required=True, metavar="FILE", help="The HTML file: on this machine, or s3a://…, hdfs://…")
@click.option("--from", "first", type=DAY, metavar="DATE", help="The first day, such as 2026-11-01.")
@click.option("--to", "last", type=DAY, metavar="DATE", help="The last day.")
@click.option("--title", default=TITLE, show_default=True, metavar="TEXT", help="Its title.")
@spark_options
def command(
    *, spark: SparkOptions, lake: str, output: str, first: datetime | None, last: datetime | None, title: str
) -> None:
    """Write one HTML file with plots and tables, which opens anywhere: it loads nothing and runs no scripts.

    What was used, by whom, who was throttled; beside it what recommend, what-if, rollup, calibrate and anomalies have
    put into the lake; and how complete the records are. A table that is not there is a sentence that says which job
    makes it. Days and times are UTC. A file that is there is replaced.
    """
    days = Days(first=first and first.date(), last=last and last.date())
    if first is not None and last is not None and first > last:
        raise click.UsageError(f"--from {days.first} is after --to {days.last}")
    _check(output)
    session = start_session("report", spark)
    if not exists(session, lake):
        raise InputError(f"--lake {lake} does not exist; headrace pipeline ingest makes it")
    page = report(_tables(Lake(session, lake)), made=datetime.now(UTC), days=days, title=title)
    _write(session, output, page)
    told(f"wrote {output}, {len(page.encode()) / 1024:,.0f} KiB")


def _tables(lake: Lake) -> dict[str, DataFrame]:
    """Those that are there."""
    found = {name: lake.read(name, schema) for name, schema in SCHEMAS.items() if lake.has(name)}
    bills = _as_they_are(lake, "chargeback") if lake.has("chargeback") else None
    return found if bills is None else {**found, "chargeback": bills}


def _as_they_are(lake: Lake, table: str) -> DataFrame | None:
    """With whatever columns there are; ``None`` for a folder without files."""
    from pyspark.errors import AnalysisException

    try:
        return lake.spark.read.parquet(lake.path(table))
    except AnalysisException as error:
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            return None
        raise


def _check(output: str) -> None:
    """Before minutes of work, not after them."""
    if "://" in output:
        return
    file = Path(output)
    if file.is_dir():
        raise OutputError(f"--output {output} is a folder; give the name of a file in it")
    if not file.absolute().parent.is_dir():
        raise OutputError(f"--output {output}: there is no folder {file.absolute().parent}")


def _write(session: SparkSession, output: str, page: str) -> None:
    """All of it or nothing. A plain path is this machine's, wherever the lake is."""
    if "://" in output:
        write_text(session, output, page)
        return
    file = Path(output)
    draft = file.with_name(f"{file.name}.draft")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise OutputError(f"--output {output} cannot be written: {error.strerror}") from error
