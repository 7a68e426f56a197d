"""The command ``headrace pipeline calibrate``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.calibrate import Method, accepted_costs, calibrate, samples, span_of
from headrace.pipeline.analysis.handler_times import HOW, read_jmx
from headrace.pipeline.analysis.usage import of_one_cluster
from headrace.pipeline.cli import CLUSTER, LAKE, check_input, job_options, number_option
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import open_lake
from headrace.pipeline.output import check_output, report_progress, report_result, write_file
from headrace.quota_callbacks.api_keys import api_name
from headrace.quota_callbacks.builtin.cost_files import costs_text, load_costs
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.pipeline.analysis.usage import Recorded
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result
    from headrace.quota_callbacks.builtin.request_costs import RequestCost

METHOD = Method()
NO_TRUTH = (
    "expected --truth: the handler times of the brokers. The proxy's broker_ms cannot replace them: it includes the"
    " network and all queues, and is already the upper limit of a request's cost, so costs fitted to it would charge"
    f" clients for a slow network. To sample a broker, while the proxy records usage:\n{HOW}"
)


@click.command(cls=Command)
@LAKE
@click.option(
    "--truth",
    "truths",
    multiple=True,
    metavar="PATH",
    help="Output of JmxTool for a broker; repeat it for each broker.",
)
@click.option("--output", metavar="FILE", help="File for the costs, for the option costs_file of request_percentage.")
@click.option("--against", metavar="FILE", help="The costs_file in force.  [default: the shipped costs]")
@CLUSTER
@number_option(
    "--interval", click.IntRange(1, 3600), METHOD.interval_s,
    "Length of an interval for comparing recorded usage and the brokers' handler times.",
    metavar="SECONDS", to="interval_s",
)  # fmt: skip
@number_option(
    "--held-out", click.FloatRange(0.01, 0.9), METHOD.held_out,
    "Share of the intervals that is used for the error, and not for the fit.", metavar="SHARE",
)  # fmt: skip
@number_option(
    "--least-samples", click.IntRange(2), METHOD.least_samples, "Minimum number of intervals to fit an API.",
    metavar="INTERVALS",
)  # fmt: skip
@number_option(
    "--mismatch", click.FloatRange(0, 1), METHOD.mismatch,
    "Maximum difference of the request counts of brokers and proxies in an interval.", metavar="SHARE",
)  # fmt: skip
@number_option(
    "--truth-step", click.FloatRange(0), METHOD.step_ms,
    "Step to which brokers round each request's handler time: 1 ms in Kafka's LocalTimeMs; 0: not rounded.",
    metavar="MS", to="step_ms",
)  # fmt: skip
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    truths: tuple[str, ...],
    output: str | None,
    against: str | None,
    cluster: str | None,
    **method: Any,
) -> Result:
    """Fit the cost model of request_percentage to the handler times that brokers report.

    --truth is a broker's LocalTimeMs, sampled for some minutes while the proxy recorded usage. The samples of all
    brokers are required, since usage records do not distinguish brokers. The table costs has the fitted model of each
    API, with its error on intervals that were not used for the fit and the error of the costs in force. Models that are
    better are written to --output, together with those of --against that are not replaced:

    \b
    [plugins.options.request_percentage]
    costs_file = "FILE"
    """
    if not truths:
        raise click.UsageError(NO_TRUTH)
    check_output("--output", output)
    how = Method(**method)
    kept = _in_force(against)
    for path in truths:
        check_input("--truth", path)
    tables = open_lake("calibrate", spark, lake)
    whole = tables.read("usage", schemas.USAGE)
    truth = read_jmx(tables.spark, truths)
    usage, found = _of_span(whole, span_of(truth), cluster)
    both = samples(usage, truth, how).persist()
    try:
        fitted = calibrate(both, {**DEFAULT_COSTS, **kept}, how).coalesce(1)
        tables.replace_of_cluster("costs", fitted, found.cluster)
    finally:
        both.unpersist()
    costs = tables.read_of_cluster("costs", schemas.COSTS, found.cluster)
    accepted = accepted_costs(costs)
    rows = costs.orderBy("api_key").collect()  # a row for each API
    for row in rows:
        report_result(_line(row))
    report_progress(f"{len(accepted)} of {len(rows)} APIs have better costs than those in force")
    if output is not None:
        _write(tables.spark, output, {**kept, **accepted}, {row.api_key: row for row in rows})
    return {"cluster": found.cluster, "apis": len(rows), "accepted": len(accepted), "output": output}


def _in_force(against: str | None) -> Mapping[int, RequestCost]:
    if against is None:
        return {}
    try:
        return load_costs(against, option="--against")
    except ValueError as error:
        raise InputError(str(error)) from error


def _of_span(usage: DataFrame, span: tuple[int, int], cluster: str | None) -> tuple[DataFrame, Recorded]:
    """Return the usage of the time in which the truth was sampled.

    Raises `InputError` if there is none, or if it is of several clusters.
    """
    first, last = span
    days = (sf.to_date(sf.timestamp_seconds(sf.lit(each))) for each in span)
    usage = usage.where(sf.col("date").between(*days) & sf.col("second").between(first, last))
    usage, found = of_one_cluster(usage, cluster)
    if not found.records:
        begin, end = (f"{datetime.fromtimestamp(each, UTC):%Y-%m-%d %H:%M:%S}" for each in span)
        whose = f" of cluster {cluster}" if cluster is not None else ""
        raise InputError(f"there is no usage{whose} from {begin} to {end} UTC, when --truth was sampled")
    return usage, found


def _line(row: Row) -> str:
    name = f"{api_name(row.api_key)} ({row.api_key})"
    if row.base_ms is None:
        return f"{name}: {row.reason}"
    return (
        f"{name}: {row.base_ms:.4g} ms + {row.per_kib_ms:.4g} ms/KiB, of {row.samples:,} intervals with"
        f" {row.requests:,} requests; {row.reason}"
    )


def _write(session: SparkSession, output: str, costs: Mapping[int, RequestCost], rows: Mapping[int, Row]) -> None:
    notes = {
        api_key: f"{api_name(api_key)}, {rows[api_key].reason.removeprefix('accepted: ')}"
        if api_key in rows and rows[api_key].accepted
        else f"{api_name(api_key)}: unchanged"
        for api_key in costs
    }
    head = (
        "Costs of requests, written by headrace pipeline calibrate for plugins.options.request_percentage.costs_file."
    )
    text = costs_text(costs, notes, head)
    write_file(session, output, [text])
    report_progress(f"wrote {len(costs)} costs to {output}")
