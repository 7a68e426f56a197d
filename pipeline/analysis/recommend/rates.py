"""Computes the rate that each entity needs of each key: over the window of the quota, with percentiles.

Seconds without usage have no rows, and none are added: the sum over a window is the running total at its end minus the
running total at its start, each of which takes one pass over the entity's seconds.

Percentiles are exact. The rates of an entity and key are sorted and numbered, and a percentile is taken at its place,
interpolated linearly between two rates, as Spark's ``percentile`` and ``numpy.percentile`` do. ``percentile`` itself
would hold all different rates of an entity in memory; sorting spills to disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window as Rows
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.events import amounts
from headrace.pipeline.analysis.recommend.rules import STORM_FACTOR, STORM_FAILED, STORM_REQUESTS
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey
from headrace.quota_callbacks.records.replay import KEYS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.analysis.recommend.rules import Rules

MS_PER_PERCENT: Final = 10
"""Milliseconds of a thread in one second that are one percent."""
ENTITY: Final = ("user", "client_id")

_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_GROUP: Final = (*ENTITY, "key", "estimated")
_ALL: Final = "all"
"""A pseudo key beside the quota keys: all usage of the entity in a second. Its amount is the number of requests."""


def demand(usage: DataFrame, rules: Rules) -> DataFrame:
    """Return the usage of each entity, key and second: ``amount``, in units of the key times seconds.

    Also ``throttled`` and ``refused``, numbers of requests by this key, and ``estimated``, true for producer ids
    counted by InitProducerId requests. ``failed`` and ``bytes`` are of all requests, in the rows of `_ALL` only.
    """
    named = sf.lit(True)
    for name in rules.by.columns:
        named = named & sf.col(name).isNotNull() & ~sf.col(name).isin("", str(DEFAULT))
    entity = [sf.col(name) if name in rules.by.columns else sf.lit(None).cast("string").alias(name) for name in ENTITY]
    by_key = {
        KEYS[op].value: sf.sum(amount).cast("double") for op, amount in amounts().items() if KEYS[op] in rules.by.keys
    }
    by_key[QuotaKey.REQUEST_PERCENTAGE] = by_key[QuotaKey.REQUEST_PERCENTAGE] / MS_PER_PERCENT
    made = sf.when(
        sf.col("api_key") == ApiKey.INIT_PRODUCER_ID.value,
        sf.greatest(sf.col("requests") - sf.col("errors"), sf.lit(0)),
    )
    by_second = (
        usage.where(named)
        .select("*", *(column.alias(f"_{name}") for name, column in zip(ENTITY, entity, strict=True)))
        .groupBy("second", *(sf.col(f"_{name}").alias(name) for name in ENTITY))
        .agg(
            *(amount.alias(key) for key, amount in by_key.items()),
            sf.sum(made).cast("double").alias("_made"),
            *(_of_key(held, key).alias(f"{held}_{key}") for key in by_key for held in ("throttled", "refused")),
            sf.sum("requests").cast("double").alias("_requests"),
            sf.sum("errors").alias("_failed"),
            sf.sum(sf.col("request_bytes") + sf.col("response_bytes")).alias("_bytes"),
        )
    )
    null, none = sf.lit(None).cast("long"), sf.lit(0).cast("long")
    rows = [(key, False, sf.col(key), sf.col(f"throttled_{key}"), sf.col(f"refused_{key}"), null, null)
            for key in by_key]  # fmt: skip
    rows += [(row[0], True, sf.col("_made"), *row[3:]) for row in rows if row[0] == QuotaKey.PRODUCER_IDS_RATE]
    rows.append((_ALL, False, sf.col("_requests"), none, none, sf.col("_failed"), sf.col("_bytes")))
    cells = [sf.lit(cell) if isinstance(cell, str | bool) else cell for row in rows for cell in row]
    stacked = sf.stack(sf.lit(len(rows)), *cells).alias(
        "key", "estimated", "amount", "throttled", "refused", "failed", "bytes"
    )
    kept = f"amount > 0 or throttled > 0 or refused > 0 or key = '{_ALL}'"
    return by_second.select("second", *ENTITY, stacked).where(kept)


def rates(demands: DataFrame, rules: Rules) -> DataFrame:
    """Add ``rate``, over the key's window that ends with the second, and ``most``, the highest rate that the quota may
    compute.
    """
    seconds = Rows.partitionBy(*_GROUP).orderBy("second")
    amount = sf.coalesce("amount", sf.lit(0.0))
    until_now = sf.sum(amount).over(seconds.rangeBetween(Rows.unboundedPreceding, 0))
    spans = sorted({rules.span_s(key) for key in rules.by.keys})
    before = {
        span: sf.coalesce(sf.sum(amount).over(seconds.rangeBetween(Rows.unboundedPreceding, -span)), sf.lit(0.0))
        for span in spans
    }
    in_window = sf.coalesce(
        *(sf.when(sf.col("key") == key.value, until_now - before[rules.span_s(key)]) for key in rules.by.keys)
    )
    # Rounded, since differences of large floating-point sums are inexact.
    with_sum = demands.withColumn("_in_window", sf.round(in_window, 6))
    return with_sum.withColumns(
        {
            "rate": sf.col("_in_window") / rules.by_key(rules.divisor),
            "most": sf.col("_in_window") / rules.by_key(rules.shortest),
        }
    ).drop("_in_window")


def measured(rated: DataFrame, rules: Rules) -> DataFrame:
    """Return percentiles, ``peak``, ``burst`` and these columns, by entity and key:

    - ``seconds``: the number of seconds with usage of the key, or with throttled or refused requests
    - ``held_seconds``: the number of seconds with throttled or refused requests
    - ``entity_seconds``: the number of seconds with any usage of the entity
    - ``storm_seconds``: the number of seconds of retry storms
    - ``need``: the quota that would have throttled at most the permitted share of seconds
    - ``top``: the seconds that may be above the quota, with their rates

    Producer ids counted by InitProducerId are kept only where none were recorded.
    """
    number, count = sf.col("_number"), sf.col("active_seconds")
    allowed = sf.floor(count * rules.allow_throttled + 1e-9)  # ignores excess that is due to floating point
    lowest = sf.col("p99") * min(rules.headroom, rules.throttled_headroom)
    top = sf.when((sf.col("key") != _ALL) & (sf.col("used") > lowest), sf.struct("second", "used"))
    stats = _with_percentiles(rated).groupBy(*_GROUP).agg(
        *(sf.max(name).alias(name) for name in (*_PERCENTILES, "active_seconds")),
        sf.max("used").alias("peak"),
        sf.max("amount").alias("_peak_second"),
        sf.max(sf.when(number == count - 1 - allowed, sf.col("most"))).alias("need"),
        sf.sum("throttled").alias("throttled"),
        sf.sum("refused").alias("refused"),
        sf.count("*").alias("seconds"),
        sf.count_if(sf.col("throttled") + sf.col("refused") > 0).alias("held_seconds"),
        sf.count_if(_in_storm()).alias("_storm_seconds"),
        sf.collect_list(top).alias("top"),
    )  # fmt: skip
    entity = Rows.partitionBy(*ENTITY)
    recorded = (
        (sf.col("key") == QuotaKey.PRODUCER_IDS_RATE.value) & ~sf.col("estimated") & (sf.col("active_seconds") > 0)
    )
    whole = stats.withColumns(
        {
            "entity_seconds": sf.max(sf.when(sf.col("key") == _ALL, sf.col("seconds"))).over(entity),
            "storm_seconds": sf.max(sf.when(sf.col("key") == _ALL, sf.col("_storm_seconds"))).over(entity),
            "_recorded": sf.max(recorded).over(entity),
        }
    )
    kept = whole.where((sf.col("key") != _ALL) & (sf.col("p99") > 0) & ~(sf.col("estimated") & sf.col("_recorded")))
    return kept.withColumn("burst", sf.col("_peak_second") / sf.col("p99")).drop(
        "_peak_second", "_recorded", "_storm_seconds"
    )


def _with_percentiles(rated: DataFrame) -> DataFrame:
    """Add to each second ``used``, its rate if there was usage, the percentiles of these rates, ``active_seconds``,
    their number, and ``_number``, the place of this one among them from 0 on.

    The rate of `_ALL`, which has no window, is the number of requests. ``_calm_requests`` and ``_calm_bytes`` are the
    sums over that half of the seconds that has the fewest requests.
    """
    group = Rows.partitionBy(*_GROUP)
    used = sf.when(sf.col("amount") > 0, sf.coalesce("rate", "amount"))
    place = sf.row_number().over(group.orderBy(sf.col("used").asc_nulls_last(), "second")) - 1
    numbered = rated.withColumn("used", used).withColumn("_number", place)
    counted = numbered.withColumn("active_seconds", sf.count("used").over(group))
    calm = sf.col("_number") * 2 < sf.col("active_seconds")
    return counted.withColumns(
        {
            **{name: _percentile(share) for name, share in _PERCENTILES.items()},
            "_calm_requests": sf.sum(sf.when(calm, sf.col("amount"))).over(group),
            "_calm_bytes": sf.sum(sf.when(calm, sf.col("bytes"))).over(group),
        }
    )


def _percentile(share: float) -> Column:
    group = Rows.partitionBy(*_GROUP)
    place = (sf.col("active_seconds") - 1) * share
    low, high = sf.floor(place), sf.ceil(place)
    lower, higher = (sf.max(sf.when(sf.col("_number") == each, sf.col("used"))).over(group) for each in (low, high))
    return sf.when(lower == higher, lower).otherwise((high - place) * lower + (place - low) * higher)


def _in_storm() -> Column:
    """Return whether a second of `_ALL` is of a retry storm; null for other keys."""
    requests, size = sf.col("amount"), sf.col("bytes")
    failing = sf.col("failed") >= requests * STORM_FAILED
    more = requests > sf.col("p50") * STORM_FACTOR
    emptier = requests * sf.col("_calm_bytes") > size * sf.col("_calm_requests") * STORM_FACTOR
    return (sf.col("key") == _ALL) & (requests >= STORM_REQUESTS) & (failing | (more & emptier))


def _of_key(name: str, key: str) -> Column:
    """Return the sum of one quota key's values in a map."""
    return sf.sum(sf.coalesce(sf.try_element_at(sf.col(name), sf.lit(key)), sf.lit(0).cast("long")))
