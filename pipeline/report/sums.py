"""Aggregates of the tables for a report: DataFrames with few rows, or with an order and a limit.

Spark computes all sums of many rows. The driver receives little more than the page shows: at most `MOST_BARS` bars, and
the first rows of a ranking with the sums of the others (`Ranking`), so that totals stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import localcontext
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.usage import over_quotas
from headrace.pipeline.ingestion.instances import instances, is_cut
from headrace.quota_callbacks.records.usage_records import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import date

    from pyspark.sql import Column, DataFrame, GroupedData

SHOWN: Final = 20
"""Number of rows in a ranking; all others are summed."""
FEW: Final = 100
"""Number of rows up to which a ranking is summed here, since a job of Spark for the sums takes longer."""
DIGITS: Final = 38
"""Maximum number of digits of Spark's decimal numbers; Python's sums have 28 otherwise."""
MOST_BARS: Final = 240
"""Maximum number of bars on a time axis: ten days by hour. For longer times, a bar is several hours, or days."""
HOUR_S: Final = 3600
DAY_S: Final = 86_400

MEASURES: Final = ("requests", "errors", "request_bytes", "response_bytes", "thread_ms", "throttled", "refused")
"""The columns of usage that are summed; ``throttled`` and ``refused`` over all quota keys."""

_SHARED: Final = ("request_bytes", "response_bytes", "requests", "thread_ms")
"""Rankings are ordered by the largest share of any of these."""
_SENDER: Final = ("user", "client_id")

Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The first rows, and the sums of all others."""

    rows: Sequence[Numbers]
    others: Numbers
    """Sums of the measures; 0 if there are no other rows."""
    other_rows: int
    total: Numbers


def ranking(frame: DataFrame, measures: Sequence[str], *order: Column, limit: int = SHOWN) -> Ranking:
    """Return the first ``limit`` rows by ``order``, and the sums of ``measures`` over the others."""
    kept = frame.persist()
    try:
        first = [row.asDict() for row in kept.orderBy(*order).limit(FEW + 1).collect()]
        total = _total_of(first, measures) if len(first) <= FEW else _total(kept, measures)
    finally:
        kept.unpersist()
    rows = first[:limit]
    of_rows = _total_of(rows, measures)
    # Differences of floating-point sums may be slightly negative.
    with localcontext(prec=DIGITS):
        others = {name: max(0, total[name] - of_rows[name]) for name in measures}
    return Ranking(rows=rows, others=others, other_rows=total["rows"] - len(rows), total=total)


def _total_of(rows: Sequence[Numbers], measures: Sequence[str]) -> Numbers:
    """Return what `_total` returns of these rows."""
    with localcontext(prec=DIGITS):
        return {"rows": len(rows), **{name: sum(row[name] or 0 for row in rows) for name in measures}}


def _total(frame: DataFrame, measures: Sequence[str]) -> Numbers:
    return frame.agg(sf.count("*").alias("rows"), *(_sum(name) for name in measures)).collect()[0].asDict()


def _sum(name: str) -> Column:
    return sf.coalesce(sf.sum(name), sf.lit(0)).alias(name)


# --- usage ------------------------------------------------------------------------------------------------------------


def hourly(usage: DataFrame) -> DataFrame:
    """Return usage by ``start``, the first second of the hour, and sender: `MEASURES`, ``records``, first and last
    second.
    """
    over_keys = {name: over_quotas(name) for name in ("throttled", "refused")}
    return (
        usage.withColumns(over_keys)
        .groupBy(_start(sf.col("second"), HOUR_S), *_SENDER)
        .agg(
            sf.count("*").alias("records"),
            sf.min("second").alias("first_second"),
            sf.max("second").alias("last_second"),
            *(_sum(name) for name in MEASURES),
        )
    )


def overall(hours: DataFrame) -> Numbers:
    """Return totals of `hourly` usage: sums, numbers of records, users and senders, and the first and last second.

    ``unnamed`` is the number of requests without a user. Without usage, the sums are 0 and the seconds ``None``.
    """
    found = hours.agg(
        _sum("records"),
        sf.min("first_second").alias("first_second"),
        sf.max("last_second").alias("last_second"),
        sf.count_distinct("user").alias("users"),
        sf.count_distinct(sf.when(sf.col("user").isNotNull(), sf.struct(*_SENDER))).alias("senders"),
        sf.coalesce(sf.sum(sf.when(sf.col("user").isNull(), sf.col("requests"))), sf.lit(0)).alias("unnamed"),
        *(_sum(name) for name in MEASURES),
    ).collect()[0]
    return found.asDict()


def step_of(first_second: int, last_second: int) -> int:
    """Return the length of a bar in seconds, so that there are at most `MOST_BARS`: an hour, several hours, or days."""
    for step in (HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S):
        if last_second // step - first_second // step < MOST_BARS:
            return step
    step = DAY_S
    while last_second // step - first_second // step >= MOST_BARS:
        step *= 2
    return step


def over_time(hours: DataFrame, step_s: int) -> DataFrame:
    """Return `hourly` usage by ``start``, the first second of each step."""
    return _in_order(hours.groupBy(_start(sf.col("start"), step_s)).agg(*(_sum(name) for name in MEASURES)), "start")


def _in_order(few_rows: DataFrame, *by: str) -> DataFrame:
    """Sort rows in one task: ``orderBy`` would run a job more, which samples the values."""
    return few_rows.coalesce(1).sortWithinPartitions(*by)


def _start(second: Column, step_s: int) -> Column:
    return (second - sf.pmod(second, sf.lit(step_s))).alias("start")


def top_senders(hours: DataFrame, total: Mapping[str, Any], *by: str) -> Ranking:
    """Return `hourly` usage by ``user``, or by ``user`` and ``client_id``, by the largest share of any measure."""
    frame = hours.groupBy(*by).agg(*(_sum(name) for name in MEASURES))
    shares = [sf.col(name) / sf.lit(float(total[name])) for name in _SHARED if total[name]]
    largest = sf.greatest(*shares) if len(shares) > 1 else shares[0] if shares else sf.lit(0.0)
    return ranking(frame, MEASURES, largest.desc(), *map(sf.col, by))


# --- throttling -------------------------------------------------------------------------------------------------------

_EVENTS: Final = ("throttled", "throttle_ms", "refused")


def throttles(usage: DataFrame) -> DataFrame:
    """Return what was throttled and refused by ``start``, the first second of the hour, sender and quota key."""
    maps = {name: sf.coalesce(sf.map_keys(name), sf.array().cast("array<string>")) for name in _EVENTS}
    keys = sf.array_union(sf.array_union(maps["throttled"], maps["throttle_ms"]), maps["refused"])
    exploded = usage.where(sf.size(keys) > 0).select(*_SENDER, "second", *_EVENTS, sf.explode(keys).alias("key"))
    values = {name: sf.try_element_at(sf.col(name), sf.col("key")) for name in _EVENTS}
    by_hour = exploded.withColumns(values).groupBy(_start(sf.col("second"), HOUR_S), *_SENDER, "key")
    return by_hour.agg(*(_sum(name) for name in _EVENTS))


def by_key(throttled: DataFrame) -> Ranking:
    """Return `throttles` by quota key. Plugins may use any number of keys."""
    frame = throttled.groupBy("key").agg(*(_sum(name) for name in _EVENTS))
    return ranking(frame, _EVENTS, sf.desc("throttle_ms"), sf.desc("refused"), sf.col("key"))


def top_throttled(throttled: DataFrame) -> Ranking:
    """Return `throttles` by sender and quota key."""
    frame = throttled.groupBy(*_SENDER, "key").agg(*(_sum(name) for name in _EVENTS))
    order = (sf.desc("throttle_ms"), sf.desc("refused"), *map(sf.col, (*_SENDER, "key")))
    return ranking(frame, _EVENTS, *order)


def throttled_over_time(throttled: DataFrame, step_s: int, keys: Sequence[str], others: str) -> DataFrame:
    """Return `throttles` by ``start`` and ``series``: one of ``keys``, or ``others``."""
    series = sf.when(sf.col("key").isin(*keys), sf.col("key")).otherwise(sf.lit(others)).alias("series")
    frame = throttled.groupBy(_start(sf.col("start"), step_s), series).agg(*(_sum(name) for name in _EVENTS))
    return _in_order(frame, "start", "series")


# --- results of other jobs ----------------------------------------------------------------------------------------


def top_recommendations(recommendations: DataFrame) -> Mapping[str, Sequence[Numbers]]:
    """Return the largest quotas by key, of at most `SHOWN` keys, each row with ``count``, the number of its key's."""
    by_key = Window.partitionBy("key")
    order = (sf.desc_nulls_last("quota"), sf.col("user"), sf.col("client_id"))
    numbered = recommendations.withColumns(
        {"count": sf.count("*").over(by_key), "number": sf.row_number().over(by_key.orderBy(*order))}
    )
    rows = numbered.where(sf.col("number") <= SHOWN).orderBy("key", "number").limit(SHOWN * SHOWN).collect()
    found: dict[str, list[Numbers]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(row.asDict())
    return dict(islice(found.items(), SHOWN))


def top_tested(backtest: DataFrame) -> Ranking:
    """Return the buckets that the recommended quotas would have throttled or refused, the most seconds first."""
    held = backtest.where("throttled_seconds > 0 OR refused_seconds > 0")
    order = (sf.desc("throttled_seconds"), sf.desc("refused_seconds"), *map(sf.col, ("key", *_SENDER)))
    return ranking(held, ("seconds", "throttled_seconds", "refused_seconds", "waited_ms"), *order)


_ANSWERS: Final = ("events", "amount", "throttled", "refused", "throttle_ms", "waits", "waited_ms", "shifted_amount")
_LONGEST: Final = ("longest_throttle_ms", "longest_shift_ms")


def top_held(what_if: DataFrame) -> Ranking:
    """Return what-if's answer for the buckets that would be throttled or refused, the longest total wait first."""
    frame = what_if.groupBy("key", *_SENDER, "entity").agg(
        sf.max("quota").alias("quota"),
        *(_sum(name) for name in _ANSWERS),
        *(sf.max(name).alias(name) for name in _LONGEST),
    )
    held = frame.where("throttled > 0 OR refused > 0 OR waits > 0")
    order = (sf.desc("waited_ms"), sf.desc("throttle_ms"), sf.desc("refused"), *map(sf.col, ("key", *_SENDER)))
    return ranking(held, _ANSWERS, *order)


def buckets_by_key(what_if: DataFrame) -> Sequence[Numbers]:
    """Return the answer of what-if by quota key: the number of all ``buckets``, of those throttled or refused
    (``held``), and whether it is about demand besides the recorded usage (``with_demand``)."""
    buckets = what_if.groupBy("key", *_SENDER).agg(
        *(_sum(name) for name in _ANSWERS), sf.bool_or("with_demand").alias("with_demand")
    )
    held = sf.count_if((sf.col("throttled") > 0) | (sf.col("refused") > 0) | (sf.col("waits") > 0))
    by = buckets.groupBy("key").agg(
        sf.count("*").alias("buckets"),
        held.alias("held"),
        sf.bool_or("with_demand").alias("with_demand"),
        *(_sum(name) for name in _ANSWERS),
    )
    return [row.asDict() for row in by.orderBy("key").limit(SHOWN).collect()]


def waits_over_time(what_if: DataFrame, step_s: int) -> DataFrame:
    """Return what-if's waits by ``start`` and ``series``, the quota key."""
    start = _start(sf.unix_seconds("hour"), step_s)
    frame = what_if.where("waited_ms > 0").groupBy(start, sf.col("key").alias("series"))
    return _in_order(frame.agg(_sum("waits"), _sum("waited_ms")), "start", "series")


def span(frame: DataFrame, column: str) -> tuple[int, int] | None:
    """Return the first and last second of a timestamp column; ``None`` without rows."""
    when = sf.unix_seconds(sf.col(column))
    first, last = frame.agg(sf.min(when), sf.max(when)).collect()[0]
    return None if first is None else (first, last)


def top_anomalies(anomalies: DataFrame) -> Sequence[Numbers]:
    """Return the anomalies with the highest scores, with ``start`` in seconds since 1970."""
    order = (sf.desc_nulls_last("score"), sf.col("start"), sf.col("kind"), *map(sf.col, _SENDER))
    rows = anomalies.withColumn("start", sf.unix_seconds("start")).orderBy(*order).limit(SHOWN).collect()
    return [row.asDict() for row in rows]


def anomalies_over_time(anomalies: DataFrame, step_s: int) -> DataFrame:
    """Return the number of anomalies that began, by ``start`` and ``series``, their kind."""
    start = _start(sf.unix_seconds("start"), step_s)
    return _in_order(anomalies.groupBy(start, sf.col("kind").alias("series")).count(), "start", "series")


# --- data quality -----------------------------------------------------------------------------------------------------


def numbered(usage: DataFrame, marks: DataFrame, kept_from: date | None) -> Numbers:
    """Return the number of ``instances``, how many of them have ``ended``, and how many are ``short`` of records."""
    found = _by_instance(usage, marks, kept_from).agg(
        sf.count("instance").alias("instances"),
        sf.count_if("ended").alias("ended"),
        sf.count_if(sf.col("missing") > 0).alias("short"),
    )
    return found.collect()[0].asDict()


def _by_instance(usage: DataFrame, marks: DataFrame, kept_from: date | None) -> DataFrame:
    """Return, by instance, the number of ``missing`` records, and whether it has ``ended``.

    If no number is missing, the last one gives the number of records. Usage was removed before ``kept_from``
    (`headrace.pipeline.ingestion.instances`).
    """
    seen = usage.select("instance", "sequence", "second", sf.lit(False).alias("is_end"))
    marked = marks.select("instance", "sequence", "second", (sf.col("kind") == Kind.END.value).alias("is_end"))
    missing, first_second = sf.max("sequence") + 1 - sf.count("*"), sf.min("second")
    if kept_from is not None:
        missing -= sf.when(is_cut(first_second, kept_from), sf.min("sequence")).otherwise(0)
    of_instance = (missing.alias("missing"), sf.bool_or("is_end").alias("ended"), first_second.alias("first_second"))
    found = seen.unionByName(marked).groupBy("instance").agg(*of_instance)
    return found if kept_from is None else found.where(sf.col("first_second").isNotNull())


def top_gaps(usage: DataFrame, marks: DataFrame, kept_from: date | None) -> Ranking:
    """Return the instances (`headrace.pipeline.ingestion.instances`) that lack records.

    Only the instances that are short of records are sorted to find their gaps, since sorting all of them would sort the
    whole table.
    """
    short = _by_instance(usage, marks, kept_from).where("missing > 0").select("instance")
    of_short = (each.join(short, "instance", "left_semi") for each in (usage, marks))
    with_gaps = instances(*of_short, kept_from=kept_from)
    return ranking(with_gaps, ("seen", "missing", "gaps", "lost"), sf.desc("missing"), sf.col("instance"))


def top_reasons(quarantine: DataFrame) -> Ranking:
    """Return the number of quarantined lines and the time of the last one, by reason."""
    last = sf.unix_seconds(sf.max("ingested")).alias("last_second")
    frame = _by_reason(quarantine).agg(sf.count("*").alias("lines"), last)
    return ranking(frame, ("lines",), sf.desc("lines"), sf.col("reason"))


def top_losses(marks: DataFrame) -> Ranking:
    """Return the losses that instances recorded, by reason."""
    lost = ("records", "requests", "request_bytes", "response_bytes")
    losses = marks.where(sf.col("kind") == Kind.LOST.value)
    frame = _by_reason(losses).agg(*(_sum(name) for name in lost), sf.count_distinct("instance").alias("instances"))
    return ranking(frame, lost, sf.desc("records"), sf.col("reason"))


def _by_reason(frame: DataFrame) -> GroupedData:
    """Group by reason with numbers replaced by "N", so that reasons of one kind are one group."""
    return frame.groupBy(sf.regexp_replace("reason", r"-?\d+(\.\d+)?", "N").alias("reason"))
