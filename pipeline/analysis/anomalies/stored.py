"""Finds the windows and sketches of days in the lake, and computes the missing ones.

They are computed once from the usage of a day, and again if the number of its records has changed. A past day is not
checked any more once it has sketches that were computed when it was final. Rows for windows of another length are
replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomalies.deviating import WINDOWS_OF_A_SKETCH, Examined, deviations
from headrace.pipeline.analysis.anomalies.findings import anomalies
from headrace.pipeline.analysis.anomalies.rules import DAY_S
from headrace.pipeline.analysis.anomalies.sketches import HOURS, sketches_of
from headrace.pipeline.analysis.anomalies.windows import starts_of, windows_of
from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

    from headrace.pipeline.analysis.anomalies.rules import Rules
    from headrace.pipeline.analysis.anomalies.windows import Starts
    from headrace.pipeline.lake.tables import Lake

FINAL_S: Final = DAY_S
"""A day is final when the newest record is this far ahead of its end: ``ingest`` rejects later records of it."""
WINDOWS, SKETCHES = "anomaly_windows", "anomaly_sketches"


def second_of(day: date) -> int:
    """Return the first second of a day (UTC)."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def days_between(first: date, last: date) -> Iterator[date]:
    """Yield the days from ``first`` to ``last``, both included."""
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


@dataclass(slots=True, kw_only=True)
class Days:
    """The days of a lake, for one set of rules."""

    lake: Lake
    usage: DataFrame
    until_s: int
    """The second up to which there is usage."""
    rules: Rules
    _records: dict[date, int] = field(default_factory=dict)
    """The number of usage records of the days that are examined, or whose sketches may have to be made."""
    _sketched: dict[date, Row] = field(default_factory=dict)

    def examine(self, first: date, last: date) -> None:
        """Replace the anomalies of these days; make the windows and sketches that are missing."""
        begin = first - timedelta(days=self.rules.past_days)
        self._look_up(begin, first, last)
        for day in days_between(begin, last):
            if day >= first:
                self._make_windows(day)
                self.lake.replace_partition("anomalies", self._anomalies(day).coalesce(1), "date", day)
            if day < last or day in self._sketched:
                self._make_sketches(day)

    def _look_up(self, begin: date, first: date, last: date) -> None:
        kept = self._sketches(begin, last).select("date", "records", "final").distinct().collect()
        self._sketched = {row.date: row for row in kept}
        settled = {row.date for row in kept if row.final and row.date < first}
        unsettled = [day for day in days_between(begin, last) if day not in settled]
        counted = self.usage.where(sf.col("date").isin(unsettled)).groupBy("date").count().collect()
        self._records = {row.date: row["count"] for row in counted}

    def _is_of_all(self, kept: Row, day: date) -> bool:
        """Return whether stored rows include all usage of the day, also usage that was deleted since then."""
        return bool(kept.records == self._records.get(day, kept.records))

    def _is_final(self, day: date) -> bool:
        return second_of(day) + DAY_S + FINAL_S <= self.until_s

    def _make_windows(self, day: date) -> int | None:
        """Make the windows of a day if needed. Return the number of usage records; ``None`` for a day without usage."""
        stored = self._of_this_length(WINDOWS, schemas.ANOMALY_WINDOWS).where(sf.col("date") == day)
        kept = stored.select("records").limit(1).collect()
        if kept and self._is_of_all(kept[0], day):
            return int(kept[0].records)
        if day not in self._records:
            return None
        made = windows_of(self.usage.where(sf.col("date") == day), self.rules.window_s)
        self._replace(WINDOWS, schemas.ANOMALY_WINDOWS, made, day, records=self._records[day])
        return self._records[day]

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
        kept_hours, final = min(self.rules.known_hours, HOURS), self._is_final(day)
        self._replace(
            SKETCHES, schemas.ANOMALY_SKETCHES, made, day, records=records, known_hours=kept_hours, final=final
        )

    def _replace(self, table: str, schema: StructType, made: DataFrame, day: date, **of_day: int) -> None:
        described = {name: sf.lit(value) for name, value in {"window_s": self.rules.window_s, **of_day}.items()}
        names = [name for name in schema.names if name != "date"]
        columns = [sf.col(name).cast(schema[name].dataType).alias(name) for name in names]
        self.lake.replace_partition(table, made.withColumns(described).select(*columns), "date", day)

    def _of_this_length(self, table: str, schema: StructType) -> DataFrame:
        """Return the rows whose windows are as long as those of the rules; those of a day are all of one length."""
        return self.lake.read_or_empty(table, schema).where(sf.col("window_s") == self.rules.window_s)

    def _sketches(self, first: date, last: date) -> DataFrame:
        whole = self._of_this_length(SKETCHES, schemas.ANOMALY_SKETCHES)
        kept_hours = min(self.rules.known_hours, HOURS)
        return whole.where(sf.col("date").between(first, last) & (sf.col("known_hours") == kept_hours))

    def _windows(self, day: date) -> DataFrame:
        """Return the windows of a day, and the last one of the day before."""
        before = day - timedelta(days=1)
        last = (sf.col("date") == before) & (sf.col("start") == second_of(day) - self.rules.window_s)
        return self._of_this_length(WINDOWS, schemas.ANOMALY_WINDOWS).where((sf.col("date") == day) | last)

    def _anomalies(self, day: date) -> DataFrame:
        windows = self._windows(day)
        sketches = self._sketches(day - timedelta(days=self.rules.past_days), day - timedelta(days=1))
        rows = windows.count() + sketches.count() * WINDOWS_OF_A_SKETCH
        starts = self._starts(day)
        examined = Examined(since_s=second_of(day), until_s=self.until_s, starts=starts, rules=self.rules)
        return anomalies(deviations(windows, sketches, examined, rows), self.rules)

    def _starts(self, day: date) -> Starts:
        """Return the starts of the windows with usage of the day and its past; all those of days whose windows were
        removed after their sketches had been made."""
        first = day - timedelta(days=self.rules.past_days)
        windows = self._of_this_length(WINDOWS, schemas.ANOMALY_WINDOWS).where(sf.col("date").between(first, day))
        starts = starts_of(windows)
        kept = {start // DAY_S for of_cluster in starts.values() for start in of_cluster}
        removed = [each for each in self._sketched if first <= each < day and second_of(each) // DAY_S not in kept]
        every = [
            start for each in removed for start in range(second_of(each), second_of(each) + DAY_S, self.rules.window_s)
        ]
        return {cluster: [*of_cluster, *every] for cluster, of_cluster in starts.items()}
