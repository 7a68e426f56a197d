"""The command ``headrace pipeline focus``."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import click
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.prices import read_prices
from headrace.pipeline.cli import LAKE, day_options, job_options
from headrace.pipeline.finops.focus import VERSION, Issuer, focus_cells
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import of_days, open_lake
from headrace.pipeline.output import check_output, csv_lines, report_progress, write_file
from headrace.quota_callbacks.commands import Command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from pyspark.sql import DataFrame, Row

    from headrace.pipeline.lake.session import SparkOptions
    from headrace.pipeline.output import Result


@click.command(cls=Command)
@LAKE
@day_options
@click.option("--output", required=True, metavar="FILE", help="The CSV file, local or in any store.")
@click.option(
    "--per", type=click.Choice(["day", "month"]), default="month", show_default=True, help="Which bills to export."
)
@click.option(
    "--prices",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Price sheet (TOML) with the list prices; without it, they are those of the bills.",
)
@click.option(
    "--provider", default="Headrace", show_default=True, metavar="NAME", help="Who provides Kafka and bills it."
)
@click.option("--account", default="headrace", show_default=True, metavar="NAME", help="The billing account.")
@job_options
def command(
    *,
    spark: SparkOptions,
    lake: str,
    first: date | None,
    last: date | None,
    output: str,
    per: str,
    prices: str | None,
    provider: str,
    account: str,
) -> Result:
    """Export bills as CSV in the columns of FOCUS 1.2, for tools that compare the costs of several providers.

    Exports the monthly (with --per day, the daily) bills of each period that contains a selected day. The sum of
    BilledCost is that of the bills' totals. An existing file is replaced.
    """
    check_output("--output", output)
    for option, name in (("--provider", provider), ("--account", account)):
        if not name.strip():
            raise click.UsageError(f"{option}: expected a name")
    listed = {} if prices is None else read_prices(prices).prices()
    there = open_lake("focus", spark, lake)
    begin = first.replace(day=1) if first is not None and per == "month" else first
    bills = there.read("chargeback", schemas.CHARGEBACK).where(sf.col("period") == per)
    lines = of_days(bills, begin, last).orderBy("date", "cluster", "team", "line")
    written = _Counted(lines)
    issuer = Issuer(provider=provider, account=account, prices=listed)
    write_file(there.spark, output, csv_lines(focus_cells(written, issuer)))
    amounts = ", ".join(f"{amount:,.2f} {currency}" for currency, amount in written.totals.items()) or "no bills"
    report_progress(f"{written.bills:,} bills by {per} are in {output}, in the columns of FOCUS {VERSION}: {amounts}")
    return {"output": output, "bills": written.bills, "amounts": written.totals}


class _Counted:
    """Lines of bills one by one, so that memory does not grow with their number; counts bills and their totals."""

    def __init__(self, lines: DataFrame) -> None:
        self._lines = lines
        self.bills = 0
        self.totals: dict[str, Decimal] = {}
        """The sum of all lines, by currency."""

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines.toLocalIterator():
            if line["item"] == "total":
                self.bills += 1
                self.totals[line.currency] = self.totals.get(line.currency, Decimal(0)) + line.amount
            yield line
