"""Ingest: lines from Kafka or files into the lake, each record once.

A record is known by its instance and sequence number, and its second says which hour it belongs to; so what comes
again, after a kill, a lost checkpoint or a copied file, is found by looking into that one hour of the table, however
late it comes, and no state has to be kept for it. Batches can be repeated at will: that, and not a commit across
several tables, is why each record is there once.

What is older than the watermark (the newest second before the run, less ``--watermark``) and not there yet is put
aside: hours before it are final, their bills may have been sent. So is what is ahead of the clock, and what is no
record, each with the reason.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructField, StructType

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.ingestion.lock import one_at_a_time
from headrace.pipeline.ingestion.sources import as_ours, checkpoint_name
from headrace.pipeline.ingestion.watermark import Watermark
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import exists
from headrace.quota_callbacks.records.usage_records import SCHEMA_VERSION, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.ingestion.sources import Source
    from headrace.pipeline.lake.tables import Lake

MOST_HOURS: Final = 1000
"""That a batch may be of and still be looked up hour by hour."""
LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, the last that Spark's dates have."""
MOST_AHEAD_S: Final = 3600
"""That a proxy's clock may be ahead of ours. One that is further ahead would make all others late."""
MOST_OF_A_SECOND: Final = 2**40
"""Of a usage record's counts, bytes and milliseconds: a tebibyte, or the time of a billion requests that all waited
for a quarter of an hour. Eight million records with so much still have a sum that a long holds."""
MOST_LOST: Final = 2**53
"""Of what an instance has lost since it last could tell, and of its sequence; beyond it JSON's are not exact."""
STOP_LOOK_S: Final = 1
"""How often a stream is looked at for whether it is to stop."""
LAST_API_KEY: Final = 2**15 - 1

_CORRUPT: Final = "_corrupt"
_KEY: Final = ("instance", "sequence")
_LATE: Final = "late: "


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
        (sf.col("value").isNull(), sf.lit("no value (a tombstone)")),
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
        (
            ~record["sequence"].between(0, MOST_LOST),
            sf.format_string(f"sequence is %d; expected 0 to {MOST_LOST}", record["sequence"]),
        ),
        (with_second & record["second"].isNull(), sf.lit("no second")),
        (
            ~record["second"].between(0, LAST_SECOND),
            sf.format_string("second is %d; expected seconds since 1970", record["second"]),
        ),
        (of_usage & record["api_key"].isNull(), sf.lit("no api_key")),
        (
            ~record["api_key"].between(0, LAST_API_KEY),
            sf.format_string(f"api_key is %d; expected 0 to {LAST_API_KEY}", record["api_key"]),
        ),
        *_faults_of_numbers(record, of_usage),
    ]
    return sf.coalesce(*(sf.when(condition, why) for condition, why in faults))


def _faults_of_numbers(record: Column, of_usage: Column) -> list[tuple[Column, Column]]:
    """What is missing, below 0 or beyond reason. To Spark, NaN is above all numbers."""
    most = sf.when(of_usage, sf.lit(MOST_OF_A_SECOND)).otherwise(sf.lit(MOST_LOST))
    faults: list[tuple[Column, Column]] = []
    for name in (*schemas.COUNTS, *schemas.TIMES, "records"):
        wrong = (record[name] < 0) | (record[name] > most)
        if name != "records":
            wrong = (of_usage & record[name].isNull()) | wrong
        why = sf.format_string(f"{name} is %s; expected 0 to %d", record[name].cast("string"), most)
        faults.append((wrong, why))
    for name in schemas.BY_QUOTA:
        wrong = sf.exists(sf.map_values(record[name]), lambda each: (each < 0) | (each > most))
        faults.append((wrong, sf.format_string(f"{name} has a number that is not 0 to %d", most)))
    return faults


def with_hour(parsed: DataFrame) -> DataFrame:
    """With ``date`` and ``hour`` of its second; an end has none, and stands at 1970."""
    when = sf.timestamp_seconds(sf.coalesce("second", sf.lit(0)))
    right = sf.col("fault").isNull()
    return parsed.withColumns({"date": sf.when(right, sf.to_date(when)), "hour": sf.when(right, sf.hour(when))})


def with_fate(parsed: DataFrame, known: DataFrame, open_from: int, now: int) -> DataFrame:
    """What is to become of each line: ``fate`` is ``new``, ``mark``, ``aside`` or ``duplicate``.

    ``known`` has the ``instance`` and ``sequence`` of what is there already; records before ``open_from`` (a second)
    are late, and those more than `MOST_AHEAD_S` after ``now`` too early, unless they are there. ``value`` is kept of
    what goes aside alone.
    """
    first = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("origin")) == 1
    right = parsed.where(sf.col("fault").isNull()).withColumn("first", first)
    met = right.join(known.select(*_KEY, sf.lit(True).alias("known")), [*_KEY], "left")
    is_late = (sf.col("kind") == Kind.USAGE.value) & (sf.col("second") < open_from)
    is_ahead = sf.col("second") > now + MOST_AHEAD_S
    second = sf.col("second")
    why_late = f"{_LATE}second %d is before {open_from}, and hours before that are final (--watermark)"
    why_ahead = f"ahead: second %d is more than {MOST_AHEAD_S} s after {now}, when it came; ingest --quarantined, later"
    why = sf.when(is_ahead, sf.format_string(why_ahead, second)).when(is_late, sf.format_string(why_late, second))
    fate = (
        sf.when(~sf.col("first") | sf.col("known"), "duplicate")
        .when(is_ahead, "aside")
        .when(sf.col("kind") != Kind.USAGE.value, "mark")
        .when(is_late, "aside")
        .otherwise("new")
    )
    judged = met.withColumn("fate", fate).withColumn("fault", sf.when(sf.col("fate") == "aside", why))
    wrong = parsed.where(sf.col("fault").isNotNull()).withColumn("fate", sf.lit("aside"))
    fated = judged.select(*wrong.columns).unionByName(wrong)
    return fated.withColumn("value", sf.when(sf.col("fate") == "aside", sf.col("value")))


def aside_of(fated: DataFrame, known: DataFrame) -> DataFrame:
    """What is to be put aside and is not yet (`schemas.QUARANTINE`): a line is known by where it was."""
    aside = fated.where("fate = 'aside'").select(
        sf.current_date().alias("date"),
        "origin",
        "value",
        sf.col("fault").alias("reason"),
        sf.current_timestamp().alias("ingested"),
    )
    there = known.select(sf.col("origin").alias("there_origin"), sf.col("value").alias("there_value"))
    same_value = sf.col("value").eqNullSafe(sf.col("there_value"))  # a tombstone has none
    same = (sf.col("origin") == sf.col("there_origin")) & same_value
    return aside.dropDuplicates(["origin", "value"]).join(there, same, "left_anti")


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


def wall_clock_s() -> int:
    """Seconds since 1970, now."""
    return int(datetime.now(UTC).timestamp())


class Ingest:
    """Batches of lines into the lake."""

    def __init__(
        self,
        lake: Lake,
        watermark_s: int | None,
        told: Callable[[str], None],
        now_s: Callable[[], int] = wall_clock_s,
    ) -> None:
        """``told`` gets a line for each batch; without ``watermark_s`` no hour is ever final."""
        self._lake = lake
        self._watermark_s = watermark_s
        self._told = told
        self._now_s = now_s
        self._failed: PipelineError | None = None
        self._stopping = False
        self.outcome = Outcome()

    def run(self, source: Source, *, follow_s: float | None = None) -> Outcome:
        """Take in what is there, and then, every ``follow_s`` seconds, what comes, until it is stopped.

        What is there is one run, under one watermark; of what comes, each batch is one.
        """
        with one_at_a_time(self._lake):
            name = checkpoint_name(source, self._lake.spark)
            self._run(source, name, {"availableNow": True}, self.take)
            if not self._stopping:
                Watermark.read(self._lake).ended(name).write(self._lake)
                if not self.outcome.lines and (nothing := source.nothing_there(self._lake.spark)):
                    self._told(nothing)
            if follow_s is not None and not self._stopping:
                self._run(source, name, {"processingTime": f"{follow_s} seconds"}, self.take_as_a_run)
        return self.outcome

    def stop(self) -> None:
        """End `run` within a second or so; a batch that is under way is repeated by the next. For signal handlers."""
        self._stopping = True

    def take(self, name: str, batch: DataFrame, number: int) -> None:
        """One batch of the run of the source with this ``name``; may be repeated."""
        watermark = Watermark.read(self._lake).begun(name)
        watermark.write(self._lake)
        newest = self._take(batch, self._open_from(watermark.before(name)))
        watermark.moved(name, newest).write(self._lake)
        self._told(f"batch {number}: {self.outcome.told()} so far")

    def take_as_a_run(self, name: str, batch: DataFrame, number: int) -> None:
        """One batch, and the run with it."""
        self.take(name, batch, number)
        Watermark.read(self._lake).ended(name).write(self._lake)

    def again(self) -> Outcome:
        """Take in what was put aside and is right by now; what was late is so still, unless no hour is final."""
        with one_at_a_time(self._lake):
            aside = self._lake.read("quarantine", schemas.QUARANTINE)
            was_late = sf.col("reason").startswith(_LATE)
            name = "quarantine"
            watermark = Watermark.read(self._lake).begun(name)
            for lines, open_from in (
                (aside.where(~was_late), 0),
                (aside.where(was_late), self._open_from(watermark.second)),
            ):
                watermark = watermark.moved(name, self._take(lines.select("value", "origin"), open_from))
            watermark.ended(name).write(self._lake)
        return self.outcome

    def _run(
        self, source: Source, name: str, trigger: dict[str, Any], take: Callable[[str, DataFrame, int], None]
    ) -> None:
        """Until the trigger has no more, or it is to stop."""

        def batch_taken(batch: DataFrame, number: int) -> None:
            try:
                take(name, batch, number)
            except PipelineError as error:  # Spark keeps its text alone
                self._failed = error
                raise

        checkpoint = self._checkpoint(name)
        query = None
        try:
            stream = source.read(self._lake.spark).writeStream.foreachBatch(batch_taken)
            query = stream.option("checkpointLocation", checkpoint).trigger(**trigger).start()
            # Not without a limit: until the JVM answers, nothing else can be asked of it, such as to stop.
            while not query.awaitTermination(STOP_LOOK_S) and not self._stopping:
                pass
        except PipelineError:
            raise
        except Exception as error:
            ours = self._failed or as_ours(error, source)
            if ours is None:
                raise
            raise ours from error
        finally:
            if query is not None:
                query.stop()

    def _open_from(self, newest: int | None) -> int:
        """The first second that is not final."""
        if newest is None or self._watermark_s is None:
            return 0
        oldest = newest - self._watermark_s
        return oldest - oldest % 3600

    def _take(self, raw: DataFrame, open_from: int) -> int | None:
        """Write what is new; the newest second of it."""
        fated = self._fated(raw, open_from)
        fates = fated.groupBy("fate", _kind_of_fault().alias("why")).agg(
            sf.count("*").alias("lines"), sf.max("second").alias("newest")
        )
        found = {(row["fate"], row["why"]): row for row in fates.collect()}
        lake = self._lake
        if ("new", None) in found:
            new = fated.where("fate = 'new'").select(*schemas.USAGE.names)
            # Few files, and of an hour with much in it several, written at the same time.
            lake.append("usage", new.hint("rebalance", "date", "hour"), "date", "hour")
        if ("mark", None) in found:
            marks = fated.where("fate = 'mark'").select(*schemas.MARKS.names)
            lake.append("marks", marks.coalesce(1), "date")
        if any(fate == "aside" for fate, _ in found):
            there = lake.read_if_there("quarantine", schemas.QUARANTINE)
            lake.append("quarantine", aside_of(fated, there).coalesce(1), "date")
        self.outcome.add({fate: row["lines"] for fate, row in found.items()})
        new_records = found.get(("new", None))
        return None if new_records is None else int(new_records["newest"])

    def _fated(self, raw: DataFrame, open_from: int) -> DataFrame:
        """`with_fate`, for good.

        What `DataFrame.persist` keeps, Spark makes anew when a table behind it is written to, which our own writes do.
        """
        parsed = with_hour(parse(raw)).persist()
        try:
            hours = parsed.groupBy("date", "hour").count().limit(MOST_HOURS + 1).collect()
            known = self._known([row for row in hours if row["date"]])
            return with_fate(parsed, known, open_from, self._now_s()).localCheckpoint()
        finally:
            parsed.unpersist()

    def _known(self, hours: list[Any]) -> DataFrame:
        """The keys that the tables have of these hours; of all, when there are too many to name."""
        usage = self._lake.read_if_there("usage", schemas.USAGE)
        if len(hours) <= MOST_HOURS:
            in_hours = [(sf.col("date") == row["date"]) & (sf.col("hour") == row["hour"]) for row in hours]
            usage = usage.where(functools.reduce(operator.or_, in_hours, sf.lit(False)))
        marks = self._lake.read_if_there("marks", schemas.MARKS)
        return usage.select(*_KEY).unionByName(marks.select(*_KEY))

    def _checkpoint(self, name: str) -> str:
        path = self._lake.path(f"_checkpoints/{name}")
        if self._lake.has("usage") and not exists(self._lake.spark, path):
            self._told(
                f"no checkpoint for this source in {path}: all of it is read, and what the lake has is passed over"
            )
        return path


def _kind_of_fault() -> Column:
    """Without its numbers, so that there are few."""
    return sf.regexp_replace("fault", r"-?\d+(\.\d+)?", "N")
