"""Converts lines to records, with the reason for each line that is not a valid usage record.

Called by `ingest`; does not read the lake. Converts columns to columns, without an action of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipeline.ingestion.faults import first_fault
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records import usage_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT: Final = "_corrupt"


def parse(raw: DataFrame) -> DataFrame:
    """Parse lines (`schemas.RAW`) into records (`schemas.RECORD`), with ``value``, ``origin``, and ``fault``: what is
    wrong, or null.
    """
    schema = StructType([*schemas.RECORD.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = raw.withColumn("record", sf.from_json("value", schema, options))
    fault = first_fault(
        "record.{}".format,
        usage_records.SCHEMA_VERSION,
        f"record.{_CORRUPT} IS NULL",
        ("value IS NULL", "'no value (a tombstone)'"),
        ("trim(value) = ''", "'an empty line'"),
        (
            f"record IS NULL OR record.{_CORRUPT} IS NOT NULL",
            "'not a JSON object with the columns of a usage record'",
        ),
    )
    columns = (f"record.{name}" for name in schemas.RECORD.names)
    return parsed.select("value", "origin", *columns, fault.alias("fault"))
