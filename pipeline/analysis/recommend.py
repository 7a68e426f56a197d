"""Recommend: quotas from recorded usage.

For each entity and quota key, the rate is computed as the quota does it, over its own window, at every second with
usage. The quota is a multiple of the rate's 99th percentile, but never less than what the recorded usage needed to
pass. The reason in each row states which of the two applies, and any other adjustment.

Seconds without usage have no rows, and none are added: the sum over a window is the running total at its end minus the
running total at its start, each of which takes one pass over the entity's seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window as Rows
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.events import amounts
from headrace.pipeline.lake import schemas
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import BUILTIN_SCHEMA
from headrace.quota_callbacks.entities import DEFAULT, QuotaKey
from headrace.quota_callbacks.records.replay import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame

HOUR_S: Final = 3600
ACCURACY: Final = 10_000
"""Percentiles are recorded values, at most one ten-thousandth of the seconds off; exact up to 10,000 seconds."""
WIDELY: Final = 0.95
"""Share of the entities for which the default entity's quota suffices."""
MS_PER_PERCENT: Final = 10
"""Milliseconds of a thread in one second that are one percent."""

DEFAULT_WINDOWS: Final[Mapping[QuotaKey, Window]] = {
    key: Window(samples=11, seconds=HOUR_S if key is QuotaKey.PRODUCER_IDS_RATE else 1) for key in QuotaKey
}
"""The defaults of Kafka, and for producer ids of KIP-936."""

DEFAULT_LEAST: Final[Mapping[QuotaKey, float]] = {
    QuotaKey.PRODUCER_BYTE_RATE: 110_000,
    QuotaKey.CONSUMER_BYTE_RATE: 110_000,
    QuotaKey.REQUEST_PERCENTAGE: 1,
    QuotaKey.CONTROLLER_MUTATION_RATE: 1,
    QuotaKey.PRODUCER_IDS_RATE: 10,
}
"""Minimum quotas. Byte rates: one request of 1 MiB (``max.request.size``, ``max.partition.fetch.bytes``) after a pause
is 104,858 bytes a second over Kafka's shortest window, 10 s. The others allow for a topic of 11 partitions at once, and
a deployment of ten producers.
"""

_ESTIMATED: Final = (
    "; ids are counted by InitProducerId requests, since none were recorded: this may be more than the new ids, and"
    " misses long-lived producers, which the quota counts once an hour"
)
_ENTITY: Final = ("user", "client_id")
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_ACTIVE: Final = "active"
"""A pseudo key beside the quota keys: the entity had any usage in a second."""


class By(StrEnum):
    """The kinds of entities."""

    USER = "user"
    CLIENT_ID = "client-id"
    BOTH = "user-and-client-id"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `_ENTITY` that name the entity."""
        return {By.USER: ("user",), By.CLIENT_ID: ("client_id",), By.BOTH: _ENTITY}[self]

    @property
    def keys(self) -> tuple[QuotaKey, ...]:
        """The quota keys that apply; producer ids are for users only (KIP-936)."""
        return tuple(key for key in QuotaKey if self is By.USER or key is not QuotaKey.PRODUCER_IDS_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which usage becomes a quota, which are the command's options."""

    by: By = By.USER
    windows: Mapping[QuotaKey, Window] = field(default_factory=lambda: DEFAULT_WINDOWS)
    headroom: float = 1.3
    """Multiple of the 99th percentile."""
    throttled_headroom: float = 2.0
    """The multiple for entities that this quota has throttled, since their demand is not known."""
    allow_throttled: float = 0.0
    """Share of an entity's seconds that may be above its quota."""
    least: Mapping[QuotaKey, float] = field(default_factory=lambda: DEFAULT_LEAST)
    least_seconds: int = 60
    """Minimum activity of an entity to get a quota of its own."""
    default: bool = True
    """Whether to recommend quotas for the default entity."""

    def span_s(self, key: str) -> int:
        """Return the length of the key's window in seconds."""
        window = self.windows[QuotaKey(key)]
        return window.seconds if key == QuotaKey.PRODUCER_IDS_RATE else window.samples * window.seconds

    def divisor(self, key: str) -> int:
        """Return the divisor of a window's sum for the rate; 1 for producer ids, which are counted per window."""
        return 1 if key == QuotaKey.PRODUCER_IDS_RATE else self.span_s(key)

    def shortest(self, key: str) -> int:
        """Return the smallest divisor that the quota's arithmetic can use for a window's sum.

        Kafka's rates are over one sample less when the last sample has just begun (``Rate.windowSize``). Token buckets
        accept the amount of a whole window at once.
        """
        if key in (QuotaKey.PRODUCER_IDS_RATE, QuotaKey.CONTROLLER_MUTATION_RATE):
            return self.divisor(key)
        window = self.windows[QuotaKey(key)]
        return max(1, window.samples - 1) * window.seconds


def recommend(usage: DataFrame, rules: Rules) -> DataFrame:
    """Return quotas for each entity and key, and for the default entity (`schemas.RECOMMENDATIONS`).

    Usage without a sender is left out, and usage of names that cannot have a quota: empty ones, and "<default>".
    """
    return recommendations(needs_of(usage, rules), rules)


def needs_of(usage: DataFrame, rules: Rules) -> DataFrame:
    """Return what each entity needs of each key (`with_quotas`): few rows that are expensive to compute, so persist
    them.
    """
    return with_quotas(measured(rates(demand(usage, rules), rules), rules), rules)


def recommendations(needs: DataFrame, rules: Rules) -> DataFrame:
    """Return the rows of `needs_of` whose entities were active for long enough, and those of the default entity."""
    own = needs.where(sf.col("entity_seconds") >= rules.least_seconds).withColumn("reason", _reason(rules))
    if not rules.default:
        return own.select(*schemas.RECOMMENDATIONS.names)
    return own.unionByName(for_default(needs, rules), allowMissingColumns=True).select(*schemas.RECOMMENDATIONS.names)


# --- steps ------------------------------------------------------------------------------------------------------------


def demand(usage: DataFrame, rules: Rules) -> DataFrame:
    """Return the usage of each entity, key and second: ``amount``, in units of the key times seconds.

    Also ``throttled`` and ``refused``, numbers of requests by this key, and ``estimated``, true for producer ids
    counted by InitProducerId requests.
    """
    named = sf.lit(True)
    for name in rules.by.columns:
        named = named & sf.col(name).isNotNull() & ~sf.col(name).isin("", str(DEFAULT))
    entity = [sf.col(name) if name in rules.by.columns else sf.lit(None).cast("string").alias(name) for name in _ENTITY]
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
        .select("*", *(column.alias(f"_{name}") for name, column in zip(_ENTITY, entity, strict=True)))
        .groupBy("second", *(sf.col(f"_{name}").alias(name) for name in _ENTITY))
        .agg(
            *(amount.alias(key) for key, amount in by_key.items()),
            sf.sum(made).cast("double").alias("_made"),
            *(_of_key(held, key).alias(f"{held}_{key}") for key in by_key for held in ("throttled", "refused")),
        )
    )
    rows = [(key, False, sf.col(key), sf.col(f"throttled_{key}"), sf.col(f"refused_{key}")) for key in by_key]
    rows += [(row[0], True, sf.col("_made"), *row[3:]) for row in rows if row[0] == QuotaKey.PRODUCER_IDS_RATE]
    none = sf.lit(0).cast("long")
    rows.append((_ACTIVE, False, sf.lit(1.0), none, none))
    cells = [sf.lit(cell) if isinstance(cell, str | bool) else cell for row in rows for cell in row]
    stacked = sf.stack(sf.lit(len(rows)), *cells).alias("key", "estimated", "amount", "throttled", "refused")
    return by_second.select("second", *_ENTITY, stacked).where("amount > 0 or throttled > 0 or refused > 0")


def rates(demands: DataFrame, rules: Rules) -> DataFrame:
    """Add ``rate``, over the key's window that ends with the second, and ``most``, the highest rate that the quota may
    compute.
    """
    seconds = Rows.partitionBy(*_ENTITY, "key", "estimated").orderBy("second")
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
            "rate": sf.col("_in_window") / _by_key(rules, rules.divisor),
            "most": sf.col("_in_window") / _by_key(rules, rules.shortest),
        }
    ).drop("_in_window")


def measured(rated: DataFrame, rules: Rules) -> DataFrame:
    """Return, by entity and key, percentiles, ``peak``, ``burst``, ``need`` (the quota that recorded usage needs) and
    durations.

    ``entity_seconds``: number of seconds with any usage of the entity. Producer ids counted by InitProducerId are kept
    only where none were recorded.
    """
    used = sf.when(sf.col("amount") > 0, sf.col("rate"))
    most = sf.when(sf.col("amount") > 0, sf.col("most"))
    allowed = rules.allow_throttled
    stats = rated.groupBy(*_ENTITY, "key", "estimated").agg(
        sf.percentile_approx(used, list(_PERCENTILES.values()), ACCURACY).alias("_percentiles"),
        sf.max(used).alias("peak"),
        sf.max("amount").alias("_peak_second"),
        (sf.percentile_approx(most, 1 - allowed, ACCURACY) if allowed else sf.max(most)).alias("need"),
        sf.count_if(sf.col("amount") > 0).alias("active_seconds"),
        sf.sum("throttled").alias("throttled"),
        sf.sum("refused").alias("refused"),
    )
    entity = Rows.partitionBy(*_ENTITY)
    recorded = (
        (sf.col("key") == QuotaKey.PRODUCER_IDS_RATE.value) & ~sf.col("estimated") & (sf.col("active_seconds") > 0)
    )
    whole = stats.withColumns(
        {
            "entity_seconds": sf.max(sf.when(sf.col("key") == _ACTIVE, sf.col("active_seconds"))).over(entity),
            "_recorded": sf.max(recorded).over(entity),
        }
    )
    kept = whole.where((sf.col("key") != _ACTIVE) & (sf.col("active_seconds") > 0))
    kept = kept.where(~(sf.col("estimated") & sf.col("_recorded")))
    percentiles = {name: sf.col("_percentiles")[index] for index, name in enumerate(_PERCENTILES)}
    with_percentiles = kept.withColumns(percentiles).where("p99 > 0")
    return with_percentiles.withColumn("burst", sf.col("_peak_second") / sf.col("p99")).drop(
        "_percentiles", "_peak_second", "_recorded"
    )


def with_quotas(needs: DataFrame, rules: Rules) -> DataFrame:
    """Add ``quota``, ``wanted`` (the quota before it is rounded up) and ``factor`` (the headroom that was applied)."""
    held = sf.col("throttled") + sf.col("refused") > 0
    factor = sf.when(held, rules.throttled_headroom).otherwise(rules.headroom)
    return (
        needs.withColumn("factor", factor)
        .withColumn("wanted", sf.greatest(sf.col("p99") * sf.col("factor"), sf.col("need")))
        .withColumn("quota", _quota(rules))
        .withColumn("headroom", sf.col("quota") / sf.col("p99"))
    )


def for_default(needs: DataFrame, rules: Rules) -> DataFrame:
    """Return the quotas that suffice for 19 of 20 entities (`schemas.RECOMMENDATIONS`, with the columns of
    `with_quotas`).
    """
    widely = ("p50", "p95", "p99", "peak", "burst", "need", "wanted")
    name = {each: str(DEFAULT) if each in rules.by.columns else None for each in _ENTITY}
    over_entities = needs.groupBy("key").agg(
        *(sf.percentile_approx(each, WIDELY, ACCURACY).alias(each) for each in widely),
        sf.sum("active_seconds").alias("active_seconds"),
        sf.sum("throttled").alias("throttled"),
        sf.count("*").alias("_entities"),
        sf.max("estimated").alias("_estimated"),
    )
    reason = sf.format_string(
        "for entities without a quota of their own: %d %% of the %,d entities with such usage need at most, with their"
        " headroom, %s",
        sf.lit(round(WIDELY * 100)),
        sf.col("_entities"),
        _shown(sf.col("wanted")),
    )
    return (
        over_entities.withColumns({each: sf.lit(value).cast("string") for each, value in name.items()})
        .withColumn("quota", _quota(rules))
        .withColumn("headroom", sf.col("quota") / sf.col("p99"))
        .withColumn(
            "reason", sf.concat(reason, sf.when(sf.col("_estimated"), _ESTIMATED).otherwise(""), _raised(rules))
        )
        .drop("_entities", "_estimated")
    )


# --- columns ----------------------------------------------------------------------------------------------------------


def _of_key(name: str, key: str) -> Column:
    """Return the sum of one quota key's values in a map."""
    return sf.sum(sf.coalesce(sf.try_element_at(sf.col(name), sf.lit(key)), sf.lit(0).cast("long")))


def _by_key(rules: Rules, value: Callable[[str], float]) -> Column:
    return sf.coalesce(*(sf.when(sf.col("key") == key.value, sf.lit(float(value(key)))) for key in rules.by.keys))


def _quota(rules: Rules) -> Column:
    quota = sf.greatest(rounded_up(sf.col("wanted")), _by_key(rules, lambda key: rules.least[QuotaKey(key)]))
    integral = sf.col("key").isin([key.value for key in QuotaKey if BUILTIN_SCHEMA.keys[key].integral])
    return sf.when(integral, sf.ceil(quota).cast("double")).otherwise(quota)


def rounded_up(value: Column) -> Column:
    """Round up to two significant digits, ignoring excess that is due to floating-point arithmetic."""
    step = sf.pow(sf.lit(10.0), sf.floor(sf.log10(value)) - 1)
    return sf.round(sf.ceil(value / step - 1e-9) * step, 9)


def _shown(rate: Column) -> Column:
    """Return the rate with its unit as text."""
    steps = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
    sized = sf.coalesce(
        *(sf.when(rate >= size, sf.format_string(f"%.1f {unit}", rate / size)) for size, unit in steps),
        sf.format_string("%.0f B/s", rate),
    )
    in_words = {
        QuotaKey.REQUEST_PERCENTAGE: sf.format_string("%.2f %% of a thread", rate),
        QuotaKey.CONTROLLER_MUTATION_RATE: sf.format_string("%.2f partitions/s", rate),
        QuotaKey.PRODUCER_IDS_RATE: sf.format_string("%,.0f ids", rate),
    }
    return sf.coalesce(*(sf.when(sf.col("key") == key.value, words) for key, words in in_words.items()), sized)


def _reason(rules: Rules) -> Column:
    """Return the reason for a row of `with_quotas`."""
    measured = sf.format_string(
        "99 %% of %,d active seconds are at %s or less, over %s",
        sf.col("active_seconds"),
        _shown(sf.col("p99")),
        sf.coalesce(*(sf.when(sf.col("key") == key.value, f"{rules.span_s(key):,} s") for key in rules.by.keys)),
    )
    share = f"at most {rules.allow_throttled * 100:g} %% of the seconds" if rules.allow_throttled else "no second"
    raised = sf.format_string(
        f"; x %s is not enough: %s is needed for {share} to be throttled",
        _number(sf.col("factor")),
        _shown(sf.col("need")),
    )
    multiplied = sf.format_string("; x %s headroom", _number(sf.col("factor")))
    held = sf.format_string(
        f", not {rules.headroom:g}, since this quota throttled %,d requests and refused %,d, so the demand is not"
        " known",
        sf.col("throttled"),
        sf.col("refused"),
    )
    return sf.concat(
        measured,
        sf.when(sf.col("need") > sf.col("p99") * sf.col("factor"), raised).otherwise(multiplied),
        sf.when(sf.col("throttled") + sf.col("refused") > 0, held).otherwise(""),
        sf.when(sf.col("estimated"), _ESTIMATED).otherwise(""),
        _raised(rules),
    )


def _raised(rules: Rules) -> Column:
    """Return text for a quota that was raised to the minimum of its key; otherwise empty."""
    least = _by_key(rules, lambda key: rules.least[QuotaKey(key)])
    raised = sf.format_string("; raised to %s, the minimum for this key", _shown(least))
    return sf.when(least > rounded_up(sf.col("wanted")), raised).otherwise("")


def _number(value: Column) -> Column:
    """Format a number without trailing zeros."""
    return sf.regexp_replace(sf.format_string("%.3f", value), r"\.?0+$", "")
