"""Anomalies: windows in which somebody is unlike their own past, or does what is wrong in itself.

    producer-id-churn    producer ids are asked for as if a record or two had a producer of their own
    retry-storm          requests fail, or there are many more of them that carry much less
    connection-storm     connections are opened as if a request or two had one of their own
    sudden-change        many times, or a fraction of, the usual bytes or thread time, or nothing at all any more

What is unlike the past is off by a factor and by several times the usual spread
(`headrace.pipeline.analysis.anomaly_baselines`), and has not come in several hours before: a nightly job, or a new
level that stays, is known by then. Who has too short a past is compared with nothing; the rules that need no past hold
for all.

Clients that have another client id each time have no past by it, so all clients of a user together are judged, too, and
told of where none of them is told of for the same.
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
"""A producer that sends twenty requests was worth its id; a hundred new pods are no churn."""
ABSOLUTE: Final = 5
"""Rules without a past begin at so many times the least amount."""
FAILED_SHARE: Final = 0.1
"""Of requests; with a past to compare with."""
HALF: Final = 0.5
"""Without a past: of requests that fail, Produce requests with an id of their own, requests that open connections."""
LEAST_REQUESTS: Final = 1000
"""For requests that carry nothing: fewer are a client that polls what is idle."""


class Kind(StrEnum):
    """What an anomaly is."""

    PRODUCER_ID_CHURN = "producer-id-churn"
    RETRY_STORM = "retry-storm"
    CONNECTION_STORM = "connection-storm"
    SUDDEN_CHANGE = "sudden-change"


def anomalies(windows: DataFrame, day: date, until_s: int, rules: Rules) -> DataFrame:
    """What is unlike the past, or wrong, on ``day`` (`schemas.ANOMALIES`). ``windows`` (`windows_of`) has that day and
    those before; persist it. A window that is not over by the second ``until_s`` is not judged yet."""
    judged = with_past(windows, day, rules).where(sf.col("start") + rules.window_s <= until_s)
    return _runs(_without_repeats(_told(_found(judged, rules), rules)), rules.window_s)


# --- the rules --------------------------------------------------------------------------------------------------------


def _found(judged: DataFrame, rules: Rules) -> DataFrame:
    """Of each window and kind the quantity that is furthest off; ``usual_each`` is of bytes of a request."""
    quantity, usual, value = sf.col("quantity"), sf.col("usual"), sf.col("value")
    emptier = (quantity == "bytes_per_request") & (value * rules.factor < usual)
    far = judged.withColumns(
        {
            "above": _above(rules) & _worth_telling(rules),
            "below": _below(rules) & _worth_missing(rules),
            "alone": _wrong_in_itself(rules),
            "emptier": sf.coalesce(emptier, sf.lit(False)),
        }
    ).where("above or below or alone or emptier")
    window = Window.partitionBy("start", *ENTITY)
    usual_each = sf.max(sf.when(sf.col("emptier"), usual)).over(window)
    known = far.withColumns({"kind": _kind(), "usual_each": usual_each}).where(
        sf.col("kind").isNotNull() & ((quantity != "requests") | sf.col("usual_each").isNotNull())
    )
    # Requests that fail say more than that there are many; of bytes and time, the one that is further off.
    first = (sf.desc(quantity == "failed_share"), sf.desc(sf.abs("score")), "quantity")
    number = sf.row_number().over(Window.partitionBy("start", *ENTITY, "kind").orderBy(*first))
    return known.withColumn("number", number).where("number = 1")


def _kind() -> Column:
    """Null for a quantity that is none by itself."""
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
    """False, not null, where there is no past."""
    value, most = sf.col("value"), sf.col("most")
    far = (value > sf.col("usual") * rules.factor) & (sf.col("score") >= rules.score)
    return sf.coalesce(far, sf.lit(False)) & (most.isNull() | (value > most))


def _below(rules: Rules) -> Column:
    """Of those alone who are there nearly always."""
    value, least = sf.col("value"), sf.col("least")
    far = sf.col("steady") & (value * rules.factor < sf.col("usual")) & (sf.col("score") <= -rules.score)
    return sf.coalesce(far, sf.lit(False)) & (least.isNull() | (value < least))


def _worth_telling(rules: Rules) -> Column:
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


def _worth_missing(rules: Rules) -> Column:
    usual = sf.col("usual")
    least = {"bytes": usual >= rules.least_bytes, "thread_ms": usual >= rules.least_thread_ms}
    return sf.coalesce(_by_quantity(least, sf.lit(False)), sf.lit(False))


def _wrong_in_itself(rules: Rules) -> Column:
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


# --- words ------------------------------------------------------------------------------------------------------------


def _told(found: DataFrame, rules: Rules) -> DataFrame:
    """With a sentence."""
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
    return found.withColumn("told", sf.concat(_who(), sf.lit(": "), _by_quantity(sentences, sf.lit(""))))


def _who() -> Column:
    all_clients = sf.concat(sf.lit("all clients of "), "user")
    return sf.when(sf.col("client_id").isNull(), all_clients).otherwise(sf.concat("client_id", sf.lit(" of "), "user"))


def _times() -> Column:
    """`: 4.0 times as much`; nothing where nothing is usual."""
    ratio = sf.try_divide("value", "usual")
    more = sf.when(ratio >= 1, sf.concat(sf.format_number(ratio, 1), sf.lit(" times as much")))
    less = sf.when(ratio > 0, sf.concat(_percent(ratio), sf.lit(" of it"))).when(ratio == 0, "nothing at all")
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
    """`5 minutes`."""
    count, unit = (seconds // 3600, "hour") if seconds % 3600 == 0 else (seconds // 60, "minute")
    return f"{count} {unit}" + ("s" if count != 1 else "")


# --- runs -------------------------------------------------------------------------------------------------------------


def _without_repeats(found: DataFrame) -> DataFrame:
    """Of all clients of a user together only what none of the clients is told of."""
    client = sf.col("client_id").isNotNull()
    of_clients = sf.max(client).over(Window.partitionBy("start", "user", "kind"))
    return found.withColumn("of_clients", of_clients).where(client | ~sf.col("of_clients"))


def _runs(found: DataFrame, window_s: int) -> DataFrame:
    """Windows that follow each other as one anomaly, told by the one furthest off; up and down are two."""
    of_run = (*ENTITY, "kind", "quantity", "direction")
    number = sf.row_number().over(Window.partitionBy(*of_run).orderBy("start"))
    furthest = sf.struct(sf.abs(sf.coalesce("score", sf.lit(0.0))), "value", -sf.col("start"))
    worst = sf.max_by(sf.struct("value", "usual", "score", "told"), furthest)
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
        sf.concat("worst.told", sf.when(sf.col("windows") > 1, lasting).otherwise("")).alias("told"),
        "windows",
    )
