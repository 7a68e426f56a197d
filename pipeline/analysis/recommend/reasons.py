"""The reason of each recommended quota, as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.pipeline.analysis.recommend.rounding import rounded_up
from headrace.pipeline.analysis.recommend.rules import WIDELY
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace.pipeline.analysis.recommend.rules import Rules

_ESTIMATED: Final = (
    "; ids are counted by InitProducerId requests, since none were recorded: this may be more than the new ids, and"
    " misses long-lived producers, which the quota counts once an hour"
)


def reason(rules: Rules) -> Column:
    """Return the reason for a row of `headrace.pipeline.analysis.recommend.quotas.with_quotas`."""
    measured = sf.format_string(
        "99 %% of %,d active seconds are at %s or less, over %s",
        sf.col("active_seconds"),
        shown(sf.col("p99")),
        sf.coalesce(*(sf.when(sf.col("key") == key.value, f"{rules.span_s(key):,} s") for key in rules.by.keys)),
    )
    behaves = sf.col("misbehaviour").isNull()
    return sf.concat(
        measured,
        sf.when(behaves, _multiplied(rules)).otherwise(_limited()),
        sf.when(sf.col("estimated"), _ESTIMATED).otherwise(""),
        sf.when(behaves | sf.col("present_quota").isNull(), _raised(rules)).otherwise(""),
        _peaks(),
    )


def default_reason(rules: Rules) -> Column:
    """Return the reason for a row of the default entity."""
    needed = sf.format_string(
        "for entities without a quota of their own: %d %% of the %,d entities with such usage need at most, with their"
        " headroom, %s",
        sf.lit(round(WIDELY * 100)),
        sf.col("entities"),
        shown(sf.col("wanted")),
    )
    bounded = sf.format_string(
        "; bounded to what the capacity of %s leaves after the other %,d quotas, %s in all, for each of the %,d"
        " entities without a quota of their own",
        shown(rules.by_key(rules.capacity.get)),
        sf.col("own_quotas"),
        shown(sf.col("own_sum")),
        sf.col("without"),
    )
    return sf.concat(
        needed,
        sf.when(sf.col("estimated"), _ESTIMATED).otherwise(""),
        sf.when(sf.col("bounded"), bounded).otherwise(_raised(rules)),
    )


def shown(rate: Column) -> Column:
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


def _multiplied(rules: Rules) -> Column:
    multiplied = sf.format_string("; x %s headroom", _number(sf.col("factor")))
    held = sf.format_string(
        f", not {rules.headroom:g}, since this quota throttled %,d requests and refused %,d, so the demand is not"
        " known",
        sf.col("throttled"),
        sf.col("refused"),
    )
    text = sf.concat(multiplied, sf.when(sf.col("throttled") + sf.col("refused") > 0, held).otherwise(""))
    if not rules.follow_peaks:
        return text
    share = f"at most {rules.allow_throttled * 100:g} % of the seconds" if rules.allow_throttled else "no second"
    raised = sf.format_string(
        "; x %s is not enough: %s is needed for %s to be throttled",
        _number(sf.col("factor")),
        shown(sf.col("need")),
        sf.lit(share),
    )
    return sf.when(sf.col("need") > sf.col("p99") * sf.col("factor"), raised).otherwise(text)


def _limited() -> Column:
    """Return the text for an entity that misbehaves."""
    present = sf.col("present_quota")
    limit = sf.when(present.isNull(), sf.format_string("its median, %s", shown(sf.col("p50")))).otherwise(
        sf.format_string("its present quota, %s", shown(present))
    )
    storm = sf.format_string(
        "%.0f %% of its active seconds are of retry storms", sf.col("storm_seconds") * 100 / sf.col("entity_seconds")
    )
    ignored = sf.format_string(
        "it was throttled or refused in %.0f %% of its seconds with such usage, and still sends at the limit",
        sf.col("held_seconds") * 100 / sf.col("seconds"),
    )
    causes = sf.concat_ws(
        ", and since ", sf.when(sf.col("in_storms"), storm), sf.when(sf.col("ignores_limit"), ignored)
    )
    return sf.concat(sf.lit("; not above "), limit, sf.lit(", since "), causes)


def _peaks() -> Column:
    """Return text about the peaks above the quota; empty without any."""
    several = sf.format_string("%,d peaks on %,d days", sf.col("peaks"), sf.col("peak_days"))
    on_one = sf.format_string("%,d peaks on one day", sf.col("peaks"))
    number = sf.when(sf.col("peaks") == 1, "1 peak").when(sf.col("peak_days") == 1, on_one).otherwise(several)
    text = sf.format_string("; not followed: %s, up to %s", number, shown(sf.col("peak")))
    return sf.when(sf.col("peaks") > 0, text).otherwise("")


def _raised(rules: Rules) -> Column:
    """Return text for a quota that was raised to the minimum of its key; otherwise empty."""
    least = rules.by_key(rules.least.__getitem__)
    raised = sf.format_string("; raised to %s, the minimum for this key", shown(least))
    return sf.when(least > rounded_up(sf.col("wanted")), raised).otherwise("")


def _number(value: Column) -> Column:
    """Format a number without trailing zeros."""
    return sf.regexp_replace(sf.format_string("%.3f", value), r"\.?0+$", "")
