"""Ingest: write lines from Kafka or files to the lake, each record once (`headrace.pipeline.ingestion.batches`).

Batches can be repeated, and several ingests may run at once. New records older than the watermark (the newest second
before the run, minus ``--watermark``) go to the quarantine: the hours before it are final, since their bills may have
been sent. Records ahead of the clock and lines that are not valid records go there as well, each with the reason.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from headrace.pipeline.errors import ConflictError, PipelineError
from headrace.pipeline.ingestion.batches import LATE, MARK, NEW, Batch, quarantine, with_action
from headrace.pipeline.ingestion.parsing import parse
from headrace.pipeline.ingestion.sources import as_pipeline_error, checkpoint_name
from headrace.pipeline.ingestion.watermark import Watermark
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.retained import removed_before
from headrace.pipeline.lake.spark_errors import cause_of
from headrace.pipeline.lake.stores import exists

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from headrace.pipeline.ingestion.batches import Written
    from headrace.pipeline.ingestion.sources import Source
    from headrace.pipeline.lake.tables import Lake

MERGE_ATTEMPTS: Final = 5
STOP_CHECK_S: Final = 1
"""Interval in which a running stream checks whether it has to stop."""


@dataclass(slots=True)
class Outcome:
    """The numbers of lines that a run has read, by what was done with them."""

    batches: int = 0
    lines: int = 0
    records: int = 0
    duplicates: int = 0
    removed: int = 0
    """Records of days that `retain` has removed; they are skipped."""
    marks: int = 0
    quarantined: dict[str, int] = field(default_factory=dict)
    """Number of lines, by reason."""

    def add(self, written: Written) -> None:
        """Add the lines of one batch."""
        self.lines += written.lines
        self.records += written.records
        self.duplicates += written.duplicates
        self.removed += written.removed
        self.marks += written.marks
        for reason, count in written.rejected.items():
            self.quarantined[reason] = self.quarantined.get(reason, 0) + count

    def summary(self) -> str:
        """Return the numbers as one line of text."""
        rejected = sum(self.quarantined.values())
        removed = f", {self.removed:,} of days that retain has removed" if self.removed else ""
        return (
            f"{self.lines:,} lines in {self.batches:,} batches: {self.records:,} records, {self.marks:,} marks,"
            f" {self.duplicates:,} duplicates, {rejected:,} quarantined{removed}"
        )


def wall_clock_s() -> int:
    """Return the current time in seconds since 1970."""
    return int(datetime.now(UTC).timestamp())


class Ingest:
    """The writer of batches of lines to the lake."""

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
        self._watermark = Watermark(lake)
        self._failed: PipelineError | None = None
        self._oldest: int | None = None
        """The first second of the oldest hour that this run has written; ``None`` if it has written none."""
        self._stopping = False
        self.was_stopped = False
        """Whether the run has ended before it had read what existed at its start."""
        self.outcome = Outcome()

    def run(self, source: Source, *, follow_s: float | None = None) -> Outcome:
        """Read the lines that exist, then, if ``follow_s`` is given, new lines every ``follow_s`` seconds until `stop`
        is called.

        The lines that exist at the start are one run with one watermark; each later batch is a run of its own. Raises
        `PipelineError`.
        """
        name = checkpoint_name(source, self._lake.spark)
        self._run(source, name, {"availableNow": True}, self.ingest_batch)
        if self._stopping:
            self.was_stopped = True
        else:
            self._end_run(name)
            if not self.outcome.lines and (nothing := source.describe_empty(self._lake.spark)):
                self._on_progress(nothing)
        if follow_s is not None and not self._stopping:
            self._run(source, name, {"processingTime": f"{follow_s} seconds"}, self.ingest_batch_as_run)
        return self.outcome

    def stop(self) -> None:
        """Make `run` return within about a second; the next run repeats an unfinished batch. Signal-safe."""
        self._stopping = True

    def ingest_batch(self, name: str, batch: DataFrame, number: int) -> None:
        """Ingest one batch of records (`parsing.parse`) of the run with the checkpoint ``name``; may be repeated."""
        if self._watermark.of(name).running and not self.outcome.batches:
            self._oldest = 0  # a run that was killed goes on, and has written any hours
        before = self._watermark.begin(name)
        written = self._write_new(batch, self._open_from(before))
        if written.oldest is not None:
            self._oldest = written.oldest if self._oldest is None else min(self._oldest, written.oldest)
        self._watermark.move(name, written.newest, before)
        self.outcome.batches += 1
        self._on_progress(f"batch {number}: {self.outcome.summary()} so far")

    def ingest_batch_as_run(self, name: str, batch: DataFrame, number: int) -> None:
        """Ingest one batch, and end the run with it."""
        self.ingest_batch(name, batch, number)
        self._end_run(name)

    def retry_quarantined(self) -> Outcome:
        """Ingest quarantined lines that are valid by now, and remove them from the quarantine.

        Late ones stay late, unless no hour is final. They stay in the quarantine as they are, as do all other lines,
        damaged files, and messages without a value.
        """
        lines_kept = self._lake.read("quarantine", schemas.QUARANTINE).where(sf.col("value").isNotNull())
        was_late = sf.col("reason").startswith(f"{LATE}: ")
        before = self._watermark.second()  # a call that was killed is not continued: what is left is tried anew
        for lines, open_from in (
            (lines_kept.where(~was_late), 0),
            (lines_kept.where(was_late), self._open_from(before)),
        ):
            parsed = parse(lines.select("value", "origin")).withColumn("line", sf.col("value"))
            written = self._write_new(parsed, open_from, are_quarantined=True)
            self._watermark.move("quarantine", written.newest, before)
            self.outcome.batches += 1
        self._watermark.end("quarantine")
        return self.outcome

    def _run(
        self, source: Source, name: str, trigger: dict[str, Any], ingest_one: Callable[[str, DataFrame, int], None]
    ) -> None:
        """Run a stream until its trigger has no more batches, or until `stop` is called; pass over damaged files."""
        damaged: list[str] = []
        checkpoint = self._checkpoint(name)
        while True:
            try:
                self._stream(source.read(self._lake.spark, damaged), name, checkpoint, trigger, ingest_one)
            except PipelineError:
                raise
            except Exception as error:
                file = source.damaged_file(error)
                if file is not None and file not in damaged:
                    damaged.append(file)
                    self._reject_file(file, error)
                    continue
                converted = self._failed or as_pipeline_error(error, source)
                if converted is None:
                    raise
                raise converted from error
            return

    def _reject_file(self, file: str, error: Exception) -> None:
        """Note a damaged file in the quarantine."""
        reason = f"a damaged file, of which no line was read: {cause_of(error)}"
        row = self._lake.spark.createDataFrame([(None, file, reason)], "value string, origin string, fault string")
        quarantine(self._lake, row)
        self.outcome.quarantined[f"{reason} ({file})"] = 1
        self._on_progress(f"{file}: {reason}")

    def _stream(
        self,
        records: DataFrame,
        name: str,
        checkpoint: str,
        trigger: dict[str, Any],
        ingest_one: Callable[[str, DataFrame, int], None],
    ) -> None:
        def batch_taken(batch: DataFrame, number: int) -> None:
            try:
                ingest_one(name, batch, number)
            except PipelineError as error:  # Spark would keep only its text
                self._failed = error
                raise

        query = None
        try:
            stream = records.writeStream.foreachBatch(batch_taken)
            query = stream.option("checkpointLocation", checkpoint).trigger(**trigger).start()
            # With a time-out, since no other call, such as `stop`, can be made until the JVM has answered.
            while not query.awaitTermination(STOP_CHECK_S) and not self._stopping:
                pass
        finally:
            if query is not None:
                query.stop()

    def _end_run(self, name: str) -> None:
        """Merge the files of the hours that become final with a run, then mark the run as ended.

        If the process is killed in between, the next run merges them.
        """
        state = self._watermark.of(name)
        since = self._open_from(state.before)
        until = self._open_from(self._watermark.second_after(name))
        # If no hour was final before, the hours to merge are those that this run has written.
        has_new = since > 0 or self._oldest is None or self._oldest < until
        if state.running and has_new and until > since and self._lake.has("usage"):
            self._merge(f"({_before(until)}) AND NOT ({_before(since)})")
        self._watermark.end(name)

    def _merge(self, hours: str) -> None:
        """Merge the files of these hours, unless ingests of other sources merge them all the time."""
        for _ in range(MERGE_ATTEMPTS):
            with contextlib.suppress(ConflictError):
                self._lake.compact("usage", condition=hours)
                return

    def _open_from(self, newest: int | None) -> int:
        """Return the first second that is not final."""
        if newest is None or self._watermark_s is None:
            return 0
        oldest = newest - self._watermark_s
        return oldest - oldest % 3600

    def _write_new(self, parsed: DataFrame, open_from: int, *, are_quarantined: bool = False) -> Written:
        """Write the new rows to the tables."""
        kept_from = removed_before(self._lake).get("usage")
        lines = with_action(parsed, open_from, self._now_s(), kept_from).persist()
        try:
            written = Batch(self._lake, lines).write(are_quarantined=are_quarantined)
            if are_quarantined and written.lines > written.removed + sum(written.rejected.values()):
                is_stored = sf.col("action").isin(NEW, MARK)
                stored = lines.where(is_stored).select("origin", sf.col("line").alias("value"))
                with contextlib.suppress(ConflictError):  # the next call removes them
                    self._lake.remove_equal("quarantine", stored)
        finally:
            lines.unpersist()
        self.outcome.add(written)
        return written

    def _checkpoint(self, name: str) -> str:
        path = self._lake.path(f"_checkpoints/{name}")
        if self._lake.has("usage") and not exists(self._lake.spark, path):
            self._on_progress(
                f"no checkpoint for this source in {path}: all of it is read, and records in the lake are skipped"
            )
        return path


def _before(second: int) -> str:
    """Return a condition in SQL for the partitions of ``usage`` before the hour of this second."""
    when = datetime.fromtimestamp(second, UTC)
    return f"date < '{when.date()}' OR (date = '{when.date()}' AND hour < {when.hour})"
