"""Rollup: sums of usage by hour and day, cluster and sender with its team, and the bills computed from them.

No usage is left out: usage without a sender has a row of its own, and a line in a bill of its own, so that all totals
equal those of the usage records. Sums are of integers, except for times; money is decimal.
"""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.events import FETCHES
from headrace.pipeline.analysis.prices import NO_TEAM, UNATTRIBUTED
from headrace.pipeline.analysis.usage import over_quotas
from headrace.pipeline.errors import InputError
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame, SparkSession

    from headrace.pipeline.analysis.prices import Item, PriceSheet

TeamRow = tuple[str | None, str | None, str]
"""User, client id and team (`schemas.TEAMS`)."""

MAX_TEAM_ROWS: Final = 1_000_000
"""Maximum number of lines in a teams file: each executor receives all of it."""
MAX_FAULTS_SHOWN: Final = 20
"""Maximum number of faults of a teams file that one error lists."""

_SENDER: Final = ("user", "client_id")
_SUMS: Final = tuple(name for name in schemas.TOTALS.names if name not in ("cluster", *_SENDER, "team"))
ENDS: Final = ("discount", "minimum", "total")
"""The last lines of a bill."""
_BY_QUOTA: Final = ("throttled", "throttle_ms", "refused")


class Period(StrEnum):
    """The period that a bill covers."""

    DAY = "day"
    MONTH = "month"


# --- rollups ----------------------------------------------------------------------------------------------------------


def by_hour(usage: DataFrame, teams: DataFrame) -> DataFrame:
    """Return the sums of usage (`schemas.USAGE`) by hour, cluster and sender, with the sender's team
    (`schemas.ROLLUP_HOUR`).
    """
    hour = sf.date_trunc("hour", sf.timestamp_seconds("second")).alias("hour")
    api_key = sf.col("api_key")
    special = {
        "produced_bytes": sf.sum(sf.when(api_key == ApiKey.PRODUCE.value, sf.col("request_bytes"))),
        "fetched_bytes": sf.sum(sf.when(api_key.isin(*FETCHES), sf.col("response_bytes"))),
        **{name: sf.sum(over_quotas(name)) for name in _BY_QUOTA},
        "records": sf.count("*"),
    }
    sums = [_or_zero(special[name] if name in special else sf.sum(name), name) for name in _SUMS]
    hours = usage.groupBy("date", hour, "cluster", *_SENDER).agg(*sums)
    return with_teams(hours, teams).select(*schemas.ROLLUP_HOUR.names)


def by_day(hours: DataFrame) -> DataFrame:
    """Return the sums of `by_hour` by day (`schemas.ROLLUP_DAY`)."""
    sums = [sf.sum(name).alias(name) for name in _SUMS]
    return hours.groupBy("date", "cluster", *_SENDER, "team").agg(*sums).select(*schemas.ROLLUP_DAY.names)


def changed_days(usage: DataFrame, days: DataFrame) -> list[date]:
    """Return the days of which ``usage`` has another number of records than was rolled up, in order.

    ``days`` are the rolled up days (`schemas.ROLLUP_DAY`). A day without usage has not changed: its usage may have been
    removed since.
    """
    counted = usage.groupBy("date").agg(sf.count("*").alias("records"))
    before = days.groupBy("date").agg(sf.sum("records").alias("rolled_up"))
    differ = counted.join(before, "date", "left").where(~sf.col("records").eqNullSafe(sf.col("rolled_up")))
    return sorted(row.date for row in differ.select("date").collect())


def with_teams(senders: DataFrame, teams: DataFrame) -> DataFrame:
    """Add ``team``: by user and client id, else by user, else by client id, else null (`schemas.TEAMS`)."""
    has_user, has_client = sf.col("user").isNotNull(), sf.col("client_id").isNotNull()
    of_both = teams.where(has_user & has_client).select(*_SENDER, sf.col("team").alias("_of_both"))
    of_user = teams.where(has_user & ~has_client).select("user", sf.col("team").alias("_of_user"))
    of_client = teams.where(~has_user & has_client).select("client_id", sf.col("team").alias("_of_client"))
    return (
        senders.join(sf.broadcast(of_both), list(_SENDER), "left")
        .join(sf.broadcast(of_user), "user", "left")
        .join(sf.broadcast(of_client), "client_id", "left")
        .withColumn("team", sf.coalesce("_of_both", "_of_user", "_of_client"))
        .drop("_of_both", "_of_user", "_of_client")
    )


def _or_zero(total: Column, name: str) -> Column:
    return sf.coalesce(total, sf.lit(0).cast(schemas.TOTALS[name].dataType)).alias(name)


# --- teams ------------------------------------------------------------------------------------------------------------


def read_teams(text: str, path: str) -> list[TeamRow]:
    """Parse a teams file: CSV with the columns ``user``, ``client_id`` and ``team``; user or client id may be empty.

    Raises `InputError` with the faulty lines, at most `MAX_FAULTS_SHOWN` of them.
    """
    lines = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    rows: dict[tuple[str | None, str | None], tuple[int, str]] = {}
    faults: list[str] = []
    try:
        header = [name.strip() for name in next(lines, [])]
        if header != schemas.TEAMS.names:
            got = ",".join(header) or "nothing"
            raise InputError(f"{path}:1: expected the columns {','.join(schemas.TEAMS.names)}; got {got}")
        for cells in lines:
            fault = _take_team(cells, lines.line_num, rows)
            if fault is not None:
                faults.append(f"{path}:{lines.line_num}: {fault}")
            if len(rows) > MAX_TEAM_ROWS:
                raise InputError(
                    f"{path}: more than {MAX_TEAM_ROWS:,} lines; assign whole users or client ids to teams"
                )
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: not CSV: {error}") from error
    if faults:
        more = [f"{path}: and {len(faults) - MAX_FAULTS_SHOWN:,} more"] if len(faults) > MAX_FAULTS_SHOWN else []
        raise InputError("\n".join(faults[:MAX_FAULTS_SHOWN] + more))
    return [(user, client_id, team) for (user, client_id), (_, team) in rows.items()]


def _take_team(
    cells: Sequence[str], number: int, rows: dict[tuple[str | None, str | None], tuple[int, str]]
) -> str | None:
    """Add the line to ``rows``, or return what is wrong with it; skip empty lines."""
    if not any(cell.strip() for cell in cells):
        return None
    if len(cells) != len(schemas.TEAMS.names):
        return f"{len(cells)} columns; expected {len(schemas.TEAMS.names)}: {','.join(schemas.TEAMS.names)}"
    user, client_id, team = (cell.strip() or None for cell in cells)
    if team is None:
        return "no team"
    if team in (NO_TEAM, UNATTRIBUTED):
        return f"team {team}: this name is reserved for usage without a team; expected another"
    if user is None and client_id is None:
        return f"team {team} without user and client_id; expected a user, a client_id or both"
    first = rows.get((user, client_id))
    if first is not None and first[1] != team:
        return f"team {team}, but line {first[0]} gives the same sender team {first[1]}; expected one team"
    rows.setdefault((user, client_id), (number, team))
    return None


# --- bills ------------------------------------------------------------------------------------------------------------


def bill(days: DataFrame, sheet: PriceSheet, period: Period, *, across_clusters: bool = False) -> DataFrame:
    """Return what each team pays for its usage of each cluster in each period (`schemas.CHARGEBACK`).

    With ``across_clusters``, a team has one bill for its usage of all clusters, whose cluster is null. ``days``
    (`schemas.ROLLUP_DAY`) must have whole periods. Amounts are rounded half up, line by line; totals are sums
    of rounded amounts. Usage without a team, or without a sender, has a bill of its own, without discount and minimum.
    """
    items = sheet.items()
    if across_clusters:
        days = days.withColumn("cluster", sf.lit(None).cast("string"))
    used = _by_team(days, items, period).join(sf.broadcast(_terms(days.sparkSession, sheet)), "team", "left")
    priced = used.withColumns(
        {f"price_{item.key}": _given(f"own_{item.key}", sheet.prices().get(item.key)) for item in items}
    )
    amounts = {
        f"amount_{item.key}": _rounded(sf.col(item.key) * sf.col(f"price_{item.key}") / item.divisor, sheet)
        for item in items
    }
    with_sum = priced.withColumns(amounts).withColumn("sum", _money(reduce(add, map(sf.col, amounts))))
    percent, least = _given("percent", None), _given("own_minimum", sheet.minimum)
    zero, has_no_terms = sf.lit(Decimal(0)), sf.col("team").isin(NO_TEAM, UNATTRIBUTED)
    totals = (
        with_sum.withColumn("discount", -_rounded(sf.col("sum") * percent / 100, sheet))
        .withColumn("reduced", _money(sf.col("sum") + sf.col("discount")))
        .withColumn(
            "minimum", _money(sf.when(has_no_terms, zero).otherwise(sf.greatest(least - sf.col("reduced"), zero)))
        )
        .withColumn("total", _money(sf.col("reduced") + sf.col("minimum")))
    )
    lines = [_item_line(number, item) for number, item in enumerate(items, 1)]
    lines += [_line(number, end, sf.col(end)) for number, end in enumerate(ENDS, len(items) + 1)]
    return (
        totals.select(sf.inline(sf.array(*lines)))
        .where(~sf.col("item").isin("discount", "minimum") | (sf.col("amount") != 0))
        .withColumns({"period": sf.lit(period.value), "currency": sf.lit(sheet.currency)})
        .select(*schemas.CHARGEBACK.names)
    )


def start_of(period: Period) -> Column:
    """Return the first day of the period that has the column ``date``."""
    return sf.col("date") if period is Period.DAY else sf.trunc("date", "month")


def _by_team(days: DataFrame, items: Iterable[Item], period: Period) -> DataFrame:
    """Return the usage of each team in each period: ``date``, ``cluster``, ``team``, and a column per price."""
    team = sf.when(sf.col("user").isNull(), UNATTRIBUTED).otherwise(sf.coalesce("team", sf.lit(NO_TEAM))).alias("team")
    start = start_of(period).alias("date")
    sums = [sf.sum(sf.col(item.column).cast(schemas.USED)).cast(schemas.USED).alias(item.key) for item in items]
    return days.groupBy(start, "cluster", team).agg(*sums)


def _terms(spark: SparkSession, sheet: PriceSheet) -> DataFrame:
    """Return the prices of single teams: ``team``, ``percent``, ``own_minimum``, and a column per price, null if not
    given.
    """
    items = sheet.items()
    rows = [
        (team, terms.discount_percent, terms.minimum, *(terms.prices().get(item.key) for item in items))
        for team, terms in sheet.teams.items()
    ]
    columns = ("percent", "own_minimum", *(f"own_{item.key}" for item in items))
    price = schemas.PRICE.simpleString()
    return spark.createDataFrame(rows, ", ".join(["team string", *(f"{name} {price}" for name in columns)]))


def _item_line(number: int, item: Item) -> Column:
    return _line(
        number,
        item.name,
        sf.col(f"amount_{item.key}"),
        used=sf.col(item.key),
        unit=sf.lit(item.unit),
        quantity=sf.col(item.key) / item.divisor,
        per=sf.lit(item.per),
        price=sf.col(f"price_{item.key}"),
    )


def _line(number: int, item: str, amount: Column, **more: Column) -> Column:
    names = ("date", "cluster", "team")
    cells = {**{name: sf.col(name) for name in names}, "line": sf.lit(number), "item": sf.lit(item), **more}
    cells["amount"] = amount
    of_all = ("period", "currency")
    return sf.struct(
        *(
            cells.get(field.name, sf.lit(None)).cast(field.dataType).alias(field.name)
            for field in schemas.CHARGEBACK.fields
            if field.name not in of_all
        )
    )


def _given(own: str, general: Decimal | None) -> Column:
    """Return a team's own price, else the price for all teams, else 0."""
    return sf.coalesce(own, sf.lit(general or Decimal(0)).cast(schemas.PRICE))


def _money(amount: Column) -> Column:
    return amount.cast(schemas.AMOUNT)


def _rounded(amount: Column, sheet: PriceSheet) -> Column:
    return _money(sf.round(amount, sheet.decimals))
