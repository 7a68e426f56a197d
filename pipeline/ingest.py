"""Ingest: lines from Kafka or files into the lake, each record once.

A record is known by its instance and sequence number, and its second says which hour it belongs to; so what comes
again, after a kill, a lost checkpoint or a copied file, is found by looking into that one hour of the table, however
late it comes, and no state has to be kept for it. Batches can be repeated at will: that, and not a commit across
several tables, is why each record is there once.

What is older than the watermark (the newest second so far, less ``--watermark``) and not there yet is put aside: hours
before it are final, their bills may have been sent. So is what is no record, with the reason.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F
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
    parsed = raw.withColumn("record", F.from_json("value", schema, options))
    named = [F.col(f"record.{name}").alias(name) for name in schemas.RECORD.names]
    return parsed.select("value", "origin", *named, _fault(F.col("record")).alias("fault"))


def _fault(record: Column) -> Column:
    """The first thing that is wrong with it; null for what is right."""
    kinds = [kind.value for kind in Kind]
    of_usage = record["kind"] == Kind.USAGE.value
    with_second = record["kind"] != Kind.END.value
    faults: list[tuple[Column, Column]] = [
        (F.trim("value") == "", F.lit("an empty line")),
        (record.isNull() | record[_CORRUPT].isNotNull(), F.lit("not a JSON object with the columns of a usage record")),
        (record["schema"].isNull(), F.lit("no schema")),
        (
            record["schema"] > SCHEMA_VERSION,
            F.format_string(
                f"schema %d is newer than {SCHEMA_VERSION}, which this pipeline knows: update it, then ingest --quarantined",
                record["schema"],
            ),
        ),
        (record["schema"] < 1, F.format_string("schema is %d; there is none below 1", record["schema"])),
        (record["kind"].isNull(), F.lit("no kind")),
        (~record["kind"].isin(kinds), F.format_string(f"kind is %s; expected {', '.join(kinds)}", record["kind"])),
        (F.coalesce(record["instance"], F.lit("")) == "", F.lit("no instance")),
        (record["sequence"].isNull(), F.lit("no sequence")),
        (record["sequence"] < 0, F.format_string("sequence is %d; expected 0 or more", record["sequence"])),
        (with_second & record["second"].isNull(), F.lit("no second")),
        (
            ~record["second"].between(0, LAST_SECOND),
            F.format_string("second is %d; expected seconds since 1970", record["second"]),
        ),
        (of_usage & record["api_key"].isNull(), F.lit("no api_key")),
        (of_usage & record["request_bytes"].isNull(), F.lit("no request_bytes")),
    ]
    for name in (*_COUNTS, *_TIMES):
        faults.append((of_usage & record[name].isNull(), F.lit(f"no {name}")))
        shown = "%d" if name in _COUNTS else "%f"
        faults.append((record[name] < 0, F.format_string(f"{name} is {shown}; expected 0 or more", record[name])))
    return F.coalesce(*(F.when(condition, why) for condition, why in faults))


def usage_of(parsed: DataFrame) -> DataFrame:
    """The usage records that are right: `schemas.USAGE`, with ``value`` and ``origin``."""
    usage = parsed.where(F.col("fault").isNull() & (F.col("kind") == Kind.USAGE.value))
    when = F.timestamp_seconds("second")
    return usage.withColumns({"date": F.to_date(when), "hour": F.hour(when)})


def marks_of(parsed: DataFrame) -> DataFrame:
    """What instances say of themselves (`schemas.MARKS`); an end has no second, and stands at 1970."""
    marks = parsed.where(F.col("fault").isNull() & (F.col("kind") != Kind.USAGE.value))
    date = F.to_date(F.timestamp_seconds(F.coalesce("second", F.lit(0))))
    return marks.withColumn("date", date).select(*schemas.MARKS.names)


def faulty_of(parsed: DataFrame) -> DataFrame:
    """What has a ``fault`` (`schemas.QUARANTINE`)."""
    return parsed.where(F.col("fault").isNotNull()).select(
        F.current_date().alias("date"),
        "origin",
        "value",
        F.col("fault").alias("reason"),
        F.current_timestamp().alias("ingested"),
    )


def late_of(usage: DataFrame, open_from: int) -> DataFrame:
    """Of `usage_of` the records before ``open_from`` (a second), with their ``fault``."""
    why = F.format_string(
        f"late: second %d is before {open_from}, and hours before that are final (--watermark)", F.col("second")
    )
    return usage.where(F.col("second") < open_from).withColumn("fault", why)


def only_new(records: DataFrame, known: DataFrame, *key: str) -> DataFrame:
    """Each record once, without those that are ``known``."""
    return records.dropDuplicates(list(key)).join(known.select(*key), list(key), "left_anti")


def instances(usage: DataFrame, marks: DataFrame) -> DataFrame:
    """What each instance has told, and what is missing: one row for each.

    ``missing``: sequence numbers between its first and last that nobody has seen; ``gaps``: in how many places;
    ``lost``: records that it says are lost; ``ended``: whether it said that it stopped. Without ``ended`` it was killed
    or still runs: up to the second after ``last_second`` may be missing at the end.
    """
    from pyspark.sql import Window

    columns = ("instance", "sequence", "second")
    seen = usage.select(*columns, F.lit(Kind.USAGE.value).alias("kind"), F.lit(0).cast("long").alias("records"))
    told = marks.select(*columns, "kind", F.coalesce("records", F.lit(0)).alias("records"))
    before = F.lag("sequence").over(Window.partitionBy("instance").orderBy("sequence"))
    skipped = F.col("sequence") - F.coalesce(before, F.lit(-1)) - 1
    return (
        seen.unionByName(told)
        .withColumn("skipped", skipped)
        .groupBy("instance")
        .agg(
            F.min("second").alias("first_second"),
            F.max("second").alias("last_second"),
            F.max("sequence").alias("last_sequence"),
            F.count("*").alias("seen"),
            F.sum("skipped").alias("missing"),
            F.count_if(F.col("skipped") > 0).alias("gaps"),
            F.sum("records").alias("lost"),
            F.bool_or(F.col("kind") == Kind.END.value).alias("ended"),
        )
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
        return stream.select("value", F.col("_metadata.file_path").alias("origin"))


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
        origin = F.concat_ws("/", "topic", "partition", "offset")
        return reader.load().select(F.col("value").cast("string").alias("value"), origin.alias("origin"))


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

    def add(self, lines: int, records: int, marks: int, quarantined: Mapping[str, int]) -> None:
        """One more batch."""
        self.batches += 1
        self.lines += lines
        self.records += records
        self.marks += marks
        self.duplicates += lines - records - marks - sum(quarantined.values())
        for reason, count in quarantined.items():
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
        stream = source.read(self._lake.spark).writeStream.foreachBatch(self.take).option("checkpointLocation", checkpoint)
        trigger: dict[str, Any] = {"availableNow": True} if follow_s is None else {"processingTime": f"{follow_s} seconds"}
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
        parsed = parse(batch).persist()
        try:
            lines = parsed.count()
            if lines:
                watermark = Watermark.read(self._lake, number)
                newest = self._take(parsed, lines, self._open_from(watermark.second))
                watermark.write(self._lake, number, newest)
                self._told(f"batch {number}: {lines:,} lines; {self.outcome.told()} so far")
        finally:
            parsed.unpersist()

    def again(self) -> Outcome:
        """Take in what was put aside and is right by now."""
        aside = self._lake.read("quarantine", schemas.QUARANTINE).select("value", "origin")
        parsed = parse(aside).persist()
        try:
            self._take(parsed, parsed.count(), self._open_from(Watermark.read(self._lake, -1).second))
        finally:
            parsed.unpersist()
        return self.outcome

    def _open_from(self, newest: int | None) -> int:
        """The first second that is not final."""
        if newest is None or self._watermark_s is None:
            return 0
        oldest = newest - self._watermark_s
        return oldest - oldest % 3600

    def _take(self, parsed: DataFrame, lines: int, open_from: int) -> int | None:
        """Write what is new; the newest second of it."""
        usage = usage_of(parsed)
        fresh = only_new(usage, self._known(usage), *_KEY).persist()
        marks = only_new(marks_of(parsed), self._lake.read_if_there("marks", schemas.MARKS), *_KEY).persist()
        aside = faulty_of(parsed).unionByName(faulty_of(late_of(fresh, open_from)))
        known_aside = self._lake.read_if_there("quarantine", schemas.QUARANTINE)
        aside = only_new(aside, known_aside, "origin", "value").persist()
        in_time = fresh.where(F.col("second") >= open_from).select(*schemas.USAGE.names)
        try:
            found = in_time.agg(F.count("*"), F.max("second")).first()
            assert found is not None
            records, newest = found
            marked = marks.count()
            reasons = {row["fault"]: row["count"] for row in _by_reason(aside)}
            if records:
                self._lake.append("usage", in_time.repartition("date", "hour"), "date", "hour")
            if marked:
                self._lake.append("marks", marks.coalesce(1), "date")
            if reasons:
                self._lake.append("quarantine", aside.coalesce(1), "date")
        finally:
            for frame in (fresh, marks, aside):
                frame.unpersist()
        self.outcome.add(lines, records, marked, reasons)
        return newest

    def _known(self, usage: DataFrame) -> DataFrame:
        """What the table has of the hours that ``usage`` is of."""
        table = self._lake.read_if_there("usage", schemas.USAGE)
        hours = usage.select("date", "hour").distinct()
        return table.join(F.broadcast(hours), ["date", "hour"], "left_semi")

    def _checkpoint(self, source: Source) -> str:
        name = hashlib.sha256(repr(source).encode()).hexdigest()[:16]
        path = self._lake.path(f"_checkpoints/ingest-{name}")
        if self._lake.has("usage") and not exists(self._lake.spark, path):
            self._told(
                f"no checkpoint for this source in {path}: all of it is read, and what is in the lake already is passed over"
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
        write_text(lake.spark, lake.path(self.FILE), json.dumps({"batch": batch, "before": self.second, "after": after}))


def _by_reason(aside: DataFrame) -> list[Any]:
    """Numbers left out, so that there are few."""
    fault = F.regexp_replace("reason", r"-?\d+(\.\d+)?", "N").alias("fault")
    return aside.groupBy(fault).count().collect()


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
