"""Buckets that are not used are dropped, but not while their entity has to wait."""

from __future__ import annotations

from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS, ClientQuotas
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey

KEY = QuotaKey.PRODUCER_BYTE_RATE


def test_an_entity_does_not_lose_a_long_wait() -> None:
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()),
        metric_tags=lambda _key, user, client_id: {"user": user, "client-id": client_id},
        quota_limit=lambda _key, _tags: 1000.0,
    )
    bucket = quotas.bucket(KEY, "", "c")
    assert isinstance(bucket, RateBucket)
    verdict = bucket.charge(5e6 + 1000 * 10, 0)
    assert verdict is not None
    assert verdict.throttle_ms > IDLE_EXPIRY_MS
    assert quotas.expire(IDLE_EXPIRY_MS + 1) == 0
    assert quotas.expire(verdict.throttle_ms + 1) == 1
