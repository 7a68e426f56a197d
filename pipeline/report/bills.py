"""Bills, as the table ``chargeback`` has them. Money is decimal, and each sum is of one currency and kind of period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from pipeline.report import sums, words
from pipeline.report.page import Column, Content, Table
from pipeline.report.usage import others

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

NEEDED: Final = ("team", "item", "amount")
TOTAL: Final = "total"
"""The line of a bill that is the sum of those before it."""
MOST_KINDS: Final = 6
"""Currencies by day or month."""


def bills(table: DataFrame) -> Content:
    """The table ``chargeback``, or any with teams, items and amounts; one with a ``total`` for each bill."""
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        found = ", ".join(table.columns)
        told = f"The table chargeback has no column {', '.join(missing)}, and cannot be shown; it has {found}."
        return Content(sentences=(told,))
    for name in ("period", "currency"):
        if name not in table.columns:
            table = table.withColumn(name, sf.lit(None).cast("string"))
    kinds = table.select("period", "currency").distinct().orderBy("period", "currency").limit(MOST_KINDS).collect()
    if not kinds:
        return Content(sentences=("The table chargeback has no bills of this time.",))
    parts = [part for period, currency in kinds for part in _of_kind(table, period, currency)]
    return Content(sentences=("Sums over all bills of this time, before taxes.",), parts=tuple(parts))


def _of_kind(table: DataFrame, period: str | None, currency: str | None) -> Iterator[Table]:
    of_kind = sf.col("period").eqNullSafe(sf.lit(period)) & sf.col("currency").eqNullSafe(sf.lit(currency))
    lines = table.where(of_kind)
    told = "".join(
        f", {word}" for word in (f"by {words.name(period)}" if period else "", words.name(currency, "")) if word
    )
    totals = (
        lines.where(sf.col("item") == TOTAL)
        .groupBy("team")
        .agg(sf.count("*").alias("bills"), sf.sum("amount").alias("amount"))
    )
    teams = sums.ranking(totals, ("bills", "amount"), sf.desc("amount"), sf.col("team"))
    rows = [(words.name(row["team"]), words.count(row["bills"]), words.money(row["amount"])) for row in teams.rows]
    if teams.other_rows:
        rows.append((others(teams.other_rows), words.count(teams.others["bills"]), words.money(teams.others["amount"])))
    rows.append(("all", words.count(teams.total["bills"]), words.money(teams.total["amount"])))
    yield Table(
        caption=f"Bills{told}, by team, at most {sums.SHOWN}",
        columns=(Column(title="team"), Column(title="bills", number=True), Column(title="amount", number=True)),
        rows=tuple(rows),
    )
    items = lines.where(sf.col("item") != TOTAL).groupBy("item").agg(sf.sum("amount").alias("amount"))
    yield Table(
        caption=f"Bills{told}, by item",
        columns=(Column(title="item"), Column(title="amount", number=True)),
        rows=tuple(
            (words.name(row["item"]), words.money(row["amount"]))
            for row in items.orderBy(sf.desc("amount"), "item").limit(sums.SHOWN).collect()
        ),
    )
