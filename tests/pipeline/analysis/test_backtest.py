"""The back-test of recommended quotas: the command, its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyspark.sql import Row

from headrace.pipeline.analysis.backtest import backtest
from headrace.pipeline.analysis.recommend.rules import DEFAULT_WINDOWS
from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from tests.pipeline.records import NOON, record, usage

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

DAY_S = 86_400
DAYS = ("--to", "2026-09-21", "--backtest-from", "2026-09-22")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Three days: 1.1 MB/s from two users, 165 MB in one second from one of them, and much from another cluster."""
    quiet = {"api_key": ApiKey.PRODUCE, "response_bytes": 0, "thread_ms": 0.0}
    first = [
        record(NOON + second, user=user, request_bytes=1_100_000, **quiet)
        for user in ("steady", "grows")
        for second in range(60)
    ]
    later = [
        record(NOON + DAY_S, user="steady", request_bytes=1_100_000, **quiet),
        record(NOON + DAY_S, user="grows", request_bytes=165_000_000, **quiet),
        record(NOON + DAY_S + 3600, user="grows", request_bytes=1_100_000, **quiet),
        record(NOON + DAY_S, user="steady", request_bytes=10**9, cluster="cluster-2", **quiet),
        record(NOON + 2 * DAY_S, user="steady", request_bytes=10**9, **quiet),
    ]
    tables = Lake(spark, str(tmp_path_factory.mktemp("lake")))
    tables.append("usage", usage(spark, first + later).coalesce(1), "date", "hour")
    return tables


def run(lake: Lake, *arguments: str) -> Result:
    result = CliRunner().invoke(pipeline, ["recommend", "--lake", lake.root, *arguments])
    assert result.exit_code == 0, result.output
    return result


def test_quotas_are_applied_to_usage(spark: SparkSession) -> None:
    """165 MB over the ten seconds of Kafka's shortest window are eleven times the quota."""
    quiet = {"response_bytes": 0, "thread_ms": 0.0}
    used = [
        record(NOON, user="steady", request_bytes=1_100_000, **quiet),
        record(NOON, user="grows", request_bytes=165_000_000, **quiet),
        record(NOON + DAY_S, user="grows", request_bytes=1_100_000, **quiet),
    ]
    quotas = [
        Row(user="grows", client_id=None, key="producer_byte_rate", quota=1_500_000.0),
        Row(user="<default>", client_id=None, key="producer_byte_rate", quota=1_200_000.0),
    ]
    rows = backtest(usage(spark, used), quotas, DEFAULT_WINDOWS).orderBy("user").collect()
    assert [(row.user, row.entity, row.quota, row.seconds, row.throttled_seconds, row.amount) for row in rows] == [
        ("grows", "user=grows", 1_500_000, 2, 1, 166_100_000),
        ("steady", "user=<default>", 1_200_000, 1, 0, 1_100_000),
    ]
    assert {f"{row.first_day} {row.last_day}" for row in rows} == {"2026-09-21 2026-09-22"}
    assert [row.longest_throttle_ms > 0 for row in rows] == [True, False]


@pytest.mark.exhaustive
def test_quotas_are_applied_to_the_days_after(lake: Lake) -> None:
    result = run(lake, *DAYS, "--backtest-to", "2026-09-22")
    assert "120 records from 2026-09-21" in result.output
    assert "back-test: 1 of 2 buckets would have been throttled" in result.output
    # 165 MB over the ten seconds of Kafka's shortest window are eleven times the quota.
    assert (
        "producer_byte_rate = 1500000 of user=grows (quota of user=grows): throttled in 1 of 2 seconds, refused in 0,"
        " for at most" in result.output
    )
    rows = lake.read_of_cluster("backtest", schemas.BACKTEST, "cluster-1").orderBy("user").collect()
    assert [(row.user, row.client_id, row.entity, row.quota) for row in rows] == [
        ("grows", None, "user=grows", 1_500_000), ("steady", None, "user=steady", 1_500_000),
    ]  # fmt: skip
    assert {f"{row.first_day} {row.last_day}" for row in rows} == {"2026-09-22 2026-09-22"}
    assert [(row.seconds, row.throttled_seconds, row.refused_seconds, row.amount) for row in rows] == [
        (2, 1, 0, 166_100_000), (1, 0, 0, 1_100_000),
    ]  # fmt: skip
    assert [row.longest_throttle_ms > 0 for row in rows] == [True, False]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("days", "why"),
    [
        (("--to", "2026-09-21"), "--backtest-from is not given"),
        (("--backtest-from", "2026-10-01"), "there is no usage of these days"),
    ],
)
def test_the_table_is_never_of_other_quotas(lake: Lake, days: tuple[str, ...], why: str) -> None:
    """The second case recommends from all days up to the last of September."""
    run(lake, *DAYS, "--cluster", "cluster-1")
    result = run(lake, "--cluster", "cluster-1", *days)
    assert f"the table backtest has no rows of this cluster: {why}" in result.output
    assert lake.read_of_cluster("backtest", schemas.BACKTEST, "cluster-1").count() == 0
    assert lake.read_of_cluster("recommendations", schemas.RECOMMENDATIONS, "cluster-1").count() > 0


def test_a_run_that_ends_before_its_back_test_leaves_none_of_other_quotas(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Row(**dict.fromkeys(schemas.BACKTEST.names) | {"user": "steady", "key": "producer_byte_rate"})
    rows = spark.createDataFrame([kept], schemas.BACKTEST)
    for cluster in ("cluster-1", "cluster-2"):
        lake.replace_of_cluster("backtest", rows, cluster)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.pipeline.jobs.recommend.backtest", killed)
    arguments = ("--lake", lake.root, *DAYS, "--cluster", "cluster-1", "--no-default")
    assert CliRunner().invoke(pipeline, ["recommend", *arguments]).exit_code != 0
    assert lake.read_of_cluster("recommendations", schemas.RECOMMENDATIONS, "cluster-1").count() > 0
    assert lake.read_of_cluster("backtest", schemas.BACKTEST, "cluster-1").count() == 0
    assert lake.read_of_cluster("backtest", schemas.BACKTEST, "cluster-2").count() == 1
