"""``headrace pipeline run``: the jobs of a plan in one session, and results as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import JOBS, command_of, pipeline
from headrace.pipeline.errors import ConflictError, InputError
from headrace.pipeline.jobs import run
from headrace.pipeline.jobs.run import read_plan
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import SparkOptions
from headrace.pipeline.lake.tables import Lake
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession


def run_plan(folder: Path, plan: str, *arguments: str) -> Result:
    path = folder / "plan.toml"
    path.write_text(plan, encoding="utf-8")
    return CliRunner().invoke(pipeline, ["run", str(path), *arguments])


def test_the_jobs_of_a_plan_run_in_order_and_their_results_are_json(spark: SparkSession, tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *(record(NOON + second) for second in range(20)))
    (tmp_path / "prices.toml").write_text('currency = "EUR"\nper_gib_produced = 1_000\n', encoding="utf-8")
    plan = f"""
        lake = "{tmp_path}/lake"
        [spark]
        conf = {{ "spark.sql.shuffle.partitions" = 2 }}
        [report]
        output = "{tmp_path}/report.html"
        [rollup]
        prices = "{tmp_path}/prices.toml"
        per = "day"
        from = 2026-09-01
        [recommend]
        least-seconds = 10
        no-default = true
        least = {{ producer_byte_rate = 5 }}
        [ingest]
        from-files = "{tmp_path}/in"
    """
    result = run_plan(tmp_path, plan, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["job"], found["status"]) == ("run", "done")
    assert [job["job"] for job in found["jobs"]] == ["ingest", "rollup", "recommend", "report"]
    ingest, rollup, recommend, report = found["jobs"]
    assert (ingest["records"], ingest["duplicates"]) == (20, 0)
    assert (rollup["days"], rollup["records"], rollup["bills"]) == (["2026-09-21"], 20, 1)
    assert (recommend["cluster"], recommend["entities"]) == ("cluster-1", 1)
    assert report["bytes"] == len(Path(report["output"]).read_bytes())
    assert "ingest (1 of 4)" in result.stderr
    assert Lake(spark, f"{tmp_path}/lake").read("usage", schemas.USAGE).count() == 20


def test_the_first_job_that_fails_ends_the_run_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    plan = f'lake = "{tmp_path}/lake"\n[rollup]\n[report]\noutput = "{tmp_path}/report.html"\n'
    result = run_plan(tmp_path, plan, "--json")
    assert result.exit_code == 1
    failed = json.loads(result.stdout)
    assert (failed["job"], failed["status"], failed["exit_status"]) == ("run", "failed", 1)
    assert failed["error"].startswith("rollup: there is no table 'usage' in")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("", "expected the folder of the tables"),
        ("lake = 1\n[rollup]\n", "lake = 1; expected the folder of the tables"),
        ('lake = "x"\n', "no jobs; expected tables for some of ingest, "),
        ('lake = "x"\n[rolup]\n', "rolup: expected lake, spark, and tables for jobs: ingest, "),
        ('lake = "x"\n[run]\n', "run: expected lake, spark, and tables for jobs"),
        ('lake = "x"\nrollup = 1\n', "rollup: expected lake, spark, and tables for jobs"),
        ('lake = "x"\n[spark]\ncores = 1\n[rollup]\n', "spark has cores; expected a table with some of master"),
        ('lake = "x"\n[rollup]\njson = true\n', "[rollup]: json: expected headrace pipeline run"),
        ('lake = "x"\n[ingest]\nfollow = 5\n', "[ingest]: follow: the jobs after it would never run"),
        ('lake = "x"\n[rollup]\n[rollup]\n', "plan.toml:3"),
    ],
)
def test_a_plan_that_cannot_be_run_is_an_error(tmp_path: Path, plan: str, message: str) -> None:
    (tmp_path / "plan.toml").write_text(plan, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_plan(str(tmp_path / "plan.toml"))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("prcies = 1", "plan.toml: [rollup]: No such option '--prcies'"),
        ('from = "monday"', "plan.toml: [rollup]: Invalid value for '--from'"),
    ],
)
def test_all_options_are_checked_before_the_first_job_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: str, message: str
) -> None:
    monkeypatch.setattr(run, "report_progress", pytest.fail)  # called before each job
    result = run_plan(tmp_path, f'lake = "x"\n[ingest]\nfrom-files = "y"\n[rollup]\n{options}\n')
    assert result.exit_code == 1
    assert message in result.output


def test_a_job_that_can_be_run_again_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def open_lake(*_: object, **__: object) -> Lake:
        raise ConflictError("another job works on the lake")

    monkeypatch.setattr("headrace.pipeline.jobs.rollup.open_lake", open_lake)
    result = CliRunner().invoke(pipeline, ["rollup", "--lake", str(tmp_path), "--json"])
    assert result.exit_code == os.EX_TEMPFAIL == 75
    assert json.loads(result.stdout) == {
        "job": "rollup",
        "status": "failed",
        "error": "another job works on the lake",
        "exit_status": 75,
    }


def test_spark_has_its_kafka_connector_if_only_a_later_job_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, SparkOptions, str, bool]] = []

    def start_session(job: str, options: SparkOptions, lake: str, *, kafka: bool = False) -> None:
        started.append((job, options, lake, kafka))
        raise InputError("Spark is started")

    for job in JOBS:
        command_of(job)  # otherwise a module that is imported first here would keep the function of this test
    monkeypatch.setattr("headrace.pipeline.lake.session.start_session", start_session)
    rollup = '[rollup]\nteams-topic = "t"\nbootstrap-servers = "b:9092"\nconf = { a = 1 }\n'
    result = run_plan(tmp_path, f'lake = "x"\n[ingest]\nfrom-files = "y"\n{rollup}')
    assert result.exit_code == 1
    assert started == [("run", SparkOptions(conf={"a": "1"}), "x", True)], "and no job has run"
