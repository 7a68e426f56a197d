"""The demand of senders that were throttled while their usage was recorded.

A muted sender sends nothing, so the recorded usage is less than its demand. `unserved` computes the rest as if each
sender had gone on, while it was muted, at the rate that it had between its mutes. For a sender with one connection that
sends the next request as soon as it may, that is its demand; for any other sender it is an upper bound:

- a sender with messages of its own rate catches up after a mute, so a part of what it had to delay was recorded;
- mutes of several connections overlap, so the sender was not muted for their sum.

DataFrames to DataFrames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SENDER_AND_API: Final = ("user", "client_id", "api_key")
"""What is muted: requests of one API usually have a connection of their own."""

AMOUNTS: Final = ("request_bytes", "response_bytes", "thread_ms")

BLOCK_S: Final = 300
"""Maximum time over which a rate between mutes is averaged."""

BEGIN_S: Final = 0.5
"""When in its second a mute begins: the mean, since records do not show it."""

GAP_S: Final = 1.0
"""A request that is recorded at most this long after a mute counts as one that waited for its end, since records have a
precision of one second."""

LONGEST_MUTE_S: Final = 86_400
"""Longer mutes are shortened to this, since the rate before them is known from a single request."""


def unserved(usage: DataFrame, at_most: float) -> DataFrame:
    """Return what throttled senders would have used besides the recorded usage, while they were muted.

    ``usage`` has no nulls in the columns of `SENDER_AND_API`. The columns of the result are those of `SENDER_AND_API`,
    ``second``, those of `AMOUNTS`, and ``bounded``: whether the demand of the block was reduced to ``at_most`` times
    (above 1) the usage recorded in it. Mutations and producer ids are left out: they are refused, and requested again,
    rather than delayed.
    """
    in_order = Window.partitionBy(*SENDER_AND_API).orderBy("second")
    earlier = in_order.rowsBetween(Window.unboundedPreceding, -1)
    block = Window.partitionBy(*SENDER_AND_API, "episode", "block")
    throttled = usage.where(_muted_s() > 0).select(*SENDER_AND_API).distinct()
    muted = (
        usage.join(throttled, list(SENDER_AND_API), "left_semi")
        .groupBy(*SENDER_AND_API, "second")
        .agg(*(sf.sum(name).alias(name) for name in AMOUNTS), sf.sum(_muted_s()).alias("muted_s"))
        .withColumn("muted_s", sf.least("muted_s", sf.lit(float(LONGEST_MUTE_S))))
        .withColumn("until", sf.when(sf.col("muted_s") > 0, sf.col("second") + BEGIN_S + sf.col("muted_s")))
        .withColumn("before", sf.max("until").over(earlier))
        .withColumn("waited", sf.coalesce(sf.col("second") <= sf.col("before") + GAP_S, sf.lit(False)))
        .where("muted_s > 0 or waited")
        .withColumn("begins", (~sf.col("waited")).cast("int"))
        .withColumn("episode", sf.sum("begins").over(in_order))
        .withColumn("block", sf.floor(sf.col("second") / BLOCK_S))
    )
    # The time of a block in which its connection, if it is one, was not muted: some, even if the mutes are as long.
    length_s = sf.max(sf.greatest("until", sf.col("second") + 1)).over(block) - sf.min("second").over(block)
    sums = {name: sf.sum(name).over(block) for name in AMOUNTS}
    blocks = muted.withColumns({"length_s": length_s, "sum_s": sf.sum("muted_s").over(block), **sums})
    free_s, least_s = sf.col("length_s") - sf.col("sum_s"), sf.col("sum_s") / (at_most - 1)
    parts = sf.sequence(sf.lit(0), sf.floor(sf.col("muted_s") + BEGIN_S).cast("int"))
    share_s = sf.least(sf.col("part") + 1, sf.col("muted_s") + BEGIN_S) - sf.greatest("part", sf.lit(BEGIN_S))
    return (
        blocks.where("muted_s > 0")
        .withColumns({"free_s": sf.greatest(free_s, least_s), "bounded": free_s < least_s})
        .withColumn("part", sf.explode(parts))
        .withColumn("share_s", share_s)
        .where("share_s > 0")
        .select(
            *SENDER_AND_API,
            (sf.col("second") + sf.col("part")).alias("second"),
            *((sf.col(name) * sf.col("share_s") / sf.col("free_s")).alias(name) for name in AMOUNTS),
            "bounded",
        )
    )


def _muted_s() -> Column:
    """Return for how long the requests of a record muted their connections: of several quotas, the longest counts."""
    return sf.coalesce(sf.array_max(sf.map_values("throttle_ms")), sf.lit(0)) / 1000
