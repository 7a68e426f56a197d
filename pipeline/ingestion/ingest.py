"""Ingest: write lines from Kafka or files to the lake, each record once.

A record is identified by its instance and sequence number, and its second determines its hour in the table ``usage``. A
record that is read again, after a kill, a lost checkpoint or a copied file, is therefore found in that one hour of the
table, however late it arrives, and no other state has to be kept. Batches can be repeated: this, and not a transaction
across several tables, is why each record is stored once.

New records older than the watermark (the newest second before the run, minus ``--watermark``) go to the quarantine: the
hours before it are final, since their bills may have been sent. Records ahead of the clock and lines that are not valid
records go there as well, each with the reason.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.ingestion.lock import ingest_lock
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.ingestion.sources import as_pipeline_error, checkpoint_name
from headrace.pipeline.ingestion.watermark import Watermark
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import exists
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.ingestion.sources import Source
    from headrace.pipeline.lake.tables import Lake

MAX_HOURS: Final = 1000
"""Maximum number of hours in a batch that are looked up one by one; above it, the whole table is read."""
MAX_AHEAD_S: Final = 3600
"""Maximum by which a proxy's clock may be ahead of this machine's. A clock further ahead would move the watermark, and
make the records of all other proxies late.
"""
STOP_CHECK_S: Final = 1
"""Interval in which a running stream checks whether it has to stop."""

_KEY: Final = ("instance", "sequence")
_LATE: Final = "late: "


def with_hour(parsed: DataFrame) -> DataFrame:
    """Add ``date`` and ``hour`` of the record's second. An ``end`` mark has no second; its date is 1970-01-01."""
    when = sf.timestamp_seconds(sf.coalesce("second", sf.lit(0)))
    right = sf.col("fault").isNull()
    return parsed.withColumns({"date": sf.when(right, sf.to_date(when)), "hour": sf.when(right, sf.hour(when))})


def with_action(parsed: DataFrame, known: DataFrame, open_from: int, now: int) -> DataFrame:
    """Add ``action``, what to do with each line: ``new``, ``mark``, ``quarantine`` or ``duplicate``.

    ``known`` has the ``instance`` and ``sequence`` of stored records. A record that is not among them is late if it is
    from before the second ``open_from``, and too early if it is more than `MAX_AHEAD_S` after ``now``. ``value`` is
    kept only for lines that go to the quarantine.
    """
    first = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("origin")) == 1
    right = parsed.where(sf.col("fault").isNull()).withColumn("first", first)
    met = right.join(known.select(*_KEY, sf.lit(True).alias("known")), [*_KEY], "left")
    is_late = (sf.col("kind") == Kind.USAGE.value) & (sf.col("second") < open_from)
    is_ahead = sf.col("second") > now + MAX_AHEAD_S
    second = sf.col("second")
    why_late = f"{_LATE}second %d is before {open_from}, and hours before that are final (--watermark)"
    why_ahead = (
        f"ahead: second %d is more than {MAX_AHEAD_S} s after {now}, when it was read; run ingest --quarantined later"
    )
    why = sf.when(is_ahead, sf.format_string(why_ahead, second)).when(is_late, sf.format_string(why_late, second))
    action = (
        sf.when(~sf.col("first") | sf.col("known"), "duplicate")
        .when(is_ahead, "quarantine")
        .when(sf.col("kind") != Kind.USAGE.value, "mark")
        .when(is_late, "quarantine")
        .otherwise("new")
    )
    valid = met.withColumn("action", action).withColumn("fault", sf.when(sf.col("action") == "quarantine", why))
    wrong = parsed.where(sf.col("fault").isNotNull()).withColumn("action", sf.lit("quarantine"))
    with_actions = valid.select(*wrong.columns).unionByName(wrong)
    return with_actions.withColumn("value", sf.when(sf.col("action") == "quarantine", sf.col("value")))


def new_quarantine_rows(with_actions: DataFrame, known: DataFrame) -> DataFrame:
    """Return the rejected lines that are not in the quarantine yet (`schemas.QUARANTINE`); a line is identified by its
    origin and value.
    """
    rejected = with_actions.where("action = 'quarantine'").select(
        sf.current_date().alias("date"),
        "origin",
        "value",
        sf.col("fault").alias("reason"),
        sf.current_timestamp().alias("ingested"),
    )
    there = known.select(sf.col("origin").alias("there_origin"), sf.col("value").alias("there_value"))
    same_value = sf.col("value").eqNullSafe(sf.col("there_value"))  # a tombstone's value is null
    same = (sf.col("origin") == sf.col("there_origin")) & same_value
    return rejected.dropDuplicates(["origin", "value"]).join(there, same, "left_anti")


@dataclass(slots=True)
class Outcome:
    """The numbers of lines that a run has read, by what was done with them."""

    batches: int = 0
    lines: int = 0
    records: int = 0
    duplicates: int = 0
    marks: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    """Number of lines, by reason."""

    def add(self, lines: Mapping[tuple[str, str | None], int]) -> None:
        """Add the lines of one batch, by action and reason."""
        self.batches += 1
        for (action, why), count in lines.items():
            self.lines += count
            match action:
                case "new":
                    self.records += count
                case "mark":
                    self.marks += count
                case "duplicate":
                    self.duplicates += count
                case _:
                    reason = why or ""
                    self.quarantined[reason] = self.quarantined.get(reason, 0) + count

    def summary(self) -> str:
        """Return the numbers as one line of text."""
        rejected = sum(self.quarantined.values())
        return (
            f"{self.lines:,} lines in {self.batches:,} batches: {self.records:,} records, {self.marks:,} marks,"
            f" {self.duplicates:,} duplicates, {rejected:,} quarantined"
        )


def wall_clock_s() -> int:
    """Return the current time in seconds since 1970."""
    return int(datetime.now(UTC).timestamp())


class Ingest:
    """Writes batches of lines to the lake."""

    def __init__(
        self,
        lake: Lake,
        watermark_s: int | None,
        on_progress: Callable[[str], None],
        now_s: Callable[[], int] = wall_clock_s,
    ) -> None:
        """Create an ingest; ``on_progress`` receives a line of text per batch. Without ``watermark_s``, no hour is ever
        final.
        """
        self._lake = lake
        self._watermark_s = watermark_s
        self._on_progress = on_progress
        self._now_s = now_s
        self._failed: PipelineError | None = None
        self._stopping = False
        self.outcome = Outcome()

    def run(self, source: Source, *, follow_s: float | None = None) -> Outcome:
        """Read the lines that exist, then, if ``follow_s`` is given, new lines every ``follow_s`` seconds until `stop`
        is called.

        The lines that exist at the start are one run with one watermark; each later batch is a run of its own. Raises
        `PipelineError`.
        """
        with ingest_lock(self._lake):
            name = checkpoint_name(source, self._lake.spark)
            self._run(source, name, {"availableNow": True}, self.ingest_batch)
            if not self._stopping:
                Watermark.read(self._lake).ended(name).write(self._lake)
                if not self.outcome.lines and (nothing := source.describe_empty(self._lake.spark)):
                    self._on_progress(nothing)
            if follow_s is not None and not self._stopping:
                self._run(source, name, {"processingTime": f"{follow_s} seconds"}, self.ingest_batch_as_run)
        return self.outcome

    def stop(self) -> None:
        """Make `run` return within about a second; the next run repeats an unfinished batch. Signal-safe."""
        self._stopping = True

    def ingest_batch(self, name: str, batch: DataFrame, number: int) -> None:
        """Ingest one batch of the run with the checkpoint ``name``; may be repeated."""
        watermark = Watermark.read(self._lake).begun(name)
        watermark.write(self._lake)
        newest = self._write_new(batch, self._open_from(watermark.before(name)))
        watermark.moved(name, newest).write(self._lake)
        self._on_progress(f"batch {number}: {self.outcome.summary()} so far")

    def ingest_batch_as_run(self, name: str, batch: DataFrame, number: int) -> None:
        """Ingest one batch, and end the run with it."""
        self.ingest_batch(name, batch, number)
        Watermark.read(self._lake).ended(name).write(self._lake)

    def retry_quarantined(self) -> Outcome:
        """Ingest quarantined lines that are valid by now. Late ones stay late, unless no hour is final."""
        with ingest_lock(self._lake):
            lines_kept = self._lake.read("quarantine", schemas.QUARANTINE)
            was_late = sf.col("reason").startswith(_LATE)
            name = "quarantine"
            watermark = Watermark.read(self._lake).begun(name)
            for lines, open_from in (
                (lines_kept.where(~was_late), 0),
                (lines_kept.where(was_late), self._open_from(watermark.second)),
            ):
                watermark = watermark.moved(name, self._write_new(lines.select("value", "origin"), open_from))
            watermark.ended(name).write(self._lake)
        return self.outcome

    def _run(
        self, source: Source, name: str, trigger: dict[str, Any], ingest_one: Callable[[str, DataFrame, int], None]
    ) -> None:
        """Run a stream until its trigger has no more batches, or until `stop` is called."""

        def batch_taken(batch: DataFrame, number: int) -> None:
            try:
                ingest_one(name, batch, number)
            except PipelineError as error:  # Spark would keep only its text
                self._failed = error
                raise

        checkpoint = self._checkpoint(name)
        query = None
        try:
            stream = source.read(self._lake.spark).writeStream.foreachBatch(batch_taken)
            query = stream.option("checkpointLocation", checkpoint).trigger(**trigger).start()
            # With a time-out, since no other call, such as `stop`, can be made until the JVM has answered.
            while not query.awaitTermination(STOP_CHECK_S) and not self._stopping:
                pass
        except PipelineError:
            raise
        except Exception as error:
            converted = self._failed or as_pipeline_error(error, source)
            if converted is None:
                raise
            raise converted from error
        finally:
            if query is not None:
                query.stop()

    def _open_from(self, newest: int | None) -> int:
        """Return the first second that is not final."""
        if newest is None or self._watermark_s is None:
            return 0
        oldest = newest - self._watermark_s
        return oldest - oldest % 3600

    def _write_new(self, raw: DataFrame, open_from: int) -> int | None:
        """Write the new rows to the tables; return the newest second of the new usage records."""
        with_actions = self._with_actions(raw, open_from)
        by_action = with_actions.groupBy("action", _kind_of_fault().alias("why")).agg(
            sf.count("*").alias("lines"), sf.max("second").alias("newest")
        )
        found = {(row["action"], row["why"]): row for row in by_action.collect()}
        lake = self._lake
        if ("new", None) in found:
            new = with_actions.where("action = 'new'").select(*schemas.USAGE.names)
            # Few files; an hour with many records gets several, which are written in parallel.
            lake.append("usage", new.hint("rebalance", "date", "hour"), "date", "hour")
        if ("mark", None) in found:
            marks = with_actions.where("action = 'mark'").select(*schemas.MARKS.names)
            lake.append("marks", marks.coalesce(1), "date")
        if any(action == "quarantine" for action, _ in found):
            there = lake.read_or_empty("quarantine", schemas.QUARANTINE)
            lake.append("quarantine", new_quarantine_rows(with_actions, there).coalesce(1), "date")
        self.outcome.add({action: row["lines"] for action, row in found.items()})
        new_records = found.get(("new", None))
        return None if new_records is None else int(new_records["newest"])

    def _with_actions(self, raw: DataFrame, open_from: int) -> DataFrame:
        """Return `with_action` of the lines, checkpointed.

        `DataFrame.persist` is not enough: Spark recomputes persisted rows when a table that they depend on is written
        to, which `_write_new` does.
        """
        parsed = with_hour(parse(raw)).persist()
        try:
            hours = parsed.groupBy("date", "hour").count().limit(MAX_HOURS + 1).collect()
            known = self._known([row for row in hours if row["date"]])
            return with_action(parsed, known, open_from, self._now_s()).localCheckpoint()
        finally:
            parsed.unpersist()

    def _known(self, hours: list[Any]) -> DataFrame:
        """Return the keys of the stored records of these hours; of all hours, if there are more than `MAX_HOURS`."""
        usage = self._lake.read_or_empty("usage", schemas.USAGE)
        if len(hours) <= MAX_HOURS:
            in_hours = [(sf.col("date") == row["date"]) & (sf.col("hour") == row["hour"]) for row in hours]
            usage = usage.where(functools.reduce(operator.or_, in_hours, sf.lit(False)))
        marks = self._lake.read_or_empty("marks", schemas.MARKS)
        return usage.select(*_KEY).unionByName(marks.select(*_KEY))

    def _checkpoint(self, name: str) -> str:
        path = self._lake.path(f"_checkpoints/{name}")
        if self._lake.has("usage") and not exists(self._lake.spark, path):
            self._on_progress(
                f"no checkpoint for this source in {path}: all of it is read, and records in the lake are skipped"
            )
        return path


def _kind_of_fault() -> Column:
    """Return the fault with its numbers replaced by "N", so that there are few distinct ones."""
    return sf.regexp_replace("fault", r"-?\d+(\.\d+)?", "N")
