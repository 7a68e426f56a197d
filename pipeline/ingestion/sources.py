"""The sources of `headrace.pipeline.ingestion.ingest`: finished files of proxies, or the topic that they write to.

A source is identified by what it reads (`identity`), and its checkpoint is named after that, so that the settings for
reading it can change between runs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.errors import ConflictError, InputError, PipelineError
from headrace.pipeline.ingestion import columnar
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.lake import schemas, spark_errors
from headrace.pipeline.lake.jars import KAFKA_CONNECTOR
from headrace.pipeline.lake.spark_errors import cause_of, is_spark_error
from headrace.pipeline.lake.stores import files_below, is_folder, qualified

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

FILES_AT_ONCE: Final = 100
"""Maximum number of files in a batch: 100 minutes of a proxy that rotates its files every minute."""
RECORDS_AT_ONCE: Final = 5_000_000
"""Maximum number of records in a batch from Kafka, about 2 GiB of JSON."""
LINES: Final = "usage-*.jsonl*"
COLUMNS: Final = "usage-*.parquet"
"""Patterns of the names of files in the two formats."""
_UNREADABLE: Final = re.compile(r"Encountered error while reading file (.+?)\.(?:\s|$)")
"""Matches the message of Spark's error FAILED_READ_FILE, which any error while a file is read becomes."""
_REMOVED: Final = re.compile(r"FileNotFoundException\)?: .*(does not exist|No such file|not found)", re.IGNORECASE)
"""Matches the root cause if a file does not exist. Java raises the same exception for one without read permission."""
_CORRUPTION: Final = re.compile(
    r"EOFException: (Unexpected end of |Reached the end of stream with )"
    r"|IOException: (not a gzip file|gzip (stream|header) CRC failure|stored gzip size doesn't match)"
    # zlib's own texts (inflate.c), which Hadoop passes on.
    r"|IOException: (invalid (block type|stored|code|bit|literal|distance|window)|too many length|header crc mismatch"
    r"|unknown (compression method|header flags)|incorrect (header|data|length) check)"
    r"|IOException: (Stream is not BZip2 formatted|bad block header|crc error|BZip2 )"
    r"|(Zip|DataFormat|Checksum|MalformedInput|ParquetDecoding|TProtocol|TTransport)Exception\b"
    r"|is not a Parquet file|corrupted file: the footer index"
    r"|Zstd(IO)?Exception: |FAILED_TO_UNCOMPRESS"
)
"""Matches the root causes that are faults in the contents of a file: those of Hadoop's codecs and checksums, and those
of Parquet. Not every EOFException is one: HDFS raises it also if a server closes a connection.
"""
_OTHER_RUN: Final = ("CONCURRENT_STREAM_LOG_UPDATE", "Multiple streaming jobs detected")
"""Parts of Spark's errors for two streams with the same checkpoint."""
NEVER_TOO_OLD: Final = "36500d"
"""A hundred years. By default, Spark silently ignores files that are more than seven days older than the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Finished files in a folder that proxies write to, and in the folders below it, or copies of these."""

    folder: str

    def identity(self, spark: SparkSession) -> str:
        """Return the folder's full path, independent of its spelling."""
        return f"files of both formats {qualified(spark, self.folder)}"

    def read(self, spark: SparkSession, damaged: Collection[str] = ()) -> DataFrame:
        """Return the records of all files but ``damaged`` ones as a stream (`parsing.parse`). Raises `InputError`."""
        if not is_folder(spark, self.folder):
            raise InputError(f"--from-files {self.folder}: the folder does not exist")

        def files(pattern: str) -> DataStreamReader:
            return (
                spark.readStream.option("maxFilesPerTrigger", FILES_AT_ONCE)
                .option("maxFileAge", NEVER_TOO_OLD)
                .option("recursiveFileLookup", "true")
                .option("pathGlobFilter", pattern)
            )

        origin = sf.col("_metadata.file_path")
        spellings = {spelling for file in damaged for spelling in (file, file.replace(":///", ":/", 1))}
        is_whole = ~origin.isin(*spellings) if spellings else sf.lit(True)
        lines = files(LINES).text(self.folder).where(is_whole).select("value", origin.alias("origin"))
        columns = files(COLUMNS).schema(schemas.RECORD).option("parquet.page.verify-checksum.enabled", "true")
        rows = columns.parquet(self.folder).where(is_whole).select(*schemas.RECORD.names, origin.alias("origin"))
        return parse(lines).unionByName(columnar.check(rows))

    def describe_empty(self, spark: SparkSession) -> str | None:
        """Return a sentence if no file matches, or else ``None``. Stops at the first name that matches."""
        if any(fnmatch(name, LINES) or fnmatch(name, COLUMNS) for name in files_below(spark, self.folder)):
            return None
        return f"--from-files {self.folder}: no file {LINES} or {COLUMNS} in it or in the folders below it"

    def damaged_file(self, error: Exception) -> str | None:
        """Return the file of this source whose contents an error of Spark shows to be damaged; else ``None``."""
        return _unreadable_file(error) if _CORRUPTION.search(cause_of(error)) else None

    def as_pipeline_error(self, error: Exception) -> PipelineError | None:
        """Return the error for a file of this source that was removed or cannot be read; ``None`` for other errors."""
        file = _unreadable_file(error)
        if file is None:
            return None
        if _REMOVED.search(cause_of(error)):
            return ConflictError(f"{file} was removed before it was read; the next run continues without it")
        return InputError(f"cannot read {file}: {cause_of(error)}; the next run reads it, or passes over it if removed")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """The topic that proxies write to."""

    topic: str
    bootstrap_servers: str
    client: Mapping[str, str]
    """Further settings of Kafka's consumer."""
    accept_data_loss: bool = False
    option: str = "--topic"
    """The option that names the topic, for messages."""

    def identity(self, spark: SparkSession) -> str:  # noqa: ARG002 -- a source's signature
        """Return the topic and its bootstrap servers, independent of their order."""
        servers = sorted(each.strip() for each in self.bootstrap_servers.split(","))
        return f"topic {self.topic} of {','.join(servers)}"

    def read(self, spark: SparkSession, damaged: Collection[str] = ()) -> DataFrame:  # noqa: ARG002 -- no files
        """Return the records as a stream (`parsing.parse`)."""
        reader = (
            spark.readStream.format("kafka")
            .options(**self._options)
            .option("maxOffsetsPerTrigger", RECORDS_AT_ONCE)
            .option("failOnDataLoss", not self.accept_data_loss)
        )
        origin = sf.concat_ws("/", "topic", "partition", "offset")
        return parse(reader.load().select(sf.col("value").cast("string").alias("value"), origin.alias("origin")))

    @property
    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **{f"kafka.{name}": value for name, value in self.client.items()},
        }

    def newest(self, spark: SparkSession) -> list[tuple[str, str]]:
        """Return the newest message of each key, and where it is; keys whose newest message has no value are left out.

        The newest is the last one of its partition. If the number of partitions was changed, so that a key is in
        several, it is the one with the latest timestamp. Raises `InputError`, also for messages without a key.
        """
        message = sf.struct("timestamp", "partition", "offset", sf.col("value").cast("string").alias("value"))
        try:
            messages = spark.read.format("kafka").options(**self._options).option("failOnDataLoss", "false").load()
            last = messages.groupBy("key", "partition").agg(sf.max_by(message, "offset").alias("last"))
            newest = last.groupBy("key").agg(sf.max_by("last", "last.timestamp").alias("newest"))
            rows = newest.select("key", "newest.*").orderBy("partition", "offset").collect()
        except Exception as error:
            if not is_spark_error(error):
                raise
            unknown = InputError(f"{self.option} {self.topic}: cannot be read: {cause_of(error)}")
            raise (self.as_pipeline_error(error) or unknown) from error
        if any(row.key is None for row in rows):
            problem = "some messages have no key, but only the newest message of each key is read"
            raise InputError(f"{self.option} {self.topic}: {problem}")
        return [(f"partition {row.partition}, offset {row.offset}", row.value) for row in rows if row.value is not None]

    def describe_empty(self, spark: SparkSession) -> str | None:  # noqa: ARG002 -- a source's signature
        """Return ``None``: an empty topic is not an error."""
        return None

    def damaged_file(self, error: Exception) -> str | None:  # noqa: ARG002 -- a source's signature
        """Return ``None``: a topic has no files."""
        return None

    def as_pipeline_error(self, error: Exception) -> PipelineError | None:
        """Return a clearer error for one of Spark's; ``None`` if there is none."""
        text = str(error)
        if "data source: kafka" in text:
            return InputError(
                f"--bootstrap-servers {self.bootstrap_servers}: Spark has no Kafka connector; give spark-submit"
                f" --packages {KAFKA_CONNECTOR}"
            )
        if "UnknownTopicOrPartition" in text:
            return InputError(f"{self.option} {self.topic}: {self.bootstrap_servers} has no topic of this name")
        if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
            return InputError(
                f"{self.option} {self.topic}: retention removed records before they were ingested;"
                " --accept-data-loss continues with the remaining ones"
            )
        if "TimeoutException" in text or "bootstrap" in text:
            return InputError(f"--bootstrap-servers {self.bootstrap_servers}: {cause_of(error)}")
        return None


def _unreadable_file(error: Exception) -> str | None:
    """Return the file with usage records that an error of Spark names; the lake's own files have other names."""
    found = _UNREADABLE.search(str(error))
    if found is None:
        return None
    name = found[1].rpartition("/")[2]
    return found[1] if fnmatch(name, LINES) or fnmatch(name, COLUMNS) else None


Source = FileSource | KafkaSource


def checkpoint_name(source: Source, spark: SparkSession) -> str:
    """Return the name of the source's checkpoint, equal for all sources that read the same."""
    return "ingest-" + hashlib.sha256(source.identity(spark).encode()).hexdigest()[:16]


def as_pipeline_error(error: Exception, source: Source) -> PipelineError | None:
    """Return an error of Spark as a `PipelineError` in one line; ``None`` for other errors."""
    if not is_spark_error(error):
        return None
    if any(each in str(error) for each in _OTHER_RUN):
        return ConflictError("another ingest reads the same source now; run it again when that one has ended")
    known = source.as_pipeline_error(error) or spark_errors.as_pipeline_error(error)
    return known or PipelineError(f"ingest ended: {cause_of(error)}")
