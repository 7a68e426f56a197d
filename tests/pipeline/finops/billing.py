"""Constructors of bills and rolled up days for tests."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.pipeline.lake.tables import Lake

SEPTEMBER = dt.date(2026, 9, 1)


def lines(team: str, *items: tuple[str, str], cluster: str | None = "c1", **more: Any) -> list[dict[str, Any]]:
    """Return a bill by month with these items and amounts, and their total; a GiB that is produced costs 1."""
    head = {"period": "month", "date": SEPTEMBER, "cluster": cluster, "team": team, "currency": "EUR", **more}
    found = [{**head, "line": n, "item": item, "amount": Decimal(amount)} for n, (item, amount) in enumerate(items, 1)]
    for line in found:
        if line["item"] == "produced":
            line |= {"used": line["amount"] * 2**30, "quantity": line["amount"], "price": Decimal(1)}
    total = sum((each["amount"] for each in found), Decimal(0))
    return [*found, {**head, "line": len(found) + 1, "item": "total", "amount": total}]


def table(spark: SparkSession, schema: StructType, *rows: dict[str, Any]) -> DataFrame:
    """Return a table; columns that a row lacks are null."""
    return spark.createDataFrame([tuple(row.get(name) for name in schema.names) for row in rows], schema).coalesce(1)


def write_bills(lake: Lake, *bills: list[dict[str, Any]], hours: Sequence[dt.datetime] = ()) -> None:
    """Replace the bills of their periods, and rollups with usage in ``hours`` (UTC), and release them."""
    days = {hour.date() for hour in hours}
    with lake.release() as tables:
        rows = [line for each in bills for line in each]
        if rows:
            tables.replace("chargeback", table(lake.spark, schemas.CHARGEBACK, *rows), "period", "date")
        if not hours:
            return
        rows = [{"date": hour.date(), "hour": hour, "requests": 1} for hour in hours]
        tables.replace("rollup_hour", table(lake.spark, schemas.ROLLUP_HOUR, *rows), "date")
        rows = [{"date": day, "requests": 1} for day in days]
        tables.replace("rollup_day", table(lake.spark, schemas.ROLLUP_DAY, *rows), "date")
