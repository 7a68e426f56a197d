"""``headrace pipeline ingest`` and ``instances`` on the command line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from headrace.pipeline.cli import pipeline
from headrace.pipeline.errors import ConflictError, InputError
from headrace.pipeline.ingestion.ingest import Ingest, Outcome
from headrace.pipeline.ingestion.sources import FileSource, as_pipeline_error
from headrace.pipeline.jobs import instances as instances_job
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import SparkOptions, start_session
from headrace.pipeline.lake.spark_errors import cause_of
from headrace.pipeline.lake.tables import Lake
from tests.faults.waiting import wait_until
from tests.pipeline.ingestion.ingesting import DAY_S, sequences
from tests.pipeline.records import record, usage, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
NOW = int(datetime.now(UTC).timestamp())
JOBS = ("instances", "ingest")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    """Return the one line of the error message."""
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 1, result.exception
    (line,) = result.output.splitlines()
    return line


def test_late_lines_are_taken_in_when_no_hour_is_final(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    given = ["--lake", lake.root, "--from-files", str(folder)]
    write_lines(folder / "usage-a-1.jsonl", record(NOW - 60, sequence=1), record(NOW + 2 * DAY_S, sequence=2))
    assert re.search(r"quarantined: 1 x ahead: second N is more than N s after N", run("ingest", *given))
    write_lines(folder / "usage-a-2.jsonl", record(NOW - 3 * DAY_S, sequence=3))
    assert "quarantined: 1 x late: second N" in run("ingest", *given)
    write_lines(folder / "usage-a-3.jsonl", record(NOW - 3 * DAY_S, sequence=4))
    assert "1 records" in run("ingest", "--accept-late", *given)
    assert "0 records" in run("ingest", "--quarantined", "--lake", lake.root)
    assert "1 records" in run("ingest", "--quarantined", "--accept-late", "--lake", lake.root)
    assert sequences(lake) == [1, 3, 4]


def test_it_follows_until_a_signal(spark: SparkSession, tmp_path: Path) -> None:
    folder, lake = tmp_path / "in", Lake(spark, str(tmp_path / "lake"))
    write_lines(folder / "usage-a-1.jsonl", record(NOW - 60, sequence=1))
    command = [sys.executable, "-m", "headrace.pipeline", "ingest", "--lake", lake.root, "--from-files", str(folder)]
    command += ["--follow", "0.5", "--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as following:
        try:
            for number in (1, 2, 3):
                write_lines(folder / f"usage-a-{number}.jsonl", record(NOW - 60, sequence=number))
                wait_until(partial(has_taken, lake, number), f"{number} records are there", 600, poll_s=2)
            following.send_signal(signal.SIGTERM)
            _, output = following.communicate(timeout=120)
        finally:
            following.kill()
    assert following.returncode == 0, output
    assert "Traceback" not in output
    assert "3 lines in 3 batches: 3 records" in output.splitlines()[-1]


def has_taken(lake: Lake, number: int) -> bool:
    """Return whether the table has this many records. Each look takes processor time from the job that it waits for."""
    return lake.read_or_empty("usage", schemas.USAGE).count() == number


def test_a_signal_before_everything_is_read_is_no_success(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Ingest, *_: object, **__: object) -> Outcome:
        os.kill(os.getpid(), signal.SIGTERM)
        self.was_stopped = self._stopping
        return self.outcome

    monkeypatch.setattr(Ingest, "run", stopped)
    arguments = ["--lake", str(tmp_path / "lake"), "--from-files", str(tmp_path)]
    result = CliRunner().invoke(pipeline, ["ingest", *arguments])
    assert result.exit_code == os.EX_TEMPFAIL
    assert "a signal stopped ingest before it had read everything; the next run continues" in result.output
    assert CliRunner().invoke(pipeline, ["ingest", *arguments, "--follow", "1"]).exit_code == 0


def test_two_streams_of_a_source_are_a_conflict() -> None:
    with pytest.raises(PySparkException) as raised:
        raise PySparkException("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.")
    assert isinstance(as_pipeline_error(raised.value, FileSource(folder="x")), ConflictError)


# --- what is wrong, in a line ---


@pytest.mark.parametrize(
    ("lake", "message"),
    [
        pytest.param(
            "s3a://bucket/lake",
            r"cannot reach s3a://.*S3AFileSystem not found; Spark lacks .*:hadoop-aws:3\.4\.1$",
            marks=pytest.mark.exhaustive,
        ),
        ("nosuch://host/lake", r'cannot reach nosuch://.*No FileSystem for scheme "nosuch"$'),
        ("hdfs://nosuch.invalid/lake", r"cannot reach hdfs://.*UnknownHostException: nosuch.invalid$"),
    ],
)
@pytest.mark.parametrize("job", ["instances", pytest.param("ingest", marks=pytest.mark.exhaustive)])
def test_a_missing_store_is_an_error(spark: SparkSession, tmp_path: Path, job: str, lake: str, message: str) -> None:
    source = ["--from-files", str(tmp_path)] if job == "ingest" else []
    assert re.search(message, refused(job, "--lake", lake, *source))


@pytest.mark.parametrize("job", ["rollup", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in JOBS)])
def test_a_damaged_file_is_named_with_its_table(lake: Lake, spark: SparkSession, tmp_path: Path, job: str) -> None:
    lake.append("usage", usage(spark, [record(NOW - 60)]), "date", "hour")
    (file,) = Path(lake.path("usage")).glob("date=*/hour=*/*.parquet")
    file.write_text("junk")
    file.with_name(f".{file.name}.crc").unlink()
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", record(NOW - 60))
    source = ["--from-files", str(tmp_path / "in")] if job == "ingest" else []
    result = CliRunner().invoke(pipeline, [job, "--lake", lake.root, *source])
    assert result.exit_code == 1, result.exception
    assert re.search(rf"cannot read the table usage, file file:{file}: .*is not a Parquet file", result.output)
    assert "Traceback" not in result.output


def test_a_cause_is_found_behind_whatever_stands_before_it() -> None:
    assert cause_of(ValueError("one\ntwo")) == "one"
    assert cause_of(ValueError("")) == "ValueError"
    assert cause_of(ValueError("calling o76.start.\n: java.io.IOException: mkdir failed\n\tat x")) == (
        "java.io.IOException: mkdir failed"
    )
    assert cause_of(ValueError("calling o1.x.\n: a.B: c\n\tat x\nCaused by: d.E: f\nCaused by: g.H: i\n\tat y")) == (
        "g.H: i"
    )


def test_packages_are_for_spark_submit_where_it_started_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(InputError, match=r"--packages a:b:1 has no effect .* pass it to spark-submit"):
        start_session("x", SparkOptions(packages="a:b:1", conf={}))


# --- instances ---


def test_instances_of_some_days(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    day = NOW - NOW % DAY_S - 5 * DAY_S
    date = datetime.fromtimestamp(day, UTC).date().isoformat()
    of_a = [record(day + offset * DAY_S, instance="a", sequence=n) for n, offset in enumerate((-1, -1, 0, 0, 0, 1, 1))]
    of_b = [record(day - DAY_S, instance="b", sequence=0)]
    end = [{"schema": 1, "kind": "end", "instance": name, "sequence": 9} for name in "ab"]
    lost = {"schema": 1, "kind": "lost", "instance": "a", "sequence": 7, "second": day + DAY_S, "records": 4}
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *of_a[:3], *of_a[4:], *of_b, *end, json.dumps(lost))
    run("ingest", "--lake", lake.root, "--from-files", str(tmp_path / "in"))
    asked = run("instances", "--lake", lake.root, "--from", date, "--to", date)
    assert asked.splitlines()[1:] == [f"a  {day}  {day}  3  1  1  0  yes"]
    asked = run("instances", "--lake", lake.root, "--from", date)
    assert asked.splitlines()[1:] == [f"a  {day}  {day + DAY_S}  6  1  1  4  yes"]
    assert run("instances", "--lake", lake.root).splitlines()[1:] == [
        f"a  {day - DAY_S}  {day + DAY_S}  8  2  2  4  yes",
        f"b  {day - DAY_S}  {day - DAY_S}  2  8  1  0  yes",
    ]


def test_more_instances_than_are_shown(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.append("usage", usage(spark, [record(NOW, instance=name, sequence=0) for name in "abc"]), "date", "hour")
    monkeypatch.setattr(instances_job, "SHOWN", 2)
    shown = run("instances", "--lake", lake.root).splitlines()
    assert len(shown) == 4
    assert shown[-1] == "these are the first 2; use --from and --to to select days"
    monkeypatch.setattr(instances_job, "SHOWN", 3)
    assert len(run("instances", "--lake", lake.root).splitlines()) == 4
