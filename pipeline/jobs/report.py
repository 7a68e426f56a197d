"""The command ``headrace pipeline report``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.pipeline.cli import LAKE, check_output, day_options, report_progress, spark_options, write_file
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import open_lake
from headrace.pipeline.report import TITLE, Days, report

if TYPE_CHECKING:
    from datetime import date

    from headrace.pipeline.lake.session import SparkOptions

TABLES = {
    "usage": schemas.USAGE,
    "marks": schemas.MARKS,
    "quarantine": schemas.QUARANTINE,
    "recommendations": schemas.RECOMMENDATIONS,
    "backtest": schemas.BACKTEST,
    "what_if": schemas.WHAT_IF,
    "chargeback": schemas.CHARGEBACK,
    "costs": schemas.COSTS,
    "anomalies": schemas.ANOMALIES,
}


@click.command()
@LAKE
@day_options
@click.option("--output", required=True, metavar="FILE", help="The HTML file, local or in any store.")
@click.option("--title", default=TITLE, show_default=True, metavar="TEXT", help="Title of the report.")
@spark_options
def command(*, spark: SparkOptions, lake: str, output: str, first: date | None, last: date | None, title: str) -> None:
    """Write one HTML file with plots and tables. It opens anywhere: it loads nothing and runs no scripts.

    The report shows what each user used and who was throttled, the results of recommend, what-if, rollup, calibrate
    and anomalies, and how complete the records are. For a missing table it names the job that writes it. Days and times
    are UTC. An existing file is replaced.
    """
    check_output("--output", output)
    there = open_lake("report", spark, lake)
    tables = {name: there.read(name, schema) for name, schema in TABLES.items() if there.has(name)}
    page = report(tables, made=datetime.now(UTC), days=Days(first=first, last=last), title=title)
    write_file(there.spark, output, [page])
    report_progress(f"{len(page.encode()) / 1024:,.0f} KiB in {output}")
