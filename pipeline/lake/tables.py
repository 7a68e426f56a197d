"""Reading and writing the tables: Delta tables below one root, on a disk or in any store of Hadoop's (``s3a://…``).

    table            partitioned by   holds
    usage            date, hour       usage records, each once
    marks            date             losses and ends that instances recorded
    quarantine       date             rejected lines
    rollup_hour      date             usage by hour
    rollup_day       date             usage by day
    chargeback       period, date     bills, by day or month
    budgets          month            what teams have spent of their budgets
    recommendations                   recommended quotas
    backtest                          the effect of recommended quotas on later usage
    what_if                           the effect of quotas on recorded usage
    anomalies        date             deviations from each entity's past
    anomaly_windows  date             usage by window, for anomalies
    anomaly_sketches date             a sketch of each entity's day, with which later days are compared
    anomaly_past     rules, days, date  the same, for several days together
    costs                             the cost model of requests
    releases                          the versions of `RELEASED` that belong together

Each write is one transaction: a reader sees the table as it was before, or after. The tables of `RELEASED` follow from
each other and change together (`Lake.release`). Tables are read with the schema of this version; a column that a table
lacks is null.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.errors import ConflictError, InputError, OutputError
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.session import start_session
from headrace.pipeline.lake.spark_errors import as_pipeline_error, cause_of, is_spark_error
from headrace.pipeline.lake.stores import exists, files_below, is_missing, qualified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    from delta.tables import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.pipeline.lake.session import SparkOptions

MADE_BY: Final = {
    "usage": "ingest",
    "marks": "ingest",
    "quarantine": "ingest",
    "rollup_hour": "rollup",
    "rollup_day": "rollup",
    "chargeback": "rollup --prices",
    "budgets": "budgets",
    "recommendations": "recommend",
    "backtest": "recommend --backtest-from",
    "what_if": "what-if",
    "anomalies": "anomalies",
    "anomaly_windows": "anomalies",
    "anomaly_sketches": "anomalies",
    "anomaly_past": "anomalies",
    "costs": "calibrate",
}
"""The job that writes each table."""

RELEASED: Final = ("rollup_hour", "rollup_day", "chargeback")
"""The tables that change together."""

VERSION_HOURS: Final = 7 * 24
"""Time for which old versions of a table can be read after they were replaced."""

DAY_COLUMNS: Final = {"budgets": "month"}
"""The column with the day of a row, of tables in which it is not ``date``. A month is its first day."""

_PROPERTIES: Final = {"usage": {"delta.dataSkippingStatsColumns": "instance,sequence,second,cluster"}}
"""Properties of new tables: the columns of which Delta Lake keeps the minimum and maximum of each file."""


class Lake:
    """The tables below ``root``. One object sees one release of the tables in `RELEASED`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self._released: Mapping[str, int] | None = None
        """The versions of the tables of `RELEASED` that are read; ``None``: not known yet."""

    def path(self, table: str) -> str:
        """Return the path of a table, or of another file or folder below the root."""
        return f"{self.root}/{table}"

    def has(self, table: str) -> bool:
        """Return whether the table exists. Raises `InputError` if it is one of a version without Delta Lake."""
        return table in self._versions() if table in RELEASED else self._exists(table)

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

    def create(self, table: str, schema: StructType, *by: str) -> None:
        """Create a table, partitioned by the columns ``by``, unless it exists. Raises `OutputError`."""
        from delta.tables import DeltaTable

        if self._exists(table):
            return
        full_path = qualified(self.spark, self.path(table))  # Spark would look for a relative one in its warehouse
        builder = DeltaTable.createIfNotExists(self.spark).location(full_path).addColumns(schema)
        for name, value in _PROPERTIES.get(table, {}).items():
            builder = builder.property(name, value)
        with self._writing(table):
            builder.partitionedBy(*by).execute()

    def append(self, table: str, frame: DataFrame, *by: str) -> None:
        """Append rows, partitioned by the columns ``by``.

        If ``frame`` reads the table itself, such as for rows that it does not have yet, and another job has added rows
        to the partitions that were read, nothing is written. Raises `ConflictError` then, and `OutputError`.
        """
        self._write(table, frame, "append", by, {"mergeSchema": "true"})

    def replace(self, table: str, frame: DataFrame, *by: str) -> None:
        """Replace the partitions that have rows in ``frame``; without ``by``, the whole table. Raises `OutputError`."""
        if by:
            self._write(table, frame, "overwrite", by, {"partitionOverwriteMode": "dynamic", "mergeSchema": "true"})
        else:
            self.replace_whole(table, frame)

    def replace_whole(self, table: str, frame: DataFrame, *by: str) -> None:
        """Replace the whole table and its columns. Raises `OutputError`."""
        self._write(table, frame, "overwrite", by, {"overwriteSchema": "true", "partitionOverwriteMode": "static"})

    def replace_of_cluster(self, table: str, frame: DataFrame, cluster: str | None) -> None:
        """Replace the rows of one cluster in a table of `schemas.OF_ONE_CLUSTER`. Raises `OutputError`.

        ``frame`` lacks the column ``cluster``, and may be empty. Rows without a cluster are replaced, too: they are of
        versions that did not distinguish clusters, or of usage without a cluster.
        """
        from pyspark.sql import functions as sf

        whole = frame.withColumn("cluster", sf.lit(cluster).cast("string"))
        if not self.has(table) or "cluster" not in self.table(table).toDF().columns:
            self.replace_whole(table, whole)
            return
        condition = "cluster IS NULL" if cluster is None else f"cluster IS NULL OR cluster = {literal_of(cluster)}"
        self._write(table, whole, "overwrite", (), {"replaceWhere": condition, "mergeSchema": "true"})

    def read_of_cluster(self, table: str, schema: StructType, cluster: str | None) -> DataFrame:
        """Return the rows of one cluster of a table of `schemas.OF_ONE_CLUSTER`, and those without a cluster.

        The column ``cluster`` is left out. Raises `InputError` if the table does not exist.
        """
        from pyspark.sql import functions as sf
        from pyspark.sql.types import StringType, StructField, StructType

        whole = self.read(table, StructType([*schema.fields, StructField("cluster", StringType())]))
        of_cluster = sf.lit(False) if cluster is None else sf.col("cluster") == sf.lit(cluster)
        return whole.where(of_cluster | sf.col("cluster").isNull()).drop("cluster")

    def replace_partition(self, table: str, frame: DataFrame, **values: object) -> None:
        """Replace the partition in which columns, which ``frame`` lacks, have these values; ``frame`` may be empty.

        Raises `OutputError`.
        """
        from pyspark.sql import functions as sf

        whole = frame.withColumns({column: sf.lit(value) for column, value in values.items()})
        condition = " AND ".join(f"{column} = '{value}'" for column, value in values.items())
        self._write(table, whole, "overwrite", tuple(values), {"replaceWhere": condition, "mergeSchema": "true"})

    def remove_equal(self, table: str, rows: DataFrame) -> None:
        """Remove the rows that are equal to one of ``rows`` in all of its columns. Raises `OutputError`."""
        condition = " AND ".join(f"there.{name} <=> gone.{name}" for name in rows.columns)
        with self._writing(table):
            merge = self.table(table).alias("there").merge(rows.distinct().alias("gone"), condition)
            merge.whenMatchedDelete().execute()

    def remove_rows(self, table: str, condition: str) -> int:
        """Remove the rows for which a condition in SQL holds; return their number. Raises `OutputError`."""
        with self._writing(table):
            number = self.table(table).toDF().where(condition).count()
            self.table(table).delete(condition)
        return number

    def compact(
        self, table: str, first: date | None = None, last: date | None = None, condition: str | None = None
    ) -> tuple[int, int]:
        """Merge small files of the days from ``first`` to ``last``, in partitions for which ``condition`` (SQL) holds.

        Return the number of files that were merged, and of those that replace them. Both are 0 if days are given and
        the table has no days. The rows stay the same, so other jobs may read and add rows meanwhile.
        """
        day = DAY_COLUMNS.get(table, "date")
        bounds = [f"{day} >= '{first}'"] if first else []
        bounds += [f"{day} <= '{last}'"] if last else []
        if bounds and day not in self.table(table).toDF().columns:
            return 0, 0
        bounds += [f"({condition})"] if condition else []
        with self._writing(table):
            optimize = self.table(table).optimize()
            optimized = (optimize.where(" AND ".join(bounds)) if bounds else optimize).executeCompaction()
            (row,) = optimized.select("metrics").collect()
        return row.metrics.numFilesRemoved, row.metrics.numFilesAdded

    @contextlib.contextmanager
    def release(self) -> Iterator[Draft]:
        """Change the tables of `RELEASED` together: other readers see all changes of the block, or none.

        What a killed job has written without a release is undone first. Raises `ConflictError` if another job has
        changed these tables meanwhile; then nothing of this block is seen.
        """
        draft = Draft(self.spark, self.root, self._released)
        yield draft
        self._released = draft.publish()

    def release_converted(self) -> None:
        """Release the tables that ``headrace pipeline migrate`` has converted, unless there is a release."""
        if not self._versions():
            made = {table: self.version(table) for table in RELEASED if self._exists(table)}
            if made:
                self._released = self._publish(1, made)

    def table(self, name: str) -> DeltaTable:
        """Return an existing table for operations of Delta Lake."""
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self.spark, self.path(name))

    def files(self, table: str) -> DataFrame:
        """Return the files of an existing table with their partitions and statistics, as Delta Lake's log has them
        (its action ``add``). No file is read.
        """
        from pyspark.sql import DataFrame

        version = self._versions().get(table) if table in RELEASED else None
        return DataFrame(self._snapshot(table, version).allFiles().toDF(), self.spark)

    def version(self, table: str) -> int:
        """Return the newest version of an existing table."""
        return int(self._snapshot(table, None).version())

    def _snapshot(self, table: str, version: int | None) -> Any:
        """Return Delta Lake's snapshot of a version of an existing table; ``None`` is the newest version."""
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 -- Delta Lake has no Python API for this
        path = qualified(self.spark, self.path(table))
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, path)  # noqa: SLF001
        none = jvm.scala.Option.empty()
        return log.update(False, none, none) if version is None else log.getSnapshotAt(version, none, none)

    def _exists(self, table: str) -> bool:
        from delta.tables import DeltaTable

        path = self.path(table)
        if not exists(self.spark, path):
            return False
        if DeltaTable.isDeltaTable(self.spark, path):
            return True
        # For Delta Lake, a log that had no version when it was first looked at has none until it is read again.
        if exists(self.spark, f"{path}/_delta_log") and self.version(table) >= 0:
            return True
        if not is_old_table(self.spark, path):  # the remains of a first write that was killed
            return False
        raise InputError(
            f"{path} was written by a version of Headrace before Delta Lake; headrace pipeline migrate --lake"
            f" {self.root} converts the lake once"
        )

    def _versions(self) -> Mapping[str, int]:
        """Return the versions of the newest release, by table; empty if there is none."""
        if self._released is None:
            self._released = self._newest_release()[1]
        return self._released

    def _newest_release(self) -> tuple[int, Mapping[str, int]]:
        if not self._exists("releases"):
            for table in RELEASED:  # raises an error for a table of a version before Delta Lake
                self._exists(table)
            return 0, {}
        newest = self._releases().orderBy("number", ascending=False).first()
        return (0, {}) if newest is None else (newest.number, newest.versions)

    def _publish(self, number: int, versions: Mapping[str, int]) -> Mapping[str, int]:
        """Write the release with this number, unless another job has been faster. Raises `ConflictError`.

        Releases of more than `VERSION_HOURS` ago are removed, and the others stay in one file.
        """
        from pyspark.sql import functions as sf

        row = self.spark.createDataFrame([(number, versions)], "number long, versions map<string, long>")
        row = row.withColumn("released", sf.current_timestamp())
        self.create("releases", schemas.RELEASES)
        there = self._releases().select(*schemas.RELEASES.names)
        row = row.join(sf.broadcast(there.where(sf.col("number") == number).select("number")), "number", "left_anti")
        is_recent = sf.col("released") > sf.current_timestamp() - sf.make_dt_interval(hours=sf.lit(VERSION_HOURS))
        self.replace_whole("releases", there.where(is_recent).unionByName(row).coalesce(1))
        if self._newest_release() != (number, versions):
            raise self._conflict("it has released its tables first")
        return versions

    def _conflict(self, what: str) -> ConflictError:
        return ConflictError(
            f"another job works on {self.root} at the same time: {what}. This run has changed nothing; run it again"
        )

    def _releases(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.path("releases"))

    def _read(self, table: str, schema: StructType) -> DataFrame:
        """Return an existing table; add columns that it lacks."""
        from pyspark.sql import functions as sf

        reader = self.spark.read.format("delta")
        if table in RELEASED and (version := self._versions().get(table)) is not None:
            reader = reader.option("versionAsOf", version)
        frame = reader.load(self.path(table))
        names = [*schema.names, *(name for name in ("date",) if name in frame.columns and name not in schema.names)]
        lacking = {name: sf.lit(None).cast(schema[name].dataType) for name in schema.names if name not in frame.columns}
        return frame.withColumns(lacking).select(*names)

    def _write(self, table: str, frame: DataFrame, mode: str, by: tuple[str, ...], options: Mapping[str, str]) -> None:
        with self._writing(table):
            frame.write.format("delta").mode(mode).partitionBy(*by).options(**options).save(self.path(table))

    @contextlib.contextmanager
    def _writing(self, table: str) -> Iterator[None]:
        """Raise errors of Spark as `ConflictError` or `OutputError`."""
        self._exists(table)  # raises an error for a table of a version before Delta Lake
        try:
            yield
        except Exception as error:
            if not is_spark_error(error):
                raise
            text = str(error)
            if "io.delta.exceptions" in text:
                raise ConflictError(f"another job has changed {self.path(table)}: {cause_of(error)}") from error
            converted = as_pipeline_error(error, self.path(table))
            if converted is not None:
                raise converted from error
            if "org.apache.hadoop.fs" in text or "java.io" in text:
                raise OutputError(f"cannot write {self.path(table)}: {cause_of(error)}") from error
            raise


class Draft(Lake):
    """The tables of a release that is being made: it reads what it has written."""

    def __init__(self, spark: SparkSession, root: str, released: Mapping[str, int] | None) -> None:
        super().__init__(spark, root)
        self._number, newest = self._newest_release()
        if released is not None and newest != released:
            raise self._conflict("there is a newer release of its tables")
        self._at = {table: self._undone(table, newest.get(table)) for table in RELEASED if self._exists(table)}
        """The newest version of each existing table."""
        # After a write was undone, the released rows are those of the newest version: Delta Lake forgets older ones.
        self._before, self._made = newest, {table: self._at.get(table, newest[table]) for table in newest}
        self._released = self._made

    def publish(self) -> Mapping[str, int]:
        """Let readers see this release; return the version of each table. Raises `ConflictError`."""
        if self._made == self._before:
            return self._made
        for table, version in self._at.items():
            if self.version(table) != version:
                raise self._conflict(f"it has written {self.path(table)}")
        return self._publish(self._number + 1, self._made)

    def _write(self, table: str, frame: DataFrame, mode: str, by: tuple[str, ...], options: Mapping[str, str]) -> None:
        super()._write(table, frame, mode, by, options)
        self._note(table)

    def remove_rows(self, table: str, condition: str) -> int:
        """See `Lake.remove_rows`."""
        number = super().remove_rows(table, condition)
        self._note(table)
        return number

    def compact(
        self, table: str, first: date | None = None, last: date | None = None, condition: str | None = None
    ) -> tuple[int, int]:
        """See `Lake.compact`."""
        files = super().compact(table, first, last, condition)
        self._note(table)
        return files

    def _note(self, table: str) -> None:
        """Note the version that this job has written."""
        if table in RELEASED:
            version, before = self.version(table), self._at.get(table, -1)
            if version > before + 1:
                raise self._conflict(f"it has written {self.path(table)}")
            self._made[table] = self._at[table] = version

    def _undone(self, table: str, version: int | None) -> int:
        """Undo what was written after ``version``, by a job that did not release it; return the newest version."""
        newest = self.version(table)
        if version == newest:
            return newest
        if version is None:
            if self.table(table).history().where("operation = 'CONVERT'").count():
                raise InputError(
                    f"the lake {self.root} is converted in part; run headrace pipeline migrate --lake {self.root} again"
                )
            self.table(table).delete()
        else:
            self.table(table).restoreToVersion(version)
        return self.version(table)


def open_lake(job: str, options: SparkOptions, root: str, *, kafka: bool = False) -> Lake:
    """Start Spark for ``job`` and return an existing lake. Raises `PipelineError`.

    If a local lake does not exist, the error is raised before Spark is started. With ``kafka``, Spark has its Kafka
    connector.
    """
    if is_missing(root) or not exists(spark := start_session(job, options, root, kafka=kafka, reads=root), root):
        raise InputError(f"--lake {root} does not exist; headrace pipeline ingest creates it")
    return Lake(spark, root)


def is_old_table(spark: SparkSession, path: str) -> bool:
    """Return whether a folder that is not a Delta table is a table of a version of Headrace before Delta Lake."""
    return "_SUCCESS" in files_below(spark, path)


def literal_of(text: str) -> str:
    """Return a string literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def of_days(frame: DataFrame, first: date | None, last: date | None) -> DataFrame:
    """Return the rows whose ``date`` is between the days ``first`` and ``last``; ``None`` means no limit."""
    from pyspark.sql import functions as sf

    if first is not None:
        frame = frame.where(sf.col("date") >= sf.lit(first))
    if last is not None:
        frame = frame.where(sf.col("date") <= sf.lit(last))
    return frame
