"""Windows of usage, and what is usual in them: what `pipeline.anomalies` judges by.

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
DAY_S: Final = 86_400

SIGMAS_BETWEEN_QUARTILES: Final = 1.349
"""Of a normal distribution."""
LEAST_SPREAD: Final = 0.1
"""Of logarithms, about 10 %: whoever has been even steadier may vary by that, too."""
ACCURACY: Final = 1000
"""Of quartiles: ranks are off by a thousandth at most."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What counts as unlike the past, and what as wrong in itself; the command's options."""

    window_s: int = 300
    """A storm lasts minutes; in an hour's sums it would be a twelfth of itself."""
    past_days: int = 14
    """Two weeks: each day of the week has come twice."""
    least_past: int = 36
    """Windows; fewer say little of what is usual."""
    score: float = 4.0
    """Of a normal distribution, one window in 30,000 is so far off."""
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
    refused = sf.aggregate(sf.map_values("refused"), sf.lit(0).cast("long"), lambda total, each: total + each)
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
    by_user = by_client.groupBy("start", "user").agg(*(sf.sum(name).alias(name) for name in sums))
    both = by_client.unionByName(by_user.withColumn("client_id", sf.lit(None).cast("string")))
    return both.withColumns(
        {
            "failed_share": sf.coalesce(sf.try_divide("failed", "requests"), sf.lit(0.0)),
            "bytes_per_request": sf.coalesce(sf.try_divide("bytes", "requests"), sf.lit(0.0)),
        }
    )


def with_past(windows: DataFrame, day: date, rules: Rules) -> DataFrame:
    """The windows of ``day``, each with its past. ``windows`` (`windows_of`) has those of the days before, too.

    For each of `QUANTITIES`, ``x``: ``usual_x`` and ``score_x``, null where the past is too short; and ``most_x``,
    ``least_x``, beyond which it has not been in ``known_hours`` earlier hours, null where there were not so many.
    ``active`` is false for a window in which the entity, which was there right before, has used nothing, and others
    have; ``steady`` says whether it had used something in nine of ten windows until then.
    """
    active = sf.col("active")
    earlier = Window.partitionBy(*ENTITY).orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    quartiles = {
        f"past_{name}": sf.percentile_approx(sf.when(active, sf.col(name)), [0.25, 0.5, 0.75], ACCURACY).over(earlier)
        for name in QUANTITIES
    }
    number = sf.count_if(active).over(earlier)
    since_s = sf.col("start") - sf.min("start").over(earlier)
    windows = _with_quiet(windows, rules.window_s)
    counted = windows.withColumns(
        {**quartiles, "past": number, "share": sf.try_divide(number * rules.window_s, since_s)}
    )
    judged = counted.where(sf.to_date(sf.timestamp_seconds("start")) == sf.lit(day))
    compared = sf.col("past") >= rules.least_past
    scored = judged.withColumns(
        {
            **{f"usual_{name}": sf.when(compared, sf.get(f"past_{name}", 1)) for name in QUANTITIES},
            **{f"score_{name}": sf.when(compared, _score(name, floor)) for name, floor in QUANTITIES.items()},
            "steady": compared & (sf.col("share") >= 0.9),
            "hour": _hour(),
        }
    )
    known = _known_levels(windows, rules.known_hours)
    same = [sf.col(name).eqNullSafe(sf.col(f"known_{name}")) for name in (*ENTITY, "hour")]
    joined: DataFrame = scored.join(known, same, "left")
    levels = {f"{side}_{name}": sf.col(side)[name] for side in ("most", "least") for name in QUANTITIES}
    return joined.withColumns(levels).drop("most", "least", *quartiles)


def _with_quiet(windows: DataFrame, window_s: int) -> DataFrame:
    """With a window of zeros behind the last of each run of windows, where others have used something then."""
    following = sf.lead("start").over(Window.partitionBy(*ENTITY).orderBy("start"))
    next_start = sf.col("start") + window_s
    ends = windows.withColumn("following", following).where(
        sf.col("following").isNull() | (sf.col("following") > next_start)
    )
    recorded = sf.broadcast(windows.select("start").distinct())
    quiet = ends.select(*ENTITY, next_start.alias("start")).join(recorded, "start", "left_semi")
    zeros = [sf.lit(0).cast(field.dataType).alias(field.name) for field in windows.schema.fields
             if field.name not in (*ENTITY, "start")]  # fmt: skip
    quiet = quiet.select("start", *ENTITY, *zeros, sf.lit(False).alias("active"))
    return windows.withColumn("active", sf.lit(True)).unionByName(quiet)


def _score(name: str, floor: float) -> Column:
    """How many spreads a window is off the median, by logarithms."""
    lower, median, upper = (sf.log(sf.get(f"past_{name}", index) + floor) for index in range(3))
    spread = sf.greatest((upper - lower) / SIGMAS_BETWEEN_QUARTILES, sf.lit(LEAST_SPREAD))
    return (sf.log(sf.col(name) + floor) - median) / spread


def _hour() -> Column:
    return sf.col("start") - sf.pmod("start", sf.lit(HOUR_S))


def _known_levels(windows: DataFrame, hours: int) -> DataFrame:
    """By entity and hour (``known_…``), as structs of `QUANTITIES`: the level that was reached (``most``), or fallen to
    (``least``), in so many earlier hours."""
    earlier = Window.partitionBy(*ENTITY).orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    extremes = [each(name).alias(f"{each.__name__}_{name}") for each in (sf.max, sf.min) for name in QUANTITIES]
    by_hour = windows.groupBy(*ENTITY, _hour().alias("hour")).agg(*extremes)

    def nth(column: str, *, descending: bool) -> Column:
        return sf.get(sf.sort_array(sf.collect_list(column).over(earlier), not descending), hours - 1)

    most = sf.struct(*(nth(f"max_{name}", descending=True).alias(name) for name in QUANTITIES))
    least = sf.struct(*(nth(f"min_{name}", descending=False).alias(name) for name in QUANTITIES))
    keys = (sf.col(name).alias(f"known_{name}") for name in (*ENTITY, "hour"))
    return by_hour.select(*keys, most.alias("most"), least.alias("least"))
