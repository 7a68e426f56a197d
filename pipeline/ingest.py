"""Ingest: lines from Kafka or files into the lake, each record once.

A record is known by its instance and sequence number, and its second says which hour it belongs to; so what comes
again, after a kill, a lost checkpoint or a copied file, is found by looking into that one hour of the table, however
late it comes, and no state has to be kept for it. Batches can be repeated at will: that, and not a commit across
several tables, is why each record is there once.

What is older than the watermark (the newest second so far, less ``--watermark``) and not there yet is put aside: hours
before it are final, their bills may have been sent. So is what is no record, with the reason.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from pipeline import schemas
from pipeline.errors import InputError, OutputError, PipelineError
from pipeline.lake import Lake, cause_of, exists, read_text, write_text
from quota_callbacks.usage_records import SCHEMA_VERSION, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

FILES_AT_ONCE: Final = 100
"""In a batch: of proxies that rotate each minute, 100 minutes."""
RECORDS_AT_ONCE: Final = 5_000_000
"""In a batch from Kafka, about 2 GiB of JSON."""
MOST_HOURS: Final = 1000
"""That a batch may be of and still be looked up hour by hour."""
LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, the last that Spark's dates have."""
FILE_PATTERN: Final = "usage-*.jsonl*"

_CORRUPT: Final = "_corrupt"
_COUNTS: Final = ("requests", "errors", "response_bytes", "mutations", "producer_ids")
_TIMES: Final = ("thread_ms", "broker_ms")
_KEY: Final = ("instance", "sequence")


# --- pure: from lines to records --------------------------------------------------------------------------------------


def parse(raw: DataFrame) -> DataFrame:
    """Lines (`schemas.RAW`) as records (`schemas.RECORD`), with ``value``, ``origin`` and ``fault``: why it is none."""
    schema = StructType([*schemas.RECORD.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = raw.withColumn("record", sf.from_json("value", schema, options))
    named = [sf.col(f"record.{name}").alias(name) for name in schemas.RECORD.names]
    return parsed.select("value", "origin", *named, _fault(sf.col("record")).alias("fault"))


def _fault(record: Column) -> Column:
    """The first thing that is wrong with it; null for what is right."""
    kinds = [kind.value for kind in Kind]
    of_usage = record["kind"] == Kind.USAGE.value
    with_second = record["kind"] != Kind.END.value
    faults: list[tuple[Column, Column]] = [
        (sf.trim("value") == "", sf.lit("an empty line")),
        (
            record.isNull() | record[_CORRUPT].isNotNull(),
            sf.lit("not a JSON object with the columns of a usage record"),
        ),
        (record["schema"].isNull(), sf.lit("no schema")),
        (
            record["schema"] > SCHEMA_VERSION,
            sf.format_string(
                f"schema %d is newer than {SCHEMA_VERSION}, which this pipeline knows;"
                " update it, then ingest --quarantined",
                record["schema"],
            ),
        ),
        (record["schema"] < 1, sf.format_string("schema is %d; there is none below 1", record["schema"])),
        (record["kind"].isNull(), sf.lit("no kind")),
        (~record["kind"].isin(kinds), sf.format_string(f"kind is %s; expected {', '.join(kinds)}", record["kind"])),
        (sf.coalesce(record["instance"], sf.lit("")) == "", sf.lit("no instance")),
        (record["sequence"].isNull(), sf.lit("no sequence")),
        (record["sequence"] < 0, sf.format_string("sequence is %d; expected 0 or more", record["sequence"])),
        (with_second & record["second"].isNull(), sf.lit("no second")),
        (
            ~record["second"].between(0, LAST_SECOND),
            sf.format_string("second is %d; expected seconds since 1970", record["second"]),
        ),
        (of_usage & record["api_key"].isNull(), sf.lit("no api_key")),
        (of_usage & record["request_bytes"].isNull(), sf.lit("no request_bytes")),
    ]
    for name in (*_COUNTS, *_TIMES):
        faults.append((of_usage & record[name].isNull(), sf.lit(f"no {name}")))
        shown = "%d" if name in _COUNTS else "%f"
        faults.append((record[name] < 0, sf.format_string(f"{name} is {shown}; expected 0 or more", record[name])))
    return sf.coalesce(*(sf.when(condition, why) for condition, why in faults))


def with_hour(parsed: DataFrame) -> DataFrame:
    """With ``date`` and ``hour`` of its second; an end has none, and stands at 1970."""
    when = sf.timestamp_seconds(sf.coalesce("second", sf.lit(0)))
    right = sf.col("fault").isNull()
    return parsed.withColumns({"date": sf.when(right, sf.to_date(when)), "hour": sf.when(right, sf.hour(when))})


def with_fate(parsed: DataFrame, known: DataFrame, open_from: int) -> DataFrame:
    """What is to become of each line: ``fate`` is ``new``, ``mark``, ``aside`` or ``duplicate``.

    ``known`` has the ``instance`` and ``sequence`` of what is there already; records before ``open_from`` (a second)
    are late, unless they are there.
    """
    first = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("origin")) == 1
    right = parsed.where(sf.col("fault").isNull()).withColumn("first", first)
    met = right.join(known.select(*_KEY, sf.lit(True).alias("known")), [*_KEY], "left")
    is_late = (sf.col("kind") == Kind.USAGE.value) & (sf.col("second") < open_from)
    why = sf.format_string(
        f"late: second %d is before {open_from}, and hours before that are final (--watermark)", sf.col("second")
    )
    fate = (
        sf.when(~sf.col("first") | sf.col("known"), "duplicate")
        .when(sf.col("kind") != Kind.USAGE.value, "mark")
        .when(is_late, "aside")
        .otherwise("new")
    )
    judged = met.withColumn("fate", fate).withColumn("fault", sf.when(is_late, why)).drop("first", "known")
    wrong = parsed.where(sf.col("fault").isNotNull()).withColumn("fate", sf.lit("aside"))
    return judged.select(*wrong.columns).unionByName(wrong)


def aside_of(fated: DataFrame, known: DataFrame) -> DataFrame:
    """What is to be put aside and is not yet (`schemas.QUARANTINE`): a line is known by where it was."""
    aside = fated.where("fate = 'aside'").select(
        sf.current_date().alias("date"),
        "origin",
        "value",
        sf.col("fault").alias("reason"),
        sf.current_timestamp().alias("ingested"),
    )
    return aside.dropDuplicates(["origin", "value"]).join(
        known.select("origin", "value"), ["origin", "value"], "left_anti"
    )


# --- sources ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Finished files of the proxies' ``folder``, here or copied elsewhere."""

    folder: str

    def read(self, spark: SparkSession) -> DataFrame:
        """As a stream (`schemas.RAW`). Raises `InputError`."""
        if not exists(spark, self.folder):
            raise InputError(f"--from-files {self.folder}: there is no such folder")
        stream = (
            spark.readStream.format("text")
            .option("maxFilesPerTrigger", FILES_AT_ONCE)
            .option("pathGlobFilter", FILE_PATTERN)
            .load(self.folder)
        )
        return stream.select("value", sf.col("_metadata.file_path").alias("origin"))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSource:
    """The topic that the proxies write to."""

    topic: str
    bootstrap_servers: str
    client: Mapping[str, str]
    """Further settings of Kafka's consumer."""
    accept_data_loss: bool = False

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


Source = FileSource | KafkaSource


# --- the job ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Outcome:
    """What a run has done."""

    batches: int = 0
    lines: int = 0
    records: int = 0
    duplicates: int = 0
    marks: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def add(self, lines: Mapping[tuple[str, str | None], int]) -> None:
        """One more batch: its lines by fate and reason."""
        self.batches += 1
        for (fate, why), count in lines.items():
            self.lines += count
            match fate:
                case "new":
                    self.records += count
                case "mark":
                    self.marks += count
                case "duplicate":
                    self.duplicates += count
                case _:
                    reason = why or ""
                    self.quarantined[reason] = self.quarantined.get(reason, 0) + count

    def told(self) -> str:
        """A line for people."""
        aside = sum(self.quarantined.values())
        return (
            f"{self.lines:,} lines in {self.batches:,} batches: {self.records:,} records, {self.marks:,} marks,"
            f" {self.duplicates:,} duplicates, {aside:,} put aside"
        )


class Ingest:
    """Batches of lines into the lake."""

    def __init__(self, lake: Lake, watermark_s: int | None, told: Callable[[str], None]) -> None:
        """``told`` gets a line for each batch."""
        self._lake = lake
        self._watermark_s = watermark_s
        self._told = told
        self.outcome = Outcome()

    def run(self, source: Source, *, follow_s: float | None = None) -> Outcome:
        """Take in what is there, or, every ``follow_s`` seconds, what comes, until it is stopped."""
        checkpoint = self._checkpoint(source)
        stream = (
            source.read(self._lake.spark).writeStream.foreachBatch(self.take).option("checkpointLocation", checkpoint)
        )
        trigger: dict[str, Any] = (
            {"availableNow": True} if follow_s is None else {"processingTime": f"{follow_s} seconds"}
        )
        try:
            query = stream.trigger(**trigger).start()
            query.awaitTermination()
        except PipelineError:
            raise
        except Exception as error:
            raise _as_ours(error, source) from error
        return self.outcome

    def take(self, batch: DataFrame, number: int) -> None:
        """One batch; may be repeated."""
        watermark = Watermark.read(self._lake, number)
        newest = self._take(batch, self._open_from(watermark.second))
        watermark.write(self._lake, number, newest)
        self._told(f"batch {number}: {self.outcome.told()} so far")

    def again(self) -> Outcome:
        """Take in what was put aside and is right by now."""
        aside = self._lake.read("quarantine", schemas.QUARANTINE).select("value", "origin")
        self._take(aside, self._open_from(Watermark.read(self._lake, -1).second))
        return self.outcome

    def _open_from(self, newest: int | None) -> int:
        """The first second that is not final."""
        if newest is None or self._watermark_s is None:
            return 0
        oldest = newest - self._watermark_s
        return oldest - oldest % 3600

    def _take(self, raw: DataFrame, open_from: int) -> int | None:
        """Write what is new; the newest second of it."""
        lake = self._lake
        parsed = with_hour(parse(raw)).persist()
        fated = parsed
        try:
            hours = parsed.groupBy("date", "hour").count().limit(MOST_HOURS + 1).collect()
            fated = with_fate(parsed, self._known([row for row in hours if row["date"]]), open_from).persist()
            fates = fated.groupBy("fate", _kind_of_fault().alias("why")).agg(
                sf.count("*").alias("lines"), sf.max("second").alias("newest")
            )
            found = {(row["fate"], row["why"]): row for row in fates.collect()}
            if ("new", None) in found:
                new = fated.where("fate = 'new'").select(*schemas.USAGE.names)
                lake.append("usage", new.repartition("date", "hour"), "date", "hour")
            if ("mark", None) in found:
                marks = fated.where("fate = 'mark'").select(*schemas.MARKS.names)
                lake.append("marks", marks.coalesce(1), "date")
            if any(fate == "aside" for fate, _ in found):
                known = lake.read_if_there("quarantine", schemas.QUARANTINE)
                lake.append("quarantine", aside_of(fated, known).coalesce(1), "date")
        finally:
            fated.unpersist()
            parsed.unpersist()
        self.outcome.add({fate: row["lines"] for fate, row in found.items()})
        new_records = found.get(("new", None))
        return None if new_records is None else int(new_records["newest"])

    def _known(self, hours: list[Any]) -> DataFrame:
        """The keys that the tables have of these hours; of all, when there are too many to name."""
        usage = self._lake.read_if_there("usage", schemas.USAGE)
        if len(hours) <= MOST_HOURS:
            in_hours = [(sf.col("date") == row["date"]) & (sf.col("hour") == row["hour"]) for row in hours]
            usage = usage.where(functools.reduce(operator.or_, in_hours, sf.lit(False)))
        marks = self._lake.read_if_there("marks", schemas.MARKS)
        return usage.select(*_KEY).unionByName(marks.select(*_KEY))

    def _checkpoint(self, source: Source) -> str:
        name = hashlib.sha256(repr(source).encode()).hexdigest()[:16]
        path = self._lake.path(f"_checkpoints/ingest-{name}")
        if self._lake.has("usage") and not exists(self._lake.spark, path):
            self._told(
                f"no checkpoint for this source in {path}: all of it is read, and what the lake has is passed over"
            )
        return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """The newest second before a batch, kept beside the tables so that a repeated batch finds the same."""

    second: int | None

    FILE = "_ingest/watermark.json"

    @classmethod
    def read(cls, lake: Lake, batch: int) -> Watermark:
        """As it was before ``batch``."""
        path = lake.path(cls.FILE)
        if not exists(lake.spark, path):
            return cls(second=None)
        try:
            kept = json.loads(read_text(lake.spark, path))
            return cls(second=kept["before"] if kept["batch"] == batch else kept["after"])
        except (ValueError, KeyError, TypeError) as error:
            raise OutputError(f"{path} is damaged ({error}); remove it: the watermark then begins anew") from error

    def write(self, lake: Lake, batch: int, newest: int | None) -> None:
        """``batch`` is done, and its newest second was ``newest``."""
        after = max((second for second in (self.second, newest) if second is not None), default=None)
        write_text(
            lake.spark, lake.path(self.FILE), json.dumps({"batch": batch, "before": self.second, "after": after})
        )


def _kind_of_fault() -> Column:
    """Without its numbers, so that there are few."""
    return sf.regexp_replace("fault", r"-?\d+(\.\d+)?", "N")


def _as_ours(error: Exception, source: Source) -> PipelineError:
    text = str(error)
    if isinstance(source, KafkaSource):
        if "UnknownTopicOrPartition" in text:
            return InputError(f"--topic {source.topic}: {source.bootstrap_servers} has no such topic")
        if "Some data may have been lost" in text or "KAFKA_DATA_LOSS" in text:
            return InputError(
                f"--topic {source.topic}: records were removed from it (retention) before they were taken in;"
                " --accept-data-loss goes on with what is left"
            )
        if "TimeoutException" in text or "bootstrap" in text:
            return InputError(f"--bootstrap-servers {source.bootstrap_servers}: {cause_of(error)}")
    if type(error).__module__.startswith(("pyspark", "py4j")):
        return PipelineError(f"ingest ended: {cause_of(error)}")
    raise error
