"""The command ``headrace pipeline what-if``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.events import events_of
from headrace.pipeline.analysis.quota_files import read_quotas
from headrace.pipeline.analysis.traces import read_trace
from headrace.pipeline.analysis.usage import of_one_cluster
from headrace.pipeline.analysis.what_if import decide, fixed_quotas, what_if
from headrace.pipeline.cli import CLUSTER, day_options, report_progress, report_usage, spark_options
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.stores import exists
from headrace.pipeline.lake.tables import Lake, of_days

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.lake.session import SparkOptions

SHOWN = 20


@click.command()
@click.option("--lake", metavar="PATH", help="Folder of the tables: a path, s3a://…, hdfs://…")
@click.option(
    "--quotas",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Configuration file whose [[quotas]] and windows are applied.",
)
@day_options
@CLUSTER
@click.option(
    "--trace", metavar="PATH", help="A trace of headrace replay, in place of the lake; it contains the quotas."
)
@click.option(
    "--output", metavar="PATH", help="With --trace: Parquet folder for its lines, each with its throttle time."
)
@spark_options
def command(
    *,
    spark: SparkOptions,
    lake: str | None,
    quotas: str | None,
    first: date | None,
    last: date | None,
    cluster: str | None,
    trace: str | None,
    output: str | None,
) -> None:
    """Compute who would have been throttled by these quotas, for how long, and how much usage would have been delayed.

    The table what_if has the answer by hour and bucket: for the usage as recorded, with no sender waiting, and
    with senders that wait for each throttle time. With --trace, the throttle times are those of headrace replay, event
    for event.
    """
    if trace is not None:
        if lake or quotas or not output:
            raise click.UsageError(
                "--trace contains quotas and requires --output; --lake and --quotas are for usage records"
            )
        _trace(start_session("what-if", spark), trace, output)
        return
    if lake is None or quotas is None or output is not None:
        raise click.UsageError("expected --lake and --quotas, or --trace and --output")
    changes, windows = read_quotas(quotas)
    tables = Lake(start_session("what-if", spark), lake)
    usage, what = of_one_cluster(of_days(tables.read("usage", schemas.USAGE), first, last), cluster)
    report_usage(what)
    if not what.records:
        report_progress("no quotas were applied, and nothing was written")
        return
    tables.replace("what_if", what_if(events_of(usage), fixed_quotas(changes, windows)))
    _report_result(tables.read("what_if", schemas.WHAT_IF))


def _report_result(answer: DataFrame) -> None:
    totals = answer.groupBy("key", "user", "client_id", "entity").agg(
        sf.sum("events").alias("events"),
        sf.sum("throttled").alias("throttled"),
        sf.sum("refused").alias("refused"),
        sf.max("longest_throttle_ms").alias("longest_ms"),
        sf.sum("waited_ms").alias("waited_ms"),
        (sf.sum("shifted_amount") / sf.sum("amount")).alias("shifted"),
        sf.max("longest_shift_ms").alias("longest_shift_ms"),
    )
    held = totals.where("throttled > 0 or refused > 0")
    report_progress(f"{totals.count():,} buckets, of which {held.count():,} are throttled")
    for row in held.orderBy(sf.desc("waited_ms")).limit(SHOWN).collect():
        who = ", ".join(f"{kind}={name}" for kind, name in (("user", row.user), ("client-id", row.client_id)) if name)
        click.echo(
            f"{row.key} of {who} (quota of {row.entity}): throttled {row.throttled:,} of {row.events:,} seconds,"
            f" refused {row.refused:,}, total wait {row.waited_ms / 1000:,.1f} s; {row.shifted:.1%} is delayed, by at"
            f" most {row.longest_shift_ms / 1000:,.1f} s"
        )


def _trace(session: SparkSession, path: str, output: str) -> None:
    if not exists(session, path):
        raise InputError(f"--trace {path} does not exist")
    if exists(session, output):
        raise InputError(f"--output {output} already exists; remove it, or give another")
    numbered = session.sparkContext.textFile(path).zipWithIndex().map(lambda each: (each[1] + 1, each[0]))
    lines = session.createDataFrame(numbered, "order long, value string")
    events, quotas = read_trace(lines)
    decided = decide(events, quotas).join(lines, "order").orderBy("order")
    decided.select("order", "value", "throttle_time_ms", "accepted", "entity").write.parquet(output)
    report_progress(f"{session.read.parquet(output).count():,} events decided, in {output}")
