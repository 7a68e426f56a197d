"""What each instance of the proxy has recorded, and what is missing: its numbers grow by 1 as long as nothing is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def instances(usage: DataFrame, marks: DataFrame, *, whole: bool = True) -> DataFrame:
    """What each instance has told, and what is missing: one row for each.

    ``missing``: sequence numbers between its first and last that nobody has seen; ``gaps``: in how many places;
    ``lost``: records that it says are lost; ``ended``: whether it said that it stopped. Without ``ended`` it was killed
    or still runs: up to the second after ``last_second`` may be missing at the end.

    When the tables are not the ``whole`` lake but some of its days, instances without a second there are left out, and
    so is what these are missing before the first and after the last of their numbers.
    """
    columns = ("instance", "sequence", "second")
    seen = usage.select(*columns, sf.lit(Kind.USAGE.value).alias("kind"), sf.lit(0).cast("long").alias("records"))
    told = marks.select(*columns, "kind", sf.coalesce("records", sf.lit(0)).alias("records"))
    before = sf.lag("sequence").over(Window.partitionBy("instance").orderBy("sequence"))
    skipped = sf.col("sequence") - sf.coalesce(before, sf.lit(-1)) - 1
    if not whole:
        is_outside = before.isNull() | (sf.col("kind") == Kind.END.value)
        skipped = sf.when(is_outside, sf.lit(0)).otherwise(skipped)
    found = (
        seen.unionByName(told)
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
    return found if whole else found.where(sf.col("first_second").isNotNull())
