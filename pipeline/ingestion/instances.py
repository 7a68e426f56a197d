"""The records of each instance of the proxy, and the gaps in their sequence numbers, which grow by 1."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from datetime import date

    from pyspark.sql import Column, DataFrame

DAY_S: Final = 86_400


def instances(usage: DataFrame, marks: DataFrame, *, whole: bool = True, kept_from: date | None = None) -> DataFrame:
    """Return one row per instance: its records, and how many are missing.

    ``missing``: number of sequence numbers between the first and the last that have no record; ``gaps``: number of
    places where some are missing; ``lost``: number of records that the instance reported as lost; ``ended``: whether it
    wrote an ``end`` mark. An instance without one was killed or still runs: the second after ``last_second`` may be
    missing.

    If the tables are not the ``whole`` lake but some of its days, instances without records in these days are left out,
    and only gaps between their first and last sequence number are counted. If usage was removed before ``kept_from``
    (`headrace.pipeline.lake.retained`), instances without records are left out, too, and of instances that have one
    within a day from then on, what comes before their first record is no gap.
    """
    columns = ("instance", "sequence", "second")
    seen = usage.select(*columns, sf.lit(Kind.USAGE.value).alias("kind"), sf.lit(0).cast("long").alias("records"))
    marked = marks.select(*columns, "kind", sf.coalesce("records", sf.lit(0)).alias("records"))
    before = sf.lag("sequence").over(Window.partitionBy("instance").orderBy("sequence"))
    skipped = sf.col("sequence") - sf.coalesce(before, sf.lit(-1)) - 1
    if not whole:
        is_outside = before.isNull() | (sf.col("kind") == Kind.END.value)
        skipped = sf.when(is_outside, sf.lit(0)).otherwise(skipped)
    elif kept_from is not None:
        first_second = sf.min("second").over(Window.partitionBy("instance"))
        skipped = sf.when(before.isNull() & is_cut(first_second, kept_from), sf.lit(0)).otherwise(skipped)
    found = (
        seen.unionByName(marked)
        .withColumn("skipped", skipped)
        .groupBy("instance")
        .agg(
            sf.min("second").alias("first_second"),
            sf.max("second").alias("last_second"),
            sf.max("sequence").alias("last_sequence"),
            sf.count("*").alias("seen"),
            sf.sum("skipped").alias("missing"),
            sf.count_if(sf.col("skipped") > 0).alias("gaps"),
            sf.sum("records").alias("lost"),
            sf.bool_or(sf.col("kind") == Kind.END.value).alias("ended"),
        )
    )
    return found if whole and kept_from is None else found.where(sf.col("first_second").isNotNull())


def is_cut(first_second: Column, kept_from: date) -> Column:
    """Return whether an instance, by its first second, may have had earlier records that were removed."""
    begin = datetime(kept_from.year, kept_from.month, kept_from.day, tzinfo=UTC).timestamp()
    return first_second < int(begin) + DAY_S
