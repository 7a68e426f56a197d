"""Generated usage: valid records, the same for the same options, and of the requested shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from benchmarks.pipeline.generate import DAY_S, FETCH, FIRST_SECOND, INSTANCES, PRODUCE, SHARES, Shape, made_usage
from benchmarks.pipeline.run import Run, as_markdown
from headrace.pipeline.ingestion.instances import instances
from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.exhaustive

SHAPE = Shape(records=40_000, users=1000, days=2)


@pytest.fixture(scope="module")
def made(spark: SparkSession) -> DataFrame:
    return made_usage(spark, SHAPE, 2).cache()


def test_it_has_the_columns_of_the_table(made: DataFrame) -> None:
    assert [(field.name, field.dataType) for field in made.schema.fields] == [
        (field.name, field.dataType) for field in schemas.USAGE.fields
    ]
    nulls = made.agg(*(sf.count_if(sf.col(name).isNull()).alias(name) for name in made.columns)).collect()[0].asDict()
    assert {name for name, count in nulls.items() if count} == {"topic"}


def test_it_is_the_same_in_any_number_of_tasks_and_another_with_another_seed(
    spark: SparkSession, made: DataFrame
) -> None:
    def digest(frame: DataFrame) -> int:
        texts = sf.xxhash64(sf.to_json(sf.struct(*frame.columns)))
        found: int = frame.agg(sf.bit_xor(texts)).collect()[0][0]
        return found

    assert digest(made) == digest(made_usage(spark, SHAPE, 5))
    assert digest(made) != digest(made_usage(spark, Shape(records=40_000, users=1000, days=2, seed=2), 2))


def test_no_instance_has_gaps(spark: SparkSession, made: DataFrame) -> None:
    found = instances(made, spark.createDataFrame([], schemas.MARKS)).collect()
    assert len(found) == INSTANCES
    assert {(row.seen, row.missing) for row in found} == {(SHAPE.records // INSTANCES, 0)}


def test_days_are_busy_at_noon_and_full(made: DataFrame) -> None:
    seconds = made.agg(sf.min("second"), sf.max("second")).collect()[0]
    assert seconds[0] == FIRST_SECOND
    assert FIRST_SECOND + 2 * DAY_S - 60 < seconds[1] < FIRST_SECOND + 2 * DAY_S
    by_hour = {row["hour"]: row["count"] for row in made.groupBy("hour").count().collect()}
    # 1 / (1 - 0.6) at noon, 1 / (1 + 0.6) at midnight: 4 to 1, less what an hour smooths out.
    assert 3.5 < by_hour[12] / by_hour[0] < 4.1
    dates = made.where(sf.to_date(sf.timestamp_seconds("second")) != sf.col("date")).count()
    assert dates == 0


def test_users_are_by_zipf_and_apis_by_their_shares(made: DataFrame) -> None:
    by_user = {row["user"]: row["count"] for row in made.groupBy("user").count().collect()}
    for rank in (1, 2, 10):
        expected = SHAPE.records * math.log((rank + 1) / rank) / math.log(SHAPE.users + 1)
        assert by_user[f"user-{rank}"] == pytest.approx(expected, abs=5 * math.sqrt(expected))
    by_api = {row["api_key"]: row["count"] for row in made.groupBy("api_key").count().collect()}
    for api_key, share in SHARES.items():
        expected = SHAPE.records * share
        assert by_api[api_key] == pytest.approx(expected, abs=5 * math.sqrt(expected))


def test_some_are_throttled_by_the_quota_of_what_they_do(made: DataFrame) -> None:
    throttled = made.where(sf.size("throttled") > 0)
    kinds = {
        (row["api_key"], row["key"])
        for row in throttled.select("api_key", sf.explode(sf.map_keys("throttled")).alias("key")).distinct().collect()
    }
    assert kinds == {(PRODUCE, "producer_byte_rate"), (FETCH, "consumer_byte_rate")}
    assert throttled.where("throttled[map_keys(throttled)[0]] != requests").count() == 0


def test_the_table_of_results() -> None:
    def run(cores: int, records: int, seconds: float, mebibytes: int) -> Run:
        return Run(
            job="what-if",
            cores=cores,
            records=records,
            seconds=seconds,
            cpu_seconds=seconds * cores / 2,
            peak_bytes=mebibytes * 2**20,
        )

    table = as_markdown([run(1, 4000, 4.0, 900), run(2, 4000, 2.5, 1000), run(2, 1000, 1.0, 800)])
    assert (
        table.splitlines()[2] == "| what-if | 4,000 | 2,000 | 1,000 | 1,600 | 1.60 | 800 | 1,000 | 1,000 | 800 | 1.25 |"
    )
    alone = as_markdown([run(1, 4000, 4.0, 900)])
    assert alone.splitlines()[2] == "| what-if | 4,000 | 2,000 | 1,000 | - | - | - | - | - | - | - |"
