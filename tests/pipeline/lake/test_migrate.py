"""A lake of a version before Delta Lake, whose tables are Parquet files in folders, is converted in place."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import InputError
from headrace.pipeline.ingestion.watermark import SourceState, Watermark
from headrace.pipeline.jobs.maintenance.migrate import RENAMED
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.ingestion.ingesting import sequences
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OLD_DAY = date(2026, 9, 21)


def write_old(lake: Lake, table: str, frame: DataFrame, *by: str) -> None:
    """Write a table as the versions before Delta Lake did."""
    frame.write.mode("append").partitionBy(*by).parquet(lake.path(table))


def with_old_names(frame: DataFrame, table: str) -> DataFrame:
    for old, new in RENAMED[table].items():
        frame = frame.withColumnRenamed(new, old)
    return frame


def anomaly(spark: SparkSession, description: str) -> DataFrame:
    start = datetime(OLD_DAY.year, OLD_DAY.month, OLD_DAY.day, 12, tzinfo=UTC)
    row = (start, "retry-storm", "alice", "app-1", 120.0, 1.5, 9.0, description, 3, None)
    return spark.createDataFrame([row], schemas.ANOMALIES)


def rolled_up(spark: SparkSession, requests: int) -> DataFrame:
    row = {field.name: None for field in schemas.ROLLUP_DAY.fields} | {"date": OLD_DAY, "requests": requests}
    return spark.createDataFrame([tuple(row.values())], schemas.ROLLUP_DAY)


def run(job: str, lake: Lake, *arguments: str) -> str:
    result = CliRunner().invoke(pipeline, [job, "--lake", lake.root, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_lake_of_parquet_is_not_read(lake: Lake, spark: SparkSession) -> None:
    write_old(lake, "usage", usage(spark, [record()]), "date", "hour")
    with pytest.raises(InputError, match=r"usage was written by a version of Headrace before Delta Lake; .* migrate"):
        lake.read("usage", schemas.USAGE)


@pytest.mark.exhaustive
def test_a_lake_of_parquet_is_converted_in_place(lake: Lake, spark: SparkSession) -> None:
    write_old(lake, "usage", usage(spark, [record(NOON, sequence=1)]).drop("topic"), "date", "hour")
    write_old(lake, "usage", usage(spark, [record(NOON + 3600, sequence=2)]), "date", "hour")
    files = {path: path.stat().st_mtime_ns for path in Path(lake.path("usage")).glob("date=*/hour=*/*.parquet")}
    write_old(lake, "rollup_day", rolled_up(spark, 7), "date")
    write_old(
        lake, "anomalies", with_old_names(anomaly(spark, "20 % failed"), "anomalies").withColumn("date", _day()), "date"
    )
    ingest = Path(lake.path("_ingest"))
    ingest.mkdir()
    (ingest / "watermark.json").write_text(
        json.dumps({"second": NOON, "runs": {"ingest-1": {"before": 5, "newest": None}}})
    )
    (ingest / "lock.json").write_text("{}")
    run("migrate", lake)
    assert sequences(lake) == [1, 2]
    assert {path: path.stat().st_mtime_ns for path in files} == files, "the files of usage are as they were"
    assert [row.requests for row in Lake(spark, lake.root).read("rollup_day", schemas.ROLLUP_DAY).collect()] == [7]
    (found,) = lake.read("anomalies", schemas.ANOMALIES).collect()
    assert (found.date, found.description, found.windows) == (OLD_DAY, "20 % failed", 3)
    assert Watermark(lake).second() == NOON
    assert Watermark(lake).of("ingest-1") == SourceState(running=True, before=5)
    assert sorted(path.name for path in ingest.iterdir()) == ["ingest-1.json", "migrated.json"]
    assert "usage" not in run("migrate", lake), "a second migration has nothing to do"


def _day() -> object:
    from pyspark.sql import functions as sf

    return sf.lit(OLD_DAY)


@pytest.mark.exhaustive
def test_a_migration_that_was_interrupted_is_continued(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_old(lake, "usage", usage(spark, [record(NOON, sequence=1)]), "date", "hour")
    write_old(lake, "rollup_day", rolled_up(spark, 7), "date")
    with monkeypatch.context() as patch:
        patch.setattr(Lake, "release_converted", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        CliRunner().invoke(pipeline, ["migrate", "--lake", lake.root])
    result = CliRunner().invoke(pipeline, ["rollup", "--lake", lake.root])
    assert result.exit_code == 1
    assert f"the lake {lake.root} is converted in part; run headrace pipeline migrate" in result.output
    run("migrate", lake)
    assert [row.requests for row in Lake(spark, lake.root).read("rollup_day", schemas.ROLLUP_DAY).collect()] == [7]
    run("rollup", lake)
    assert [row.requests for row in Lake(spark, lake.root).read("rollup_day", schemas.ROLLUP_DAY).collect()] == [1]
