"""Buckets made by hand with a clock that stands still, and readers over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.plugins.metrics.snapshot import BucketReader, Snapshot
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

PRODUCE, FETCH, REQUEST = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
MUTATIONS, IDS = QuotaKey.CONTROLLER_MUTATION_RATE, QuotaKey.PRODUCER_IDS_RATE
NOW_MS = 1_000_000


class Metered:
    """Quotas with a bucket for each user and client id, all with the same limit."""

    def __init__(self, limit: float | None = 1000.0) -> None:
        self.now_ms = NOW_MS
        self.muted: dict[str, int] = {}
        self.quotas = ClientQuotas(
            windows=dict.fromkeys(QuotaKey, Window(samples=11, seconds=1)),
            metric_tags=lambda _key, user, client_id: {"user": user, "client-id": client_id},
            quota_limit=lambda _key, _tags: limit,
        )

    def bucket(self, user: str, client_id: str = "", key: QuotaKey = PRODUCE) -> QuotaBucket:
        bucket = self.quotas.bucket(key, user, client_id)
        assert bucket is not None
        return bucket

    def use(self, user: str, amount: float = 100, key: QuotaKey = PRODUCE, client_id: str = "") -> None:
        bucket = self.bucket(user, client_id, key)
        match bucket:
            case RateBucket():
                bucket.charge(amount, self.now_ms)
            case MutationBucket():
                bucket.charge(amount, self.now_ms)
            case ProducerIdBucket():
                for producer_id in range(int(amount)):
                    bucket.charge(producer_id, self.now_ms)
            case _:
                raise TypeError(bucket)

    def reader(self, *, max_series: int = 10_000, idle_s: float = 300) -> BucketReader:
        return BucketReader(
            self.quotas,
            now_ms=lambda: self.now_ms,
            muted=lambda: self.muted,
            max_series=max_series,
            idle_ms=int(idle_s * 1000),
        )


def drain(steps: Generator[None, None, Snapshot], meanwhile: Callable[[], None] = lambda: None) -> Snapshot:
    """Run the steps without an event loop; call ``meanwhile`` where other tasks may run."""
    while True:
        try:
            next(steps)
            meanwhile()
        except StopIteration as done:
            snapshot: Snapshot = done.value
            return snapshot


def values(snapshot: Snapshot, measure: str, **labels: Any) -> dict[str, float]:
    """By user, of the points that have ``labels``."""
    return {point.get("user", ""): value for point, value in snapshot.points[measure] if has(point, labels)}


def has(labels: Mapping[str, str], wanted: Mapping[str, Any]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


KAFKA_TYPES = {
    QuotaKey.PRODUCER_BYTE_RATE: "Produce",
    QuotaKey.CONSUMER_BYTE_RATE: "Fetch",
    QuotaKey.REQUEST_PERCENTAGE: "Request",
    QuotaKey.CONTROLLER_MUTATION_RATE: "ControllerMutation",
    QuotaKey.PRODUCER_IDS_RATE: "ProducerIds",
}
"""The ``type`` of Kafka's MBeans."""
