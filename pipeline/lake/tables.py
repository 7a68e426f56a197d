"""Where the tables are: Parquet below one root, on a disk or any store that Hadoop knows (``s3a://…``).

    usage           date, hour      usage records, each once
    marks           date            what instances say of losses and of their end
    quarantine      date            lines that are no usage records
    rollup_hour     date            made anew for the hours that a job is asked for
    rollup_day      date
    chargeback      period, date    a bill, by day or month
    recommendations
    what_if
    anomalies       date
    costs

Tables are read with their own schema, so that files of an older pipeline, which lack a column, have nulls in it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import InputError, OutputError

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
    "costs": "calibrate",
}
"""Which job makes a table."""


class Lake:
    """The tables below ``root``."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")

    def path(self, table: str) -> str:
        """Of a table, or of what else is kept beside the tables."""
        return f"{self.root}/{table}"

    def has(self, table: str) -> bool:
        """Whether somebody has written to it."""
        return exists(self.spark, self.path(table))

    def read(self, table: str, schema: StructType) -> DataFrame:
        """The table; raises `InputError` when there is none."""
        if not self.has(table):
            raise InputError(f"there is no table {table!r} in {self.root}; headrace pipeline {MADE_BY[table]} makes it")
        return self.spark.read.schema(schema).parquet(self.path(table))

    def read_if_there(self, table: str, schema: StructType) -> DataFrame:
        """The table; empty when there is none."""
        if not self.has(table):
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(self.path(table))

    def append(self, table: str, frame: DataFrame, *by: str) -> None:
        """Add rows, partitioned ``by`` these columns; one at a time may. Raises `OutputError`.

        A job that was killed leaves its finished tasks in ``_temporary``, where the next one would take them for its
        own: they go first.
        """
        remove(self.spark, f"{self.path(table)}/_temporary")
        self._write(table, frame, "append", by)

    def replace(self, table: str, frame: DataFrame, *by: str) -> None:
        """Write the partitions that ``frame`` has rows of in place of what they held; without ``by``, all of it."""
        self._write(table, frame, "overwrite", by)

    def replace_partition(self, table: str, frame: DataFrame, column: str, value: object) -> None:
        """Write ``frame``, which lacks ``column``, in place of all that has this value of it, with no rows as well."""
        self._write(f"{table}/{column}={value}", frame, "overwrite", ())

    def _write(self, table: str, frame: DataFrame, mode: str, by: tuple[str, ...]) -> None:
        try:
            frame.write.mode(mode).partitionBy(*by).parquet(self.path(table))
        except Exception as error:
            if of_spark(error) and ("org.apache.hadoop.fs" in str(error) or "java.io" in str(error)):
                raise OutputError(f"cannot write {self.path(table)}: {cause_of(error)}") from error
            raise


def of_days(frame: DataFrame, first: date | None, last: date | None) -> DataFrame:
    """The rows from the day ``first`` to the day ``last``, by their ``date``; ``None`` is no bound."""
    from pyspark.sql import functions as sf

    if first is not None:
        frame = frame.where(sf.col("date") >= sf.lit(first))
    if last is not None:
        frame = frame.where(sf.col("date") <= sf.lit(last))
    return frame


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or a folder, in whatever store. Raises `InputError` when the store cannot be reached."""
    with _reached(path):
        return bool(_file_system(spark, path).exists(_path(spark, path)))


def is_folder(spark: SparkSession, path: str) -> bool:
    """Whether there is a folder. Raises `InputError` as `exists` does."""
    with _reached(path):
        return exists(spark, path) and bool(_file_system(spark, path).getFileStatus(_path(spark, path)).isDirectory())


def files_below(spark: SparkSession, folder: str) -> Iterator[str]:
    """The names, without their folders, of all files in a folder and below it. Raises `InputError`."""
    with _reached(folder):
        found = _file_system(spark, folder).listFiles(_path(spark, folder), True)
        while found.hasNext():
            yield str(found.next().getPath().getName())


def qualified(spark: SparkSession, path: str) -> str:
    """A path in full, with its store: one spelling for all. Raises `InputError` when there is no such store."""
    with _reached(path):
        return str(_file_system(spark, path).makeQualified(_path(spark, path)).toString())


def read_text(spark: SparkSession, path: str) -> str:
    """A small file of UTF-8, in whatever store. Raises `InputError`."""
    if not exists(spark, path):
        raise InputError(f"{path} does not exist")
    if is_folder(spark, path):
        raise InputError(f"{path} is a folder; expected a file")
    text = "\n".join(row.value for row in spark.read.text(path, wholetext=True).collect())
    if "\ufffd" in text:  # what Spark puts in place of what it cannot decode
        raise InputError(f"{path} is not UTF-8")
    return text


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """A small file in one step: whoever sees it sees all of it, before a kill or after it. Raises `OutputError`."""
    draft = path + ".draft"
    here = _local(spark, path)
    with _written(path):
        if here is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.with_name(f".{here.name}.crc").unlink(missing_ok=True)  # Hadoop's, of what was there before
            Path(f"{here}.draft").write_text(text, encoding="utf-8")
            Path(f"{here}.draft").replace(here)
            return
        _create(spark, draft, text, overwrite=True)
        _rename_over(spark, draft, path)


def create_text(spark: SparkSession, path: str, text: str) -> bool:
    """A small file where there is none; false when there is one. Raises `OutputError`.

    One step on a disk and in HDFS; object stores look first and write then.
    """
    here = _local(spark, path)
    with _written(path):
        try:
            if here is None:
                _create(spark, path, text, overwrite=False)
            else:
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("x", encoding="utf-8") as file:
                    file.write(text)
        except FileExistsError:
            return False
        except Exception as error:
            if "FileAlreadyExistsException" not in str(error):
                raise
            return False
    return True


def move(spark: SparkSession, path: str, target: str) -> None:
    """A file to a name that is free. Raises `OutputError`."""
    with _written(target):
        if not _file_system(spark, path).rename(_path(spark, path), _path(spark, target)):
            raise OutputError(f"cannot move {path} to {target}")


def remove(spark: SparkSession, path: str) -> None:
    """A file, or a folder with all that is in it; nothing happens when there is none. Raises `OutputError`."""
    with _written(path):
        _file_system(spark, path).delete(_path(spark, path), True)


def of_spark(error: BaseException) -> bool:
    """Whether Spark or its JVM says it."""
    return type(error).__module__.startswith(("pyspark", "py4j"))


def cause_of(error: BaseException) -> str:
    """What lies behind an error of Spark's, in a line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    thrown = [line.removeprefix(": ") for line in lines if line.startswith(": ")]  # py4j's second line
    return ([*thrown, *causes] or lines)[-1 if causes or thrown else 0][:500]


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Say in a line what of a table cannot be read, which Spark finds when it is asked for rows."""
    try:
        yield
    except Exception as error:
        if of_spark(error) and any(each in str(error) for each in _UNREADABLE):
            raise InputError(f"cannot read the lake: {cause_of(error)}") from error
        raise


_UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "is not a Parquet file")


@contextlib.contextmanager
def _reached(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if of_spark(error):
            raise InputError(f"cannot reach {path}: {_of_a_store(error)}") from error
        raise


@contextlib.contextmanager
def _written(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    except Exception as error:
        if of_spark(error):
            raise OutputError(f"cannot write {path}: {_of_a_store(error)}") from error
        raise


def _of_a_store(error: Exception) -> str:
    cause = cause_of(error)
    if "ClassNotFoundException" in str(error):
        cause += "; Spark lacks the jars of this store: for s3a, --packages org.apache.hadoop:hadoop-aws:3.4.1"
    return cause


def _local(spark: SparkSession, path: str) -> Path | None:
    """The file on this machine; ``None`` in other stores."""
    with _reached(path):
        uri = _file_system(spark, path).makeQualified(_path(spark, path)).toUri()
        return Path(uri.getPath()) if uri.getScheme() == "file" else None


def _create(spark: SparkSession, path: str, text: str, *, overwrite: bool) -> None:
    stream = _file_system(spark, path).create(_path(spark, path), overwrite)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _rename_over(spark: SparkSession, draft: str, path: str) -> None:
    """In one step where the store has it, as Spark's own checkpoints; else the old file goes first."""
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
