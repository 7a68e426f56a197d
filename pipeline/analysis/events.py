"""Usage records as the events that quotas are charged with (`schemas.EVENTS`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.records.replay import Op

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket

END_OF_SECOND_MS: Final = 999
"""The usage of a second is charged at its end; for rates, a sample is started at its beginning (`open_second`)."""

FETCHES: Final = (ApiKey.FETCH.value, ApiKey.SHARE_FETCH.value)
"""The API keys of Fetch and ShareFetch."""

_ORDER: Final = (Op.PRODUCE, Op.FETCH, Op.REQUEST, Op.CONTROLLER_MUTATION, Op.NEW_PRODUCER_IDS)


def open_second(bucket: QuotaBucket, t_ms: int) -> None:
    """Start a rate's sample at the beginning of the second that ends at ``t_ms``.

    Kafka starts a sample with its first charge. Eleven charges, one per second, would otherwise be divided by the ten
    seconds between the first and the last.
    """
    began_ms = t_ms - END_OF_SECOND_MS
    if isinstance(bucket, RateBucket) and bucket.last_used_ms < began_ms:
        bucket.record(0.0, began_ms)


def amounts() -> dict[Op, Column]:
    """Return, for each operation that quotas count, the sum over usage records."""
    api_key = sf.col("api_key")
    return {
        Op.PRODUCE: sf.sum(sf.when(api_key == ApiKey.PRODUCE.value, sf.col("request_bytes"))).cast("double"),
        Op.FETCH: sf.sum(sf.when(api_key.isin(*FETCHES), sf.col("response_bytes"))).cast("double"),
        Op.REQUEST: sf.sum("thread_ms"),
        Op.CONTROLLER_MUTATION: sf.sum("mutations").cast("double"),
        Op.NEW_PRODUCER_IDS: sf.sum("producer_ids").cast("double"),
    }


def events_of(usage: DataFrame) -> DataFrame:
    """Return one event per second, sender and operation with an amount above 0 (`schemas.EVENTS`).

    Records without a sender are left out, since they cannot be charged. Mutations are charged strictly, as for clients
    that support KIP-599.
    """
    by_second = (
        usage.where(sf.col("user").isNotNull())
        .groupBy("second", "user", "client_id")
        .agg(*(amount.alias(op.value) for op, amount in amounts().items()))
    )
    stacked = ", ".join(f"{index}, '{op.value}', `{op.value}`" for index, op in enumerate(_ORDER))
    events = by_second.select(
        "second", "user", "client_id", sf.expr(f"stack({len(_ORDER)}, {stacked}) as (order, op, amount)")
    )
    return events.where("amount > 0").select(
        sf.col("order").cast("long").alias("order"),
        (sf.col("second") * 1000 + END_OF_SECOND_MS).alias("t_ms"),
        "user",
        sf.coalesce("client_id", sf.lit("")).alias("client_id"),
        "op",
        "amount",
        sf.lit(0).cast("long").alias("producer_id"),
        (sf.col("op") == Op.CONTROLLER_MUTATION.value).alias("strict"),
    )
