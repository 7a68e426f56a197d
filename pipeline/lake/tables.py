"""Reading and writing the tables: Parquet below one root, on a disk or in any store that Hadoop supports (``s3a://…``).

    table            partitioned by   holds
    usage            date, hour       usage records, each once
    marks            date             losses and ends that instances recorded
    quarantine       date             rejected lines
    rollup_hour      date             usage by hour
    rollup_day       date             usage by day
    chargeback       period, date     bills, by day or month
    recommendations                   recommended quotas
    what_if                           the effect of quotas on recorded usage
    anomalies        date             deviations from each entity's past
    anomaly_windows  date             usage by window, for anomalies
    anomaly_sketches date             entities' days as the past of later days, for anomalies
    costs                             the cost model of requests

Tables are read with the schema of this version. A column that older files lack is null; one that they have under an
older name (`RENAMED`) is read under its present name.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import InputError, OutputError
from headrace.quota_callbacks.files import open_private, open_without_following

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MADE_BY: Final = {
    "usage": "ingest",
    "marks": "ingest",
    "quarantine": "ingest",
    "rollup_hour": "rollup",
    "rollup_day": "rollup",
    "chargeback": "rollup --prices",
    "recommendations": "recommend",
    "what_if": "what-if",
    "anomalies": "anomalies",
    "anomaly_windows": "anomalies",
    "anomaly_sketches": "anomalies",
    "costs": "calibrate",
}
"""The job that writes each table."""

RENAMED: Final = {"anomalies": {"told": "description"}, "costs": {"taken": "accepted"}}
"""Old names of columns, by table, which files written by version 0.1.0 or before have, and their present names."""


class Lake:
    """The tables below ``root``."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")

    def path(self, table: str) -> str:
        """Return the path of a table, or of another file or folder below the root."""
        return f"{self.root}/{table}"

    def has(self, table: str) -> bool:
        """Return whether the table exists."""
        return exists(self.spark, self.path(table))

    def read(self, table: str, schema: StructType) -> DataFrame:
        """Return the table. Raises `InputError` if it does not exist."""
        if not self.has(table):
            raise InputError(
                f"there is no table {table!r} in {self.root}; headrace pipeline {MADE_BY[table]} creates it"
            )
        return self._read(table, schema)

    def read_or_empty(self, table: str, schema: StructType) -> DataFrame:
        """Return the table, or an empty DataFrame if it does not exist."""
        if not self.has(table):
            return self.spark.createDataFrame([], schema)
        return self._read(table, schema)

    def _read(self, table: str, schema: StructType) -> DataFrame:
        """Return an existing table; read columns under their old names in files that lack the new ones."""
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StructField, StructType

        renamed = {old: new for old, new in RENAMED.get(table, {}).items() if new in schema.names}
        both = StructType([*schema.fields, *(StructField(old, schema[new].dataType) for old, new in renamed.items())])
        frame = self.spark.read.schema(both).parquet(self.path(table))
        values = {new: sf.coalesce(new, old) for old, new in renamed.items()}
        return frame.withColumns(values).drop(*renamed) if renamed else frame

    def append(self, table: str, frame: DataFrame, *by: str) -> None:
        """Append rows, partitioned by the columns ``by``; one writer at a time. Raises `OutputError`.

        A job that was killed leaves the output of its finished tasks in ``_temporary``. The next job would commit them
        as its own, so they are removed first.
        """
        remove(self.spark, f"{self.path(table)}/_temporary")
        self._write(table, frame, "append", by)

    def replace(self, table: str, frame: DataFrame, *by: str) -> None:
        """Replace the partitions that ``frame`` has rows of; without ``by``, the whole table. Raises `OutputError`."""
        self._write(table, frame, "overwrite", by)

    def replace_partition(self, table: str, frame: DataFrame, column: str, value: object) -> None:
        """Replace the partition in which ``column``, missing in ``frame``, has this value, also by an empty one."""
        self._write(f"{table}/{column}={value}", frame, "overwrite", ())

    def _write(self, table: str, frame: DataFrame, mode: str, by: tuple[str, ...]) -> None:
        try:
            frame.write.mode(mode).partitionBy(*by).parquet(self.path(table))
        except Exception as error:
            if is_spark_error(error) and ("org.apache.hadoop.fs" in str(error) or "java.io" in str(error)):
                raise OutputError(f"cannot write {self.path(table)}: {cause_of(error)}") from error
            raise


def of_days(frame: DataFrame, first: date | None, last: date | None) -> DataFrame:
    """Return the rows whose ``date`` is between the days ``first`` and ``last``; ``None`` means no limit."""
    from pyspark.sql import functions as sf

    if first is not None:
        frame = frame.where(sf.col("date") >= sf.lit(first))
    if last is not None:
        frame = frame.where(sf.col("date") <= sf.lit(last))
    return frame


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether there is a file or folder, in any store. Raises `InputError` if the store cannot be reached."""
    with _reading(path):
        return bool(_file_system(spark, path).exists(_path(spark, path)))


def is_folder(spark: SparkSession, path: str) -> bool:
    """Return whether there is a folder. Raises `InputError` if the store cannot be reached."""
    with _reading(path):
        return exists(spark, path) and bool(_file_system(spark, path).getFileStatus(_path(spark, path)).isDirectory())


def files_below(spark: SparkSession, folder: str) -> Iterator[str]:
    """Yield the names, without their folders, of all files in a folder and below it. Raises `InputError`."""
    with _reading(folder):
        found = _file_system(spark, folder).listFiles(_path(spark, folder), True)
        while found.hasNext():
            yield str(found.next().getPath().getName())


def qualified(spark: SparkSession, path: str) -> str:
    """Return the full path with its store, so that different spellings compare equal. Raises `InputError`."""
    with _reading(path):
        return str(_file_system(spark, path).makeQualified(_path(spark, path)).toString())


def read_text(spark: SparkSession, path: str) -> str:
    """Return the contents of a small UTF-8 file in any store. Raises `InputError`."""
    if not exists(spark, path):
        raise InputError(f"{path} does not exist")
    if is_folder(spark, path):
        raise InputError(f"{path} is a folder; expected a file")
    text = "\n".join(row.value for row in spark.read.text(path, wholetext=True).collect())
    if "\ufffd" in text:  # Spark's replacement for bytes that it cannot decode
        raise InputError(f"{path} is not UTF-8")
    return text


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file atomically: a reader sees the old contents or the new. Raises `OutputError`."""
    draft = path + ".draft"
    here = _local(spark, path)
    with _writing(path):
        if here is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.with_name(f".{here.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old contents
            with open(f"{here}.draft", "w", encoding="utf-8", opener=open_without_following) as file:
                file.write(text)
            Path(f"{here}.draft").replace(here)
            return
        _create(spark, draft, text, overwrite=True)
        _rename_over(spark, draft, path)


def create_text(spark: SparkSession, path: str, text: str) -> bool:
    """Create a small file; return false if it already exists. Raises `OutputError`.

    The operation is atomic on a disk and in HDFS; in object stores the check comes before the write.
    """
    here = _local(spark, path)
    with _writing(path):
        try:
            if here is None:
                _create(spark, path, text, overwrite=False)
            else:
                here.parent.mkdir(parents=True, exist_ok=True)
                descriptor = open_private(here, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
        except FileExistsError:
            return False
        except Exception as error:
            if "FileAlreadyExistsException" not in str(error):
                raise
            return False
    return True


def move(spark: SparkSession, path: str, target: str) -> None:
    """Rename a file to a name that does not exist. Raises `OutputError`."""
    with _writing(target):
        if not _file_system(spark, path).rename(_path(spark, path), _path(spark, target)):
            raise OutputError(f"cannot move {path} to {target}")


def remove(spark: SparkSession, path: str) -> None:
    """Remove a file, or a folder with its contents; do nothing if it does not exist. Raises `OutputError`."""
    with _writing(path):
        _file_system(spark, path).delete(_path(spark, path), True)


def is_spark_error(error: BaseException) -> bool:
    """Return whether an exception was raised by Spark or its JVM."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def cause_of(error: BaseException) -> str:
    """Return the root cause of an error of Spark in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # py4j's second line
    return ([*thrown, *causes] or lines)[-1 if causes or thrown else 0][:500]


@contextlib.contextmanager
def unreadable_table_errors() -> Iterator[None]:
    """Raise `InputError` for tables that cannot be read, which Spark notices only when it computes rows."""
    try:
        yield
    except Exception as error:
        if is_spark_error(error) and any(each in str(error) for each in _UNREADABLE):
            raise InputError(f"cannot read the lake: {cause_of(error)}") from error
        raise


_UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file")


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_spark_error(error):
            raise InputError(f"cannot reach {path}: {_describe_store_error(error)}") from error
        raise


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    except Exception as error:
        if is_spark_error(error):
            raise OutputError(f"cannot write {path}: {_describe_store_error(error)}") from error
        raise


def _describe_store_error(error: Exception) -> str:
    cause = cause_of(error)
    if "ClassNotFoundException" in str(error):
        cause += "; Spark lacks the jars of this store: for s3a, --packages org.apache.hadoop:hadoop-aws:3.4.1"
    return cause


def _local(spark: SparkSession, path: str) -> Path | None:
    """Return the path of a file on this machine; ``None`` for other stores."""
    with _reading(path):
        uri = _file_system(spark, path).makeQualified(_path(spark, path)).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None


def _create(spark: SparkSession, path: str, text: str, *, overwrite: bool) -> None:
    stream = _file_system(spark, path).create(_path(spark, path), overwrite)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _rename_over(spark: SparkSession, draft: str, path: str) -> None:
    """Rename atomically where the store can, as Spark does for its checkpoints; otherwise remove the old file first."""
    source, target = _path(spark, draft), _path(spark, path)
    jvm = _jvm(spark)
    rename = getattr(jvm.org.apache.hadoop.fs, "Options$Rename")
    options = _gateway(spark).new_array(rename, 1)
    options[0] = rename.OVERWRITE
    try:
        context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), _configuration(spark))
    except Exception as error:
        if "UnsupportedFileSystemException" not in str(error):
            raise
        system = _file_system(spark, path)
        system.delete(target, False)
        if not system.rename(source, target):
            raise OutputError(f"cannot write {path}") from error
        return
    context.rename(source, target, options)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 -- Hadoop's file systems have no Python API


def _gateway(spark: SparkSession) -> Any:
    return spark.sparkContext._gateway  # noqa: SLF001


def _path(spark: SparkSession, path: str) -> Any:
    return _jvm(spark).org.apache.hadoop.fs.Path(path)


def _file_system(spark: SparkSession, path: str) -> Any:
    return _path(spark, path).getFileSystem(_configuration(spark))


def _configuration(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
