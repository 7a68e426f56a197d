"""Finds the windows and sketches of days in the lake, and computes the missing ones.

They are computed once from the usage of a day, and again if the number of its records has changed. A past day is not
checked any more once it has sketches that were computed when it was final. Rows for windows of another length are
replaced.

The sketches of final days are joined to blocks of 2, 4, 8 … days, each block once, from its two halves. So the past of
a day consists of a few blocks and days: of 30 days, eight at most. When the sketches of a day are replaced, the blocks
that contain it are removed first, and are made again by this run or the next one. A block is not made if one of its
days has no sketches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from pyspark.sql import Row
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomalies.deviating import WINDOWS_OF_A_SKETCH, Examined, deviations
from headrace.pipeline.analysis.anomalies.findings import anomalies
from headrace.pipeline.analysis.anomalies.rules import DAY_S
from headrace.pipeline.analysis.anomalies.sketches import HOURS, KEPT, block_of, sketches_of
from headrace.pipeline.analysis.anomalies.windows import starts_of, unpacked, windows_of
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.day_counts import recorded_by_day

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.pipeline.analysis.anomalies.rules import Rules
    from headrace.pipeline.lake.tables import Lake

FINAL_S: Final = DAY_S
"""A day is final when the newest record is this far ahead of its end: ``ingest`` rejects later records of it."""
WINDOWS, SKETCHES, PAST = "anomaly_windows", "anomaly_sketches", "anomaly_past"


def second_of(day: date) -> int:
    """Return the first second of a day (UTC)."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def days_between(first: date, last: date) -> Iterator[date]:
    """Yield the days from ``first`` to ``last``, both included."""
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A block, or the sketches of a single day."""

    last: date
    days: int

    @property
    def first(self) -> date:
        """The first day."""
        return self.last - timedelta(days=self.days - 1)

    @property
    def is_aligned(self) -> bool:
        """Whether blocks of this length may begin on the first day."""
        return self.first.toordinal() % self.days == 0


@dataclass(slots=True, kw_only=True)
class Days:
    """The days of a lake, for one set of rules."""

    lake: Lake
    until_s: int
    """The second up to which there is usage."""
    rules: Rules
    _records: Mapping[date, int] = field(default_factory=dict)
    """The number of usage records of each day."""
    _with_windows: set[date] = field(default_factory=set)
    """The days that have stored windows, of any length."""
    _windowed: dict[date, int | None] = field(default_factory=dict)
    """The number of usage records of the days whose windows are complete; ``None`` for a day without usage."""
    _sketched: dict[date, Row] = field(default_factory=dict)
    """The days of `_alone` with sketches: the columns that a day's rows share."""
    _alone: set[date] = field(default_factory=set)
    """The days that are examined, or of which a past needs the sketches themselves, not as part of a block."""
    _blocks: set[Part] = field(default_factory=set)
    """The blocks of these rules."""
    _in_any_block: set[date] = field(default_factory=set)
    """The days in blocks of any rules."""

    def examine(self, first: date, last: date) -> None:
        """Replace the anomalies of these days; make the windows, sketches and blocks that are missing."""
        begin = first - timedelta(days=self.rules.past_days)
        self._look_up(begin, first, last)
        for day in days_between(begin, last):
            if day >= first:
                self._make_windows(day)
                self.lake.replace_partition("anomalies", self._anomalies(day).coalesce(1), date=day)
            if day in self._alone and (day < last or day in self._sketched):
                self._make_sketches(day)
            self._make_blocks(begin, day)

    def _look_up(self, begin: date, first: date, last: date) -> None:
        self._records = recorded_by_day(self.lake, begin, last)
        if self.lake.has(WINDOWS):
            dates = self.lake.files(WINDOWS).select(sf.col("partitionValues.date").cast("date").alias("date"))
            self._with_windows = {row.date for row in dates.distinct().collect()}
        for block, is_of_these_rules in self._stored_blocks(begin):
            self._in_any_block |= set(days_between(block.first, block.last))
            if is_of_these_rules:
                self._blocks.add(block)
        examined = set(days_between(first, last))
        self._look_up_sketches(
            examined.union(
                *({part.last for part in self._split(*self._past_of(day)) if part.days == 1} for day in examined)
            )
        )

    def _past_of(self, day: date) -> tuple[date, date]:
        """Return the first and the last day of the past of a day."""
        return day - timedelta(days=self.rules.past_days), day - timedelta(days=1)

    def _look_up_sketches(self, days: set[date]) -> None:
        """Look for the sketches of further days."""
        self._alone |= days
        kept = self._sketches(days).select("date", "records", "final").distinct().collect()
        self._sketched |= {row.date: row for row in kept}

    def _stored_blocks(self, begin: date) -> Iterator[tuple[Part, bool]]:
        """Yield the blocks that end on the day ``begin`` or later, and whether they are of these rules."""
        if not self.lake.has(PAST):
            return
        names = ("date", "days", *self._rules_of_blocks())
        columns = [
            sf.col(f"partitionValues.{name}").cast(schemas.ANOMALY_PAST[name].dataType).alias(name) for name in names
        ]
        files = self.lake.files(PAST).select(*columns).where(sf.col("date") >= begin).distinct()
        for row in files.collect():
            of_these = all(row[name] == value for name, value in self._rules_of_blocks().items())
            yield Part(last=row.date, days=row.days), of_these

    def _rules_of_blocks(self) -> dict[str, int]:
        return {"window_s": self.rules.window_s, "known_hours": self.rules.known_hours}

    def _is_of_all(self, kept: Row, day: date) -> bool:
        """Return whether stored rows include all usage of the day, also usage that was deleted since then."""
        return bool(kept.records == self._records.get(day, kept.records))

    def _is_final(self, day: date) -> bool:
        return second_of(day) + DAY_S + FINAL_S <= self.until_s

    def _make_windows(self, day: date) -> int | None:
        """Make the windows of a day if needed. Return the number of usage records; ``None`` for a day without usage."""
        if day not in self._windowed:
            self._windowed[day] = self._stored_windows(day)
            if self._windowed[day] is None and day in self._records:
                usage = self.lake.read("usage", schemas.USAGE).where(sf.col("date") == day)
                made = windows_of(usage, self.rules.window_s)
                self._replace(WINDOWS, schemas.ANOMALY_WINDOWS, made, day, records=self._records[day])
                self._windowed[day] = self._records[day]
        return self._windowed[day]

    def _stored_windows(self, day: date) -> int | None:
        """Return the number of usage records of a day's windows; ``None`` if they are missing or incomplete."""
        if day not in self._with_windows:
            return None
        stored = self._of_this_length(WINDOWS, schemas.ANOMALY_WINDOWS).where(sf.col("date") == day)
        kept = stored.select("records").limit(1).collect()
        return int(kept[0].records) if kept and self._is_of_all(kept[0], day) else None

    def _make_sketches(self, day: date) -> None:
        """Make the sketches of a day if needed, once more when the day is final."""
        kept = self._sketched.get(day)
        if kept is not None and (kept.final or not self._is_final(day)) and self._is_of_all(kept, day):
            return
        records = self._make_windows(day)
        if records is None:
            return
        windows = self._windows(day)
        seconds = range(second_of(day), second_of(day) + DAY_S)
        made = sketches_of(windows, seconds, starts_of(windows), self.rules, windows.count())
        of_day = {"records": records, "final": self._is_final(day)}
        self._remove_blocks(day)
        self._replace(SKETCHES, schemas.ANOMALY_SKETCHES, made, day, known_hours=self._hours_of_a_day(), **of_day)
        self._sketched[day] = Row(date=day, **of_day)

    def _remove_blocks(self, day: date) -> None:
        """Remove the blocks that contain a day, of all rules; from now on, their other days are in `_alone`."""
        if day not in self._in_any_block:
            return
        self.lake.remove_rows(PAST, f"date >= '{day}' AND date_sub(date, days - 1) <= '{day}'")
        removed = {block for block in self._blocks if block.first <= day <= block.last}
        self._blocks -= removed
        of_removed = {each for block in removed for each in days_between(block.first, block.last)}
        self._look_up_sketches(of_removed - self._alone)

    def _make_blocks(self, begin: date, last: date) -> None:
        """Make the blocks that are missing of those that end with a day, and begin with ``begin`` or later."""
        days = 2
        while days <= self.rules.past_days:
            block = Part(last=last, days=days)
            if not block.is_aligned or block.first < begin:
                return
            if block not in self._blocks:
                parts = self._parts(block.first, last)
                if sum(part.days for part in parts) < days or not all(map(self._has_final_days, parts)):
                    return
                self._make_block(block, parts)
            days *= 2

    def _has_final_days(self, part: Part) -> bool:
        return part.days > 1 or bool(self._sketched[part.last].final)

    def _make_block(self, block: Part, parts: list[Part]) -> None:
        rows = self._rows_of(parts)
        seconds = range(second_of(block.first), second_of(block.last) + DAY_S)
        starts = self._starts_of(parts, rows)
        made = block_of(rows.drop("starts"), seconds, starts, self.rules, rows.count() * WINDOWS_OF_A_SKETCH)
        of_block = {**self._rules_of_blocks(), "days": block.days, "date": block.last}
        self.lake.replace_partition(PAST, made.drop("date", "days"), **of_block)
        self._blocks.add(block)
        self._in_any_block |= set(days_between(block.first, block.last))

    def _parts(self, first: date, last: date) -> list[Part]:
        """Return the longest blocks, and the days between them, that together are all that is stored of the days from
        ``first`` to ``last``.
        """
        return [part for part in self._split(first, last) if part.days > 1 or part.last in self._sketched]

    def _split(self, first: date, last: date) -> Iterator[Part]:
        """Yield the longest blocks, and the days between them, from ``first`` to ``last``."""
        while first <= last:
            blocks = [block for block in self._blocks if block.first == first and block.last <= last]
            part = max(blocks, key=attrgetter("days"), default=Part(last=first, days=1))
            yield part
            first = part.last + timedelta(days=1)

    def _rows_of(self, parts: list[Part]) -> DataFrame:
        """Return the sketches of days, with ``days`` being 1, and the blocks."""
        names = ("date", "days", *KEPT, "starts")
        single = self._sketches([part.last for part in parts if part.days == 1]).withColumn("days", sf.lit(1))
        chosen = sf.lit(False)
        for part in parts:
            chosen |= (sf.col("date") == part.last) & (sf.col("days") == part.days)
        for name, value in self._rules_of_blocks().items():
            chosen &= sf.col(name) == value
        blocks = self.lake.read_or_empty(PAST, schemas.ANOMALY_PAST).where(chosen)
        return single.select(*names).unionByName(blocks.select(*names))

    def _starts_of(self, parts: list[Part], rows: DataFrame) -> dict[str | None, list[int]]:
        """Return the starts of the windows with usage, of parts with these rows."""
        first = {(part.last, part.days): second_of(part.first) for part in parts}
        starts: dict[str | None, list[int]] = {}
        for row in rows.select("date", "days", "cluster", "starts").distinct().collect():
            of_part = unpacked(row.starts, first[row.date, row.days], self.rules.window_s)
            starts.setdefault(row.cluster, []).extend(of_part)
        return starts

    def _replace(self, table: str, schema: StructType, made: DataFrame, day: date, **of_day: int) -> None:
        described = {name: sf.lit(value) for name, value in {"window_s": self.rules.window_s, **of_day}.items()}
        names = [name for name in schema.names if name != "date"]
        columns = [sf.col(name).cast(schema[name].dataType).alias(name) for name in names]
        self.lake.replace_partition(table, made.withColumns(described).select(*columns), date=day)

    def _of_this_length(self, table: str, schema: StructType) -> DataFrame:
        """Return the rows whose windows are as long as those of the rules; those of a day are all of one length."""
        return self.lake.read_or_empty(table, schema).where(sf.col("window_s") == self.rules.window_s)

    def _hours_of_a_day(self) -> int:
        return min(self.rules.known_hours, HOURS)

    def _sketches(self, days: Collection[date]) -> DataFrame:
        """Return the sketches of these days, without those of a version that did not keep the starts of windows."""
        of_length = self._of_this_length(SKETCHES, schemas.ANOMALY_SKETCHES).where(sf.col("starts").isNotNull())
        return of_length.where(sf.col("date").isin(days) & (sf.col("known_hours") == self._hours_of_a_day()))

    def _windows(self, day: date) -> DataFrame:
        """Return the windows of a day, and the last one of the day before."""
        before = day - timedelta(days=1)
        last = (sf.col("date") == before) & (sf.col("start") == second_of(day) - self.rules.window_s)
        return self._of_this_length(WINDOWS, schemas.ANOMALY_WINDOWS).where((sf.col("date") == day) | last)

    def _anomalies(self, day: date) -> DataFrame:
        windows = self._windows(day)
        parts = self._parts(*self._past_of(day))
        past = self._rows_of(parts)
        rows = windows.count() + past.count() * WINDOWS_OF_A_SKETCH
        starts = self._starts_of(parts, past)
        for cluster, of_day in starts_of(windows.where(sf.col("date") == day)).items():
            starts.setdefault(cluster, []).extend(of_day)
        examined = Examined(since_s=second_of(day), until_s=self.until_s, starts=starts, rules=self.rules)
        return anomalies(deviations(windows, past.drop("starts"), examined, rows), self.rules)
