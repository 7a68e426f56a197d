"""The jobs on a standalone cluster of Spark, whose executors have the pipeline from the zip alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import pytest
from click.testing import CliRunner

from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake.jars import DELTA_LAKE, jars_of
from testbed.processes.ports import reserve_ports
from tests.faults.waiting import wait_until
from tests.pipeline.records import NOON, record, write_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(sys.executable).parent
PYTHON: Final = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
SPARK_HOME: Final = str(Path(pyspark.__file__).parent)
LIBRARIES: Final = sysconfig.get_paths()["purelib"]
"""As an entry of PYTHONPATH, this folder has the libraries, and not the project, which is installed by a .pth file."""

PLAN: Final = """
lake = "{folder}/lake"
[ingest]
from-files = "{folder}/in"
[rollup]
[recommend]
least-seconds = 5
least-entities = 1
toml = "{folder}/quotas.toml"
[what-if]
quotas = "{folder}/quotas.toml"
[anomalies]
[report]
output = "{folder}/report.html"
"""


@contextmanager
def spark_class(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """Run a class of Spark as a process; yield the file of its log."""
    log = folder / f"{name.rpartition('.')[2]}.log"
    command = [str(BIN / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = os.environ | {"SPARK_HOME": SPARK_HOME}
    with log.open("ab") as output, subprocess.Popen(command, env=environment, stderr=output, stdout=output) as process:
        try:
            yield log
        finally:
            process.terminate()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Start a master and two workers with a core each; yield the master's address."""
    with ExitStack() as stack:
        ports = stack.enter_context(reserve_ports(2)).ports
        address = f"spark://127.0.0.1:{ports[0]}"
        here = ("--host", "127.0.0.1")
        log = stack.enter_context(
            spark_class(tmp_path, "master.Master", *here, "--port", str(ports[0]), "--webui-port", str(ports[1]))
        )
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / f"{number}"))
            stack.enter_context(spark_class(tmp_path, "worker.Worker", *here, *size, address))
        wait_until(lambda: log.read_text().count("Registering worker") >= 2, "both workers are registered", 120)
        yield address


@pytest.mark.exhaustive
def test_the_jobs_run_on_executors_that_have_the_zip_alone(tmp_path: Path, master: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    there = subprocess.run(
        [PYTHON, "-c", "import numpy, headrace"], env=environment | {"PYTHONPATH": LIBRARIES}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "No module named 'headrace'" in there.stderr
    users = ("alice", "bob")
    lines = [record(NOON + second, user=user, request_bytes=10_000) for second in range(60) for user in users]
    write_lines(tmp_path / "in" / "usage-a-1.jsonl", *lines)
    (tmp_path / "plan.toml").write_text(PLAN.format(folder=tmp_path), encoding="utf-8")
    archive, main_file = tmp_path / "headrace-pipeline.zip", tmp_path / "main.py"
    assert CliRunner().invoke(pipeline, ["zip", str(archive)]).exit_code == 0
    main_file.write_text("from headrace.pipeline.cli import pipeline\n\npipeline()\n", encoding="utf-8")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "700m",
        "spark.executorEnv.PYTHONPATH": LIBRARIES,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(PYTHON),
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
    }
    command = [str(BIN / "spark-submit"), "--master", master, "--py-files", str(archive)]
    command += ["--jars", ",".join(map(str, jars_of(DELTA_LAKE)))]
    command += [f"--conf={name}={value}" for name, value in settings.items()]
    command += [str(main_file), "run", str(tmp_path / "plan.toml"), "--json"]
    environment |= {"PYTHONSAFEPATH": "1", "SPARK_HOME": SPARK_HOME}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = {job["job"]: job for job in json.loads(done.stdout.splitlines()[-1])["jobs"]}
    assert jobs["ingest"]["records"] == jobs["rollup"]["records"] == 120
    assert jobs["recommend"]["entities"] == 3, "both users, and the default user"
    assert (jobs["what-if"]["buckets"] > 0, jobs["what-if"]["throttled_buckets"]) == (True, 0)
    assert len(list(tmp_path.glob("[12]/app-*/*/stderr"))) == 2, "each worker has run an executor"
