"""The jars and settings with which a session is started, without Spark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from unittest.mock import MagicMock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import builtin

from headrace.pipeline.lake import python_daemon, session
from headrace.pipeline.lake.jars import DELTA_LAKE, KAFKA_CONNECTOR, S3_CLIENT
from headrace.pipeline.lake.session import LITTLE_DATA, SparkOptions, _settings_of_new_jvm, is_at_most, start_session

if TYPE_CHECKING:
    from pathlib import Path

DYNAMODB = "io.delta:delta-storage-s3-dynamodb:4.0.0"


@pytest.mark.parametrize(
    ("packages", "resolved"),
    [
        (None, [DELTA_LAKE, S3_CLIENT, KAFKA_CONNECTOR]),
        (DYNAMODB, [DELTA_LAKE, S3_CLIENT, KAFKA_CONNECTOR]),
        (f"{DYNAMODB}, org.apache.hadoop:hadoop-aws:3.4.2", [DELTA_LAKE, KAFKA_CONNECTOR]),
        ("io.delta:delta-spark_2.13:4.0.1", [S3_CLIENT, KAFKA_CONNECTOR]),
        ("org.apache.hadoop:hadoop-aws-extra:1", [DELTA_LAKE, S3_CLIENT, KAFKA_CONNECTOR]),
    ],
)
def test_packages_replace_the_jars_of_the_artifacts_that_they_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packages: str | None, resolved: list[str]
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(session, "check_java", lambda *_: None)
    monkeypatch.setattr(session, "jars_of", lambda coordinate: (tmp_path / coordinate,))
    builder = MagicMock()
    builder.appName.return_value = builder.config.return_value = builder
    monkeypatch.setattr(SparkSession, "builder", builder)
    start_session("x", SparkOptions(packages=packages, conf={}), "s3a://bucket/lake", kafka=True)
    settings = dict(each.args for each in builder.config.call_args_list)
    assert settings.get("spark.jars.packages") == packages
    assert settings["spark.jars"] == ",".join(str(tmp_path / each) for each in resolved)


def test_the_size_of_folders(tmp_path: Path) -> None:
    (tmp_path / "lake" / "usage").mkdir(parents=True)
    (tmp_path / "lake" / "usage" / "a.parquet").write_bytes(bytes(600))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "usage-a-1.jsonl").write_bytes(bytes(400))
    folders = (str(tmp_path / "in"), f"file://{tmp_path / 'lake'}", str(tmp_path / "missing"))
    size = 1000 + (tmp_path / "lake" / "usage").stat().st_size
    assert is_at_most(size, *folders)
    assert not is_at_most(size - 1, *folders)
    assert not is_at_most(size, *folders, "s3a://bucket/lake")


@pytest.mark.parametrize(
    ("master", "environment", "is_used"),
    [
        ("local[2]", {}, True),
        ("local[2]", {"PYSPARK_PYTHON": "/other/python3"}, False),
        ("local[2]", {"SPARK_HOME": "/opt/spark"}, False),
        ("spark://a:1", {}, False),
    ],
)
def test_the_daemon_without_archives_is_for_the_same_python_and_spark(
    monkeypatch: pytest.MonkeyPatch, master: str, environment: dict[str, str], *, is_used: bool
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for name, value in ({"PYSPARK_PYTHON": sys.executable} | environment).items():
        monkeypatch.setenv(name, value)
    settings = _settings_of_new_jvm(SparkOptions(master=master, conf={}), [], is_little=False)
    assert settings.get("spark.python.daemon.module") == ("headrace.pipeline.lake.python_daemon" if is_used else None)


def test_functions_run_without_archives_on_their_path(spark: SparkSession) -> None:
    (path,) = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.path).collect()
    assert any(each.endswith("site-packages") for each in path)
    assert [each for each in path if "pyspark.zip" in each or each.endswith(".jar")] == []


@pytest.mark.parametrize("is_installed", [True, False])
def test_archives_are_dropped_if_their_packages_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_installed: bool
) -> None:
    archives = [
        "/spark/python/lib/pyspark.zip",
        "/spark/python/lib/py4j-0.10.9.9-src.zip",
        "/j/spark-core_2.13-4.0.0.jar",
    ]
    for package in ("pyspark", "py4j"):
        (tmp_path / package).mkdir()
        if is_installed or package == "pyspark":
            (tmp_path / package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*archives, "/a/users.zip", str(tmp_path)])
    python_daemon.drop_archives()
    assert sys.path == [*([] if is_installed else archives), "/a/users.zip", str(tmp_path)]


@pytest.mark.parametrize("master", ["local[2]", "spark://master:7077"])
@pytest.mark.parametrize("is_little", [False, True])
def test_little_data_has_settings_of_its_own_on_this_machine(master: str, *, is_little: bool) -> None:
    settings = _settings_of_new_jvm(SparkOptions(master=master, conf={}), [], is_little=is_little)
    has_them = settings.items() >= LITTLE_DATA.items()
    assert has_them is (is_little and master.startswith("local"))
    assert ("spark.sql.shuffle.partitions" in settings) is master.startswith("local")


class _Jvm:
    """Counts what is looked up in the JVM: classes and their functions."""

    def __init__(self, found: list[str]) -> None:
        self._found = found

    def __getattr__(self, name: str) -> _Jvm:
        self._found.append(name)
        return _Jvm(self._found)


def test_a_function_of_spark_is_looked_up_in_the_jvm_once() -> None:
    found: list[str] = []
    running = MagicMock()
    running.sparkContext._jvm = _Jvm(found)
    for _ in range(2):  # for each job of a plan
        session._remember_functions(running)
        for name in ("col", "lit", "col"):
            assert isinstance(builtin._get_jvm_function(name, running.sparkContext), _Jvm)
    assert found == [session.FUNCTIONS, "col", "lit"]
