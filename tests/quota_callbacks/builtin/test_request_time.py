"""Request time in percent of a thread: ``ClientRequestQuotaManagerTest``, and the charges of the callback."""

from __future__ import annotations

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.request_costs import DEFAULT_COSTS
from headrace.quota_callbacks.builtin.request_percentage import PRODUCE, REMEMBERED_MS, RequestPercentage
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import EnforcementMode, QuotaPolicy
from headrace.quota_callbacks.requests import PERCENT_PER_NS, Address, Connection, Request
from tests.quota_callbacks.our_quotas import Op, OurQuotas

KEY = QuotaKey.REQUEST_PERCENTAGE
MS = 1_000_000
HEARTBEAT, SASL_HANDSHAKE, WRITE_TXN_MARKERS = ApiKey.HEARTBEAT, ApiKey.SASL_HANDSHAKE, ApiKey.WRITE_TXN_MARKERS


def quotas(limit: float, window: Window | None = None) -> OurQuotas:
    ours = OurQuotas(window)
    ours.set(KEY, "u", None, limit)
    return ours


def test_request_quota_violation() -> None:
    """``ClientRequestQuotaManagerTest.testRequestPercentageQuotaViolation``: 1 % over 11 x 1 s, in nanoseconds."""
    ours, now_ms = quotas(1), 0

    def charge(nanos: float) -> int:
        return ours.use(Op.REQUEST, "u", "c", nanos, now_ms).throttle_ms

    for _ in range(10):
        assert charge(4 * MS) == 0
        now_ms += 1000
    now_ms += 500
    assert charge(67.1 * MS) == 210
    now_ms += 210
    after = []
    for _ in range(12):
        after.append(charge(4 * MS))
        now_ms += 1000
    assert after == [400] * 10 + [900, 0]
    assert charge(500 * MS) == 1000, "bounded by one window"
    after.clear()
    for _ in range(11):
        now_ms += 1000
        after.append(charge(0))
    assert after == [1000] * 10 + [0]


@pytest.mark.parametrize("seconds", [1, 5])
def test_no_throttle_is_longer_than_a_sample(seconds: int) -> None:
    ours = quotas(1, Window(samples=11, seconds=seconds))
    assert ours.use(Op.REQUEST, "u", "c", 10**12, 0).throttle_ms == seconds * 1000


def test_network_time_is_checked_with_the_next_request() -> None:
    ours = quotas(1)
    assert ours.use(Op.NETWORK, "u", "c", 110 * MS, 0).throttle_ms == 0
    assert ours.use(Op.REQUEST, "u", "c", 0, 0).throttle_ms == 1000


class Callback:
    """The callback with a cost model that returns ``handler_ms``."""

    def __init__(self, limit: float, handler_ms: float) -> None:
        self.quotas = quotas(limit)
        self.callback = RequestPercentage()
        self.callback.configure(
            PluginContext(options={}, quotas=self.quotas.quotas, request_time_ms=lambda _request: handler_ms)
        )
        self.connection = Connection(connection_id=1, peer=Address(host="127.0.0.1", port=1), user="u")

    def throttle_ms(self, api_key: int = HEARTBEAT, acks: int | None = None, own_ns: int = 0) -> int:
        request = Request(self.connection, api_key, 4, 1, "c", 100, 0.0)
        request.acks = acks
        assert self.callback.request_received(request, 0) is None
        self.connection.thread_ns += own_ns
        if acks == 0:
            return 0
        throttle = self.callback.response_received(request, 0)
        return 0 if throttle is None else throttle.throttle_ms

    @property
    def exempt(self) -> float:
        return self.quotas.quotas.exempt_request_time._total

    @property
    def charged(self) -> float:
        bucket = self.quotas.quotas.bucket(KEY, "u", "c")
        assert bucket is not None
        return bucket.observed(0) * 10  # the rate is over the window less one sample


def test_the_handlers_time_and_the_proxys_own_are_charged_with_the_reply() -> None:
    rig = Callback(1, handler_ms=100)
    assert rig.throttle_ms() == 0
    assert rig.charged == pytest.approx(100 * MS * PERCENT_PER_NS)
    assert rig.throttle_ms(own_ns=20 * MS) == 1000
    assert rig.charged == pytest.approx(220 * MS * PERCENT_PER_NS)
    assert rig.connection.thread_ns == 0, "charged once"
    assert rig.exempt == 0


@pytest.mark.parametrize(("forwarded_s", "charged_ms"), [(None, 20), (0.0, 120)])
def test_who_leaves_before_the_reply_is_charged_for_the_proxys_own_time_too(
    forwarded_s: float | None, charged_ms: int
) -> None:
    rig = Callback(1, handler_ms=100)
    request = Request(rig.connection, HEARTBEAT, 4, 1, "c", 100, 0.0)
    assert rig.callback.request_received(request, 0) is None
    request.forwarded_s, rig.connection.thread_ns = forwarded_s, 20 * MS
    rig.callback.request_abandoned(request, 0)
    assert rig.charged == pytest.approx(charged_ms * MS * PERCENT_PER_NS)
    assert rig.connection.thread_ns == 0, "charged once"


@pytest.mark.parametrize(("api_key", "acks"), [(PRODUCE, 0), (SASL_HANDSHAKE, None)])
def test_what_is_exempt_is_counted_as_such(api_key: int, acks: int | None) -> None:
    rig = Callback(1, handler_ms=10**4)
    rig.connection.authenticating = True
    assert rig.throttle_ms(api_key, acks) == 0
    assert rig.charged == 0
    assert rig.exempt == pytest.approx(10**4 * MS * PERCENT_PER_NS)


def test_requests_between_brokers_are_charged_to_a_client() -> None:
    """KIP-124 exempts them if cluster authorization succeeds, which the proxy's clients do not need."""
    assert Callback(1, handler_ms=10**4).throttle_ms(WRITE_TXN_MARKERS) == 1000


def test_sasl_is_charged_once_the_connection_has_authenticated() -> None:
    assert Callback(1, handler_ms=10**4).throttle_ms(SASL_HANDSHAKE) == 1000


class Pipeline(Callback):
    """Requests of one connection that are sent without waiting for replies."""

    def is_alone(self, api_key: int, in_flight: int, size: int = 100, now_ms: int = 0) -> bool:
        request = Request(self.connection, api_key, 4, 2, "c", size, 0.0)
        request.in_flight = in_flight
        assert self.callback.request_received(request, now_ms) is None
        return request.alone

    def costs(self, api_key: int, in_flight: int = 1, now_ms: int = 0) -> None:
        """Complete a request."""
        request = Request(self.connection, api_key, 4, 2, "c", 100, 0.0)
        request.in_flight, request.response_bytes = in_flight, 10
        assert self.callback.response_received(request, now_ms) is None


BASE_MS = DEFAULT_COSTS[HEARTBEAT].base_ms


@pytest.mark.parametrize(
    ("limit", "times", "in_flight", "alone"),
    [
        (0.1, 1, 9, False),  # a few are free
        (1.0, 1, int(50 / BASE_MS), False),  # of a credit of 100 ms
        (1.0, 1, int(150 / BASE_MS), True),
        (1.0, 100, int(5 / BASE_MS), True),
        (1e6, 100, 900, False),
    ],
)
def test_no_more_is_in_flight_than_there_is_credit_for(
    limit: float, times: int, in_flight: int, *, alone: bool
) -> None:
    rig = Pipeline(limit, handler_ms=BASE_MS * times)
    rig.costs(HEARTBEAT)
    assert rig.is_alone(HEARTBEAT, in_flight) is alone


def test_what_an_expensive_request_has_cost_is_remembered_for_a_minute_or_two() -> None:
    """Cheap requests do not hide it; those of other APIs do not cost more; and a large request costs more."""
    rig = Pipeline(1.0, handler_ms=20 * BASE_MS)
    rig.costs(HEARTBEAT)
    rig.callback._request_time_ms = lambda _request: 0.001
    for _ in range(1000):
        rig.costs(HEARTBEAT)
    in_flight = int(10 / BASE_MS)
    assert (rig.is_alone(HEARTBEAT, in_flight), rig.is_alone(ApiKey.LEAVE_GROUP, 12)) == (True, False)
    assert rig.is_alone(HEARTBEAT, in_flight, now_ms=REMEMBERED_MS)
    assert not rig.is_alone(HEARTBEAT, in_flight, now_ms=2 * REMEMBERED_MS)
    assert rig.is_alone(PRODUCE, 12, 100_000_000)


def test_a_paced_bucket_has_credit_for_what_is_left_of_its_burst() -> None:
    """A burst of one second of 1 %: 10 ms."""
    rig = Pipeline(1.0, handler_ms=BASE_MS)
    bucket = rig.quotas.quotas.bucket(KEY, "u", "c")
    assert bucket is not None
    bucket.policy = QuotaPolicy(mode=EnforcementMode.PACED)
    assert [rig.is_alone(HEARTBEAT, in_flight) for in_flight in (9, int(5 / BASE_MS), int(15 / BASE_MS))] == [
        False, False, True,
    ]  # fmt: skip
