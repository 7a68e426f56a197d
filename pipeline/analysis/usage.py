"""Functions of usage records that several jobs need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from headrace.pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame

SHOWN = 5
"""Maximum number of clusters that an error names."""


def over_quotas(name: str) -> Column:
    """Return the sum of a map by quota key; 0 for a record without a map."""
    zero = sf.lit(0).cast("long")
    values = sf.map_values(sf.col(name))
    return sf.coalesce(sf.aggregate(values, zero, lambda total, each: total + sf.coalesce(each, zero)), zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The usage that a job reads."""

    cluster: str | None
    """``None`` if the records do not name it, or if there are none."""
    records: int
    since: str | None
    """The first minute (UTC); ``None`` without records."""
    until: str | None
    unattributed: int
    """Bytes of records without a sender."""

    def lines(self) -> Iterator[str]:
        """Yield lines for the user."""
        if not self.records:
            yield "the lake has no usage of these days and this cluster"
            return
        yield f"{self.records:,} records from {self.since} to {self.until} UTC"
        if self.unattributed:
            yield f"{self.unattributed:,} bytes have no recorded sender, and are left out"


def of_one_cluster(usage: DataFrame, cluster: str | None) -> tuple[DataFrame, Recorded]:
    """Return the usage of ``cluster``, or of the only cluster in it, and what it is.

    Raises `InputError` if the usage is of several clusters, since a quota applies to one.
    """
    if cluster is not None:
        usage = usage.where(sf.col("cluster") == cluster)
    size = sf.col("request_bytes") + sf.col("response_bytes")
    seconds = (sf.col("second").alias(name) for name in ("first_second", "last_second"))
    records = usage.select("cluster", "user", sf.lit(1).alias("records"), size.alias("bytes"), *seconds)
    return usage, recorded(records, cluster)


def by_sender(usage: DataFrame, *sums: Column) -> DataFrame:
    """Return usage by cluster, user and client id: the columns that `recorded` needs, and ``sums``."""
    return usage.groupBy("cluster", "user", "client_id").agg(
        sf.count("*").alias("records"),
        sf.sum(sf.col("request_bytes") + sf.col("response_bytes")).alias("bytes"),
        sf.min("second").alias("first_second"),
        sf.max("second").alias("last_second"),
        *sums,
    )


def recorded(parts: DataFrame, cluster: str | None) -> Recorded:
    """Return what usage consists of these parts (`by_sender`); see `of_one_cluster`."""
    found = parts.agg(
        sf.coalesce(sf.sum("records"), sf.lit(0)).alias("records"),
        _clusters(),
        sf.coalesce(sf.sum(sf.when(sf.col("user").isNull(), sf.col("bytes"))), sf.lit(0)).alias("unattributed"),
        sf.date_format(sf.timestamp_seconds(sf.min("first_second")), "yyyy-MM-dd HH:mm").alias("since"),
        sf.date_format(sf.timestamp_seconds(sf.max("last_second")), "yyyy-MM-dd HH:mm").alias("until"),
    ).collect()[0]
    return Recorded(
        cluster=cluster or _only(found.clusters),
        records=found.records,
        since=found.since,
        until=found.until,
        unattributed=found.unattributed,
    )


def only_cluster(rows: DataFrame, what: str) -> str | None:
    """Return the cluster of rows of a table; ``None`` if none names one.

    Raises `InputError` if there are several. ``what`` is the subject of its text.
    """
    return _only(rows.agg(_clusters()).collect()[0].clusters, what)


def _clusters() -> Column:
    return sf.sort_array(sf.collect_set("cluster")).alias("clusters")


def _only(clusters: Sequence[str], what: str = "the usage") -> str | None:
    if len(clusters) > 1:
        names = ", ".join(clusters[:SHOWN]) + (", …" if len(clusters) > SHOWN else "")
        raise InputError(f"{what} is of {len(clusters)} clusters, {names}; expected --cluster ID, one of them")
    return clusters[0] if clusters else None
