"""Converts rows of Parquet files to records, with the reason for each row that is not a valid usage record.

Called by `ingest`; does not read the lake. Converts columns to columns, without an action of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headrace.pipeline.ingestion.faults import first_fault
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records import usage_records

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def check(rows: DataFrame) -> DataFrame:
    """Return rows, read with `schemas.RECORD` and with their ``origin``, in the columns of `parsing.parse`.

    ``value`` is null for a row without a fault, since its text costs more than all else here; `text` returns it.
    """
    fault = first_fault(str, usage_records.SCHEMA_VERSION, "true").alias("fault")
    with_fault = rows.select("origin", *schemas.RECORD.names, fault)
    value = sf.when(sf.col("fault").isNotNull(), text()).alias("value")
    return with_fault.select(value, "origin", *schemas.RECORD.names, "fault")


def text() -> Column:
    """Return the line of JSON that is parsed into the record of this row."""
    return sf.to_json(sf.struct(*schemas.RECORD.names))
