"""Headrace's quotas as the proxy combines them: Kafka's default callback and the table of buckets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import MutationBucket, ProducerIdBucket, QuotaBucket, RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.entities import EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import KAFKA_POLICY, QuotaPolicy
from headrace.quota_callbacks.requests import PERCENT_PER_NS

if TYPE_CHECKING:
    from headrace.quota_callbacks.verdicts import Throttle


class Op(Enum):
    """The kinds of charges; amounts are bytes, nanoseconds, mutations, or the producer id."""

    PRODUCE = "produce"
    FETCH = "fetch"
    """Un-recorded if it is throttled, since a broker returns an empty reply then."""
    REQUEST = "request"
    NETWORK = "network"
    """Thread time that is charged without a verdict; the next request is checked."""
    STRICT = "strict"
    PERMISSIVE = "permissive"
    PRODUCER_ID = "producer id"


KEY_OF: Final = {
    Op.PRODUCE: QuotaKey.PRODUCER_BYTE_RATE,
    Op.FETCH: QuotaKey.CONSUMER_BYTE_RATE,
    Op.REQUEST: QuotaKey.REQUEST_PERCENTAGE,
    Op.NETWORK: QuotaKey.REQUEST_PERCENTAGE,
    Op.STRICT: QuotaKey.CONTROLLER_MUTATION_RATE,
    Op.PERMISSIVE: QuotaKey.CONTROLLER_MUTATION_RATE,
    Op.PRODUCER_ID: QuotaKey.PRODUCER_IDS_RATE,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    throttle_ms: int
    accepted: bool = True


FREE: Final = Outcome(0)


class OurQuotas:
    def __init__(self, window: Window | None = None) -> None:
        self.callback = DefaultQuotaCallback()
        self.quotas = ClientQuotas(
            windows=dict.fromkeys(QuotaKey, window or Window()),
            metric_tags=self.callback.quota_metric_tags,
            quota_limit=self.callback.quota_limit,
        )

    def set(
        self,
        key: QuotaKey,
        user: EntityName | None,
        client_id: EntityName | None,
        value: float | None,
        policy: QuotaPolicy = KAFKA_POLICY,
    ) -> None:
        """Set a quota, or remove it with ``None``."""
        entity = QuotaEntity(user=user, client_id=client_id)
        if value is None:
            self.callback.remove_quota(key, entity)
        else:
            self.callback.update_quota(key, entity, value, policy)
        self.quotas.quotas_changed()

    def use(self, op: Op, user: str, client_id: str, amount: float, now_ms: int) -> Outcome:
        """Charge ``amount`` and return the outcome."""
        bucket = self.quotas.bucket(KEY_OF[op], user, client_id)
        return FREE if bucket is None else charge(bucket, op, amount, now_ms)

    def expire(self, now_ms: int) -> None:
        self.quotas.expire(now_ms)


def charge(bucket: QuotaBucket, op: Op, amount: float, now_ms: int) -> Outcome:
    """Charge a bucket as the built-in callbacks do."""
    if isinstance(bucket, RateBucket):
        return _charge_rate(bucket, op, amount, now_ms)
    if isinstance(bucket, ProducerIdBucket):
        return _outcome(bucket.charge(int(amount), now_ms))
    assert isinstance(bucket, MutationBucket)
    if op is Op.STRICT:
        denied = bucket.admit(amount, now_ms)
        return FREE if denied is None else Outcome(denied.throttle_ms, accepted=False)
    bucket.charge(amount, now_ms)
    return _outcome(bucket.throttle(now_ms))


def _charge_rate(bucket: RateBucket, op: Op, amount: float, now_ms: int) -> Outcome:
    if op is Op.NETWORK:
        bucket.record(amount * PERCENT_PER_NS, now_ms)
        return FREE
    if op is Op.REQUEST:
        return _outcome(bucket.charge(amount * PERCENT_PER_NS, now_ms, longest_ms=bucket.window.seconds * 1000))
    outcome = _outcome(bucket.charge(amount, now_ms))
    if op is Op.FETCH and outcome.throttle_ms > 0:
        bucket.record(-amount, now_ms)
    return outcome


def _outcome(verdict: Throttle | None) -> Outcome:
    return FREE if verdict is None else Outcome(verdict.throttle_ms)
