"""The command ``headrace pipeline anomalies``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomalies.rules import Rules
from headrace.pipeline.analysis.anomalies.stored import Days
from headrace.pipeline.cli import LAKE, day_options, job_options, number_option
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.day_counts import recorded_by_day
from headrace.pipeline.lake.tables import Lake, open_lake
from headrace.pipeline.output import report_progress, report_result
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from datetime import date

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

RULES = Rules()
BEHIND_S: Final = 3600
"""Usage is taken to be complete up to the second that all instances have reached that are behind the newest record by
less than this. Those that are further behind have ended, or were killed."""
SHOWN = 50
MINUTES_OF_A_DAY = 1440


@click.command(cls=Command)
@LAKE
@day_options
@number_option(
    "--window", click.IntRange(1, MINUTES_OF_A_DAY), RULES.window_s // 60,
    "Length of a window; it must divide a day.", metavar="MINUTES",
)  # fmt: skip
@number_option(
    "--past", click.IntRange(1), RULES.past_days,
    "Days before a day with which its windows are compared, besides its own earlier hours.",
    metavar="DAYS", to="past_days",
)  # fmt: skip
@number_option(
    "--least-past", click.IntRange(2), RULES.least_past,
    "An entity with usage in fewer windows is not compared with its past.", metavar="WINDOWS",
)  # fmt: skip
@number_option(
    "--score",
    click.FloatRange(0),
    RULES.score,
    "Minimum deviation in multiples of the usual spread, on a logarithmic scale.",
)
@number_option(
    "--factor", click.FloatRange(1), RULES.factor,
    "Minimum deviation as a multiple, or fraction, of the usual value.",
)  # fmt: skip
@number_option(
    "--known", click.IntRange(1), RULES.known_hours, "A level reached in this many earlier hours is not reported.",
    metavar="HOURS", to="known_hours",
)  # fmt: skip
@number_option(
    "--least-ids", click.IntRange(1), RULES.least_ids,
    "Minimum number of new producer ids in a window.",
)  # fmt: skip
@number_option(
    "--least-failed", click.IntRange(1), RULES.least_failed, "Minimum number of requests that failed or were refused."
)
@number_option(
    "--least-connections", click.IntRange(1), RULES.least_connections, "Minimum number of connections opened."
)
@number_option(
    "--least-bytes", click.IntRange(1), RULES.least_bytes, "Minimum bytes of requests and replies, observed or usual."
)
@number_option(
    "--least-thread-ms",
    click.FloatRange(0, min_open=True),
    RULES.least_thread_ms,
    "Minimum thread time, observed or usual.",
)
@job_options
def command(
    *, spark: SparkOptions, lake: str, first: date | None, last: date | None, window: int, **rules_given: Any
) -> Result:
    """Find entities whose usage differs from their own earlier usage: producer ids, retries, connections, bytes and
    thread time.

    The table anomalies is rewritten for the days that are examined: by default, the last two days of usage. A day's
    windows, and sketches with which later days are compared, are kept in anomaly_windows, anomaly_sketches and
    anomaly_past. An entity with fewer than --least-past windows is reported only if at least half of its requests fail
    (or open a connection, or request a producer id), and there are at least five times as many as the matching --least
    option says.
    """
    if MINUTES_OF_A_DAY % window:
        raise click.BadParameter(f"--window {window}: expected a divisor of the {MINUTES_OF_A_DAY} minutes of a day")
    rules = Rules(window_s=window * 60, **rules_given)
    tables = open_lake("anomalies", spark, lake)
    newest, until_s = _end(tables)
    if newest is None:
        report_progress("the lake has no usage, so no day was examined")
        return {"anomalies": {}}
    end = newest if last is None else last
    begin = end - timedelta(days=1) if first is None else first
    if begin > end:
        raise InputError(f"--from {begin} is after {end}, the last day with usage")
    Days(lake=tables, until_s=until_s, rules=rules).examine(begin, end)
    return {"first": begin, "last": end, "anomalies": _report_result(tables, begin, end)}


def _end(tables: Lake) -> tuple[date | None, int]:
    """Return the newest day with usage, and the second (exclusive) up to which its usage has been ingested: of all
    instances that have written in the hour before the newest record, since the files of some may come later."""
    newest = max(recorded_by_day(tables), default=None)
    of_day = tables.read("usage", schemas.USAGE).where(sf.col("date") == sf.lit(newest))
    seconds = [row.second for row in of_day.groupBy("instance").agg(sf.max("second").alias("second")).collect()]
    return newest, min((each for each in seconds if each > max(seconds) - BEHIND_S), default=0) + 1


def _report_result(tables: Lake, first: date, last: date) -> dict[str, int]:
    """Report the anomalies of these days; return their number by kind."""
    whole = tables.read("anomalies", schemas.ANOMALIES).where(sf.col("date").between(first, last))
    counts = whole.groupBy("kind").count().orderBy("kind").collect()  # a row for each of a few kinds
    by_kind: dict[str, int] = {row.kind: row["count"] for row in counts}
    kinds = ", ".join(f"{count:,} x {kind}" for kind, count in by_kind.items()) or "nothing unusual"
    report_progress(f"{first:%Y-%m-%d} to {last:%Y-%m-%d}: {kinds}")
    shown = whole.orderBy("start", "user", "client_id", "kind", "cluster").limit(SHOWN)
    when = sf.date_format("start", "yyyy-MM-dd HH:mm").alias("when")  # Python would convert to the machine's time zone
    for row in shown.select(when, "kind", "description").collect():
        report_result(f"{row.when} {row.kind}: {row.description}")
    if sum(by_kind.values()) > SHOWN:
        report_progress(f"these are the first {SHOWN}; the table anomalies has all of them")
    return by_kind
