"""Numbers of usage records by day, from Delta Lake's statistics of each file in the log, so that no row is read.

Files without statistics are read: those of a session without `spark.databricks.delta.stats.collect`, of versions of
Headrace whose rollups lack the number, and files of which single rows were deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import of_days

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from headrace.pipeline.lake.tables import Lake

_OF_FILE = "numRecords long, minValues struct<records_of_day: long>"
"""The statistics that are used, by Delta Lake's names. ``records_of_day`` is the same in all rows of a day."""


def recorded_by_day(lake: Lake, first: date | None = None, last: date | None = None) -> Mapping[date, int]:
    """Return the number of usage records of each day that has any, from ``first`` to ``last``.

    Raises `InputError` if there is no usage.
    """
    from pyspark.sql import functions as sf

    of_file = sf.col("statistics.numRecords")
    counts = _by_day(lake, "usage", schemas.USAGE, (of_file, sf.sum, sf.count("*")), first, last)
    return {day: count for day, count in counts.items() if count}


def rolled_up_by_day(lake: Lake, first: date | None = None, last: date | None = None) -> Mapping[date, int | None]:
    """Return the number of usage records that are in the rollup of each day, from ``first`` to ``last``.

    ``None`` stands for a day that a version of Headrace has rolled up that did not count them.
    """
    from pyspark.sql import functions as sf

    if not lake.has("rollup_day"):
        return {}
    of_file = sf.col("statistics.minValues.records_of_day")
    return _by_day(lake, "rollup_day", schemas.ROLLUP_DAY, (of_file, sf.max, sf.sum("records")), first, last)


def _by_day(
    lake: Lake,
    table: str,
    schema: StructType,
    number: tuple[Column, Any, Column],
    first: date | None,
    last: date | None,
) -> dict[date, Any]:
    """Return a number of each day.

    ``number`` has three parts: the column with the number in a file's statistics, the function that joins those of
    several files, and the aggregate over rows, for days with files without statistics.
    """
    from pyspark.sql import functions as sf

    rows = lake.read(table, schema)
    of_file, joined, of_rows = number
    files = lake.files(table).select(
        sf.col("partitionValues.date").cast("date").alias("date"),
        sf.when(sf.col("deletionVector").isNull(), sf.from_json("stats", _OF_FILE)).alias("statistics"),
    )
    known = sf.count(of_file) == sf.count("*")
    found = of_days(files, first, last).groupBy("date").agg(sf.when(known, joined(of_file)).alias("number")).collect()
    numbers: dict[date, Any] = {row.date: row.number for row in found}
    unknown = [day for day, count in numbers.items() if count is None]
    if unknown:
        read = rows.where(sf.col("date").isin(unknown)).groupBy("date").agg(of_rows.alias("number")).collect()
        numbers |= {row.date: row.number for row in read}
    return numbers
