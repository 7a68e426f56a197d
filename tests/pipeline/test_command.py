"""``headrace pipeline``: its messages and requirements, and its use with spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import JOBS, command_of, pipeline
from headrace.pipeline.errors import NoJarsError, NoJavaError
from headrace.pipeline.lake import tables
from headrace.pipeline.lake.jars import DELTA_LAKE, jars_of
from headrace.pipeline.lake.session import check_java
from headrace.pipeline.lake.tables import Lake
from headrace.pipeline.output import report_progress, report_result
from headrace.proxy.cli import main
from tests.pipeline.records import NOON, record, usage
from tests.unprintable import ESCAPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def test_it_is_a_command_of_headrace_and_lists_its_jobs() -> None:
    assert "pipeline" in CliRunner().invoke(main, ["--help"]).stdout
    listed = CliRunner().invoke(main, ["pipeline", "--help"]).stdout
    assert all(f"\n  {job} " in listed for job in JOBS)


@pytest.mark.parametrize("job", sorted(JOBS))
def test_every_job_has_a_help_text(job: str) -> None:
    result = CliRunner().invoke(pipeline, [job, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tidy"], "No such command 'tidy'"),
        (["ingest", "--lake", "x"], "expected one of --from-files, --bootstrap-servers and --quarantined; got none"),
        (["ingest", "--lake", "x", "--from-files", "f", "--quarantined"], "got --from-files, --quarantined"),
        (["instances", "--lake", "x", "--conf", "novalue"], "--conf novalue: expected NAME=VALUE"),
        (["what-if", "--lake", "x"], "expected --lake and --quotas, or --trace and --output"),
        (["what-if", "--trace", "t"], "--trace contains quotas and requires --output"),
        (["what-if", "--trace", "t", "--output", "o", "--cluster", "c"], "--cluster has no effect with --trace"),
    ],
)
def test_wrong_usage_is_an_error(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize("job", sorted({*JOBS} - {"zip"}))
def test_no_job_drops_a_value_of_a_repeated_option(job: str) -> None:
    options = [option for option in command_of(job).params if isinstance(option, click.Option)]
    with_one_value = [option.opts[0] for option in options if not option.multiple and not option.is_flag]
    assert "--master" in with_one_value
    for name in with_one_value:
        result = CliRunner().invoke(pipeline, [job, name, "1", f"{name}=2"])
        assert result.exit_code == 2
        assert f"Invalid value for '{name}': it has one value, and is given 2 times" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("anomalies --window 7", "--window 7: expected a divisor of the 1440 minutes of a day"),
        ("anomalies --from 2026-09-22 --to 2026-09-21", "--from 2026-09-22 is after --to 2026-09-21"),
        ("budgets --budgets no.toml", "no.toml: cannot be read"),
        ("budgets --budgets budgets.toml --prometheus no/b.prom", "--prometheus no/b.prom: the folder"),
        ("budgets --budgets budgets.toml --webhook file:///x", "--webhook: expected an address that begins with http"),
        ("budgets --budgets budgets.toml --webhook-token-file t", "--webhook-token-file is for the address --webhook"),
        ("budgets --budgets budgets.toml --webhook http://h --webhook-token-file no", "no: cannot be read: no such"),
        ("calibrate", "expected --truth"),
        ("calibrate --truth t --against no.toml", "--against = 'no.toml': No such file"),
        ("calibrate --truth t --output no/costs.toml", "--output no/costs.toml: the folder"),
        ("ingest", "expected one of --from-files, --bootstrap-servers and --quarantined; got none"),
        ("ingest --bootstrap-servers b --kafka a=1 --kafka a=2", "--kafka a=…: it has one value, and is given several"),
        ("ingest --bootstrap-servers b --kafka novalue", "--kafka novalue: expected NAME=VALUE"),
        ("rollup --lake nowhere", "--lake nowhere does not exist; headrace pipeline ingest creates it"),
        ("rollup --teams nowhere.csv", "--teams nowhere.csv does not exist"),
        ("ingest --from-files nowhere", "--from-files nowhere does not exist"),
        ("ingest --quarantined --follow 60", "--follow has no effect with --quarantined"),
        ("ingest --from-files . --topic t", "--topic has no effect without --bootstrap-servers"),
        ("instances --from 2026-09-22 --to 2026-09-21", "--from 2026-09-22 is after --to 2026-09-21"),
        ("recommend --config no.toml", "no.toml"),
        ("recommend --least nokey=1", "--least nokey=1"),
        ("recommend --bootstrap-server b", "--bootstrap-server has no effect without --commands"),
        ("recommend --most 5", "--most has no effect without --toml or --commands"),
        ("recommend --toml no/quotas.toml", "--toml no/quotas.toml: the folder"),
        ("recommend --commands .", "--commands . is a folder"),
        ("report --output no/report.html", "--output no/report.html: the folder"),
        ("rollup --output bill.csv", "--output is the file for the bills, which require --prices"),
        ("rollup --prices no.toml", "no.toml"),
        ("rollup --teams-topic t", "--teams-topic t requires --bootstrap-servers"),
        ("rollup --bootstrap-servers b", "--bootstrap-servers and --kafka are about a topic with teams: --teams-topic"),
        ("rollup --teams-topic t --bootstrap-servers b --kafka novalue", "--kafka novalue: expected NAME=VALUE"),
        ("rollup --teams prices.toml --teams-topic t --bootstrap-servers b", "two sources of teams; expected one"),
        ("rollup --prices prices.toml --output no/bill.csv", "--output no/bill.csv: the folder"),
        ("what-if --quotas no.toml", "no.toml"),
        ("what-if", "expected --lake and --quotas, or --trace and --output"),
        ("what-if --quotas quotas.toml --demand-at-most 2", "--demand-at-most has no effect without --demand"),
    ],
)
def test_arguments_are_checked_before_spark_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str, message: str
) -> None:
    def start_session(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    job, *options = arguments.split()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text('currency = "EUR"\ngib_in = 1\n', encoding="utf-8")
    callback = command_of(job).callback
    assert callback is not None
    module = sys.modules[callback.__module__]
    for starting in (module, tables):
        monkeypatch.setattr(starting, "start_session", start_session, raising=False)
    (tmp_path / "budgets.toml").write_text('currency = "EUR"\n[teams.a]\namount = 1\n', encoding="utf-8")
    (tmp_path / "x").mkdir()
    result = CliRunner().invoke(pipeline, [job, *(() if "--lake" in options else ("--lake", "x")), *options])
    assert result.exit_code in (1, 2), result.exception
    assert message in " ".join(result.output.split())


def test_an_error_is_a_line_without_a_traceback(spark: SparkSession, tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["instances", "--lake", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output == (
        f"headrace pipeline: there is no table 'usage' in {tmp_path}; headrace pipeline ingest creates it\n"
    )


def test_names_that_clients_chose_are_printable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report_progress(ESCAPES)
    report_result(ESCAPES)
    shown = capsys.readouterr()
    output = tmp_path / f"no{ESCAPES}" / "x.html"
    failed = CliRunner().invoke(pipeline, ["report", "--lake", str(tmp_path), "--output", str(output)])
    assert failed.exit_code
    for text in (shown.err, shown.out, failed.output):
        assert "\\x1b[2J" in text
        assert all(map(str.isprintable, text.split("\n")))


def test_without_pyspark_the_error_names_the_extra_to_install(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('gone', name='pyspark')\n")
    command = [sys.executable, "-m", "headrace.pipeline", "instances", "--lake", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    message = "the pipeline needs the package pyspark: pip install 'headrace[pipeline]'"
    assert done.stderr == f"headrace pipeline: {message}\n"


# --- Java ---


def java(folder: Path, version: str, modules: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(
        f"#!/bin/sh\nif [ $1 = -version ]; then echo 'openjdk version \"{version}\"' >&2; else echo {modules}; fi\n"
    )
    script.chmod(0o755)
    return folder


def test_a_supported_java_is_accepted(tmp_path: Path) -> None:
    check_java(str(java(tmp_path / "a", "17.0.9", "jdk.incubator.vector@17")), "")
    check_java(None, str(java(tmp_path / "b", "21.0.1", "jdk.incubator.vector@21") / "bin"))


def test_other_javas_are_refused_with_what_to_do(tmp_path: Path) -> None:
    hint = r"Spark needs a full JDK of version 17 or 21: install one .* and set JAVA_HOME"
    with pytest.raises(NoJavaError, match=rf"no java on the PATH; {hint}"):
        check_java(None, str(tmp_path))
    with pytest.raises(NoJavaError, match=rf"no Java at JAVA_HOME=/nowhere; {hint}"):
        check_java("/nowhere", os.defpath)
    with pytest.raises(NoJavaError, match=r'is openjdk version "11.0.2"; '):
        check_java(str(java(tmp_path / "old", "11.0.2", "java.base@11")), "")
    with pytest.raises(NoJavaError, match=r"has no module jdk\.incubator\.vector; "):
        check_java(str(java(tmp_path / "small", "17.0.9", "java.base@17")), "")


def test_jars_that_cannot_be_downloaded_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HEADRACE_PIPELINE_REPOSITORY", "http://127.0.0.1:9/maven")
    with pytest.raises(
        NoJarsError, match=r"cannot download org\.nowhere:nothing:1: .*set HEADRACE_PIPELINE_REPOSITORY"
    ):
        jars_of("org.nowhere:nothing:1")
    assert list((tmp_path / "cache").iterdir()) == []


# --- spark-submit ---


@pytest.mark.exhaustive
def test_the_zip_is_all_that_spark_submit_needs_of_it(spark: SparkSession, tmp_path: Path) -> None:
    Lake(spark, str(tmp_path / "lake")).append("usage", usage(spark, [record(NOON, sequence=0)]), "date", "hour")
    archive = tmp_path / "headrace-pipeline.zip"
    assert CliRunner().invoke(pipeline, ["zip", str(archive)]).exit_code == 0
    with zipfile.ZipFile(archive) as made:
        names = set(made.namelist())
        main_file = made.extract("headrace/pipeline/__main__.py", tmp_path)
    assert {
        "headrace/pipeline/analysis/what_if/loop.py",
        "headrace/quota_callbacks/records/replay.py",
        "headrace/config/loading.py",
    } <= names
    assert not any(name.startswith(("headrace/proxy/", "headrace/plugins/")) for name in names)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [BIN / "spark-submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    command += [
        "--jars",
        ",".join(map(str, jars_of(DELTA_LAKE))),
        "--py-files",
        archive,
        main_file,
        "instances",
        "--lake",
        tmp_path / "lake",
    ]
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"proxy-a-1  {NOON}  {NOON}  1  0  0  0  no"
