"""A lake written by a version before 0.1.0, whose tables have columns under older names."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from click.testing import CliRunner
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.calibrate import accepted_costs
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import RENAMED, Lake
from headrace.quota_callbacks.builtin.request_costs import RequestCost

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OLD_DAY, NEW_DAY = date(2026, 9, 21), date(2026, 9, 22)


def anomaly(spark: SparkSession, day: date, description: str) -> DataFrame:
    start = datetime(day.year, day.month, day.day, 12, tzinfo=UTC)
    row = (start, "retry-storm", "alice", "app-1", 120.0, 1.5, 9.0, description, 3, "cluster-1")
    return spark.createDataFrame([row], schemas.ANOMALIES)


def with_old_names(frame: DataFrame, table: str) -> DataFrame:
    for old, new in RENAMED[table].items():
        frame = frame.withColumnRenamed(new, old)
    return frame


def costs(spark: SparkSession) -> DataFrame:
    rows = [(0, 0.07, 0.0015, 100, 90_000, 0.02, 0.05, True, "better"), (1, *[None] * 6, False, "too few")]
    return spark.createDataFrame(rows, schemas.COSTS)


def names_in_files(lake: Lake, table: str) -> set[str]:
    return set(lake.spark.read.parquet(lake.path(table)).columns)


def check_columns(frame: DataFrame, schema: StructType) -> None:
    assert [name for name in frame.columns if name != "date"] == schema.names


def test_each_day_of_anomalies_is_read_whichever_version_wrote_it(lake: Lake, spark: SparkSession) -> None:
    old = with_old_names(anomaly(spark, OLD_DAY, "old"), "anomalies")
    lake.replace_partition("anomalies", old, "date", OLD_DAY)
    assert "told" in names_in_files(lake, "anomalies")
    lake.replace_partition("anomalies", anomaly(spark, NEW_DAY, "new"), "date", NEW_DAY)
    found = lake.read("anomalies", schemas.ANOMALIES)
    check_columns(found, schemas.ANOMALIES)
    assert {(row.date, row.description, row.windows) for row in found.collect()} == {
        (OLD_DAY, "old", 3), (NEW_DAY, "new", 3),
    }  # fmt: skip
    assert found.where(sf.col("description") == "old").count() == 1


def test_costs_of_an_old_lake_are_read(lake: Lake, spark: SparkSession) -> None:
    lake.replace("costs", with_old_names(costs(spark), "costs"))
    assert "taken" in names_in_files(lake, "costs")
    found = lake.read("costs", schemas.COSTS)
    check_columns(found, schemas.COSTS)
    assert accepted_costs(found) == {0: RequestCost(base_ms=0.07, per_kib_ms=0.0015)}
    lake.replace("costs", costs(spark))
    assert "taken" not in names_in_files(lake, "costs")
    assert [row.accepted for row in lake.read("costs", schemas.COSTS).orderBy("api_key").collect()] == [True, False]


def test_a_report_of_an_old_lake_has_its_texts(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    old = with_old_names(anomaly(spark, OLD_DAY, "20 % of 100 requests failed"), "anomalies")
    lake.replace_partition("anomalies", old, "date", OLD_DAY)
    lake.replace("costs", with_old_names(costs(spark), "costs"))
    output = tmp_path / "report.html"
    arguments = ["report", "--lake", lake.root, "--output", str(output)]
    result = CliRunner().invoke(pipeline, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    page = output.read_text(encoding="utf-8")
    assert "20 % of 100 requests failed" in page
    assert "<bdi>yes</bdi>" in page
