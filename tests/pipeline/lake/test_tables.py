"""The tables: what readers see while tables are written, and what compact and retain leave."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import ConflictError
from headrace.pipeline.jobs.maintenance import retain
from headrace.pipeline.lake import schemas, tables
from headrace.pipeline.lake.retained import removed_before
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.ingestion.ingesting import sequences, take_in
from tests.pipeline.records import NOON, record, usage, write_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TODAY = datetime.now(UTC).date()


def day(spark: SparkSession, requests: int, days_ago: int = 0) -> DataFrame:
    row = {field.name: None for field in schemas.ROLLUP_DAY.fields}
    row |= {"date": TODAY - timedelta(days=days_ago), "requests": requests}
    return spark.createDataFrame([tuple(row.values())], schemas.ROLLUP_DAY)


def bill(spark: SparkSession, line: int) -> DataFrame:
    row = {field.name: None for field in schemas.CHARGEBACK.fields} | {"period": "day", "date": TODAY, "line": line}
    return spark.createDataFrame([tuple(row.values())], schemas.CHARGEBACK)


def seen(lake: Lake) -> tuple[list[int], list[int]]:
    """Return what a reader that begins now sees of two tables that change together."""
    reader = Lake(lake.spark, lake.root)
    days = reader.read_or_empty("rollup_day", schemas.ROLLUP_DAY).collect()
    lines = reader.read_or_empty("chargeback", schemas.CHARGEBACK).collect()
    return sorted(row.requests for row in days), sorted(row.line for row in lines)


@pytest.mark.exhaustive
def test_a_table_that_was_looked_for_while_it_was_created_is_found(
    lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    """Another process had created the folder of its log, and nothing in it. What a log has is kept for an hour."""
    log = Path(lake.path("marks"), "_delta_log")
    log.mkdir(parents=True)
    assert not lake.has("marks")
    made = Lake(spark, str(tmp_path / "made"))
    made.create("marks", schemas.MARKS, "date")
    for file in Path(made.path("marks"), "_delta_log").glob("*.json"):
        shutil.copy(file, log)
    assert lake.has("marks")


def test_readers_see_all_changes_of_a_release_or_none(lake: Lake, spark: SparkSession) -> None:
    die_in_release(lake, spark)
    with lake.release() as draft:
        draft.replace("rollup_day", day(spark, 1), "date")
        assert seen(lake) == ([], [])
        assert not Lake(spark, lake.root).has("rollup_day")
        assert draft.read("rollup_day", schemas.ROLLUP_DAY).count() == 1
        draft.replace("chargeback", bill(spark, 1), "period", "date")
    assert seen(lake) == ([1], [1])
    reader = Lake(spark, lake.root)
    assert reader.read("rollup_day", schemas.ROLLUP_DAY).first().requests == 1  # type: ignore[union-attr]
    with lake.release() as draft:
        draft.replace("rollup_day", day(spark, 2), "date")
        assert seen(lake) == ([1], [1])
        draft.replace("chargeback", bill(spark, 2), "period", "date")
    assert seen(lake) == ([2], [2])
    assert reader.read("chargeback", schemas.CHARGEBACK).first().line == 1, "it goes on with the release it began with"  # type: ignore[union-attr]


def die_in_release(lake: Lake, spark: SparkSession, days_ago: int = 50) -> None:
    def die() -> None:
        with lake.release() as draft:
            draft.replace("rollup_day", day(spark, 50, days_ago), "date")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        die()


@pytest.mark.exhaustive
def test_what_was_written_without_a_release_is_undone_by_the_next(lake: Lake, spark: SparkSession) -> None:
    for requests, line in ((1, 1), (2, 2)):
        die_in_release(lake, spark)
        with lake.release() as draft:
            draft.replace("chargeback", bill(spark, line), "period", "date")
            draft.replace("rollup_day", day(spark, requests, days_ago=requests), "date")
    assert seen(lake) == ([1, 2], [2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", ["write", "release"])
def test_of_two_jobs_at_the_same_time_one_fails_and_says_so(lake: Lake, spark: SparkSession, first: str) -> None:
    with lake.release() as draft:
        draft.replace("rollup_day", day(spark, 1), "date")

    def work() -> None:
        with lake.release() as draft:
            draft.replace("rollup_day", day(spark, 2), "date")
            with Lake(spark, lake.root).release() as others:
                others.replace("rollup_day", day(spark, 3), "date")
            if first == "write":
                draft.replace("rollup_day", day(spark, 4), "date")

    with pytest.raises(ConflictError, match=r"another job works on .* This run has changed nothing; run it again"):
        work()
    assert seen(lake) == ([3], [])


@pytest.mark.exhaustive
def test_a_release_that_another_job_publishes_first_stays(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_whole = Lake.replace_whole

    def publish_first(self: Lake, table: str, frame: DataFrame) -> None:
        monkeypatch.setattr(Lake, "replace_whole", replace_whole)
        Lake(spark, lake.root)._publish(1, {"rollup_day": 5})
        self.replace_whole(table, frame)

    def work() -> None:
        with lake.release() as draft:
            draft.replace("rollup_day", day(spark, 1), "date")

    monkeypatch.setattr(Lake, "replace_whole", publish_first)
    with pytest.raises(ConflictError, match="it has released its tables first"):
        work()
    assert released(lake) == [(1, 5)]


def released(lake: Lake) -> list[tuple[int, int]]:
    rows = lake.table("releases").toDF().collect()
    return sorted((row.number, row.versions["rollup_day"]) for row in rows)


def files(lake: Lake, table: str) -> list[str]:
    return sorted(Path(name).name for name in lake.table(table).toDF().inputFiles())


@pytest.mark.exhaustive
def test_an_hour_is_one_file_when_it_is_final(lake: Lake, tmp_path: Path) -> None:
    for number in range(3):
        write_lines(tmp_path / "in" / f"usage-a-{number}.jsonl", record(NOON, sequence=number))
        take_in(lake, tmp_path / "in", 7200)
    assert len(files(lake, "usage")) == 3
    write_lines(tmp_path / "in" / "usage-a-9.jsonl", record(NOON + 3 * 3600, sequence=9))
    take_in(lake, tmp_path / "in", 7200)
    assert len(files(lake, "usage")) == 2
    assert sequences(lake) == [0, 1, 2, 9]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--rollup-day", "60"), "no such option, as all of it is kept"),
        (("--rollup-day", "60", "--usage", "90"), "of which 90 days are kept; expected 90 days or more"),
        (("--rollup-day", "90", "--usage", "90", "--chargeback", "100"), "expected 121 days or more"),
    ],
)
def test_what_rollup_would_compute_again_is_kept(options: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    refused = CliRunner().invoke(pipeline, ["retain", "--lake", str(tmp_path), *options])
    assert (refused.exit_code, expected in refused.output.replace("\n", " ")) == (2, True), refused.output


@pytest.mark.exhaustive
def test_compact_and_retain(lake: Lake, spark: SparkSession) -> None:
    old = int(datetime.now(UTC).timestamp()) - 40 * 86_400
    for number in range(2):
        lake.append("usage", usage(spark, [record(old, sequence=number)]), "date", "hour")
    lake.append("usage", usage(spark, [record(old + 30 * 86_400, sequence=5)]), "date", "hour")
    with lake.release() as draft:
        draft.replace("rollup_day", day(spark, 1, days_ago=40).unionByName(day(spark, 2, days_ago=10)), "date")
    with lake.release() as draft:
        draft.append("rollup_day", day(spark, 3, days_ago=10), "date")
    for team in ("a", "b"):
        lake.append("budgets", spark.sql(f"SELECT add_months(current_date(), -3) AS month, '{team}' AS team"), "month")
    compacted = CliRunner().invoke(pipeline, ["compact", "--lake", lake.root, "--from", "2020-01-01"])
    assert compacted.exit_code == 0, compacted.output
    assert "usage: 2 files merged into 1" in compacted.output
    assert "rollup_day: 2 files merged into 1" in compacted.output
    assert "budgets: 2 files merged into 1" in compacted.output
    assert sequences(lake) == [0, 1, 5]
    days = ["--usage", "20", "--rollup-day", "20", "--budgets", "20"]
    retained = CliRunner().invoke(pipeline, ["retain", "--lake", lake.root, *days])
    assert retained.exit_code == 0, retained.output
    assert "usage: 2 rows removed" in retained.output
    assert "rollup_day: 1 rows removed" in retained.output
    assert "budgets: 2 rows removed" in retained.output
    assert sequences(lake) == [5]
    assert seen(lake)[0] == [2, 3]
    assert removed_before(lake)["usage"] == datetime.now(UTC).date() - timedelta(days=20)


@pytest.mark.exhaustive
def test_retain_leaves_the_files_of_the_newest_release_and_no_old_releases(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake.release() as draft:
        draft.replace("rollup_day", day(spark, 1), "date")
    die_in_release(lake, spark, days_ago=0)
    with lake.release() as draft:
        draft.replace("chargeback", bill(spark, 1), "period", "date")
    assert (released(lake), len(files(lake, "releases"))) == ([(1, 0), (2, 2)], 1)
    die_in_release(lake, spark, days_ago=0)
    monkeypatch.setattr(retain, "VERSION_HOURS", 0)
    monkeypatch.setattr(tables, "VERSION_HOURS", 0)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        for _ in range(2):
            retained = CliRunner().invoke(pipeline, ["retain", "--lake", lake.root, "--usage", "90"])
            assert retained.exit_code == 0, retained.output
            assert seen(lake)[0] == [1]
            assert released(lake) == [(3, 4)], "what was undone is a release, and removing files is none"
            assert lake.version("rollup_day") == 4
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
