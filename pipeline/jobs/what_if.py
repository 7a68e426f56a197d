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
from headrace.pipeline.cli import CLUSTER, day_options, spark_options, report_usage, report_progress
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.tables import Lake, exists, of_days

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.lake.session import SparkOptions

SHOWN = 20


@click.command()
@click.option("--lake", metavar="PATH", help="Where the tables are: a folder, s3a://…, hdfs://…")
@click.option(
    "--quotas", metavar="FILE", type=click.Path(dir_okay=False), help="Its [[quotas]] and windows are asked about."
)
@day_options
@CLUSTER
@click.option(
    "--trace", metavar="PATH", help="Instead of the lake: a trace of headrace replay, which has its own quotas."
)
@click.option(
    "--output", metavar="PATH", help="With --trace: where its lines go, each with its throttle time, as Parquet."
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

    The table what_if has the answer by hour and bucket: once for the usage as recorded, with no sender waiting, and once
    with senders that wait for each throttle time. With --trace, the throttle times are those of headrace replay, event
    for event.
    """
    if trace is not None:
        if lake or quotas or not output:
            raise click.UsageError(
                "--trace has quotas of its own and needs --output; --lake and --quotas are for usage"
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
        report_progress("nothing is asked of it, and nothing was written")
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
    report_progress(f"{totals.count():,} buckets, {held.count():,} of them throttled")
    for row in held.orderBy(sf.desc("waited_ms")).limit(SHOWN).collect():
        who = ", ".join(f"{kind}={name}" for kind, name in (("user", row.user), ("client-id", row.client_id)) if name)
        click.echo(
            f"{row.key} of {who} (quota of {row.entity}): throttled {row.throttled:,} of {row.events:,} seconds,"
            f" refused {row.refused:,}, waits {row.waited_ms / 1000:,.1f} s in all; {row.shifted:.1%} comes later, by"
            f" {row.longest_shift_ms / 1000:,.1f} s at most"
        )


def _trace(session: SparkSession, path: str, output: str) -> None:
    if not exists(session, path):
        raise InputError(f"--trace {path} does not exist")
    if exists(session, output):
        raise InputError(f"--output {output} is there already; remove it, or give another")
    numbered = session.sparkContext.textFile(path).zipWithIndex().map(lambda each: (each[1] + 1, each[0]))
    lines = session.createDataFrame(numbered, "order long, value string")
    events, quotas = read_trace(lines)
    decided = decide(events, quotas).join(lines, "order").orderBy("order")
    decided.select("order", "value", "throttle_time_ms", "accepted", "entity").write.parquet(output)
    report_progress(f"{session.read.parquet(output).count():,} events decided, in {output}")
