"""Rollup: sums of usage by hour and day, cluster, sender and team, and the bills computed from them.

No usage is left out: usage without a sender has a row of its own, and a line in a bill of its own, so that all totals
equal those of the usage records. Sums are of integers, except for times; money is decimal.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.events import FETCHES
from headrace.pipeline.analysis.prices import MEASURES, NO_TEAM, SHARED, UNATTRIBUTED, UNKNOWN_CLUSTER
from headrace.pipeline.analysis.shared_costs import TeamUsage, month_part, parts_of
from headrace.pipeline.analysis.usage import over_quotas
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from headrace.pipeline.analysis.prices import Item, PriceSheet

_SENDER: Final = ("user", "client_id")
_OF_TOPIC: Final = "_of_topic"
"""The column with the team that owns the topic of the usage."""
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
    """Return the sums of usage (`schemas.USAGE`) by hour, cluster, sender and team (`schemas.ROLLUP_HOUR`).

    A sender with a team of its own (`schemas.TEAMS`) has one row an hour; the usage of others is that of the teams that
    own the topics.
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
    (there,) = teams.agg(*(sf.count_if(is_kind).alias(kind) for kind, (_, is_kind) in _owners().items())).collect()
    if not there[_OF_TOPIC]:
        hours = usage.groupBy("date", hour, "cluster", *_SENDER).agg(*sums)
        return with_teams(hours, teams, there).select(*schemas.ROLLUP_HOUR.names)
    owned = _joined(usage, teams, _OF_TOPIC)
    hours = with_teams(owned.groupBy("date", hour, "cluster", *_SENDER, _OF_TOPIC).agg(*sums), teams, there)
    again = [sf.sum(name).alias(name) for name in _SUMS]
    by = ("date", "hour", "cluster", *_SENDER, "team")
    return hours.groupBy(*by).agg(*again).select(*schemas.ROLLUP_HOUR.names)


def with_clusters(usage: DataFrame) -> DataFrame:
    """Give records without a cluster that of the other records of their instance, which had not learned it yet."""
    known = usage.where(sf.col("cluster").isNotNull()).groupBy("instance").agg(sf.max("cluster").alias("_known"))
    joined = usage.join(sf.broadcast(known), "instance", "left")
    return joined.withColumn("cluster", sf.coalesce("cluster", "_known")).drop("_known")


def by_day(hours: DataFrame) -> DataFrame:
    """Return the sums of `by_hour` by day (`schemas.ROLLUP_DAY`)."""
    sums = [sf.sum(name).alias(name) for name in _SUMS]
    days = hours.groupBy("date", "cluster", *_SENDER, "team").agg(*sums)
    of_day = sf.sum("records").over(Window.partitionBy("date"))
    return days.withColumn("records_of_day", of_day).select(*schemas.ROLLUP_DAY.names)


def changed_days(recorded: Mapping[date, int], rolled_up: Mapping[date, int | None]) -> list[date]:
    """Return the days of which more usage records were recorded than were rolled up, in order.

    A day with fewer records has not changed: its usage was removed since, or a part of it.
    """
    return sorted(day for day, records in recorded.items() if records > (rolled_up.get(day) or 0))


def changed_periods(
    rolled_up: Mapping[date, int | None], billed: Mapping[date, int | None], period: Period
) -> list[date]:
    """Return the first days of the periods whose bills are of fewer usage records than are rolled up, or that have no
    bills, in order.

    ``billed`` is the number of the bills of each period, by its first day. Numbers of versions that did not count the
    records are ``None``, which is as if there were none. Bills of more records are kept: rollups were removed since.
    """
    records: dict[date, int] = {}
    for day, number in rolled_up.items():
        start = first_day(day, period)
        records[start] = records.get(start, 0) + (number or 0)
    return sorted(start for start, number in records.items() if start not in billed or number > (billed[start] or 0))


def first_day(day: date, period: Period) -> date:
    """Return the first day of the period that has this day."""
    return day if period is Period.DAY else day.replace(day=1)


def _owners() -> dict[str, tuple[Sequence[str], Column]]:
    """Return the columns by which each kind of team (`schemas.TEAMS`) owns usage, and whether a row is of this kind."""
    has_user, has_client = sf.col("user").isNotNull(), sf.col("client_id").isNotNull()
    return {
        "_of_both": (_SENDER, has_user & has_client),
        "_of_user": (("user",), has_user & ~has_client),
        "_of_client": (("client_id",), ~has_user & has_client),
        _OF_TOPIC: (("topic",), sf.col("topic").isNotNull()),
    }


def _joined(usage: DataFrame, teams: DataFrame, kind: str) -> DataFrame:
    """Add the team of a kind (`_owners`) as a column, null for usage without one."""
    by, is_kind = _owners()[kind]
    return usage.join(sf.broadcast(teams.where(is_kind).select(*by, sf.col("team").alias(kind))), [*by], "left")


def with_teams(senders: DataFrame, teams: DataFrame, there: Row) -> DataFrame:
    """Replace the team of the topic, if there is one, by ``team``: by user and client id, else by user, else by client
    id, else that of the topic, else null.

    ``there`` has the number of ``teams`` of each kind (`_owners`): each join is a job of Spark, also with no rows.
    """
    kinds = ("_of_both", "_of_user", "_of_client", _OF_TOPIC)
    for kind in kinds:
        if not there[kind]:
            senders = senders.withColumn(kind, sf.lit(None).cast("string"))
        elif kind != _OF_TOPIC:
            senders = _joined(senders, teams, kind)
    return senders.withColumn("team", sf.coalesce("_of_both", "_of_user", "_of_client", _OF_TOPIC)).drop(*kinds)


def _or_zero(total: Column, name: str) -> Column:
    return sf.coalesce(total, sf.lit(0).cast(schemas.TOTALS[name].dataType)).alias(name)


# --- bills ------------------------------------------------------------------------------------------------------------


def bill(days: DataFrame, sheet: PriceSheet, period: Period, *, across_clusters: bool = False) -> DataFrame:
    """Return what each team pays for its usage of each cluster in each period (`schemas.CHARGEBACK`).

    With ``across_clusters``, a team has one bill for its usage of all clusters, whose cluster is null. ``days``
    (`schemas.ROLLUP_DAY`) must have whole periods. Amounts are rounded half up, line by line; totals are sums
    of rounded amounts. Usage without a team, or without a sender, has a bill of its own, without discount and minimum.
    Shared costs are split here already, by the usage of each team, which is collected for that.
    """
    items = sheet.items()
    days = days.withColumn("cluster", sf.coalesce("cluster", sf.lit(UNKNOWN_CLUSTER)))
    shares = _shared_costs(days, sheet, period, across_clusters=across_clusters) if sheet.shared else None
    if across_clusters:
        days = days.withColumn("cluster", sf.lit(None).cast("string"))
    used = _by_team(days, period, {item.key: sf.col(item.column) for item in items})
    if shares is not None:
        same = [used[name].eqNullSafe(shares[f"_{name}"]) for name in ("date", "cluster", "team")]
        used = used.join(sf.broadcast(shares), same, "left")
    used = used.join(sf.broadcast(_terms(days.sparkSession, sheet)), "team", "left")
    priced = used.withColumns(
        {f"price_{item.key}": _given(f"own_{item.key}", sheet.prices().get(item.key)) for item in items}
    )
    amounts = {
        f"amount_{item.key}": _rounded(sf.col(item.key) * sf.col(f"price_{item.key}") / item.divisor, sheet)
        for item in items
    }
    zero, has_no_terms = sf.lit(Decimal(0)), sf.col("team").isin(NO_TEAM, UNATTRIBUTED)
    with_sum = priced.withColumns(amounts).withColumn("sum", _money(reduce(add, map(sf.col, amounts), zero)))
    percent, least = _given("percent", None), _given("own_minimum", sheet.minimum)
    shared = {name: f"shared_{number}" for number, name in enumerate(sheet.shared)}
    totals = (
        with_sum.withColumn("discount", -_rounded(sf.col("sum") * percent / 100, sheet))
        .withColumn("reduced", _money(sf.col("sum") + sf.col("discount")))
        .withColumn(
            "minimum", _money(sf.when(has_no_terms, zero).otherwise(sf.greatest(least - sf.col("reduced"), zero)))
        )
        .withColumn(
            "total", _money(reduce(add, map(_zero_for_null, shared.values()), sf.col("reduced") + sf.col("minimum")))
        )
    )
    lines = [_item_line(number, item) for number, item in enumerate(items, 1)]
    named = {SHARED + name: column for name, column in shared.items()} | {end: end for end in ENDS}
    for number, (item, column) in enumerate(named.items(), len(lines) + 1):
        of_total = {"records": sf.col("records")} if item == "total" else {}
        lines.append(_line(number, item, sf.col(column), **of_total))
    return (
        totals.select(sf.inline(sf.array(*lines)))
        .where(sf.col("amount").isNotNull() & (~sf.col("item").isin("discount", "minimum") | (sf.col("amount") != 0)))
        .withColumns({"period": sf.lit(period.value), "currency": sf.lit(sheet.currency)})
        .select(*schemas.CHARGEBACK.names)
    )


def start_of(period: Period) -> Column:
    """Return the first day of the period that has the column ``date``."""
    return sf.col("date") if period is Period.DAY else sf.trunc("date", "month")


def _by_team(days: DataFrame, period: Period, columns: Mapping[str, Column]) -> DataFrame:
    """Return the usage of each team in each period: ``date``, ``cluster``, ``team``, and the sums of ``columns``."""
    team = sf.when(sf.col("user").isNull(), UNATTRIBUTED).otherwise(sf.coalesce("team", sf.lit(NO_TEAM))).alias("team")
    start = start_of(period).alias("date")
    sums = [sf.sum(each.cast(schemas.USED)).cast(schemas.USED).alias(name) for name, each in columns.items()]
    return days.groupBy(start, "cluster", team).agg(sf.sum("records").alias("records"), *sums)


def _shared_costs(days: DataFrame, sheet: PriceSheet, period: Period, *, across_clusters: bool) -> DataFrame:
    """Return the parts in each shared cost, null for none: ``_date``, ``_cluster``, ``_team``, ``shared_0``, …"""
    columns = {split.value: reduce(add, map(sf.col, names)) for split, names in MEASURES.items()}
    periods: dict[date, list[TeamUsage]] = {}
    for row in _by_team(days, period, columns).collect():
        measures = {split: row[split.value] for split in MEASURES}
        periods.setdefault(row.date, []).append(TeamUsage(cluster=row.cluster, team=row.team, measures=measures))
    parts: dict[tuple[date, str | None, str], list[Decimal | None]] = {}
    for start, usage in periods.items():
        for number, cost in enumerate(sheet.shared.values()):
            amount = cost.amount if period is Period.MONTH else month_part(cost, start, sheet.decimals)
            for (cluster, team), part in parts_of(cost, amount, usage, sheet.decimals).items():
                of_bill = (start, None if across_clusters else cluster, team)
                amounts = parts.setdefault(of_bill, [None] * len(sheet.shared))
                amounts[number] = (amounts[number] or Decimal(0)) + part
    of_costs = (f"shared_{number} {schemas.AMOUNT.simpleString()}" for number in range(len(sheet.shared)))
    schema = ", ".join(["_date date", "_cluster string", "_team string", *of_costs])
    return days.sparkSession.createDataFrame([(*of_bill, *amounts) for of_bill, amounts in parts.items()], schema)


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


def _zero_for_null(column: str) -> Column:
    """Return an amount, 0 for null."""
    return sf.coalesce(column, sf.lit(Decimal(0)))


def _rounded(amount: Column, sheet: PriceSheet) -> Column:
    return _money(sf.round(amount, sheet.decimals))
