"""The command ``headrace pipeline report``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.prices import UNKNOWN_CLUSTER
from headrace.pipeline.analysis.usage import only_cluster
from headrace.pipeline.cli import CLUSTER, LAKE, day_options, job_options
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.retained import removed_before
from headrace.pipeline.lake.tables import of_days, open_lake
from headrace.pipeline.output import check_output, report_progress, write_file
from headrace.pipeline.report import TITLE, Days, report
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.lake.tables import Lake
    from headrace.pipeline.output import Result

TABLES = {
    "usage": schemas.USAGE,
    "marks": schemas.MARKS,
    "quarantine": schemas.QUARANTINE,
    "recommendations": schemas.RECOMMENDATIONS,
    "backtest": schemas.BACKTEST,
    "what_if": schemas.WHAT_IF,
    "chargeback": schemas.CHARGEBACK,
    "budgets": schemas.BUDGETS,
    "costs": schemas.COSTS,
    "anomalies": schemas.ANOMALIES,
}


@click.command(cls=Command)
@LAKE
@day_options
@CLUSTER
@click.option("--output", required=True, metavar="FILE", help="The HTML file, local or in any store.")
@click.option("--title", default=TITLE, show_default=True, metavar="TEXT", help="Title of the report.")
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    output: str,
    first: date | None,
    last: date | None,
    cluster: str | None,
    title: str,
) -> Result:
    """Write one HTML file with plots and tables. It opens anywhere: it loads nothing and runs no scripts.

    The report shows what each user used and who was throttled, the results of recommend, what-if, rollup, budgets,
    calibrate and anomalies, and how complete the records are. For a missing table it names the job that writes it. Days
    and times are UTC. An existing file is replaced.
    """
    check_output("--output", output)
    there = open_lake("report", spark, lake)
    only = _only_cluster(there, first, last) if cluster is None else cluster
    tables = {name: _read(there, name, schema, only) for name, schema in TABLES.items() if there.has(name)}
    recorded = tables.get("usage")
    if recorded is not None and cluster is not None:
        tables["usage"] = recorded.where(sf.col("cluster") == cluster)
    page = report(
        tables,
        made=datetime.now(UTC),
        days=Days(first=first, last=last),
        title=title,
        cluster=only,
        recorded=recorded,
        kept_from=removed_before(there).get("usage"),
    )
    write_file(there.spark, output, [page])
    size = len(page.encode())
    report_progress(f"{size / 1024:,.0f} KiB in {output}")
    return {"output": output, "bytes": size, "cluster": only}


def _only_cluster(lake: Lake, first: date | None, last: date | None) -> str | None:
    """Return the cluster of the usage, or of bills or anomalies without usage; ``None`` if there is none.

    Raises `InputError` if there are several, since a report does not sum them.
    """
    for table in ("usage", "chargeback", "anomalies"):
        if lake.has(table):
            rows = of_days(lake.read(table, TABLES[table]), first, last)
            rows = rows.where(sf.coalesce("cluster", sf.lit("")) != UNKNOWN_CLUSTER)
            if (found := only_cluster(rows, f"the table {table}")) is not None:
                return found
    return None


def _read(lake: Lake, table: str, schema: StructType, cluster: str | None) -> DataFrame:
    """Return the rows of one cluster, of none that is known, of all clusters, and of versions that did not distinguish
    them; of usage, all rows."""
    if table in schemas.OF_ONE_CLUSTER:
        return lake.read_of_cluster(table, schema, cluster)
    whole = lake.read(table, schema)
    if cluster is None or table == "usage" or "cluster" not in schema.names:
        return whole
    return whole.where(sf.col("cluster").isin(cluster, UNKNOWN_CLUSTER) | sf.col("cluster").isNull())
