"""Rows of Parquet files are the records that the lines are, with the same faults."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import parquet as pq
from pyspark.sql import functions as sf

from headrace.pipeline.ingestion.columnar import check, text
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.lake import schemas
from headrace.plugins.usage_records.parquet import SCHEMA, convert
from tests.pipeline.ingestion.test_ingest import INVALID_LINES
from tests.pipeline.records import record
from tests.plugins.usage_records.test_usage_records_parquet import lines_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NO_RECORD = ("an empty line", "not a JSON object", "no value")


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    """The rows of files, as ingest reads them."""
    rows = spark.read.schema(schemas.RECORD).options(**options).parquet(str(path))
    return rows.select(*schemas.RECORD.names, sf.col("_metadata.file_path").alias("origin"))


def lines_to_parquet(lines: list[bytes], path: Path) -> None:
    """The file that a proxy makes of its lines."""
    source = path.with_suffix(".jsonl")
    source.write_bytes(b"".join(line + b"\n" for line in lines))
    with source.open("rb") as read, path.open("wb") as written:
        convert(read.fileno(), written.fileno(), is_stopping=lambda: False)


def by_sequence(parsed: DataFrame) -> list[dict[str, Any]]:
    rows = [row.asDict() for row in parsed.drop("value", "origin").collect()]
    return sorted(rows, key=lambda row: row["sequence"])


def test_a_proxys_file_has_the_records_and_faults_of_its_lines(spark: SparkSession, tmp_path: Path) -> None:
    lines = lines_of(200, random.Random(18))  # noqa: S311 -- the same in each run
    lines_to_parquet(lines, tmp_path / "usage-1.parquet")
    checked = check(read(spark, tmp_path / "usage-1.parquet"))
    parsed = parse(spark.createDataFrame([(line.decode(), "here") for line in lines], schemas.RAW))
    assert (checked.columns, checked.dtypes) == (parsed.columns, parsed.dtypes)
    rows = by_sequence(checked)
    assert rows == by_sequence(parsed)
    assert 0 < sum(row["fault"] is None for row in rows) < len(rows)


def test_the_faults_of_rows_are_those_of_lines_and_their_texts_parse_to_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = [line for line, fault in INVALID_LINES if not fault.startswith(NO_RECORD)]
    lines.append(json.dumps(record(refused={"a": 1}, user="b\u2028")))
    parsed = parse(spark.createDataFrame([(line, "here") for line in lines], schemas.RAW))
    parsed.select(*schemas.RECORD.names).coalesce(1).write.parquet(str(tmp_path / "in"))
    checked = check(read(spark, tmp_path / "in")).withColumn("text", text())
    rows = checked.collect()
    assert [row.fault for row in rows] == [row.fault for row in parsed.collect()]
    assert [row.value for row in rows] == [row.text for row in rows[:-1]] + [None]
    assert all(row.origin.startswith("file:") for row in rows)
    again = parse(checked.select(sf.col("text").alias("value"), "origin"))
    assert list(map(str, again.drop("value").collect())) == list(map(str, checked.drop("value", "text").collect()))


def test_rows_of_another_table_are_no_records(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["alice"], "other": [1]}), tmp_path / "usage-1.parquet")
    (row,) = check(read(spark, tmp_path / "usage-1.parquet")).collect()
    assert (row.fault, row.value) == ("no schema", '{"user":"alice"}')


@pytest.mark.parametrize("damage", ["cut", pytest.param("page", marks=pytest.mark.exhaustive)])
def test_a_damaged_file_is_an_error_that_names_it_and_can_be_passed_over(
    damage: str, spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "usage-1.parquet"
    lines_to_parquet(lines_of(200, random.Random(19)), path)  # noqa: S311 -- the same in each run
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    else:
        column = pq.ParquetFile(path).metadata.row_group(0).column(SCHEMA.get_field_index("request_bytes"))
        data[column.data_page_offset + column.total_compressed_size - 9] ^= 1
    path.write_bytes(data)
    options = {"parquet.page.verify-checksum.enabled": "true"}
    with pytest.raises(Py4JJavaError, match=r"FAILED_READ_FILE.*usage-1\.parquet"):
        read(spark, path, **options).collect()
    assert read(spark, path, ignoreCorruptFiles="true", **options).collect() == []
