"""Windows of usage, and what is usual in them: the input of `headrace.pipeline.analysis.anomalies`.

The past of a window consists of the earlier windows with usage of the same user and client id. Loads vary in
proportion, so logarithms are compared: the usual value is the median, the spread is the distance of the quartiles,
converted to standard deviations of a normal distribution, and the score is the number of spreads between a value and
the median. One ordered pass over an entity's windows computes all of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.usage import over_quotas
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame

ENTITY: Final = ("user", "client_id")
"""The columns that identify an entity; ``client_id`` is null for all clients of the user together."""
HOUR_S: Final = 3600

SIGMAS_BETWEEN_QUARTILES: Final = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
LEAST_SPREAD: Final = 0.1
"""Minimum spread of logarithms, about 10 %: even entities with a steadier past may vary by this much."""
ACCURACY: Final = 200
"""Accuracy of the quartiles: ranks deviate by at most half a percent."""

QUANTITIES: Final[Mapping[str, float]] = {
    "requests": 1.0,
    "failed_share": 0.01,
    "bytes": 1024.0,
    "bytes_per_request": 1.0,
    "thread_ms": 1.0,
    "new_ids": 1.0,
    "connections": 1.0,
}
"""The quantities that are compared, each with an amount that is negligible: it is added before the logarithm is taken.
"""


CONTEXT: Final = ("requests", "failed", "produced", "bytes_per_request")
"""Further columns of a window, which descriptions contain."""
STEADY: Final = 0.9
"""Share of the windows since the first one. An entity that is active in fewer may stop without being reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits for anomalies, which are the command's options."""

    window_s: int = 300
    """Storms last minutes; in the sums of an hour, one of five minutes would be a twelfth of its size."""
    past_days: int = 14
    """Two weeks have each day of the week twice."""
    least_past: int = 36
    """Minimum number of windows; fewer do not determine what is usual."""
    score: float = 5.0
    """At 4, one window in 30,000 of a normal distribution exceeds it: a false alarm for 80 clients each day."""
    factor: float = 3.0
    """Deviations below this factor are not reported, however steady the past is."""
    known_hours: int = 5
    """A level reached in this many earlier hours is not reported."""
    least_ids: int = 20
    """Minimum of new producer ids in a window; the following fields are minimums as well."""
    least_failed: int = 50
    """Requests that failed or were refused."""
    least_connections: int = 60
    least_bytes: int = 10 * 1024 * 1024
    least_thread_ms: float = 3000.0
    """One percent of a thread over five minutes."""


def windows_of(usage: DataFrame, window_s: int) -> DataFrame:
    """Return usage (`schemas.USAGE`) by window (``start``, a second), user and client id, and by window and user."""
    api_key, requests = sf.col("api_key"), sf.col("requests")

    def of_api(api: ApiKey) -> Column:
        return sf.coalesce(sf.sum(sf.when(api_key == api.value, requests)), sf.lit(0))

    start = sf.col("second") - sf.pmod("second", sf.lit(window_s))
    refused = over_quotas("refused")
    by_client = (
        usage.where(sf.col("user").isNotNull())
        .groupBy(start.alias("start"), "user", sf.coalesce("client_id", sf.lit("")).alias("client_id"))
        .agg(
            sf.sum("requests").alias("requests"),
            sf.greatest(sf.sum("errors"), sf.sum(sf.coalesce(refused, sf.lit(0)))).alias("failed"),
            sf.sum(sf.col("request_bytes") + sf.col("response_bytes")).alias("bytes"),
            sf.sum("thread_ms").alias("thread_ms"),
            # The proxy counts new ids of senders with a quota; for others, only InitProducerId requests are known.
            sf.greatest(sf.sum("producer_ids"), of_api(ApiKey.INIT_PRODUCER_ID)).alias("new_ids"),
            of_api(ApiKey.PRODUCE).alias("produced"),
            # A client sends ApiVersions once per connection, and SaslHandshake once.
            sf.greatest(of_api(ApiKey.API_VERSIONS), of_api(ApiKey.SASL_HANDSHAKE)).alias("connections"),
        )
    )
    sums = ("requests", "failed", "bytes", "thread_ms", "new_ids", "produced", "connections")
    alone_and_all = sf.explode(sf.array("client_id", sf.lit(None)))
    both = by_client.withColumn("client_id", alone_and_all).groupBy("start", *ENTITY)
    return both.agg(*(sf.sum(name).alias(name) for name in sums)).withColumns(
        {
            "failed_share": sf.coalesce(sf.try_divide("failed", "requests"), sf.lit(0.0)),
            "bytes_per_request": sf.coalesce(sf.try_divide("bytes", "requests"), sf.lit(0.0)),
        }
    )


def with_past(windows: DataFrame, day: date, rules: Rules) -> DataFrame:
    """Return the windows of ``day`` with their past: a row for each of `QUANTITIES`, with its ``value``.

    ``windows`` (`windows_of`) must have the days before as well, and is read several times: persist it. ``usual`` and
    ``score`` are null if the past is too short. ``most`` and ``least`` are the levels that values exceeded or fell
    below in ``known_hours`` earlier hours; null if there were fewer hours. ``steady``: nine of ten earlier windows had
    usage. The first window without usage after one with usage is included, if other entities had usage in it.
    """
    by = (*ENTITY, "quantity")
    rows = _by_quantity(_with_quiet(windows, rules.window_s))
    earlier = Window.partitionBy(*by).orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    used = sf.when(sf.col("active"), sf.col("value"))
    counted = rows.withColumns(
        {
            "quartiles": sf.percentile_approx(used, [0.25, 0.5, 0.75], ACCURACY).over(earlier),
            "past": sf.count(used).over(earlier),
            "since": sf.min("start").over(earlier),
        }
    )
    of_day = sf.to_date(sf.timestamp_seconds("start")) == sf.lit(day)
    known = _known_levels(rows, by, rules.known_hours).where(of_day).withColumnRenamed("start", "known_hour")
    same = [sf.col(name).eqNullSafe(sf.col(f"known_{name}")) for name in by]
    compared_rows = counted.where(of_day).join(known, [*same, _hour() == sf.col("known_hour")], "left")
    compared = sf.col("past") >= rules.least_past
    share = sf.try_divide(sf.col("past") * rules.window_s, sf.col("start") - sf.col("since"))
    return compared_rows.select(
        *("start", *by, "value", "most", "least", *CONTEXT),
        sf.when(compared, sf.get("quartiles", 1)).alias("usual"),
        sf.when(compared, _score()).alias("score"),
        (compared & (share >= STEADY)).alias("steady"),
    )


def _with_quiet(windows: DataFrame, window_s: int) -> DataFrame:
    """Add a window of zeros after each run of windows, if other entities had usage in it."""
    following = sf.lead("start").over(Window.partitionBy(*ENTITY).orderBy("start"))
    next_start = sf.col("start") + window_s
    is_last = following.isNull() | (following > next_start)
    alone, followed = sf.array(sf.lit(True)), sf.array(sf.lit(True), sf.lit(False))
    active = sf.explode(sf.when(sf.col("is_last"), followed).otherwise(alone))
    both = windows.withColumn("is_last", is_last).withColumn("active", active)
    zeroed = {
        field.name: sf.when(sf.col("active"), sf.col(field.name)).otherwise(sf.lit(0).cast(field.dataType))
        for field in windows.schema.fields
        if field.name not in (*ENTITY, "start")
    }
    recorded = sf.broadcast(windows.select("start").distinct())
    start = sf.when(sf.col("active"), sf.col("start")).otherwise(next_start)
    return both.withColumns({**zeroed, "start": start}).join(recorded, "start", "left_semi")


def _by_quantity(windows: DataFrame) -> DataFrame:
    """Return a row for each of `QUANTITIES`: ``quantity``, ``value``, ``nothing``."""
    each = [
        sf.struct(
            sf.lit(name).alias("quantity"),
            sf.col(name).cast("double").alias("value"),
            sf.lit(nothing).alias("nothing"),
        )
        for name, nothing in QUANTITIES.items()
    ]
    return windows.select("start", *ENTITY, "active", *CONTEXT, sf.inline(sf.array(*each)))


def _score() -> Column:
    """Return the distance from the median in spreads, on logarithms."""
    lower, median, upper = (sf.log(sf.get("quartiles", index) + sf.col("nothing")) for index in range(3))
    spread = sf.greatest((upper - lower) / SIGMAS_BETWEEN_QUARTILES, sf.lit(LEAST_SPREAD))
    return (sf.log(sf.col("value") + sf.col("nothing")) - median) / spread


def _hour() -> Column:
    return sf.col("start") - sf.pmod("start", sf.lit(HOUR_S))


def _known_levels(rows: DataFrame, by: tuple[str, ...], hours: int) -> DataFrame:
    """Return, for each hour (``start``) and ``known_…`` of ``by``, the level reached (``most``) and the level fallen to
    (``least``) in this number of earlier hours.
    """
    earlier = Window.partitionBy(*by).orderBy("start").rowsBetween(Window.unboundedPreceding, -1)

    def nth(column: str, *, ascending: bool) -> Column:
        return sf.get(sf.sort_array(sf.collect_list(column).over(earlier), ascending), hours - 1)

    by_hour = rows.groupBy(*by, _hour().alias("start")).agg(
        sf.max("value").alias("highest"), sf.min("value").alias("lowest")
    )
    return by_hour.select(
        *(sf.col(name).alias(f"known_{name}") for name in by),
        "start",
        nth("highest", ascending=False).alias("most"),
        nth("lowest", ascending=True).alias("least"),
    )
