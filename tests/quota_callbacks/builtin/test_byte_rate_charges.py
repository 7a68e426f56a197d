"""The byte rates, apart from what connections and Kafka's classes show: when charges are taken back, and caps."""

from __future__ import annotations

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Limit, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request


def callback_with(policy: QuotaPolicy) -> tuple[ByteRate, ClientQuotas]:
    quotas = ClientQuotas(
        windows={key: Window() for key in QuotaKey},
        metric_tags=lambda _key, user, _client_id: {"user": user, "client-id": ""},
        quota_limit=lambda _key, _tags: Limit(1000.0, QuotaEntity(user="u"), policy),
    )
    callback = ByteRate()
    callback._charge_to(quotas)
    return callback, quotas


def new_connection() -> Connection:
    return Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1), user="u")


def request_of(connection: Connection, api_key: ApiKey, size: int, received_s: float) -> Request:
    request = Request(connection, api_key, 11, 1, "c", size, received_s)
    request.arrived = True
    return request


@pytest.mark.parametrize("policy", [QuotaPolicy(), QuotaPolicy(mode=EnforcementMode.PACED)], ids=["muted", "paced"])
def test_a_charge_is_taken_back_from_the_time_of_the_charge(policy: QuotaPolicy) -> None:
    """Otherwise a sample of an earlier time becomes negative, and the bytes count again when that one is dropped."""
    callback, quotas = callback_with(policy)
    connection = new_connection()
    first, held = (request_of(connection, ApiKey.PRODUCE, *each) for each in ((100, 0.0), (400, 0.5)))
    callback.request_received(first, 0)
    callback.request_received(held, 1500)
    callback.request_abandoned(held, 2000)
    bucket = quotas.bucket(QuotaKey.PRODUCER_BYTE_RATE, "u", "c")
    assert isinstance(bucket, RateBucket)
    assert bucket._rate._samples[2::3] == [100, 0]


@pytest.mark.parametrize(("observe", "cap"), [(False, 10_000), (True, None)])
def test_a_fetch_is_capped_unless_the_quota_is_observed(observe: bool, cap: int | None) -> None:
    callback, _ = callback_with(QuotaPolicy(observe=observe))
    fetch = request_of(new_connection(), ApiKey.FETCH, 100, 0.0)
    callback.request_received(fetch, 0)
    assert fetch.fetch_max_bytes == cap
    terms = callback.relay_terms(fetch, 0)
    assert (terms.fetch_max_bytes, terms.fetch_alone) == (cap, not observe)
