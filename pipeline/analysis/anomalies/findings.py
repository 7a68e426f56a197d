"""The anomalies of a day: their kinds and descriptions. Consecutive windows of a kind are one anomaly."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.anomalies.rules import ENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.analysis.anomalies.rules import Rules


class Kind(StrEnum):
    """The kinds of anomalies."""

    PRODUCER_ID_CHURN = "producer-id-churn"
    RETRY_STORM = "retry-storm"
    CONNECTION_STORM = "connection-storm"
    SUDDEN_CHANGE = "sudden-change"


def anomalies(deviations: DataFrame, rules: Rules) -> DataFrame:
    """Return the anomalies (`schemas.ANOMALIES`) in ``deviations`` (`DEVIATIONS`)."""
    return _runs(_without_repeats(_with_description(_worst_of_kind(deviations), rules)), rules.window_s)


def _worst_of_kind(deviations: DataFrame) -> DataFrame:
    """Return, for each window and kind, the quantity that deviates most."""
    # The share of failures has precedence over the number of requests; of bytes and time, the larger deviation.
    first = (sf.desc(sf.col("quantity") == "failed_share"), sf.desc(sf.abs("score")), "quantity")
    number = sf.row_number().over(Window.partitionBy("start", *ENTITY, "kind").orderBy(*first))
    return deviations.withColumn("kind", _kind()).withColumn("number", number).where("number = 1")


def _kind() -> Column:
    """Return the kind by quantity."""
    kinds = {
        "new_ids": Kind.PRODUCER_ID_CHURN,
        "failed_share": Kind.RETRY_STORM,
        "requests": Kind.RETRY_STORM,
        "connections": Kind.CONNECTION_STORM,
        "bytes": Kind.SUDDEN_CHANGE,
        "thread_ms": Kind.SUDDEN_CHANGE,
    }
    return _by_quantity({name: sf.lit(kind.value) for name, kind in kinds.items()}, sf.lit(None).cast("string"))


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
    of_clients = sf.max(client).over(Window.partitionBy("start", "cluster", "user", "kind"))
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
        "user",
        "client_id",
        sf.col("worst.value").alias("observed"),
        "worst.usual",
        "worst.score",
        sf.concat("worst.description", sf.when(sf.col("windows") > 1, lasting).otherwise("")).alias("description"),
        "windows",
        "cluster",
    )
