"""Where `headrace.pipeline.ingestion.ingest` takes lines from: finished files of proxies, or the topic that they write
to.

A source is known by what it reads (`identity`): its checkpoint bears that name, so settings of how it is read can
change from run to run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError, PipelineError
from headrace.pipeline.lake.jars import KAFKA_CONNECTOR
from headrace.pipeline.lake.tables import cause_of, files_below, is_folder, of_spark, qualified

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

FILES_AT_ONCE: Final = 100
"""In a batch: of proxies that rotate each minute, 100 minutes."""
RECORDS_AT_ONCE: Final = 5_000_000
"""In a batch from Kafka, about 2 GiB of JSON."""
FILE_PATTERN: Final = "usage-*.jsonl*"
NEVER_TOO_OLD: Final = "36500d"
"""A hundred years. By default Spark passes over files that are seven days older than the newest, without a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Finished files of the proxies' ``folder`` and the folders below it, here or copied elsewhere."""

    folder: str

    def identity(self, spark: SparkSession) -> str:
        """The folder, however it is spelled."""
        return f"files {qualified(spark, self.folder)}"

    def read(self, spark: SparkSession) -> DataFrame:
        """As a stream (`schemas.RAW`). Raises `InputError`."""
        if not is_folder(spark, self.folder):
            raise InputError(f"--from-files {self.folder}: there is no such folder")
        stream = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", FILES_AT_ONCE)
            .option("maxFileAge", NEVER_TOO_OLD)
            .option("recursiveFileLookup", "true")
            .option("pathGlobFilter", FILE_PATTERN)
            .load(self.folder)
        )
        return stream.select("value", sf.col("_metadata.file_path").alias("origin"))

    def nothing_there(self, spark: SparkSession) -> str | None:
        """In a sentence, when it has no file to read; reads names up to the first that fits."""
        if any(fnmatch(name, FILE_PATTERN) for name in files_below(spark, self.folder)):
            return None
        return f"--from-files {self.folder}: no file {FILE_PATTERN} in it or below"

    def as_ours(self, error: Exception) -> PipelineError | None:  # noqa: ARG002 -- a source's signature
        """Nothing: Spark names the file."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """The topic that the proxies write to."""

    topic: str
    bootstrap_servers: str
    client: Mapping[str, str]
    """Further settings of Kafka's consumer."""
    accept_data_loss: bool = False

    def identity(self, spark: SparkSession) -> str:  # noqa: ARG002 -- a source's signature
        """The topic and its cluster, however it is read."""
        servers = sorted(each.strip() for each in self.bootstrap_servers.split(","))
        return f"topic {self.topic} of {','.join(servers)}"

    def read(self, spark: SparkSession) -> DataFrame:
        """As a stream (`schemas.RAW`)."""
        reader = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", RECORDS_AT_ONCE)
            .option("failOnDataLoss", not self.accept_data_loss)
        )
        for name, value in self.client.items():
            reader = reader.option(f"kafka.{name}", value)
        origin = sf.concat_ws("/", "topic", "partition", "offset")
        return reader.load().select(sf.col("value").cast("string").alias("value"), origin.alias("origin"))

    def nothing_there(self, spark: SparkSession) -> str | None:  # noqa: ARG002 -- a source's signature
        """A topic may be empty."""
        return None

    def as_ours(self, error: Exception) -> PipelineError | None:
        """What it has to say of an error of Spark's; ``None`` when nothing."""
        text = str(error)
        if "data source: kafka" in text:
            return InputError(
                f"--bootstrap-servers {self.bootstrap_servers}: Spark has no Kafka connector; give spark-submit"
                f" --packages {KAFKA_CONNECTOR}"
            )
        if "UnknownTopicOrPartition" in text:
            return InputError(f"--topic {self.topic}: {self.bootstrap_servers} has no such topic")
        if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
            return InputError(
                f"--topic {self.topic}: records were removed from it (retention) before they were taken in;"
                " --accept-data-loss goes on with what is left"
            )
        if "TimeoutException" in text or "bootstrap" in text:
            return InputError(f"--bootstrap-servers {self.bootstrap_servers}: {cause_of(error)}")
        return None


Source = FileSource | KafkaSource


def checkpoint_name(source: Source, spark: SparkSession) -> str:
    """The same for all sources that read the same."""
    return "ingest-" + hashlib.sha256(source.identity(spark).encode()).hexdigest()[:16]


def as_ours(error: Exception, source: Source) -> PipelineError | None:
    """An error of Spark's in a line; ``None`` when it is none."""
    if not of_spark(error):
        return None
    return source.as_ours(error) or PipelineError(f"ingest ended: {cause_of(error)}")
