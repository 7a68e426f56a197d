"""What several jobs ask of usage records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

SHOWN = 5
"""Clusters that an error names."""


def over_quotas(name: str) -> Column:
    """The sum over a map by quota key; 0 for a record without one."""
    zero = sf.lit(0).cast("long")
    values = sf.map_values(sf.col(name))
    return sf.coalesce(sf.aggregate(values, zero, lambda total, each: total + sf.coalesce(each, zero)), zero)


def of_one_cluster(usage: DataFrame, cluster: str | None) -> tuple[DataFrame, Row]:
    """The usage of ``cluster``, or of the only one there is, and what it is.

    The row has its ``records``, ``since`` and ``until`` (minutes of UTC, as text) and the bytes that are
    ``unattributed``: of records that do not tell their sender. Quotas hold in one cluster. Raises `InputError`.
    """
    if cluster is not None:
        usage = usage.where(sf.col("cluster") == cluster)
    size = sf.col("request_bytes") + sf.col("response_bytes")
    found = usage.agg(
        sf.count("*").alias("records"),
        sf.sort_array(sf.collect_set("cluster")).alias("clusters"),
        sf.coalesce(sf.sum(sf.when(sf.col("user").isNull(), size)), sf.lit(0)).alias("unattributed"),
        sf.date_format(sf.timestamp_seconds(sf.min("second")), "yyyy-MM-dd HH:mm").alias("since"),
        sf.date_format(sf.timestamp_seconds(sf.max("second")), "yyyy-MM-dd HH:mm").alias("until"),
    ).collect()[0]
    clusters = found.clusters
    if len(clusters) > 1:
        names = ", ".join(clusters[:SHOWN]) + (", …" if len(clusters) > SHOWN else "")
        raise InputError(f"the usage is of {len(clusters)} clusters, {names}; expected --cluster ID, one of them")
    return usage, found
