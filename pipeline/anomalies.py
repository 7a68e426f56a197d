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
from pyspark.sql import functions as F

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
    judged = with_past(windows, day, rules).where(F.col("start") + rules.window_s <= until_s)
    found = judged.select("start", *ENTITY, F.explode(F.array_compact(F.array(*_candidates(rules)))).alias("found"))
    return _runs(_without_repeats(found.select("start", *ENTITY, "found.*")), rules.window_s)


# --- the kinds --------------------------------------------------------------------------------------------------------


def _candidates(rules: Rules) -> tuple[Column, ...]:
    """One struct for each kind: null where there is none."""
    return _churn(rules), _retries(rules), _connections(rules), _change(rules)


def _churn(rules: Rules) -> Column:
    ids, produced = F.col("new_ids"), F.col("produced")
    compared = _above("new_ids", rules) & (ids >= rules.least_ids) & (ids >= produced * IDS_PER_PRODUCE)
    absolute = (ids >= rules.least_ids * ABSOLUTE) & (ids >= produced * HALF)
    told = F.concat(
        _number(ids), F.lit(" new producer ids in "), _time(rules), _usual("new_ids"), F.lit(", for "),
        _number(produced), F.lit(" Produce requests"),
    )  # fmt: skip
    return F.when(compared | absolute, _found(Kind.PRODUCER_ID_CHURN, "new_ids", told))


def _retries(rules: Rules) -> Column:
    failed, share, requests = F.col("failed"), F.col("failed_share"), F.col("requests")
    compared = _above("failed_share", rules) & (failed >= rules.least_failed) & (share >= FAILED_SHARE)
    absolute = (failed >= rules.least_failed * ABSOLUTE) & (share >= HALF)
    failing = F.concat(
        _percent(share), F.lit(" of "), _number(requests), F.lit(" requests in "), _time(rules),
        F.lit(" failed or were refused"), _usual("failed_share", _percent),
    )  # fmt: skip
    each = F.col("bytes_per_request")
    emptier = each * rules.factor < F.col("usual_bytes_per_request")
    repeating = _above("requests", rules) & (requests >= LEAST_REQUESTS) & emptier
    more = F.concat(
        _number(requests), F.lit(" requests in "), _time(rules), _usual("requests"), F.lit(", with "), _bytes(each),
        F.lit(" each"), _usual("bytes_per_request", _bytes),
    )  # fmt: skip
    return F.when(compared | absolute, _found(Kind.RETRY_STORM, "failed_share", failing)).when(
        repeating, _found(Kind.RETRY_STORM, "requests", more)
    )


def _connections(rules: Rules) -> Column:
    opened, requests = F.col("connections"), F.col("requests")
    compared = _above("connections", rules) & (opened >= rules.least_connections)
    absolute = (opened >= rules.least_connections * ABSOLUTE) & (opened >= requests * HALF)
    told = F.concat(
        _number(opened), F.lit(" connections opened in "), _time(rules), _usual("connections"), F.lit(", for "),
        _number(requests), F.lit(" requests"),
    )  # fmt: skip
    return F.when(compared | absolute, _found(Kind.CONNECTION_STORM, "connections", told))


def _change(rules: Rules) -> Column:
    """Of bytes and thread time, whichever is further off; bytes, where both are as far."""

    def change(name: str, least: float, shown: Column) -> Column:
        changed = (_above(name, rules) & (F.col(name) >= least)) | (
            _below(name, rules) & (F.col(f"usual_{name}") >= least)
        )
        return F.when(changed, _found(Kind.SUDDEN_CHANGE, name, shown))

    size, time = F.col("bytes"), F.col("thread_ms")
    of_bytes = F.concat(_bytes(size), F.lit(" in "), _time(rules), _usual("bytes", _bytes), _times("bytes"))
    of_time = F.concat(
        _seconds(time), F.lit(" of thread time in "), _time(rules), _usual("thread_ms", _seconds), _times("thread_ms")
    )
    bytes_changed = change("bytes", rules.least_bytes, of_bytes)
    time_changed = change("thread_ms", rules.least_thread_ms, of_time)
    further = F.abs("score_thread_ms") > F.abs("score_bytes")
    return F.when(bytes_changed.isNull() | (time_changed.isNotNull() & further), time_changed).otherwise(bytes_changed)


def _above(name: str, rules: Rules) -> Column:
    """False, not null, where there is no past."""
    value, most = F.col(name), F.col(f"most_{name}")
    far = (value > F.col(f"usual_{name}") * rules.factor) & (F.col(f"score_{name}") >= rules.score)
    return F.coalesce(far, F.lit(False)) & (most.isNull() | (value > most))


def _below(name: str, rules: Rules) -> Column:
    """Of those alone who are there nearly always: the others come and go."""
    value, least = F.col(name), F.col(f"least_{name}")
    far = (value * rules.factor < F.col(f"usual_{name}")) & (F.col(f"score_{name}") <= -rules.score)
    return F.coalesce(far & F.col("steady"), F.lit(False)) & (least.isNull() | (value < least))


def _found(kind: Kind, name: str, told: Column) -> Column:
    return F.struct(
        F.lit(kind.value).alias("kind"),
        F.col(name).cast("double").alias("observed"),
        F.col(f"usual_{name}").cast("double").alias("usual"),
        F.col(f"score_{name}").alias("score"),
        F.concat(_who(), F.lit(": "), told).alias("told"),
        # Up and down are two runs, and so are two rules of a kind.
        F.concat(F.lit(name), F.signum(F.coalesce(f"score_{name}", F.lit(0.0)))).alias("run"),
    )


# --- words ------------------------------------------------------------------------------------------------------------


def _who() -> Column:
    all_clients = F.concat(F.lit("all clients of "), "user")
    return F.when(F.col("client_id").isNull(), all_clients).otherwise(F.concat("client_id", F.lit(" of "), "user"))


def _usual(name: str, shown: Callable[[Column], Column] | None = None) -> Column:
    """`, usually 3`; nothing where there is no past."""
    text = (shown or _number)(F.col(f"usual_{name}"))
    return F.coalesce(F.concat(F.lit(", usually "), text), F.lit(""))


def _times(name: str) -> Column:
    """`: 4.0 times as much`; nothing where nothing is usual."""
    ratio = F.try_divide(F.col(name), F.col(f"usual_{name}"))
    more = F.when(ratio >= 1, F.concat(F.format_number(ratio, 1), F.lit(" times as much")))
    less = F.when(ratio > 0, F.concat(_percent(ratio), F.lit(" of it"))).when(ratio == 0, "nothing at all")
    return F.coalesce(F.concat(F.lit(": "), F.coalesce(more, less)), F.lit(""))


def _number(value: Column) -> Column:
    return F.format_number(value.cast("double"), 0)


def _percent(value: Column) -> Column:
    return F.concat(F.format_number(value * 100, 1), F.lit(" %"))


def _seconds(ms: Column) -> Column:
    return F.concat(F.format_number(ms / 1000, 1), F.lit(" s"))


def _bytes(value: Column) -> Column:
    text = F.concat(F.format_number(value.cast("double"), 0), F.lit(" B"))
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1):
        size = 1024.0**power
        text = F.when(value >= size, F.concat(F.format_number(value / size, 1), F.lit(f" {unit}"))).otherwise(text)
    return text


def _time(rules: Rules) -> Column:
    return F.lit(duration(rules.window_s))


def duration(seconds: int) -> str:
    """`5 minutes`."""
    count, unit = (seconds // 3600, "hour") if seconds % 3600 == 0 else (seconds // 60, "minute")
    return f"{count} {unit}" + ("s" if count != 1 else "")


# --- runs -------------------------------------------------------------------------------------------------------------


def _without_repeats(found: DataFrame) -> DataFrame:
    """Of all clients of a user together only what none of the clients is told of."""
    alone = F.col("client_id").isNotNull()
    of_clients = found.where(alone).select("start", "user", "kind")
    return found.where(alone).unionByName(
        found.where(~alone).join(of_clients, ["start", "user", "kind"], "left_anti").select(*found.columns)
    )


def _runs(found: DataFrame, window_s: int) -> DataFrame:
    """Windows that follow each other as one anomaly, told by the one furthest off."""
    of_run = (*ENTITY, "kind", "run")
    number = F.row_number().over(Window.partitionBy(*of_run).orderBy("start"))
    furthest = F.struct(F.abs(F.coalesce("score", F.lit(0.0))), F.abs("observed"), -F.col("start"))
    worst = F.max_by(F.struct("observed", "usual", "score", "told"), furthest)
    runs = (
        found.withColumn("island", F.col("start") - number * window_s)
        .groupBy(*of_run, "island")
        .agg(F.min("start").alias("start"), F.count("*").alias("windows"), worst.alias("worst"))
    )
    lasting = F.concat(F.lit("; for "), F.col("windows") * (window_s // 60), F.lit(" minutes"))
    told = F.concat("worst.told", F.when(F.col("windows") > 1, lasting).otherwise(""))
    named = runs.select(F.timestamp_seconds("start").alias("start"), "kind", *ENTITY, "worst.observed", "worst.usual",
                        "worst.score", told.alias("told"), "windows")  # fmt: skip
    return named.select(*schemas.ANOMALIES.names)
