"""Recommend: quotas from recorded usage.

rules     the rules, which are the command's options, and their defaults
rates     rates over the quota's window, and their percentiles
quotas    the quotas, and which entities misbehave
reasons   the reason of each quota, as a sentence
rounding  rounding to two digits

For each entity and quota key, the rate is computed as the quota does it, over its own window, at every second with
usage. The quota is a multiple of the rate's 99th percentile. The reason in each row states any adjustment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.pipeline.analysis.recommend.quotas import for_default, has_own_quota, with_quotas
from headrace.pipeline.analysis.recommend.rates import demand, measured, rates
from headrace.pipeline.analysis.recommend.reasons import reason
from headrace.pipeline.lake import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.pipeline.analysis.recommend.rules import Rules


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
    own = needs.where(has_own_quota(rules)).withColumn("reason", reason(rules))
    if not rules.default:
        return own.select(*schemas.RECOMMENDATIONS.names)
    return own.unionByName(for_default(needs, rules), allowMissingColumns=True).select(*schemas.RECOMMENDATIONS.names)


__all__ = ["demand", "needs_of", "rates", "recommend", "recommendations"]
