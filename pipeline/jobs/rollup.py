"""The command ``headrace pipeline rollup``."""

from __future__ import annotations

import calendar
import csv
import io
from decimal import Decimal
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.prices import read_prices
from headrace.pipeline.analysis.rollup import Period, bill, by_day, by_hour, read_teams
from headrace.pipeline.cli import (
    LAKE,
    check_input,
    check_output,
    day_options,
    report_progress,
    spark_options,
    write_file,
)
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.stores import read_text
from headrace.pipeline.lake.tables import Lake, of_days, open_lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from pyspark.sql import DataFrame, Row

    from headrace.pipeline.analysis.prices import PriceSheet
    from headrace.pipeline.lake.session import SparkOptions

SHOWN = 20


@click.command()
@LAKE
@day_options
@click.option(
    "--teams", metavar="PATH", help="CSV file with the columns user, client_id and team, local or in any store."
)
@click.option(
    "--prices", metavar="FILE", type=click.Path(dir_okay=False), help="Price sheet (TOML); with it, bills are written."
)
@click.option(
    "--per",
    type=click.Choice([period.value for period in Period]),
    default=Period.MONTH.value,
    show_default=True,
    help="Period of a bill.",
)
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="With --prices: CSV file for the bills."
)
@spark_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: date | None,
    last: date | None,
    teams: str | None,
    prices: str | None,
    per: str,
    output: str | None,
) -> None:
    """Sum usage by hour and day, sender and team; with --prices, write a bill for each team.

    Whole days are rewritten, so a run may be repeated; days that have no usage (any more) keep their rows. Bills are of
    all rolled up days of each period that contains one of the selected days.
    """
    if output is not None and prices is None:
        raise click.UsageError("--output is the file for the bills, which require --prices")
    check_output("--output", output)
    check_input("--teams", teams)
    sheet = None if prices is None else read_prices(prices)
    there = open_lake("rollup", spark, lake)
    with there.release() as tables:
        rolled_up = _roll_up(tables, first, last, teams)
        billed = sheet is not None and _bill(tables, first, last, sheet, Period(per))
    if rolled_up:
        _report_days(there, first, last)
    if sheet is not None and billed:
        _report_bills(there, first, last, sheet, Period(per), output)


def _roll_up(tables: Lake, first: date | None, last: date | None, teams: str | None) -> bool:
    """Write the rollups; return ``False`` if there is no usage."""
    spark = tables.spark
    rows = [] if teams is None else read_teams(read_text(spark, teams), teams)
    usage = of_days(tables.read("usage", schemas.USAGE), first, last)
    if usage.isEmpty():
        report_progress(f"{tables.root} has no usage{_between(first, last)}: nothing was rolled up")
        return False
    hours = by_hour(usage, spark.createDataFrame(rows, schemas.TEAMS))
    tables.replace("rollup_hour", hours.repartition("date"), "date")
    hours = of_days(tables.read("rollup_hour", schemas.ROLLUP_HOUR), first, last)
    tables.replace("rollup_day", by_day(hours).repartition("date"), "date")
    return True


def _report_days(tables: Lake, first: date | None, last: date | None) -> None:
    hours = of_days(tables.read("rollup_hour", schemas.ROLLUP_HOUR), first, last)
    days = of_days(tables.read("rollup_day", schemas.ROLLUP_DAY), first, last)
    size = sf.col("request_bytes") + sf.col("response_bytes")
    found = days.agg(
        sf.count_distinct("date").alias("days"),
        sf.count_distinct("user", "client_id").alias("senders"),
        sf.sum("requests").alias("requests"),
        sf.sum(size).alias("bytes"),
        sf.coalesce(sf.sum(sf.when(sf.col("user").isNull(), size)), sf.lit(0)).alias("unattributed"),
        sf.coalesce(sf.sum(sf.when(sf.col("user").isNotNull() & sf.col("team").isNull(), size)), sf.lit(0)).alias(
            "no_team"
        ),
    ).collect()[0]
    until = hours.agg(sf.date_format(sf.max("hour"), "yyyy-MM-dd HH:mm").alias("hour")).collect()[0].hour
    report_progress(
        f"{found.days:,} days, the last hour is {until} UTC; {found.senders:,} senders, {found.requests:,} requests,"
        f" {found.bytes:,} bytes, {found.unattributed:,} of them without a recorded sender and {found.no_team:,} of"
        " senders without a team"
    )


def _bill(tables: Lake, first: date | None, last: date | None, sheet: PriceSheet, period: Period) -> bool:
    """Write the bills; return ``False`` if there are no rolled up days."""
    first, last = _whole(period, first, last)
    days = of_days(tables.read_or_empty("rollup_day", schemas.ROLLUP_DAY), first, last)
    if days.isEmpty():
        report_progress(f"{tables.root} has no rolled up days{_between(first, last)}: no bill was written")
        return False
    tables.replace("chargeback", bill(days, sheet, period).repartition(1), "period", "date")
    return True


def _whole(period: Period, first: date | None, last: date | None) -> tuple[date | None, date | None]:
    """Return the first and the last day of the periods that have these days."""
    if period is Period.MONTH:
        first = None if first is None else first.replace(day=1)
        last = None if last is None else last.replace(day=calendar.monthrange(last.year, last.month)[1])
    return first, last


def _report_bills(
    tables: Lake, first: date | None, last: date | None, sheet: PriceSheet, period: Period, output: str | None
) -> None:
    lines = tables.read("chargeback", schemas.CHARGEBACK).where(sf.col("period") == period.value)
    lines = of_days(lines, *_whole(period, first, last))
    if output is not None:
        write_file(tables.spark, output, _as_csv(lines.orderBy("date", "team", "line"), sheet))
        report_progress(f"the bill is in {output}")
    totals = lines.where("item = 'total'")
    found = totals.agg(sf.count("*").alias("bills"), sf.sum("amount").alias("amount")).collect()[0]
    report_progress(f"{found.bills:,} bills, {_money(found.amount, sheet)} in all")
    for row in totals.orderBy(sf.desc("amount"), "date", "team").limit(SHOWN).collect():
        report_progress(
            f"  {row.date:{'%Y-%m' if period is Period.MONTH else '%Y-%m-%d'}}  {row.team}  {_money(row.amount, sheet)}"
        )
    billed = {
        row.team for row in totals.where(sf.col("team").isin(list(sheet.teams))).select("team").distinct().collect()
    }
    for team in sorted(sheet.teams.keys() - billed):
        report_progress(f"the price sheet has prices for team {team}, which has no usage")


def _as_csv(lines: DataFrame, sheet: PriceSheet) -> Iterator[str]:
    """Yield the lines of the CSV file one by one, so that memory does not grow with their number."""

    def line(cells: list[str]) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        return text.getvalue()

    yield line(schemas.CHARGEBACK.names)
    for row in lines.toLocalIterator():
        yield line([_cell(name, row, sheet) for name in schemas.CHARGEBACK.names])


def _cell(name: str, row: Row, sheet: PriceSheet) -> str:
    value = row[name]
    if name == "amount":
        return f"{value:.{sheet.decimals}f}"
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return "" if value is None else str(value)


def _money(amount: Decimal, sheet: PriceSheet) -> str:
    return f"{amount:,.{sheet.decimals}f} {sheet.currency}"


def _between(first: date | None, last: date | None) -> str:
    return "".join(f" {word} {day}" for word, day in (("from", first), ("to", last)) if day is not None)
