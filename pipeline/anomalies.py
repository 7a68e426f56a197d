"""Anomalies: windows in which somebody is unlike their own past, or does what is wrong in itself.

    producer-id-churn    producer ids are asked for as if a record or two had a producer of their own
    retry-storm          requests fail, or there are many more of them that carry much less
    connection-storm     connections are opened as if a request or two had one of their own
    sudden-change        many times, or a fraction of, the usual bytes or thread time, or nothing at all any more

What is unlike the past is off by a factor and by several times the usual spread (`pipeline.anomaly_past`), and has not
come in several hours before: a nightly job, or a new level that stays, is known by then. Who has too short a past is
compared with nothing; the rules that need no past hold for all.

Clients that have another client id each time have no past by it, so all clients of a user together are judged, too, and
told of where none of them is told of for the same.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from pipeline import schemas
from pipeline.anomaly_past import ENTITY, Rules, windows_of, with_past

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import date

    from pyspark.sql import Column, DataFrame

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


def anomalies(usage: DataFrame, day: date, until_s: int, rules: Rules) -> DataFrame:
    """What is unlike the past, or wrong, on ``day`` (`schemas.ANOMALIES`). ``usage`` (`schemas.USAGE`) has that day and
    those before. A window that is not over by the second ``until_s`` is not judged yet."""
    windows = windows_of(usage, rules.window_s)
    judged = with_past(windows, day, rules).where(sf.col("start") + rules.window_s <= until_s)
    found = judged.select("start", *ENTITY, sf.explode(sf.array_compact(sf.array(*_candidates(rules)))).alias("found"))
    return _runs(_without_repeats(found.select("start", *ENTITY, "found.*")), rules.window_s)


# --- the kinds --------------------------------------------------------------------------------------------------------


def _candidates(rules: Rules) -> tuple[Column, ...]:
    """One struct for each kind: null where there is none."""
    return _churn(rules), _retries(rules), _connections(rules), _change(rules)


def _churn(rules: Rules) -> Column:
    ids, produced = sf.col("new_ids"), sf.col("produced")
    compared = _above("new_ids", rules) & (ids >= rules.least_ids) & (ids >= produced * IDS_PER_PRODUCE)
    absolute = (ids >= rules.least_ids * ABSOLUTE) & (ids >= produced * HALF)
    told = sf.concat(
        _number(ids), sf.lit(" new producer ids in "), _time(rules), _usual("new_ids"), sf.lit(", for "),
        _number(produced), sf.lit(" Produce requests"),
    )  # fmt: skip
    return sf.when(compared | absolute, _found(Kind.PRODUCER_ID_CHURN, "new_ids", told))


def _retries(rules: Rules) -> Column:
    failed, share, requests = sf.col("failed"), sf.col("failed_share"), sf.col("requests")
    compared = _above("failed_share", rules) & (failed >= rules.least_failed) & (share >= FAILED_SHARE)
    absolute = (failed >= rules.least_failed * ABSOLUTE) & (share >= HALF)
    failing = sf.concat(
        _percent(share), sf.lit(" of "), _number(requests), sf.lit(" requests in "), _time(rules),
        sf.lit(" failed or were refused"), _usual("failed_share", _percent),
    )  # fmt: skip
    each = sf.col("bytes_per_request")
    emptier = each * rules.factor < sf.col("usual_bytes_per_request")
    repeating = _above("requests", rules) & (requests >= LEAST_REQUESTS) & emptier
    more = sf.concat(
        _number(requests), sf.lit(" requests in "), _time(rules), _usual("requests"), sf.lit(", with "), _bytes(each),
        sf.lit(" each"), _usual("bytes_per_request", _bytes),
    )  # fmt: skip
    return sf.when(compared | absolute, _found(Kind.RETRY_STORM, "failed_share", failing)).when(
        repeating, _found(Kind.RETRY_STORM, "requests", more)
    )


def _connections(rules: Rules) -> Column:
    opened, requests = sf.col("connections"), sf.col("requests")
    compared = _above("connections", rules) & (opened >= rules.least_connections)
    absolute = (opened >= rules.least_connections * ABSOLUTE) & (opened >= requests * HALF)
    told = sf.concat(
        _number(opened), sf.lit(" connections opened in "), _time(rules), _usual("connections"), sf.lit(", for "),
        _number(requests), sf.lit(" requests"),
    )  # fmt: skip
    return sf.when(compared | absolute, _found(Kind.CONNECTION_STORM, "connections", told))


def _change(rules: Rules) -> Column:
    """Of bytes and thread time, whichever is further off; bytes, where both are as far."""

    def change(name: str, least: float, shown: Column) -> Column:
        changed = (_above(name, rules) & (sf.col(name) >= least)) | (
            _below(name, rules) & (sf.col(f"usual_{name}") >= least)
        )
        return sf.when(changed, _found(Kind.SUDDEN_CHANGE, name, shown))

    size, time = sf.col("bytes"), sf.col("thread_ms")
    of_bytes = sf.concat(_bytes(size), sf.lit(" in "), _time(rules), _usual("bytes", _bytes), _times("bytes"))
    of_time = sf.concat(
        _seconds(time), sf.lit(" of thread time in "), _time(rules), _usual("thread_ms", _seconds), _times("thread_ms")
    )
    bytes_changed = change("bytes", rules.least_bytes, of_bytes)
    time_changed = change("thread_ms", rules.least_thread_ms, of_time)
    further = sf.abs("score_thread_ms") > sf.abs("score_bytes")
    return sf.when(bytes_changed.isNull() | (time_changed.isNotNull() & further), time_changed).otherwise(bytes_changed)


def _above(name: str, rules: Rules) -> Column:
    """False, not null, where there is no past."""
    value, most = sf.col(name), sf.col(f"most_{name}")
    far = (value > sf.col(f"usual_{name}") * rules.factor) & (sf.col(f"score_{name}") >= rules.score)
    return sf.coalesce(far, sf.lit(False)) & (most.isNull() | (value > most))


def _below(name: str, rules: Rules) -> Column:
    """Of those alone who are there nearly always: the others come and go."""
    value, least = sf.col(name), sf.col(f"least_{name}")
    far = (value * rules.factor < sf.col(f"usual_{name}")) & (sf.col(f"score_{name}") <= -rules.score)
    return sf.coalesce(far & sf.col("steady"), sf.lit(False)) & (least.isNull() | (value < least))


def _found(kind: Kind, name: str, told: Column) -> Column:
    return sf.struct(
        sf.lit(kind.value).alias("kind"),
        sf.col(name).cast("double").alias("observed"),
        sf.col(f"usual_{name}").cast("double").alias("usual"),
        sf.col(f"score_{name}").alias("score"),
        sf.concat(_who(), sf.lit(": "), told).alias("told"),
        # Up and down are two runs, and so are two rules of a kind.
        sf.concat(sf.lit(name), sf.signum(sf.coalesce(f"score_{name}", sf.lit(0.0)))).alias("run"),
    )


# --- words ------------------------------------------------------------------------------------------------------------


def _who() -> Column:
    all_clients = sf.concat(sf.lit("all clients of "), "user")
    return sf.when(sf.col("client_id").isNull(), all_clients).otherwise(sf.concat("client_id", sf.lit(" of "), "user"))


def _usual(name: str, shown: Callable[[Column], Column] | None = None) -> Column:
    """`, usually 3`; nothing where there is no past."""
    text = (shown or _number)(sf.col(f"usual_{name}"))
    return sf.coalesce(sf.concat(sf.lit(", usually "), text), sf.lit(""))


def _times(name: str) -> Column:
    """`: 4.0 times as much`; nothing where nothing is usual."""
    ratio = sf.try_divide(sf.col(name), sf.col(f"usual_{name}"))
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


def _time(rules: Rules) -> Column:
    return sf.lit(duration(rules.window_s))


def duration(seconds: int) -> str:
    """`5 minutes`."""
    count, unit = (seconds // 3600, "hour") if seconds % 3600 == 0 else (seconds // 60, "minute")
    return f"{count} {unit}" + ("s" if count != 1 else "")


# --- runs -------------------------------------------------------------------------------------------------------------


def _without_repeats(found: DataFrame) -> DataFrame:
    """Of all clients of a user together only what none of the clients is told of."""
    alone = sf.col("client_id").isNotNull()
    of_clients = found.where(alone).select("start", "user", "kind")
    return found.where(alone).unionByName(
        found.where(~alone).join(of_clients, ["start", "user", "kind"], "left_anti").select(*found.columns)
    )


def _runs(found: DataFrame, window_s: int) -> DataFrame:
    """Windows that follow each other as one anomaly, told by the one furthest off."""
    of_run = (*ENTITY, "kind", "run")
    number = sf.row_number().over(Window.partitionBy(*of_run).orderBy("start"))
    furthest = sf.struct(sf.abs(sf.coalesce("score", sf.lit(0.0))), sf.abs("observed"), -sf.col("start"))
    worst = sf.max_by(sf.struct("observed", "usual", "score", "told"), furthest)
    runs = (
        found.withColumn("island", sf.col("start") - number * window_s)
        .groupBy(*of_run, "island")
        .agg(sf.min("start").alias("start"), sf.count("*").alias("windows"), worst.alias("worst"))
    )
    lasting = sf.concat(sf.lit("; for "), sf.col("windows") * (window_s // 60), sf.lit(" minutes"))
    told = sf.concat("worst.told", sf.when(sf.col("windows") > 1, lasting).otherwise(""))
    named = runs.select(sf.timestamp_seconds("start").alias("start"), "kind", *ENTITY, "worst.observed", "worst.usual",
                        "worst.score", told.alias("told"), "windows")  # fmt: skip
    return named.select(*schemas.ANOMALIES.names)
