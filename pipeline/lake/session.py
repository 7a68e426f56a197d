"""Start a Spark session, on this machine or on the cluster given by ``--master`` or spark-submit.

Called by the jobs; it does not depend on what they compute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import InputError, NoJavaError, PipelineError
from headrace.pipeline.lake import python_daemon
from headrace.pipeline.lake.jars import DELTA_LAKE, KAFKA_CONNECTOR, S3_CLIENT, jars_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

JAVA_VERSIONS: Final = (17, 21)
"""The versions that Spark 4.0 supports."""
NEEDED_MODULE: Final = "jdk.incubator.vector"
"""Spark's linear algebra loads this module at start; reduced Java runtimes lack it."""
PROBE_TIMEOUT_S: Final = 30.0
FUNCTIONS: Final = "org.apache.spark.sql.functions"
"""The class that `pyspark.sql.functions` calls. A plan of a job has some thousand calls."""
LOCAL_SHUFFLE_PARTITIONS: Final = 8
"""Spark's default of 200 is meant for clusters: on one machine, a shuffle of few rows would start 200 tasks."""
LOCAL_LOG_PARTITIONS: Final = 2
"""Number of partitions of a table's list of files. Delta Lake's default of 50 is meant for clusters, too."""
LOCAL_LISTING_TASKS: Final = 8
"""Number of tasks that list folders. With Spark's default of up to 10,000, retain takes minutes for a hundred files."""

LITTLE_BYTES: Final = 2 * 2**20
"""The size of lake and input up to which a session on this machine has the settings `LITTLE_DATA`."""
LITTLE_DATA: Final = {
    # One collector thread and only the compiler C1: the start takes half the processor time, but much data longer.
    # Spark's classes take 100 MB of metaspace, and Java collects all garbage each time that it grows beyond its size.
    # C1 alone has 48 MB for compiled code. Looking for what can be removed, and compiling it again, takes a seventh.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
    " -XX:ReservedCodeCacheSize=240m -XX:-UseCodeCacheFlushing",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    # What pays for millions of rows costs a small plan more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
}
"""Settings with which a job for some thousand records takes half the processor time."""

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has started the JVM before it runs the job."""
_SETTINGS: Final = {
    # A task writes the rows of so many hours without sorting them by hour before.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise Spark creates the folder spark-warehouse in the working directory, for tables that no job has.
    "spark.sql.warehouse.dir": Path(tempfile.gettempdir()).as_uri(),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    # Otherwise vacuum adds versions to a table, as if a job had written without a release.
    "spark.databricks.delta.vacuum.logging.enabled": "false",
    # Otherwise each use of a column asks the JVM for the place of the call, for errors that no user of a job reads.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Settings of every session."""
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """The options for Spark from the command line."""

    master: str | None = None
    """``None``: the value of spark-submit or $SPARK_MASTER, or else ``local[*]``."""
    packages: str | None = None
    """Maven coordinates for ``spark.jars.packages``, separated by commas. Those of jars that this package resolves by
    itself replace these.
    """
    conf: Mapping[str, str]
    """Further settings of Spark; they override those made here."""


def start_session(
    job: str, options: SparkOptions, lake: str = "", *, kafka: bool = False, reads: str | None = None
) -> SparkSession:
    """Start a session for ``job``, with the client of the store that has the ``lake``, and with the Kafka connector if
    ``kafka`` is true. Raises `PipelineError`.

    ``reads`` is the folder that the job reads, if it is not more than that: with little data there and in the lake, a
    session on this machine has the settings `LITTLE_DATA`.
    """
    submitted = _SUBMITTED in os.environ
    if submitted and options.packages:
        raise InputError(
            f"--packages {options.packages} has no effect after spark-submit has started Spark; pass it to"
            " spark-submit,"
            " before the job's file"
        )
    if not submitted and not _has_session():
        check_java(os.environ.get("JAVA_HOME"), os.environ.get("PATH", os.defpath))
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise PipelineError("the pipeline needs the package pyspark: pip install 'headrace[pipeline]'") from error
    settings = dict(_SETTINGS)
    if not submitted:
        needed = [S3_CLIENT] if lake.startswith("s3a://") else []
        is_little = reads is not None and is_at_most(LITTLE_BYTES, *{reads, lake})
        settings.update(_settings_of_new_jvm(options, needed + [KAFKA_CONNECTOR] * kafka, is_little=is_little))
    elif options.master:
        settings["spark.master"] = options.master
    builder = SparkSession.builder.appName(f"headrace-{job}")
    for name, value in {**settings, **options.conf}.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(f"Spark does not start: {_first_line(error)}") from error
    if submitted and not _has_delta_lake(session):
        raise InputError(f"Spark lacks Delta Lake; give spark-submit --packages {DELTA_LAKE}")
    _remember_functions(session)
    return session


class _Functions:
    """The functions of Spark's class for them, each looked up in the JVM once."""

    def __init__(self, java_class: Any) -> None:
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._java_class, name)
        setattr(self, name, found)
        return found


def _remember_functions(session: SparkSession) -> None:
    """Let `pyspark.sql.functions` ask the JVM for the class and for each function once, in place of at each use."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 -- pyspark looks for the class here
    if FUNCTIONS not in vars(jvm):
        setattr(jvm, FUNCTIONS, _Functions(getattr(jvm, FUNCTIONS)))


def _has_delta_lake(session: SparkSession) -> bool:
    loader = session.sparkContext._jvm.org.apache.spark.util.Utils  # type: ignore[union-attr]  # noqa: SLF001
    return bool(loader.classIsLoadable("io.delta.sql.DeltaSparkSessionExtension"))


def is_at_most(size: int, *folders: str) -> bool:
    """Return whether these folders, of which some may be missing, are on this machine, and the files in them have at
    most ``size`` bytes together. Stops reading the folders at that size."""
    total = 0
    for folder in folders:
        local = folder.removeprefix("file://").removeprefix("file:")
        if "://" in local:
            return False
        for file in Path(local).rglob("*"):
            with suppress(OSError):
                total += file.stat().st_size
            if total > size:
                return False
    return True


def _settings_of_new_jvm(options: SparkOptions, needed: Sequence[str], *, is_little: bool) -> dict[str, str]:
    """Return the settings of a JVM that the session starts, with the ``needed`` jars besides those of Delta Lake.

    Sets PYSPARK_PYTHON for Spark on this machine.
    """
    master = options.master or os.environ.get("SPARK_MASTER") or "local[*]"
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    }
    if master.startswith("local"):
        settings["spark.sql.shuffle.partitions"] = str(LOCAL_SHUFFLE_PARTITIONS)
        settings["spark.databricks.delta.snapshotPartitions"] = str(LOCAL_LOG_PARTITIONS)
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = str(LOCAL_LISTING_TASKS)
        # Spark would use the first Python on the PATH. Another Python or Spark may have another version of pyspark.
        is_own = os.environ.setdefault("PYSPARK_PYTHON", sys.executable) == sys.executable
        if is_own and "SPARK_HOME" not in os.environ:
            settings["spark.python.daemon.module"] = python_daemon.__name__
        settings["spark.driver.host"] = settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings |= LITTLE_DATA if is_little else {}
    packages = options.packages or ""
    if packages:
        settings["spark.jars.packages"] = packages
    named = {_artifact(each.strip()) for each in packages.split(",")}
    coordinates = [each for each in (DELTA_LAKE, *needed) if _artifact(each) not in named]
    settings["spark.jars"] = ",".join(str(jar) for each in coordinates for jar in jars_of(each))
    return settings


def _has_session() -> bool:
    """Return whether a session is running, whose job was another one of the same process."""
    sql = sys.modules.get("pyspark.sql")
    return sql is not None and sql.SparkSession.getActiveSession() is not None


def _artifact(coordinate: str) -> str:
    return coordinate.rpartition(":")[0]


def check_java(home: str | None, search_path: str) -> None:
    """Raise `NoJavaError` unless Spark supports the Java that it would use."""
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java", path=search_path)
    hint = (
        f"Spark needs a full JDK of version {' or '.join(map(str, JAVA_VERSIONS))}: install one (on Debian:"
        " openjdk-17-jdk-headless) and set JAVA_HOME to it"
    )
    if java is None:
        raise NoJavaError(f"no Java at JAVA_HOME={home}; {hint}" if home else f"no java on the PATH; {hint}")
    try:
        version = _ask(java, "-version")
        modules = _ask(java, "--list-modules")
    except (OSError, subprocess.SubprocessError) as error:
        raise NoJavaError(f"{java} does not run: {error}; {hint}") from error
    found = re.search(r'version "(\d+)', version.stderr)
    if found is None or int(found[1]) not in JAVA_VERSIONS:
        found_version = version.stderr.strip().partition("\n")[0] or "of unknown version"
        raise NoJavaError(f"{java} is {found_version}; {hint}")
    if NEEDED_MODULE not in modules.stdout:
        raise NoJavaError(f"{java} has no module {NEEDED_MODULE}; {hint}")


def _ask(java: str, question: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java, question], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
