"""Functions of usage records that several jobs need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

SHOWN = 5
"""Maximum number of clusters that an error names."""


def over_quotas(name: str) -> Column:
    """Return the sum of a map by quota key; 0 for a record without a map."""
    zero = sf.lit(0).cast("long")
    values = sf.map_values(sf.col(name))
    return sf.coalesce(sf.aggregate(values, zero, lambda total, each: total + sf.coalesce(each, zero)), zero)


def of_one_cluster(usage: DataFrame, cluster: str | None) -> tuple[DataFrame, Row]:
    """Return the usage of ``cluster``, or of the only cluster in it, and a row that describes it.

    The row has the number of ``records``, ``since`` and ``until`` (UTC, to the minute, as text) and the
    ``unattributed`` bytes of records without a sender. Raises `InputError` if the usage is of several clusters, since a
    quota applies to one.
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
