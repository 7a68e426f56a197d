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

from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import InputError, OutputError

if TYPE_CHECKING:
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
        """Add rows, partitioned ``by`` these columns. Raises `OutputError`."""
        self._write(table, frame, "append", by)

    def replace(self, table: str, frame: DataFrame, *by: str) -> None:
        """Write the partitions that ``frame`` has rows of in place of what they held; without ``by``, all of it."""
        self._write(table, frame, "overwrite", by)

    def replace_partition(self, table: str, frame: DataFrame, column: str, value: object) -> None:
        """Write ``frame``, which lacks ``column``, in place of all that has this value of it, with no rows as well."""
        self._write(f"{table}/{column}={value}", frame, "overwrite", ())

    def _write(self, table: str, frame: DataFrame, mode: str, by: tuple[str, ...]) -> None:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            frame.write.mode(mode).partitionBy(*by).parquet(self.path(table))
        except (PySparkException, Py4JJavaError) as error:
            if "org.apache.hadoop.fs" in str(error) or "java.io" in str(error):
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
    """Whether there is a file or a folder, in whatever store."""
    return bool(_file_system(spark, path).exists(_path(spark, path)))


def read_text(spark: SparkSession, path: str) -> str:
    """A small file, in whatever store. Raises `InputError`."""
    if not exists(spark, path):
        raise InputError(f"{path} does not exist")
    return "\n".join(row.value for row in spark.read.text(path, wholetext=True).collect())


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """A small file in one step: whoever sees it sees all of it."""
    draft = _path(spark, path + ".draft")
    system = _file_system(spark, path)
    stream = system.create(draft, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
    target = _path(spark, path)
    system.delete(target, False)
    if not system.rename(draft, target):
        raise OutputError(f"cannot write {path}")


def cause_of(error: BaseException) -> str:
    """The first line of what lies behind an error of Spark's."""
    text = str(error)
    causes = [line.partition("Caused by: ")[2] for line in text.splitlines() if "Caused by: " in line]
    return (causes[-1] if causes else text.strip().partition("\n")[0])[:500]


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm  # noqa: SLF001 -- Hadoop's file systems have no Python API


def _path(spark: SparkSession, path: str) -> Any:
    return _jvm(spark).org.apache.hadoop.fs.Path(path)


def _file_system(spark: SparkSession, path: str) -> Any:
    configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
    return _path(spark, path).getFileSystem(configuration)
