"""The terms on which the native data plane relays a connection's requests without calling a plugin for each.

The hook `headrace.quota_callbacks.hookspecs.relay_terms` returns them. The data plane charges the buckets by itself, as
long as `headrace.quota_callbacks.buckets.kinds.RateBucket.credit` shows that no charge can have a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket, RateBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayTerms:
    """The buckets that are charged for the requests of one connection, and the changes to its requests.

    A bucket that is ``None`` is not charged.
    """

    produced: RateBucket | None = None
    """Charged with the bytes of each Produce request that has arrived."""
    fetched: RateBucket | None = None
    """Charged with the bytes of each reply to a Fetch."""
    request_time: RateBucket | None = None
    """Charged with the thread time of each request, in percent (`request_costs`)."""
    producer_ids: ProducerIdBucket | None = None
    """Charged with the producer ids of each Produce request."""
    fetch_max_bytes: int | None = None
    """The most bytes that a Fetch may ask for (`Request.fetch_max_bytes`); ``None`` does not limit it."""
    fetch_alone: bool = False
    """Whether no request is forwarded between a Fetch and its reply (`Request.alone`)."""
