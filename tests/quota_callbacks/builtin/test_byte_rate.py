"""The charges of the byte-rate callback."""

from __future__ import annotations

import pytest

from headrace.quota_callbacks.buckets.client_quotas import IDLE_EXPIRY_MS
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import FETCH, PRODUCE, SHARE_FETCH, ByteRate
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from headrace.quota_callbacks.requests import Address, Connection, Request
from tests.quota_callbacks.our_quotas import OurQuotas


class Rig:
    def __init__(self, key: QuotaKey, limit: float, window: Window | None = None) -> None:
        self.ours = OurQuotas(window)
        self.callback = ByteRate()
        self.callback.configure(PluginContext(options={}, quotas=self.ours.quotas))
        self.connection = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1))
        self.set(key, limit)

    def set(self, key: QuotaKey, limit: float, client_id: str = "c") -> None:
        self.ours.set(key, None, client_id, limit)

    def request(self, api_key: int, size: int, client_id: str = "c") -> Request:
        return Request(self.connection, api_key, 12, 1, client_id, size, 0.0)


def test_produce_is_charged_header_and_body_without_the_length() -> None:
    rig = Rig(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    assert rig.callback.request_received(rig.request(PRODUCE, 10_000), 0) is None
    throttle = rig.callback.request_received(rig.request(PRODUCE, 1000), 0)
    assert throttle is not None
    assert throttle.throttle_ms == 1000
    assert throttle.reason is not None
    assert throttle.reason.quota == "producer_byte_rate"
    assert rig.callback.response_received(rig.request(PRODUCE, 1000), 0) is None


@pytest.mark.parametrize("api_key", [FETCH, SHARE_FETCH])
@pytest.mark.parametrize("header_bytes", [4, 5])
def test_fetch_is_charged_four_bytes_and_the_body(api_key: int, header_bytes: int) -> None:
    rig = Rig(QuotaKey.CONSUMER_BYTE_RATE, 1000)
    request = rig.request(api_key, 100)
    request.response_header_bytes = header_bytes
    request.response_bytes = header_bytes + 10_996
    throttle = rig.callback.response_received(request, 0)
    assert throttle is not None
    assert throttle.throttle_ms == 1000


@pytest.mark.parametrize(("limit", "cap"), [(1000, 10_000), (2**40, INT_MAX)])
def test_a_fetch_may_ask_for_a_window_less_one_sample(limit: int, cap: int) -> None:
    rig = Rig(QuotaKey.CONSUMER_BYTE_RATE, limit)
    request = rig.request(FETCH, 100)
    assert rig.callback.request_received(request, 0) is None
    assert request.fetch_max_bytes == cap


def test_max_value_in_quota_window() -> None:
    """``ClientQuotaManagerTest.testMaxValueInQuotaWindow``: 10 a second over 4 x 1 s is 30."""
    rig = Rig(QuotaKey.CONSUMER_BYTE_RATE, 10, Window(samples=4, seconds=1))
    request = rig.request(FETCH, 100)
    rig.callback.request_received(request, 0)
    assert request.fetch_max_bytes == 30


def test_a_client_without_a_quota_is_neither_throttled_nor_capped() -> None:
    rig = Rig(QuotaKey.CONSUMER_BYTE_RATE, 10)
    request = rig.request(FETCH, 100, client_id="another")
    request.response_bytes = 10**9
    assert rig.callback.request_received(request, 0) is None
    assert request.fetch_max_bytes is None
    assert rig.callback.response_received(request, 0) is None


def test_a_connection_follows_changed_quotas_and_client_ids() -> None:
    rig = Rig(QuotaKey.PRODUCER_BYTE_RATE, 10**9)
    assert rig.callback.request_received(rig.request(PRODUCE, 20_000), 0) is None
    rig.set(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    throttle = rig.callback.request_received(rig.request(PRODUCE, 0), 0)
    assert throttle is not None
    assert throttle.throttle_ms == 10_000
    assert rig.callback.request_received(rig.request(PRODUCE, 20_000, client_id="d"), 0) is None
    rig.connection.user = "alice"
    rig.ours.set(QuotaKey.PRODUCER_BYTE_RATE, "alice", None, 1)
    assert rig.callback.request_received(rig.request(PRODUCE, 20_000, client_id="d"), 0) is not None


def test_connections_of_one_entity_share_its_bucket() -> None:
    rig = Rig(QuotaKey.PRODUCER_BYTE_RATE, 1000)
    rig.callback.request_received(rig.request(PRODUCE, 10_000), 0)
    rig.connection = Connection(connection_id=2, peer=Address(host="127.0.0.1", port=2))
    assert rig.callback.request_received(rig.request(PRODUCE, 1000), 0) is not None


def test_a_paced_fetch_whose_bucket_was_dropped_is_charged_to_the_one_that_exists_now() -> None:
    rig = Rig(QuotaKey.CONSUMER_BYTE_RATE, 1000)
    rig.ours.set(QuotaKey.CONSUMER_BYTE_RATE, None, "c", 1000, QuotaPolicy(mode=EnforcementMode.PACED))
    request = rig.request(FETCH, 100)
    assert rig.callback.request_received(request, 0) is None
    later_ms = 2 * IDLE_EXPIRY_MS
    assert rig.ours.quotas.expire(later_ms) == 1
    request.response_header_bytes, request.response_bytes = 4, 10_000
    rig.callback.response_received(request, later_ms)
    bucket = rig.ours.quotas.bucket(QuotaKey.CONSUMER_BYTE_RATE, "", "c")
    assert bucket is not None
    assert bucket.observed(later_ms) == 1000
