"""Windows of usage, and what is usual in them: what `headrace.pipeline.analysis.anomalies` judges by.

The past of a window are the earlier windows of the same user and client id in which something was used. Loads vary in
proportion, so all is compared by logarithms: what is usual is the median, its spread is the distance of the quartiles,
as sigmas of a normal distribution, and the score is how many spreads a window is off. One pass over an entity's windows
in their order has it all, and no window is looked at again for each of its successors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.usage import over_quotas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame

PRODUCE: Final = 0
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
INIT_PRODUCER_ID: Final = 22

ENTITY: Final = ("user", "client_id")
"""``client_id`` is null for all of the user's clients together."""
HOUR_S: Final = 3600

SIGMAS_BETWEEN_QUARTILES: Final = 1.349
"""Of a normal distribution."""
LEAST_SPREAD: Final = 0.1
"""Of logarithms, about 10 %: whoever has been even steadier may vary by that, too."""
ACCURACY: Final = 200
"""Of quartiles: ranks are off by half a percent at most."""

QUANTITIES: Final[Mapping[str, float]] = {
    "requests": 1.0,
    "failed_share": 0.01,
    "bytes": 1024.0,
    "bytes_per_request": 1.0,
    "thread_ms": 1.0,
    "new_ids": 1.0,
    "connections": 1.0,
}
"""What is compared, each with the amount that is as good as none: it is added before a logarithm is taken."""


CONTEXT: Final = ("requests", "failed", "produced", "bytes_per_request")
"""What else is told of a window."""
STEADY: Final = 0.9
"""Of the windows since the first: who is there less often comes and goes, and may stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as unlike the past, and what as wrong in itself; the command's options."""

    window_s: int = 300
    """A storm lasts minutes; in an hour's sums it would be a twelfth of itself."""
    past_days: int = 14
    """Two weeks: each day of the week has come twice."""
    least_past: int = 36
    """Windows; fewer say little of what is usual."""
    score: float = 5.0
    """At 4, one window in 30,000 of a normal distribution is so far above: a false alarm for 80 clients each day."""
    factor: float = 3.0
    """What is less than that above or below the usual is no news, however steady it was."""
    known_hours: int = 5
    """In how many earlier hours a level has come that is no news any more."""
    least_ids: int = 20
    """New producer ids in a window; this, and what follows, is told of from there on."""
    least_failed: int = 50
    """Requests that failed or were refused."""
    least_connections: int = 60
    least_bytes: int = 10 * 1024 * 1024
    least_thread_ms: float = 3000.0
    """One percent of a thread over five minutes."""


def windows_of(usage: DataFrame, window_s: int) -> DataFrame:
    """Usage (`schemas.USAGE`) by window (``start``, a second), user and client id, and by window and user alone."""
    api_key, requests = sf.col("api_key"), sf.col("requests")

    def of_api(key: int) -> Column:
        return sf.coalesce(sf.sum(sf.when(api_key == key, requests)), sf.lit(0))

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
            # The proxy counts new ids where a quota holds the sender; without one, requests for ids are all there is.
            sf.greatest(sf.sum("producer_ids"), of_api(INIT_PRODUCER_ID)).alias("new_ids"),
            of_api(PRODUCE).alias("produced"),
            # A client asks for versions once on each connection, and names its mechanism once.
            sf.greatest(of_api(API_VERSIONS), of_api(SASL_HANDSHAKE)).alias("connections"),
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
    """The windows of ``day``, each with its past: a row for each of `QUANTITIES`, with its ``value``.

    ``windows`` (`windows_of`) has the days before, too, and is read several times: persist it. ``usual`` and ``score``
    are null where the past is too short. ``most`` and ``least``: beyond them the value has not been in ``known_hours``
    earlier hours; null where there were not so many. ``steady``: in nine of ten windows until then something was used.
    A window in which nothing is, right behind one in which something was, is there, too, where others have used
    something.
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
    judged = counted.where(of_day).join(known, [*same, _hour() == sf.col("known_hour")], "left")
    compared = sf.col("past") >= rules.least_past
    share = sf.try_divide(sf.col("past") * rules.window_s, sf.col("start") - sf.col("since"))
    return judged.select(
        *("start", *by, "value", "most", "least", *CONTEXT),
        sf.when(compared, sf.get("quartiles", 1)).alias("usual"),
        sf.when(compared, _score()).alias("score"),
        (compared & (share >= STEADY)).alias("steady"),
    )


def _with_quiet(windows: DataFrame, window_s: int) -> DataFrame:
    """With a window of zeros behind the last of each run of windows, where others have used something then."""
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
    """A row for each of `QUANTITIES`: ``quantity``, ``value``, ``nothing``."""
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
    """How many spreads a window is off the median, by logarithms."""
    lower, median, upper = (sf.log(sf.get("quartiles", index) + sf.col("nothing")) for index in range(3))
    spread = sf.greatest((upper - lower) / SIGMAS_BETWEEN_QUARTILES, sf.lit(LEAST_SPREAD))
    return (sf.log(sf.col("value") + sf.col("nothing")) - median) / spread


def _hour() -> Column:
    return sf.col("start") - sf.pmod("start", sf.lit(HOUR_S))


def _known_levels(rows: DataFrame, by: tuple[str, ...], hours: int) -> DataFrame:
    """For each hour (``start``) and ``known_…`` of ``by``: the level that was reached (``most``), or fallen to
    (``least``), in so many earlier hours."""
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
