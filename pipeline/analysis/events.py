"""The charges to quotas that follow from usage records: their amounts and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.records.replay import Op

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace.quota_callbacks.buckets.kinds import QuotaBucket

END_OF_SECOND_MS: Final = 999
"""The usage of a second is charged at its end; for rates, a sample is started at its beginning (`open_second`)."""

FETCHES: Final = (ApiKey.FETCH.value, ApiKey.SHARE_FETCH.value)
"""The API keys of Fetch and ShareFetch."""


def open_second(bucket: QuotaBucket, t_ms: int) -> None:
    """Start a rate's sample at the beginning of the second that ends at ``t_ms``.

    Kafka starts a sample with its first charge. Eleven charges, one per second, would otherwise be divided by the ten
    seconds between the first and the last.
    """
    began_ms = t_ms - END_OF_SECOND_MS
    if isinstance(bucket, RateBucket) and bucket.last_used_ms < began_ms:
        bucket.record(0.0, began_ms)


def amounts() -> dict[Op, Column]:
    """Return, for each operation that quotas count, the amount of a usage record; null where it has none."""
    api_key = sf.col("api_key")
    return {
        Op.PRODUCE: sf.when(api_key == ApiKey.PRODUCE.value, sf.col("request_bytes")),
        Op.FETCH: sf.when(api_key.isin(*FETCHES), sf.col("response_bytes")),
        Op.REQUEST: sf.col("thread_ms"),
        Op.CONTROLLER_MUTATION: sf.col("mutations"),
        Op.NEW_PRODUCER_IDS: sf.col("producer_ids"),
    }
