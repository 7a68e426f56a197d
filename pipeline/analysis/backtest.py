"""Back-test: recommended quotas applied to the usage of later days, by the code of what-if."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.what_if.answers import what_if
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.records.replay import Change

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, Row

    from headrace.quota_callbacks.buckets.sampled_rate import Window


def backtest(usage: DataFrame, quotas: Iterable[Row], windows: Mapping[QuotaKey, Window]) -> DataFrame:
    """Return the effect of ``quotas``, rows of `schemas.RECOMMENDATIONS`, on the usage of other days, by bucket
    (`schemas.BACKTEST`). The usage must not be empty, and be of one cluster.
    """
    changes = [Change(t_ms=0, entity=_entity(row), values={QuotaKey(row.key): row.quota}, removed=()) for row in quotas]
    days = usage.agg(sf.min("date").alias("first_day"), sf.max("date").alias("last_day")).collect()[0]
    by_bucket = what_if(usage, fixed_quotas(changes, windows)).groupBy("key", "user", "client_id", "entity")
    return by_bucket.agg(
        sf.max("quota").alias("quota"),
        sf.lit(days.first_day).alias("first_day"),
        sf.lit(days.last_day).alias("last_day"),
        sf.sum("events").alias("seconds"),
        sf.sum("throttled").alias("throttled_seconds"),
        sf.sum("refused").alias("refused_seconds"),
        sf.max("longest_throttle_ms").alias("longest_throttle_ms"),
        sf.sum("waited_ms").alias("waited_ms"),
        sf.sum("amount").alias("amount"),
        sf.sum("shifted_amount").alias("shifted_amount"),
    ).select(*schemas.BACKTEST.names)


def _entity(row: Row) -> QuotaEntity:
    return QuotaEntity(user=_name(row.user), client_id=_name(row.client_id))


def _name(name: str | None) -> EntityName | None:
    return DEFAULT if name == str(DEFAULT) else name
