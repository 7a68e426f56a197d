"""Converts lines to records, with the reason for each line that is not a valid usage record.

Called by `ingest`; does not read the lake. Converts columns to columns, without an action of Spark.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipeline.ingestion.faults import first_fault
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records import usage_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CORRUPT: Final = "_corrupt"


def parse(raw: DataFrame) -> DataFrame:
    """Parse lines (`schemas.RAW`) into records (`schemas.RECORD`), with ``value``, ``origin``, and ``fault``: what is
    wrong, or null.
    """
    schema = StructType([*schemas.RECORD.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = raw.withColumn("record", sf.from_json("value", schema, options))
    return parsed.select("value", "origin", *_columns(usage_records.SCHEMA_VERSION))


@functools.cache
def _columns(newest_schema: int) -> tuple[Column, ...]:
    """Return the columns of the member ``record``, and its fault."""
    columns = {name: sf.col(f"record.{name}") for name in schemas.RECORD.names}
    is_no_record = sf.col("record").isNull() | sf.col(f"record.{_CORRUPT}").isNotNull()
    fault = first_fault(
        columns,
        newest_schema,
        sf.col(f"record.{_CORRUPT}").isNull(),
        (sf.col("value").isNull(), sf.lit("no value (a tombstone)")),
        (sf.trim("value") == "", sf.lit("an empty line")),
        (is_no_record, sf.lit("not a JSON object with the columns of a usage record")),
    )
    named = (column.alias(name) for name, column in columns.items())
    return (*named, fault.alias("fault"))
