"""The sections about bills and budgets, from the tables ``chargeback`` and ``budgets``. Money is decimal; each sum is
of one cluster (or of bills across clusters), currency and kind of period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.report import sums, words
from headrace.pipeline.report.page import Column, Content, Table
from headrace.pipeline.report.usage import others

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

TOTAL: Final = "total"
"""The line of a bill that is the sum of the lines before it."""
MOST_KINDS: Final = 12
"""Maximum number of combinations of cluster, currency and kind of period."""
MOST_ITEMS: Final = 100
"""Maximum number of items shown; a price sheet has six prices and some shared costs, and a bill two more lines."""


def bills(table: DataFrame) -> Content:
    """Return the section, from the table ``chargeback``."""
    by = ("period", "cluster", "currency")
    kinds = table.select(*by).distinct().orderBy(*by).limit(MOST_KINDS).collect()
    if not kinds:
        return Content(sentences=("The table chargeback has no bills of periods that begin on these days.",))
    parts = [part for kind in kinds for part in _of_kind(table, *kind)]
    return Content(sentences=("Sums over the bills of all periods that begin on these days.",), parts=tuple(parts))


def _of_kind(table: DataFrame, period: str, cluster: str | None, currency: str) -> Iterator[Table]:
    of_cluster = sf.col("cluster").eqNullSafe(sf.lit(cluster))
    lines = table.where((sf.col("period") == period) & of_cluster & (sf.col("currency") == currency))
    whose = "all clusters" if cluster is None else f"cluster {words.name(cluster)}"
    heading = f"Bills by {words.name(period)} of {whose}, in {words.name(currency)}"
    money = Column(title=words.name(currency), number=True)
    totals = lines.where(sf.col("item") == TOTAL).groupBy("team")
    summed = totals.agg(sf.count("*").alias("bills"), sf.sum("amount").alias("amount"))
    teams = sums.ranking(summed, ("bills", "amount"), sf.desc("amount"), sf.col("team"))
    rows = [(words.name(row["team"]), words.count(row["bills"]), words.money(row["amount"])) for row in teams.rows]
    if teams.other_rows:
        rows.append((others(teams.other_rows), words.count(teams.others["bills"]), words.money(teams.others["amount"])))
    rows.append(("all", words.count(teams.total["bills"]), words.money(teams.total["amount"])))
    yield Table(
        caption=f"{heading}: teams, at most {sums.SHOWN}",
        columns=(Column(title="team"), Column(title="bills", number=True), money),
        rows=tuple(rows),
    )
    items = (
        lines.where(sf.col("item") != TOTAL)
        .groupBy("line", "item", "per")
        .agg(sf.sum("quantity").alias("quantity"), sf.sum("amount").alias("amount"))
    )
    yield Table(
        caption=f"{heading}: items",
        columns=(Column(title="item"), Column(title="used", number=True), Column(title="unit"), money),
        rows=tuple(
            (
                words.name(row["item"]),
                words.number(None if row["quantity"] is None else float(row["quantity"])),
                words.name(row["per"]),
                words.money(row["amount"]),
            )
            for row in items.orderBy("line", "item", "per").limit(MOST_ITEMS).collect()
        ),
    )


def budgets(table: DataFrame) -> Content:
    """Return the section, from the table ``budgets``: its newest month."""
    newest = table.agg(sf.max("month").alias("month")).collect()[0].month
    if newest is None:
        return Content(sentences=("The table budgets has no months that begin on these days.",))
    of_month = table.where(sf.col("month") == sf.lit(newest))
    found = of_month.agg(
        sf.count("*").alias("budgets"),
        sf.count("state").alias("alerts"),
        sf.date_format(sf.max("checked"), "yyyy-MM-dd HH:mm").alias("checked"),
    ).collect()[0]
    rows = of_month.orderBy(sf.desc("share"), "team", "cluster").limit(sums.SHOWN).collect()
    sentence = (
        f"{newest:%Y-%m}, as of {found.checked} UTC: {words.some(found.alerts, 'alert')} for"
        f" {words.some(found.budgets, 'budget')}. The forecast is for the end of the month, if usage goes on as so far."
    )
    budget_table = Table(
        caption=f"Budgets of {newest:%Y-%m}: the largest shares, at most {sums.SHOWN}",
        columns=(
            Column(title="team"),
            Column(title="cluster"),
            *(Column(title=title, number=True) for title in ("budget", "spent", "forecast")),
            Column(title="currency"),
            Column(title="share spent", number=True),
            Column(title="state", whole=True),
        ),
        rows=tuple(
            (
                words.name(row.team),
                words.name(row.cluster, none="all"),
                words.money(row.budget),
                words.money(row.spent),
                words.money(row.forecast),
                words.name(row.currency),
                words.share(row.share, 1),
                "no alert" if row.state is None else f"alert at {row.state} %",
            )
            for row in rows
        ),
    )
    return Content(sentences=(sentence,), parts=(budget_table,))
