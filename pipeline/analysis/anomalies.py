"""Anomalies: windows of usage that deviate from an entity's past, or that are suspicious without any past.

    producer-id-churn    many producer ids are requested for few Produce requests
    retry-storm          many requests fail, or there are many more of them that carry much less data
    connection-storm     many connections are opened for few requests
    sudden-change        bytes or thread time are a multiple or a fraction of the usual, or stop

A value deviates if it differs from the usual by a factor and by several times the usual spread
(`headrace.pipeline.analysis.anomaly_baselines`), and was not reached in several earlier hours. The last condition
excludes nightly jobs and lasting new levels after some time. An entity whose past is too short is not compared; the
rules that need no past apply to all entities.

Clients that use a new client id each time have no past. Therefore all clients of a user are also examined together,
and reported if none of the single clients is reported for the same kind in the same window.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomaly_baselines import ENTITY, with_past

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import date

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.analysis.anomaly_baselines import Rules

IDS_PER_PRODUCE: Final = 0.05
"""Minimum of new producer ids per Produce request. A producer with twenty requests has made use of its id, so a hundred
new pods are not churn.
"""
ABSOLUTE: Final = 5
"""The rules without a past apply from this multiple of the minimum amounts."""
FAILED_SHARE: Final = 0.1
"""Minimum share of failed requests, for entities with a past."""
HALF: Final = 0.5
"""Minimum share without a past: of requests that fail, of Produce requests with a new id, of requests that open a
connection.
"""
LEAST_REQUESTS: Final = 1000
"""Minimum for requests that carry little data; fewer come from a client that polls idle topics."""


class Kind(StrEnum):
    """The kinds of anomalies."""

    PRODUCER_ID_CHURN = "producer-id-churn"
    RETRY_STORM = "retry-storm"
    CONNECTION_STORM = "connection-storm"
    SUDDEN_CHANGE = "sudden-change"


def anomalies(windows: DataFrame, day: date, until_s: int, rules: Rules) -> DataFrame:
    """Return the anomalies of ``day`` (`schemas.ANOMALIES`).

    ``windows`` (`windows_of`) must have that day and the days before; it is read several times, so persist it. Windows
    that end after the second ``until_s`` are not examined yet.
    """
    compared = with_past(windows, day, rules).where(sf.col("start") + rules.window_s <= until_s)
    return _runs(_without_repeats(_with_description(_found(compared, rules), rules)), rules.window_s)


# --- the rules --------------------------------------------------------------------------------------------------------


def _found(compared: DataFrame, rules: Rules) -> DataFrame:
    """Return, for each window and kind, the quantity that deviates most. ``usual_each`` is the usual number of bytes
    per request.
    """
    quantity, usual, value = sf.col("quantity"), sf.col("usual"), sf.col("value")
    emptier = (quantity == "bytes_per_request") & (value * rules.factor < usual)
    far = compared.withColumns(
        {
            "above": _above(rules) & _large_enough(rules),
            "below": _below(rules) & _usually_large_enough(rules),
            "alone": _wrong_without_past(rules),
            "emptier": sf.coalesce(emptier, sf.lit(False)),
        }
    ).where("above or below or alone or emptier")
    window = Window.partitionBy("start", *ENTITY)
    usual_each = sf.max(sf.when(sf.col("emptier"), usual)).over(window)
    known = far.withColumns({"kind": _kind(), "usual_each": usual_each}).where(
        sf.col("kind").isNotNull() & ((quantity != "requests") | sf.col("usual_each").isNotNull())
    )
    # The share of failures has precedence over the number of requests; of bytes and time, the larger deviation.
    first = (sf.desc(quantity == "failed_share"), sf.desc(sf.abs("score")), "quantity")
    number = sf.row_number().over(Window.partitionBy("start", *ENTITY, "kind").orderBy(*first))
    return known.withColumn("number", number).where("number = 1")


def _kind() -> Column:
    """Return the kind by quantity; null for a quantity that is not an anomaly by itself."""
    kinds = {
        "new_ids": Kind.PRODUCER_ID_CHURN,
        "failed_share": Kind.RETRY_STORM,
        "requests": Kind.RETRY_STORM,
        "connections": Kind.CONNECTION_STORM,
        "bytes": Kind.SUDDEN_CHANGE,
        "thread_ms": Kind.SUDDEN_CHANGE,
    }
    return _by_quantity({name: sf.lit(kind.value) for name, kind in kinds.items()}, sf.lit(None).cast("string"))


def _above(rules: Rules) -> Column:
    """Return whether the value is unusually high; false, not null, without a past."""
    value, most = sf.col("value"), sf.col("most")
    far = (value > sf.col("usual") * rules.factor) & (sf.col("score") >= rules.score)
    return sf.coalesce(far, sf.lit(False)) & (most.isNull() | (value > most))


def _below(rules: Rules) -> Column:
    """Return whether the value is unusually low, for entities that are active nearly always."""
    value, least = sf.col("value"), sf.col("least")
    far = sf.col("steady") & (value * rules.factor < sf.col("usual")) & (sf.col("score") <= -rules.score)
    return sf.coalesce(far, sf.lit(False)) & (least.isNull() | (value < least))


def _large_enough(rules: Rules) -> Column:
    value = sf.col("value")
    return _by_quantity(
        {
            "new_ids": (value >= rules.least_ids) & (value >= sf.col("produced") * IDS_PER_PRODUCE),
            "failed_share": (sf.col("failed") >= rules.least_failed) & (value >= FAILED_SHARE),
            "requests": value >= LEAST_REQUESTS,
            "connections": value >= rules.least_connections,
            "bytes": value >= rules.least_bytes,
            "thread_ms": value >= rules.least_thread_ms,
        },
        sf.lit(False),
    )


def _usually_large_enough(rules: Rules) -> Column:
    usual = sf.col("usual")
    least = {"bytes": usual >= rules.least_bytes, "thread_ms": usual >= rules.least_thread_ms}
    return sf.coalesce(_by_quantity(least, sf.lit(False)), sf.lit(False))


def _wrong_without_past(rules: Rules) -> Column:
    value = sf.col("value")
    return _by_quantity(
        {
            "new_ids": (value >= rules.least_ids * ABSOLUTE) & (value >= sf.col("produced") * HALF),
            "failed_share": (sf.col("failed") >= rules.least_failed * ABSOLUTE) & (value >= HALF),
            "connections": (value >= rules.least_connections * ABSOLUTE) & (value >= sf.col("requests") * HALF),
        },
        sf.lit(False),
    )


def _by_quantity(values: Mapping[str, Column], otherwise: Column) -> Column:
    quantity = sf.col("quantity")
    return sf.coalesce(*(sf.when(quantity == name, value) for name, value in values.items()), otherwise)


# --- descriptions -----------------------------------------------------------------------------------------------------


def _with_description(found: DataFrame, rules: Rules) -> DataFrame:
    """Add ``description``, a sentence."""
    value, requests = sf.col("value"), _number(sf.col("requests"))
    time = sf.lit(duration(rules.window_s))

    def usually(shown: Callable[[Column], Column], usual: str = "usual") -> Column:
        return sf.coalesce(sf.concat(sf.lit(", usually "), shown(sf.col(usual))), sf.lit(""))

    texts: dict[str, tuple[Column | str, ...]] = {
        "new_ids": (_number(value), " new producer ids in ", time, usually(_number), ", for ",
                    _number(sf.col("produced")), " Produce requests"),
        "failed_share": (_percent(value), " of ", requests, " requests in ", time, " failed or were refused",
                         usually(_percent)),
        "requests": (_number(value), " requests in ", time, usually(_number), ", with ",
                     _bytes(sf.col("bytes_per_request")), " each", usually(_bytes, "usual_each")),
        "connections": (_number(value), " connections opened in ", time, usually(_number), ", for ", requests,
                        " requests"),
        "bytes": (_bytes(value), " in ", time, usually(_bytes), _times()),
        "thread_ms": (_seconds(value), " of thread time in ", time, usually(_seconds), _times()),
    }  # fmt: skip
    sentences = {
        name: sf.concat(*(sf.lit(part) if isinstance(part, str) else part for part in parts))
        for name, parts in texts.items()
    }
    return found.withColumn("description", sf.concat(_sender_name(), sf.lit(": "), _by_quantity(sentences, sf.lit(""))))


def _sender_name() -> Column:
    all_clients = sf.concat(sf.lit("all clients of "), "user")
    return sf.when(sf.col("client_id").isNull(), all_clients).otherwise(sf.concat("client_id", sf.lit(" of "), "user"))


def _times() -> Column:
    """Return text such as `: 4.0 times as much`; empty if the usual value is 0 or unknown."""
    ratio = sf.try_divide("value", "usual")
    more = sf.when(ratio >= 1, sf.concat(sf.format_number(ratio, 1), sf.lit(" times as much")))
    less = sf.when(ratio > 0, sf.concat(_percent(ratio), sf.lit(" of the usual"))).when(ratio == 0, "none")
    return sf.coalesce(sf.concat(sf.lit(": "), sf.coalesce(more, less)), sf.lit(""))


def _number(value: Column) -> Column:
    return sf.format_number(value.cast("double"), 0)


def _percent(value: Column) -> Column:
    return sf.concat(sf.format_number(value * 100, 1), sf.lit(" %"))


def _seconds(ms: Column) -> Column:
    return sf.concat(sf.format_number(ms / 1000, 1), sf.lit(" s"))


def _bytes(value: Column) -> Column:
    text = sf.concat(sf.format_number(value.cast("double"), 0), sf.lit(" B"))
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1):
        size = 1024.0**power
        text = sf.when(value >= size, sf.concat(sf.format_number(value / size, 1), sf.lit(f" {unit}"))).otherwise(text)
    return text


def duration(seconds: int) -> str:
    """Return a duration as text, such as `5 minutes`."""
    count, unit = (seconds // 3600, "hour") if seconds % 3600 == 0 else (seconds // 60, "minute")
    return f"{count} {unit}" + ("s" if count != 1 else "")


# --- runs -------------------------------------------------------------------------------------------------------------


def _without_repeats(found: DataFrame) -> DataFrame:
    """Remove rows of all clients of a user together if a single client has a row of the same window and kind."""
    client = sf.col("client_id").isNotNull()
    of_clients = sf.max(client).over(Window.partitionBy("start", "user", "kind"))
    return found.withColumn("of_clients", of_clients).where(client | ~sf.col("of_clients"))


def _runs(found: DataFrame, window_s: int) -> DataFrame:
    """Merge consecutive windows into one anomaly, described by the window that deviates most; rises and falls stay
    separate.
    """
    of_run = (*ENTITY, "kind", "quantity", "direction")
    number = sf.row_number().over(Window.partitionBy(*of_run).orderBy("start"))
    furthest = sf.struct(sf.abs(sf.coalesce("score", sf.lit(0.0))), "value", -sf.col("start"))
    worst = sf.max_by(sf.struct("value", "usual", "score", "description"), furthest)
    runs = (
        found.withColumn("direction", sf.signum(sf.coalesce("score", sf.lit(0.0))))
        .withColumn("island", sf.col("start") - number * window_s)
        .groupBy(*of_run, "island")
        .agg(sf.min("start").alias("start"), sf.count("*").alias("windows"), worst.alias("worst"))
    )
    lasting = sf.concat(sf.lit("; for "), sf.col("windows") * (window_s // 60), sf.lit(" minutes"))
    return runs.select(
        sf.timestamp_seconds("start").alias("start"),
        "kind",
        *ENTITY,
        sf.col("worst.value").alias("observed"),
        "worst.usual",
        "worst.score",
        sf.concat("worst.description", sf.when(sf.col("windows") > 1, lasting).otherwise("")).alias("description"),
        "windows",
    )
