"""The command ``headrace pipeline what-if``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.quota_files import read_quotas
from headrace.pipeline.analysis.usage import recorded
from headrace.pipeline.analysis.what_if.answers import answers, name_buckets, senders_of
from headrace.pipeline.analysis.what_if.buckets import RATES
from headrace.pipeline.analysis.what_if.decisions import decide
from headrace.pipeline.analysis.what_if.demand import SENDER_AND_API, unserved
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.analysis.what_if.traces import read_trace
from headrace.pipeline.cli import CLUSTER, check_input, day_options, job_options, number_option, refuse_unread
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.stores import exists
from headrace.pipeline.lake.tables import of_days, open_lake
from headrace.pipeline.output import report_progress, report_result
from headrace.quota_callbacks.commands import Command
from headrace.quota_callbacks.records.replay import KEYS

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.analysis.what_if.answers import NamedUsage
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

SHOWN = 20
DEMAND_AT_MOST = 10.0


@click.command(cls=Command)
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
    "--demand",
    is_flag=True,
    help="Also charge what throttled senders would have used, at most, if they had not been muted.",
)
@number_option(
    "--demand-at-most",
    click.FloatRange(1, 1000, min_open=True),
    DEMAND_AT_MOST,
    "With --demand: at most this multiple of what was recorded while senders were throttled.",
    metavar="FACTOR",
)
@click.option(
    "--trace", metavar="PATH", help="A trace of headrace replay, in place of the lake; it contains the quotas."
)
@click.option(
    "--output", metavar="PATH", help="With --trace: Parquet folder for its lines, each with its throttle time."
)
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str | None,
    quotas: str | None,
    first: date | None,
    last: date | None,
    cluster: str | None,
    demand: bool,
    demand_at_most: float,
    trace: str | None,
    output: str | None,
) -> Result:
    """Compute who would have been throttled by the given quotas, for how long, and how much usage would be delayed.

    The table what_if has the result by hour and bucket, for two cases: the usage as recorded, in which no sender waits;
    and senders that wait for each throttle time. Usage that was throttled while it was recorded is less than the
    demand, which --demand estimates. With --trace, the throttle times are those of headrace replay for each event.
    """
    if trace is not None:
        if lake or quotas or demand or not output:
            raise click.UsageError(
                "--trace contains quotas and requires --output; --lake, --quotas and --demand are for usage records"
            )
        refuse_unread("first", "last", "cluster", "demand_at_most", where=True, why="with --trace")
        check_input("--trace", trace)
        return _trace(start_session("what-if", spark), trace, output)
    if lake is None or quotas is None or output is not None:
        raise click.UsageError("expected --lake and --quotas, or --trace and --output")
    refuse_unread("demand_at_most", where=not demand, why="without --demand")
    changes, windows = read_quotas(quotas)
    tables = open_lake("what-if", spark, lake)
    usage = of_days(tables.read("usage", schemas.USAGE), first, last)
    usage = usage if cluster is None else usage.where(sf.col("cluster") == cluster)
    applied = fixed_quotas(changes, windows)
    senders = senders_of(usage, applied).persist()
    try:
        what = recorded(senders, cluster)
        report_progress(*what.lines())
        if not what.records:
            report_progress("no quotas were applied, and nothing was written")
            return {"cluster": what.cluster, "records": 0, "buckets": 0, "throttled_buckets": 0}
        named = name_buckets(usage, applied, senders)
    finally:
        senders.unpersist()
    if demand:
        named = named.with_demand(unserved(named.usage, demand_at_most).persist())
    found = answers(named).persist()
    try:
        tables.replace_of_cluster("what_if", found.select(*schemas.WHAT_IF.names), what.cluster)
        result = _report_result(found)
        if named.demand is not None:
            result["demand"] = _report_demand(named.demand, demand_at_most)
    finally:
        found.unpersist()
        if named.demand is not None:
            named.demand.unpersist()
    _report_recorded_throttles(named)
    return {"cluster": what.cluster, "records": what.records, **result}


def _report_result(answer: DataFrame) -> Result:
    totals = answer.groupBy("key", "user", "client_id", "entity").agg(
        sf.sum("events").alias("events"),
        sf.sum("throttled").alias("throttled"),
        sf.sum("refused").alias("refused"),
        sf.max("longest_throttle_ms").alias("longest_ms"),
        sf.sum("waited_ms").alias("waited_ms"),
        (sf.sum("shifted_amount") / sf.sum("amount")).alias("shifted"),
        sf.max("longest_shift_ms").alias("longest_shift_ms"),
        sf.max("quota").alias("quota"),
        sf.max("certain_quota").alias("certain_quota"),
    )
    is_held = (sf.col("throttled") > 0) | (sf.col("refused") > 0)
    is_uncertain = ~is_held & sf.col("certain_quota").isNotNull()
    ((buckets, throttled, uncertain),) = totals.agg(
        sf.count("*"), sf.count_if(is_held), sf.count_if(is_uncertain)
    ).collect()
    report_progress(f"{buckets:,} buckets, of which {throttled:,} are throttled")
    held = totals.where(is_held).orderBy(sf.desc("waited_ms")).limit(SHOWN)
    for row in held.collect() if throttled else ():
        report_result(
            f"{row.key} of {_name(row.user, row.client_id)} (quota of {row.entity}): throttled {row.throttled:,} of"
            f" {row.events:,} seconds, refused {row.refused:,}, total wait {row.waited_ms / 1000:,.1f} s;"
            f" {row.shifted:.1%} is delayed, by at most {row.longest_shift_ms / 1000:,.1f} s"
        )
    if uncertain:
        _report_uncertain(totals.where(is_uncertain), uncertain)
    return {"buckets": buckets, "throttled_buckets": throttled}


def _report_uncertain(totals: DataFrame, count: int) -> None:
    """Report buckets that are not throttled, but might be, since a record has only the sum of one second."""
    report_progress(
        f"{count:,} of the buckets that are not throttled might be throttled: a record has the sum of one second, and"
        " below these limits it matters when within the second the usage came"
    )
    for row in totals.orderBy(sf.desc(sf.col("certain_quota") / sf.col("quota"))).limit(SHOWN).collect():
        report_progress(
            f"{row.key} of {_name(row.user, row.client_id)}: the quota of {row.entity} is {row.quota:.10g}; records of"
            f" one second are not precise enough below {_limit(row.certain_quota)}"
        )


def _report_demand(demand: DataFrame, at_most: float) -> Result:
    """Report what was charged besides the recorded usage."""
    sums = demand.groupBy(*SENDER_AND_API).agg(
        sf.sum("request_bytes").alias("request_bytes"),
        sf.sum("response_bytes").alias("response_bytes"),
        sf.max("bounded").alias("bounded"),
    )
    (row,) = (
        sums.groupBy()
        .agg(
            sf.count_distinct("user", "client_id").alias("senders"),
            sf.coalesce(sf.sum("request_bytes"), sf.lit(0)).cast("long").alias("request_bytes"),
            sf.coalesce(sf.sum("response_bytes"), sf.lit(0)).cast("long").alias("response_bytes"),
            sf.count_distinct(sf.when(sf.col("bounded"), sf.struct("user", "client_id"))).alias("bounded"),
        )
        .collect()
    )
    report_progress(
        f"besides the recorded usage, {row.request_bytes:,} bytes of requests and {row.response_bytes:,} of replies"
        f" were charged, which {row.senders:,} senders would have used at most while they were muted"
    )
    if row.bounded:
        report_progress(
            f"{row.bounded:,} of these senders were muted nearly all the time, on one or several connections: their"
            f" demand is not known, and counted as {at_most:g} times the recorded usage (--demand-at-most)"
        )
    return row.asDict()


def _report_recorded_throttles(named: NamedUsage) -> None:
    """Report buckets whose recorded usage was itself throttled, so that it is less than what their senders wanted."""
    charged = () if named.demand is None else RATES  # whose demand is charged, and reported
    throttled = {
        number: counts for number, counts in named.throttled.items() if named.buckets.buckets[number].op not in charged
    }
    if not throttled:
        return
    report_progress(
        f"the recorded usage of {len(throttled):,} buckets was itself throttled, so their demand is not known:"
        " with higher quotas, their senders may use more, and wait longer, than computed here (--demand charges what"
        " they would have used at most)"
    )
    most = sorted(throttled.items(), key=lambda each: (-sum(each[1]), each[0]))
    for number, (requests, refused) in most[:SHOWN]:
        bucket = named.buckets.buckets[number]
        report_progress(
            f"{KEYS[bucket.op]} of {_name(bucket.user, bucket.client_id)}: {requests:,} requests were throttled and"
            f" {refused:,} refused by this quota while the usage was recorded"
        )


def _limit(quota: float) -> str:
    return "any limit" if math.isinf(quota) else f"{quota:.10g}"


def _name(user: str | None, client_id: str | None) -> str:
    return ", ".join(f"{kind}={name}" for kind, name in (("user", user), ("client-id", client_id)) if name)


def _trace(session: SparkSession, path: str, output: str) -> Result:
    if not exists(session, path):
        raise InputError(f"--trace {path} does not exist")
    if exists(session, output):
        raise InputError(f"--output {output} already exists; remove it, or give another")
    numbered = session.sparkContext.textFile(path).zipWithIndex().map(lambda each: (each[1] + 1, each[0]))
    lines = session.createDataFrame(numbered, "order long, value string")
    charges, quotas = read_trace(lines)
    decided = decide(charges, quotas).join(lines, "order").orderBy("order")
    decided.select("order", "value", "throttle_time_ms", "accepted", "entity").write.parquet(output)
    events = session.read.parquet(output).count()
    report_progress(f"{events:,} events decided, in {output}")
    return {"events": events, "output": output}
