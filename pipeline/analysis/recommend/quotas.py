"""Computes the quota of each entity from the rates that it needs, and that of the default entity from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.recommend.rates import ENTITY
from headrace.pipeline.analysis.recommend.reasons import default_reason
from headrace.pipeline.analysis.recommend.rounding import rounded_down, rounded_up
from headrace.pipeline.analysis.recommend.rules import HELD_SHARE, STORM_SHARE, WIDELY
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from headrace.pipeline.analysis.quota_files import Entity
    from headrace.pipeline.analysis.recommend.rules import Rules

RETRY_STORM: Final = "retry-storm"
LIMIT_IGNORED: Final = "limit-ignored"
DAY_S: Final = 86_400


def with_quotas(needs: DataFrame, rules: Rules) -> DataFrame:
    """Add ``quota``, ``wanted`` (the quota before it is rounded), ``factor`` (the headroom that was applied),
    ``present_quota``, ``misbehaviour``, and ``peaks`` and ``peak_days``, the peaks above the quota.

    The quota of an entity that misbehaves is at most its present quota, or its median if that is not known.
    """
    behaves, held = sf.col("misbehaviour").isNull(), sf.col("throttled") + sf.col("refused") > 0
    factor = sf.when(behaves & held, rules.throttled_headroom).otherwise(rules.headroom)
    multiple = sf.col("p99") * sf.col("factor")
    wanted = sf.greatest(multiple, sf.col("need")) if rules.follow_peaks else multiple
    limit = sf.coalesce("present_quota", "p50")
    return (
        _with_misbehaviour(_with_present(needs, rules), rules)
        .withColumn("factor", factor)
        .withColumn("wanted", sf.when(behaves, wanted).otherwise(sf.least(multiple, limit)))
        .withColumn("quota", sf.when(behaves, _quota(rules)).otherwise(_limited_quota(rules)))
        .withColumn("headroom", sf.col("quota") / sf.col("p99"))
        .withColumn("top", sf.array_sort(sf.transform(sf.filter("top", _above_quota), _second)))
        .withColumns({"peaks": sf.when(behaves, _peaks(rules)), "peak_days": sf.when(behaves, _peak_days())})
        .drop("top")
    )


def for_default(needs: DataFrame, rules: Rules) -> DataFrame:
    """Return the quotas that suffice for 19 of 20 entities (`schemas.RECOMMENDATIONS`, with the columns of
    `with_quotas`), of the keys that enough entities use.

    Entities that misbehave do not count. With a capacity, a quota is at most what the entities' own quotas leave of it,
    divided by the number of entities that have usage of the key and no quota of their own, since each of them may use
    the whole default quota; where they leave nothing, there is none.
    """
    widely = ("p50", "p95", "p99", "peak", "burst", "need", "wanted")
    of_widely = [sf.expr(f"percentile_disc({WIDELY}) within group (order by {each})").alias(each) for each in widely]
    over_entities = needs.where("misbehaviour is null").groupBy("key").agg(
        *of_widely,
        sf.sum("active_seconds").alias("active_seconds"),
        sf.sum("throttled").alias("throttled"),
        sf.count("*").alias("entities"),
        sf.max("estimated").alias("estimated"),
    )  # fmt: skip
    has_own = has_own_quota(rules)
    own = needs.groupBy("key").agg(
        sf.coalesce(sf.sum(sf.when(has_own, sf.col("quota"))), sf.lit(0.0)).alias("own_sum"),
        sf.count_if(has_own).alias("own_quotas"),
        sf.count_if(~has_own).alias("without"),
    )
    left = (rules.by_key(rules.capacity.get) - sf.col("own_sum")) / sf.greatest("without", sf.lit(1))
    names = {each: str(DEFAULT) if each in rules.by.columns else None for each in ENTITY}
    return (
        over_entities.where(sf.col("entities") >= rules.least_entities)
        .join(own, "key")
        .withColumns({"_left": left, "_quota": _quota(rules)})
        .withColumn("_bound", _whole(rounded_down(sf.col("_left")), sf.floor))
        .where("_left is null or _bound > 0")
        .withColumns(
            {"quota": sf.least("_quota", "_bound"), "bounded": sf.coalesce("_bound", "_quota") < sf.col("_quota")}
        )
        .withColumn("headroom", sf.col("quota") / sf.col("p99"))
        .withColumn("reason", default_reason(rules))
        .withColumns({each: sf.lit(value).cast("string") for each, value in names.items()})
    )


def has_own_quota(rules: Rules) -> Column:
    """Return whether an entity was active for long enough to get a quota of its own."""
    return sf.col("entity_seconds") >= rules.least_seconds


# --- misbehaviour -----------------------------------------------------------------------------------------------------


def _with_present(needs: DataFrame, rules: Rules) -> DataFrame:
    """Add ``present_quota``: that of the entity itself, or of the default entity of its kind; null if not known."""
    default = rules.present.get(_default_entity(rules), {})
    rows = [
        (*entity, key.value, float(value)) for entity, values in rules.present.items() for key, value in values.items()
    ]
    of_default = rules.by_key(default.get)
    if not rows:
        return needs.withColumn("present_quota", of_default)
    columns = (*ENTITY, "key")
    present = needs.sparkSession.createDataFrame(rows, "_user string, _client_id string, _key string, _present double")
    same = [sf.col(name).eqNullSafe(sf.col(f"_{name}")) for name in columns]
    joined = needs.join(sf.broadcast(present), same, "left").withColumn(
        "present_quota", sf.coalesce(sf.col("_present"), of_default)
    )
    return joined.drop(*(f"_{name}" for name in columns), "_present")


def _default_entity(rules: Rules) -> Entity:
    user, client_id = (str(DEFAULT) if each in rules.by.columns else None for each in ENTITY)
    return user, client_id


def _with_misbehaviour(needs: DataFrame, rules: Rules) -> DataFrame:
    storm_seconds, held_seconds = sf.col("storm_seconds"), sf.col("held_seconds")
    storms = (storm_seconds >= rules.least_seconds) & (storm_seconds >= sf.col("entity_seconds") * STORM_SHARE)
    held = (held_seconds >= rules.least_seconds) & (held_seconds >= sf.col("seconds") * HELD_SHARE)
    at_limit = sf.coalesce(sf.col("p50") >= sf.col("present_quota"), sf.lit(True))
    marked = needs.withColumns({"in_storms": storms, "ignores_limit": held & at_limit})
    names = sf.concat_ws(
        ", ", sf.when(sf.col("in_storms"), RETRY_STORM), sf.when(sf.col("ignores_limit"), LIMIT_IGNORED)
    )
    return marked.withColumn("misbehaviour", sf.nullif(names, sf.lit("")))


# --- columns ----------------------------------------------------------------------------------------------------------


def _quota(rules: Rules) -> Column:
    return _whole(sf.greatest(rounded_up(sf.col("wanted")), rules.by_key(rules.least.__getitem__)))


def _limited_quota(rules: Rules) -> Column:
    present = sf.col("present_quota")
    median = sf.when(present.isNull(), rounded_down(sf.col("p50")))
    limited = sf.least(rounded_up(sf.col("wanted")), median)  # ignores nulls
    return sf.least(_whole(sf.greatest(limited, rules.by_key(rules.least.__getitem__))), present)


def _whole(quota: Column, rounding: Callable[[Column], Column] = sf.ceil) -> Column:
    """Round the quotas of keys whose values are whole numbers."""
    integral = sf.col("key").isin([key.value for key in QuotaKey if BUILTIN_SCHEMA.keys[key].integral])
    return sf.when(integral, rounding(quota).cast("double")).otherwise(quota)


def _above_quota(each: Column) -> Column:
    return each["used"] > sf.col("quota")


def _second(each: Column) -> Column:
    return each["second"]


def _peaks(rules: Rules) -> Column:
    """Return the number of peaks in ``top``, the seconds above the quota. A second that is less than a window after
    another one is part of the same peak.
    """
    apart = rules.by_key(rules.span_s)

    def begins(second: Column, index: Column) -> Column:
        return sf.coalesce(second - sf.get(sf.col("top"), index - 1) >= apart, sf.lit(True))

    return sf.size(sf.filter("top", begins)).cast("long")


def _peak_days() -> Column:
    return sf.size(sf.array_distinct(sf.transform("top", lambda second: sf.floor(second / DAY_S)))).cast("long")
