"""One batch of lines: which of them are new, and the transactions that add them to the tables.

A record is identified by its instance and sequence number, and its second determines its hour in the table ``usage``.
The transaction that adds rows also looks for them in these hours of the table. If another ingest has added rows there
meanwhile, it fails and is repeated. So no record is stored twice, however often and by however many jobs it is read.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.errors import ConflictError
from headrace.pipeline.ingestion.columnar import text
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.lake.tables import Lake

MAX_HOURS: Final = 1000
"""Maximum number of hours in a batch that are looked up one by one; above it, the whole table is read."""
MAX_AHEAD_S: Final = 3600
"""Maximum by which a proxy's clock may be ahead of this machine's. A clock further ahead would move the watermark, and
make the records of all other proxies late.
"""
MAX_ATTEMPTS: Final = 20
"""Maximum number of times that rows are added to a table to which other ingests write at the same time."""
MAX_BROADCAST: Final = 1_000_000
"""Maximum number of stored keys that every executor gets; above it, both sides are sorted."""
MAX_RANGES: Final = 50
"""Maximum number of instances in a batch whose sequence numbers are looked up by a condition, with which Delta Lake
skips files that have none of them; above it, by a join, which reads all files of the hours."""
ROWS_A_FILE: Final = 500_000
"""Number of rows that one task writes, which makes one file for each hour: about 10 MiB of Parquet."""
QUARANTINE_DAYS: Final = 31
"""A rejected line that is read again is not added to the quarantine if it was added in so many days before."""

NEW, MARK, LATE, REMOVED, QUARANTINE = "new", "mark", "late", "removed", "quarantine"
_REPEATS: Final = "repeats"
_RANGE: Final = "range"
_KEY: Final = ("instance", "sequence")
_SCHEMAS: Final = {"usage": schemas.USAGE, "marks": schemas.MARKS}


def with_action(parsed: DataFrame, open_from: int, now: int, kept_from: date | None = None) -> DataFrame:
    """Add ``date`` and ``hour`` of each record (an ``end`` mark has no second; its date is 1970-01-01), and ``action``.

    The action is what has to be done with a line that is not stored yet: ``new``, ``mark``, ``late``, ``removed`` or
    ``quarantine``. A record is ``removed`` if it is of a day before ``kept_from``: `retain` has removed those days. It
    is late if it is from before the second ``open_from``, and too early if it is more than `MAX_AHEAD_S` after ``now``;
    ``fault`` is then the reason. ``value`` is kept only for lines that may go to the quarantine.
    """
    second, is_right, is_usage = sf.col("second"), sf.col("fault").isNull(), sf.col("kind") == Kind.USAGE.value
    first_s = 0 if kept_from is None else _first_second(kept_from, 0)
    is_removed = is_right & is_usage & (second < first_s)
    is_ahead, is_late = second > now + MAX_AHEAD_S, is_usage & (second < open_from) & ~is_removed
    why_ahead = (
        f"ahead: second %d is more than {MAX_AHEAD_S} s after {now}, when it was read; run ingest --quarantined later"
    )
    why_late = f"{LATE}: second %d is before {open_from}, and hours before that are final (--watermark)"
    fault = (
        sf.when(~is_right, sf.col("fault"))
        .when(is_ahead, sf.format_string(why_ahead, second))
        .when(is_late, sf.format_string(why_late, second))
    )
    action = (
        sf.when(~is_right | is_ahead, QUARANTINE)
        .when(~is_usage, MARK)
        .when(is_removed, REMOVED)
        .when(is_late, LATE)
        .otherwise(NEW)
    )  # without a second, none is ahead or late
    when = sf.timestamp_seconds(sf.coalesce(second, sf.lit(0)))
    return parsed.withColumns(
        {
            "date": sf.when(is_right, sf.to_date(when)),
            "hour": sf.when(is_right, sf.hour(when)),
            "action": action,
            "fault": fault,
            "value": sf.when(
                fault.isNotNull(), sf.when(is_right, sf.coalesce("value", text())).otherwise(sf.col("value"))
            ),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The numbers of lines of one batch, by what was done with them."""

    lines: int = 0
    records: int = 0
    marks: int = 0
    removed: int = 0
    """Number of records of days that `retain` has removed."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of lines, by reason."""
    newest: int | None = None
    """The newest second of usage records of hours that are not final."""
    oldest: int | None = None
    """The first second of the oldest of these hours."""

    @property
    def duplicates(self) -> int:
        """The number of lines that are stored already, or several times in the batch."""
        return self.lines - self.records - self.marks - self.removed - sum(self.rejected.values())


class Batch:
    """The lines of one batch (`with_action`). They are read several times: persist them."""

    def __init__(self, lake: Lake, lines: DataFrame) -> None:
        self._lake = lake
        self._lines = lines
        valid = lines.where(sf.col("action") != QUARANTINE)
        self._ranges = _ranges(valid).localCheckpoint()
        repeats = self._ranges.agg((sf.sum("lines") - sf.sum("distinct")).alias("lines"))
        # One query for all of them, since each takes longer than the lines of a small batch.
        found = _counts(lines).unionByName(repeats.withColumn("action", sf.lit(_REPEATS)), allowMissingColumns=True)
        few = self._ranges.limit(MAX_RANGES + 1).select("instance", "first", "last", sf.lit(_RANGE).alias("action"))
        rows = found.unionByName(few, allowMissingColumns=True).collect()
        self._rows = [row for row in rows if row.action not in (_REPEATS, _RANGE)]
        self._few = [row for row in rows if row.action == _RANGE]
        self._repeats = any(row.lines for row in rows if row.action == _REPEATS)
        self._valid = _without_repeats(valid) if self._repeats else valid
        self._places = {(row.action, row.date, row.hour) for row in self._rows if row.action != QUARANTINE}

    def write(self, *, are_quarantined: bool = False) -> Written:
        """Add what is new to the tables, and rejected lines to the quarantine, unless all lines come from there.

        Raises `ConflictError` if others write to the same hours all the time.
        """
        records = self._append("usage", NEW, "date", "hour")
        marks = self._append("marks", MARK, "date")
        rejected = {row.why: row.lines for row in self._rows if row.action == QUARANTINE}
        frame = self._lines.where(sf.col("action") == QUARANTINE)
        if self._count(LATE):
            late = self._of(LATE)
            if self._lake.has("usage"):
                late = late.join(self._stored("usage", LATE), list(_KEY), "left_anti")
            counted = late.groupBy(_kind_of_fault().alias("why")).count().collect()
            rejected |= {row.why: row["count"] for row in counted}
            frame = frame.unionByName(late)
        if rejected and not are_quarantined:
            quarantine(self._lake, frame)
        return Written(
            lines=sum(row.lines for row in self._rows),
            records=records,
            marks=marks,
            removed=self._count(REMOVED),
            rejected=rejected,
            newest=max((row.newest for row in self._rows if row.action == NEW), default=None),
            oldest=min((_first_second(row.date, row.hour) for row in self._rows if row.action == NEW), default=None),
        )

    def _of(self, action: str) -> DataFrame:
        return self._valid.where(sf.col("action") == action)

    def _count(self, action: str) -> int:
        return sum(row.lines for row in self._rows if row.action == action)

    def _append(self, table: str, action: str, *by: str) -> int:
        """Add the lines with this action to a table; return the number of rows that were new."""
        if not self._count(action):
            return 0
        rows = self._of(action).select(*_SCHEMAS[table].names)
        number = rows.count() if self._repeats else self._count(action)

        def append() -> int:
            self._lake.create(table, _SCHEMAS[table], *by)
            stored = self._stored(table, action)
            keys = stored.count()
            known = rows.join(stored, list(_KEY), "left_semi").count() if keys else 0
            if known < number:
                there = sf.broadcast(stored) if keys <= MAX_BROADCAST else stored
                new = rows.join(there, list(_KEY), "left_anti").select(*rows.columns)
                # Not the hint "rebalance": Spark ignores it in a stream, whose session has no adaptive execution.
                self._lake.append(table, new.coalesce(-(-(number - known) // ROWS_A_FILE)), *by)
            return number - known

        return _retried(append)

    def _stored(self, table: str, action: str) -> DataFrame:
        """Return the keys that a table has in the hours of these lines and between their sequence numbers, or more."""
        frame = self._lake.read(table, _SCHEMAS[table])
        if len(self._places) <= MAX_HOURS:
            hours: dict[date, set[int]] = {}
            for of, day, hour in self._places:
                if of == action:
                    hours.setdefault(day, set()).add(hour)
            of_usage = table == "usage"
            days = (_is_at(day, hours[day] if of_usage else None) for day in sorted(hours))
            frame = frame.where(functools.reduce(operator.or_, days))
        if len(self._few) <= MAX_RANGES:
            conditions = (
                (sf.col("instance") == row.instance) & sf.col("sequence").between(row["first"], row["last"])
                for row in self._few
            )
            return frame.where(functools.reduce(operator.or_, conditions)).select(*_KEY)
        ranges = self._ranges.select(sf.col("instance").alias("of"), "first", "last")
        is_between = (sf.col("instance") == sf.col("of")) & sf.col("sequence").between(sf.col("first"), sf.col("last"))
        return frame.join(sf.broadcast(ranges), is_between).select(*_KEY)


def quarantine(lake: Lake, rejected: DataFrame) -> None:
    """Add lines (``value``, ``origin`` and ``fault``) to the quarantine, unless it has them. Raises `ConflictError`."""

    def append() -> int:
        rows = rejected.select(
            sf.current_date().alias("date"),
            "origin",
            "value",
            sf.col("fault").alias("reason"),
            sf.current_timestamp().alias("ingested"),
        ).dropDuplicates(["origin", "value"])
        lake.create("quarantine", schemas.QUARANTINE, "date")
        since = sf.date_sub(sf.current_date(), QUARANTINE_DAYS)
        recent = lake.read("quarantine", schemas.QUARANTINE).where(sf.col("date") >= since)
        there = recent.select(sf.col("origin").alias("there_origin"), sf.col("value").alias("there_value"))
        same_value = sf.col("value").eqNullSafe(sf.col("there_value"))  # a tombstone's value is null
        rows = rows.join(there, (sf.col("origin") == sf.col("there_origin")) & same_value, "left_anti")
        lake.append("quarantine", rows.coalesce(1), "date")
        return 0

    _retried(append)


def _retried(append: Callable[[], int]) -> int:
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return append()
        except ConflictError:
            continue
    return append()


def _counts(lines: DataFrame) -> DataFrame:
    """Return the number of ``lines`` and their ``newest`` second by action, kind of fault and hour.

    Lines for the quarantine have no hour here: it may be any, while the hours of others are between 2020 and now.
    """
    place = (sf.when(sf.col("action") != QUARANTINE, sf.col(name)).alias(name) for name in ("date", "hour"))
    by = lines.groupBy("action", _kind_of_fault().alias("why"), *place)
    return by.agg(sf.count("*").alias("lines"), sf.max("second").alias("newest"))


def _ranges(valid: DataFrame) -> DataFrame:
    """Return by instance the number of ``lines`` and of ``distinct`` sequence numbers, and the first and the last."""
    sequence = sf.col("sequence")
    bits = sf.bitmap_count(sf.bitmap_construct_agg(sf.bitmap_bit_position(sequence)))
    return (
        valid.groupBy("instance", sf.bitmap_bucket_number(sequence).alias("bucket"))
        .agg(
            sf.count("*").alias("lines"),
            bits.alias("distinct"),
            sf.min(sequence).alias("first"),
            sf.max(sequence).alias("last"),
        )
        .groupBy("instance")
        .agg(
            sf.sum("lines").alias("lines"),
            sf.sum("distinct").alias("distinct"),
            sf.min("first").alias("first"),
            sf.max("last").alias("last"),
        )
    )


def _without_repeats(valid: DataFrame) -> DataFrame:
    """Return one of several lines with the same instance and sequence number, the first by its origin."""
    number = sf.row_number().over(Window.partitionBy(*_KEY).orderBy("origin"))
    return valid.withColumn("number", number).where("number = 1").drop("number")


def _is_at(day: date, hours: Collection[int] | None) -> Column:
    """Return whether a row is of these hours of a day; ``None`` means all hours.

    By day, so that there are few terms: Spark cannot compile a filter of hundreds.
    """
    is_at = sf.col("date") == sf.lit(day)
    return is_at if hours is None else is_at & sf.col("hour").isin(sorted(hours))


def _first_second(day: date, hour: int) -> int:
    return int(datetime.combine(day, time(hour), UTC).timestamp())


def _kind_of_fault() -> Column:
    """Return the fault with its numbers replaced by "N", so that there are few distinct ones."""
    return sf.regexp_replace("fault", r"-?\d+(\.\d+)?", "N")
