"""``headrace pipeline anomalies``."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from pipeline import schemas
from pipeline.anomalies import anomalies
from pipeline.anomaly_past import Rules, windows_of
from pipeline.cli import LAKE, spark_options, told
from pipeline.errors import InputError
from pipeline.lake import Lake
from pipeline.session import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date, datetime

    from pyspark.sql import DataFrame

    from pipeline.session import SparkOptions

RULES = Rules()
SHOWN = 50
MINUTES_OF_A_DAY = 1440
DATE = click.DateTime(formats=["%Y-%m-%d"])


@click.command()
@LAKE
@click.option("--from", "first", type=DATE, metavar="DATE", help="The first day to judge.  [default: the last but one]")
@click.option("--to", "last", type=DATE, metavar="DATE", help="The last day to judge.  [default: the last there is]")
@click.option(
    "--window", type=click.IntRange(1, MINUTES_OF_A_DAY), default=RULES.window_s // 60, show_default=True,
    metavar="MINUTES", help="What is judged as one; days have to be multiples of it.",
)  # fmt: skip
@click.option(
    "--past", type=click.IntRange(1), default=RULES.past_days, show_default=True, metavar="DAYS",
    help="With how many days before a day, and the day itself so far, its windows are compared.",
)  # fmt: skip
@click.option(
    "--least-past", type=click.IntRange(2), default=RULES.least_past, show_default=True, metavar="WINDOWS",
    help="Who has used something in fewer is compared with nothing.",
)  # fmt: skip
@click.option(
    "--score", type=click.FloatRange(0), default=RULES.score, show_default=True,
    help="So many times the usual spread off, on a logarithmic scale,",
)  # fmt: skip
@click.option(
    "--factor", type=click.FloatRange(1), default=RULES.factor, show_default=True,
    help="and so many times the usual, or that part of it, is unlike the past,",
)  # fmt: skip
@click.option(
    "--known", type=click.IntRange(1), default=RULES.known_hours, show_default=True, metavar="HOURS",
    help="unless it has come in so many earlier hours.",
)  # fmt: skip
@click.option(
    "--least-ids", type=click.IntRange(1), default=RULES.least_ids, show_default=True,
    help="New producer ids in a window that are worth telling; the same for what follows.",
)  # fmt: skip
@click.option(
    "--least-failed", type=click.IntRange(1), default=RULES.least_failed, show_default=True,
    help="Requests that failed or were refused.",
)  # fmt: skip
@click.option(
    "--least-connections", type=click.IntRange(1), default=RULES.least_connections, show_default=True,
    help="Connections opened.",
)  # fmt: skip
@click.option(
    "--least-bytes", type=click.IntRange(1), default=RULES.least_bytes, show_default=True,
    help="Bytes of requests and replies, seen or usual.",
)  # fmt: skip
@click.option(
    "--least-thread-ms", type=click.FloatRange(0, min_open=True), default=RULES.least_thread_ms, show_default=True,
    help="Thread time, likewise.",
)  # fmt: skip
@spark_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: datetime | None,
    last: datetime | None,
    window: int,
    past: int,
    least_past: int,
    score: float,
    factor: float,
    known: int,
    least_ids: int,
    least_failed: int,
    least_connections: int,
    least_bytes: int,
    least_thread_ms: float,
) -> None:
    """Find what is unlike each entity's own past: producer ids, retries, connections, bytes and thread time.

    The table anomalies is made anew for the days that are judged. Without a past (of --least-past windows) only what is
    wrong in itself is told: half of all requests fail, open a connection, or ask for a producer id, and five times as
    many as is worth telling.
    """
    if MINUTES_OF_A_DAY % window:
        raise click.BadParameter(f"--window {window}: expected minutes that divide a day of {MINUTES_OF_A_DAY}")
    rules = Rules(
        window_s=window * 60, past_days=past, least_past=least_past, score=score, factor=factor, known_hours=known,
        least_ids=least_ids, least_failed=least_failed, least_connections=least_connections, least_bytes=least_bytes,
        least_thread_ms=least_thread_ms,
    )  # fmt: skip
    tables = Lake(start_session("anomalies", spark), lake)
    usage = tables.read("usage", schemas.USAGE)
    newest, until_s = _end(usage)
    if newest is None:
        told("there is no usage, so there is nothing to judge")
        return
    end = last.date() if last is not None else newest
    days = list(_days(first.date() if first is not None else end - timedelta(days=1), end))
    begin = sf.lit(days[0] - timedelta(days=rules.past_days))
    windows = windows_of(usage.where(sf.col("date").between(begin, sf.lit(days[-1]))), rules.window_s).persist()
    try:
        for day in days:
            tables.replace_partition("anomalies", judged(windows, day, until_s, rules).coalesce(1), "date", day)
    finally:
        windows.unpersist()
    _say(tables, days)


def judged(windows: DataFrame, day: date, until_s: int, rules: Rules) -> DataFrame:
    """The anomalies of ``day``, whatever other days there are."""
    date = sf.to_date(sf.timestamp_seconds("start"))
    begin = day - timedelta(days=rules.past_days)
    return anomalies(windows.where(date.between(sf.lit(begin), sf.lit(day))), day, until_s, rules)


def _end(usage: DataFrame) -> tuple[date | None, int]:
    """The newest day, and the second by which it is complete."""
    newest = usage.agg(sf.max("date")).collect()[0][0]
    second = usage.where(sf.col("date") == sf.lit(newest)).agg(sf.max("second")).collect()[0][0]
    return newest, (second or 0) + 1


def _days(first: date, last: date) -> Iterator[date]:
    if first > last:
        raise InputError(f"--from {first:%Y-%m-%d} is behind --to {last:%Y-%m-%d}")
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def _say(tables: Lake, days: list[date]) -> None:
    whole = tables.read("anomalies", schemas.ANOMALIES).where(sf.col("date").between(sf.lit(days[0]), sf.lit(days[-1])))
    counts = whole.groupBy("kind").count().orderBy("kind").collect()  # a row for each of a few kinds
    kinds = ", ".join(f"{row['count']:,} x {row.kind}" for row in counts) or "nothing unusual"
    told(f"{days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}: {kinds}")
    for row in whole.orderBy("start", "user", "client_id", "kind").limit(SHOWN).collect():
        click.echo(f"{row.start:%Y-%m-%d %H:%M} {row.kind}: {row.told}")
    if sum(row["count"] for row in counts) > SHOWN:
        told(f"the first {SHOWN}; the table anomalies has all")
