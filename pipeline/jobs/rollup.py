"""The command ``headrace pipeline rollup``."""

from __future__ import annotations

import calendar
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.prices import read_prices
from headrace.pipeline.analysis.rollup import (
    Period,
    bill,
    by_day,
    by_hour,
    changed_days,
    changed_periods,
    first_day,
    start_of,
    with_clusters,
)
from headrace.pipeline.analysis.teams import parse_messages, read_teams
from headrace.pipeline.cli import LAKE, check_input, day_options, job_options, kafka_options, settings_of
from headrace.pipeline.ingestion.sources import KafkaSource
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.day_counts import recorded_by_day, rolled_up_by_day
from headrace.pipeline.lake.retained import removed_before
from headrace.pipeline.lake.stores import read_text
from headrace.pipeline.lake.tables import Lake, of_days, open_lake
from headrace.pipeline.output import check_output, csv_lines, report_progress, write_file
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date

    from pyspark.sql import DataFrame, Row, SparkSession

    from headrace.pipeline.analysis.prices import PriceSheet
    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result

SHOWN = 20


@click.command(cls=Command)
@LAKE
@day_options
@click.option(
    "--teams",
    metavar="PATH",
    help="CSV file with the columns user, client_id, topic and team, local or in any store.",
)
@click.option("--teams-topic", metavar="NAME", help="Compacted topic with teams, in place of a file.")
@kafka_options
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
    "--across-clusters", is_flag=True, help="One bill for a team's usage of all clusters, not one for each cluster."
)
@click.option(
    "--again",
    is_flag=True,
    help="Also replace days and bills whose usage has not changed, for example after a change of teams or prices.",
)
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="With --prices: CSV file for the bills."
)
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: date | None,
    last: date | None,
    teams: str | None,
    teams_topic: str | None,
    bootstrap_servers: str | None,
    kafka: tuple[str, ...],
    prices: str | None,
    per: str,
    across_clusters: bool,
    again: bool,
    output: str | None,
) -> Result:
    """Sum usage by hour and day, cluster, sender and team; with --prices, write a bill for each cluster and team.

    Only days whose usage has changed are rolled up. Only the bills of periods with such days, and bills that do not
    exist yet, are written; --again rolls up and writes all. The rows of a day whose usage was removed are kept, as are
    bills of periods of which rolled up days were removed. A bill is for all rolled up days of its period, if the period
    contains one of the selected days.
    """
    if output is not None and prices is None:
        raise click.UsageError("--output is the file for the bills, which require --prices")
    if across_clusters and prices is None:
        raise click.UsageError("--across-clusters is about bills, which require --prices")
    check_output("--output", output)
    check_input("--teams", teams)
    topic = _topic(teams_topic, bootstrap_servers, kafka)
    if topic is not None and teams is not None:
        raise click.UsageError("--teams and --teams-topic are two sources of teams; expected one")
    sheet = None if prices is None else read_prices(prices)
    there = open_lake("rollup", spark, lake, kafka=topic is not None)
    owners = _owners(there.spark, teams, topic)
    bills = None if sheet is None else Bills(sheet, Period(per), across_clusters=across_clusters)
    with there.release() as tables:
        changed = _roll_up(tables, first, last, owners, again=again)
        billed = [] if bills is None else bills.write(tables, first, last, again=again)
    result: Result = {"days": changed}
    if changed:
        result |= _report_days(there, changed)
    if bills is not None:
        result |= bills.report(there, first, last, billed, output)
    return result


def _topic(topic: str | None, servers: str | None, settings: tuple[str, ...]) -> KafkaSource | None:
    """Return the topic with teams. Raises `click.UsageError` if only a part of the options is given."""
    if topic is None and (servers is not None or settings):
        raise click.UsageError("--bootstrap-servers and --kafka are about a topic with teams: --teams-topic")
    if topic is None:
        return None
    if servers is None:
        raise click.UsageError(f"--teams-topic {topic} requires --bootstrap-servers")
    client = settings_of(settings, "--kafka")
    return KafkaSource(topic=topic, bootstrap_servers=servers, client=client, option="--teams-topic")


def _owners(spark: SparkSession, path: str | None, topic: KafkaSource | None) -> DataFrame:
    """Return the teams (`schemas.TEAMS`) of the file or of the topic; empty without either."""
    rows = [] if path is None else read_teams(read_text(spark, path), path)
    if topic is not None:
        rows = parse_messages(topic.newest(spark), topic.topic)
        report_progress(f"--teams-topic {topic.topic}: {len(rows):,} lines")
    return spark.createDataFrame(rows, schemas.TEAMS)


def _roll_up(tables: Lake, first: date | None, last: date | None, owners: DataFrame, *, again: bool) -> list[date]:
    """Write the rollups of the days that have changed, or of all; return these days."""
    rolled_up = rolled_up_by_day(tables, first, last)
    # Counted before it is read: with records that are added meanwhile, the day has changed for the next run.
    recorded = recorded_by_day(tables, first, last)
    days = changed_days(recorded, {} if again else rolled_up)
    fewer = [day for day, records in recorded.items() if records < (rolled_up.get(day) or 0)]
    if fewer and not again:
        report_progress(
            f"usage of {len(fewer):,} days was removed since they were rolled up, the first is {min(fewer)}: their rows"
            " are kept; --again replaces them"
        )
    if not days:
        what = "no new usage" if rolled_up else "no usage"
        report_progress(f"{tables.root} has {what}{_between(first, last)}: nothing was rolled up")
        return []
    chosen = sf.col("date").isin(days)
    usage = tables.read("usage", schemas.USAGE).where(chosen)
    if not usage.where("cluster IS NULL").isEmpty():  # Delta Lake's statistics show which files have such rows
        usage = with_clusters(usage)
    hours = by_hour(usage, owners)
    tables.replace("rollup_hour", hours.repartition("date"), "date")
    hours = tables.read("rollup_hour", schemas.ROLLUP_HOUR).where(chosen)
    tables.replace("rollup_day", by_day(hours).repartition("date"), "date")
    return days


def _report_days(tables: Lake, days: Sequence[date]) -> Result:
    chosen = sf.col("date").isin(list(days))
    hours = tables.read("rollup_hour", schemas.ROLLUP_HOUR).where(chosen)
    size = sf.col("request_bytes") + sf.col("response_bytes")
    found = (
        tables.read("rollup_day", schemas.ROLLUP_DAY)
        .where(chosen)
        .agg(
            sf.count_distinct("user", "client_id").alias("senders"),
            sf.sum("requests").alias("requests"),
            sf.sum(size).alias("bytes"),
            sf.coalesce(sf.sum(sf.when(sf.col("user").isNull(), size)), sf.lit(0)).alias("unattributed"),
            sf.coalesce(sf.sum(sf.when(sf.col("user").isNotNull() & sf.col("team").isNull(), size)), sf.lit(0)).alias(
                "no_team"
            ),
            sf.sum("records").alias("records"),
        )
        .collect()[0]
    )
    until = hours.agg(sf.date_format(sf.max("hour"), "yyyy-MM-dd HH:mm").alias("hour")).collect()[0].hour
    report_progress(
        f"{len(days):,} days, the last hour is {until} UTC; {found.senders:,} senders, {found.requests:,} requests,"
        f" {found.bytes:,} bytes; {found.unattributed:,} bytes have no recorded sender, and {found.no_team:,} bytes are"
        " of senders that have no team"
    )
    return {**found.asDict(), "last_hour": until}


class Bills:
    """The bills by one price sheet."""

    def __init__(self, sheet: PriceSheet, period: Period, *, across_clusters: bool) -> None:
        self._sheet = sheet
        self._period = period
        self._across_clusters = across_clusters

    def write(self, tables: Lake, first: date | None, last: date | None, *, again: bool) -> list[date]:
        """Write the bills of periods whose rolled up usage has changed, and missing bills; with ``again``, all bills.

        Return the first days of these periods.
        """
        first, last = _whole(self._period, first, last)
        rolled_up = rolled_up_by_day(tables, first, last)
        starts = {first_day(day, self._period) for day in rolled_up}
        if not starts:
            report_progress(f"{tables.root} has no rolled up days{_between(first, last)}: no bill was written")
            return []
        kept_from = removed_before(tables).get("rollup_day")
        partial = {start for start in starts if kept_from is not None and start < kept_from}
        if partial:
            report_progress(
                f"the rolled up days before {kept_from} were removed (retain), so no bills of {len(partial):,} periods"
                " are written, and those that exist are kept"
            )
        starts -= partial
        changed = changed_periods(rolled_up, self._billed(tables), self._period)
        due = sorted(starts if again else starts.intersection(changed))
        if due:
            of_due = tables.read("rollup_day", schemas.ROLLUP_DAY).where(start_of(self._period).isin(due))
            lines = bill(of_due, self._sheet, self._period, across_clusters=self._across_clusters)
            tables.replace("chargeback", lines.repartition(1), "period", "date")
        if left := len(starts) - len(due):
            report_progress(
                f"the usage of {left:,} periods has not changed, so their bills are kept; --again replaces them"
            )
        return due

    def report(
        self, tables: Lake, first: date | None, last: date | None, written: Sequence[date], output: str | None
    ) -> Result:
        """Report the bills of the selected days, and write them to the file ``output``."""
        if not tables.has("chargeback"):
            return {"bills": 0, "periods": []}
        lines = of_days(self._lines(tables), *_whole(self._period, first, last))
        if output is not None:
            ordered = lines.orderBy("date", "cluster", "team", "line")
            write_file(tables.spark, output, csv_lines(self._cells(ordered)))
            report_progress(f"the bills are in {output}")
        totals = lines.where("item = 'total'")
        by = ("cluster", "currency")  # bills that were kept may have another currency than the price sheet
        sums = totals.groupBy(*by).agg(sf.count("*").alias("bills"), sf.sum("amount").alias("amount"))
        found = [row.asDict() for row in sums.orderBy(*by).collect()]
        for each in found:
            report_progress(f"{_cluster(each)}: {each['bills']:,} bills, {self._money(each)} in all")
        for row in totals.orderBy(sf.desc("amount"), "date", "cluster", "team").limit(SHOWN).collect():
            period = f"{row.date:{'%Y-%m' if self._period is Period.MONTH else '%Y-%m-%d'}}"
            report_progress(f"  {period}  {_cluster(row)}  {row.team}  {self._money(row)}")
        teams = self._sheet.teams
        named = totals.where(sf.col("team").isin(list(teams))).select("team").distinct()
        billed = {row.team for row in named.collect()} if teams else set()
        for team in sorted(teams.keys() - billed):
            report_progress(f"the price sheet has prices for team {team}, which has no usage")
        return {"bills": sum(each["bills"] for each in found), "totals": found, "periods": list(written)}

    def _billed(self, tables: Lake) -> dict[date, int | None]:
        """Return the number of usage records that the bills of each period are of."""
        totals = self._lines(tables).where("item = 'total'").groupBy("date").agg(sf.sum("records").alias("records"))
        return {row.date: row.records for row in totals.collect()}

    def _lines(self, tables: Lake) -> DataFrame:
        lines = tables.read_or_empty("chargeback", schemas.CHARGEBACK)
        return lines.where(sf.col("period") == self._period.value)

    def _money(self, bill: Row | dict[str, Any]) -> str:
        amount = bill["amount"]
        return f"{amount:,.{self._decimals(amount)}f} {bill['currency']}"

    def _decimals(self, amount: Decimal) -> int:
        """Return the number of decimals to show: those of the price sheet, or more for an amount of another one."""
        return max(self._sheet.decimals, -int(amount.normalize().as_tuple().exponent))

    def _cells(self, lines: DataFrame) -> Iterator[list[str]]:
        """Yield the rows of the CSV file."""
        yield schemas.CHARGEBACK.names
        for row in lines.toLocalIterator():
            yield [self._cell(name, row) for name in schemas.CHARGEBACK.names]

    def _cell(self, name: str, row: Row) -> str:
        value = row[name]
        if name == "amount":
            return f"{value:.{self._decimals(value)}f}"
        if isinstance(value, Decimal):
            return f"{value.normalize():f}"
        return "" if value is None else str(value)


def _cluster(bill: Row | dict[str, Any]) -> str:
    return bill["cluster"] or "all clusters"


def _whole(period: Period, first: date | None, last: date | None) -> tuple[date | None, date | None]:
    """Return the first and the last day of the periods that have these days."""
    if period is Period.MONTH:
        first = None if first is None else first.replace(day=1)
        last = None if last is None else last.replace(day=calendar.monthrange(last.year, last.month)[1])
    return first, last


def _between(first: date | None, last: date | None) -> str:
    return "".join(f" {word} {day}" for word, day in (("from", first), ("to", last)) if day is not None)
