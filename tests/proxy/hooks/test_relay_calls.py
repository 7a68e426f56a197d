"""On which terms plugins let connections be relayed natively, and what happens when they raise or do not agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.kinds import RateBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.hookspecs import PluginContext, hookimpl
from headrace.quota_callbacks.relay_terms import RelayTerms
from headrace.quota_callbacks.requests import Address, Connection, Interest, Request
from tests.proxy.playbook import new_hooks

if TYPE_CHECKING:
    from headrace.proxy.hooks.calls.hook_calls import HookCalls

BUCKET = RateBucket("producer_byte_rate", (), Window())


def request() -> Request:
    return Request(Connection(connection_id=1, peer=Address(host="h", port=1)), ApiKey.PRODUCE, 9, 1, "c", 100, 0.0)


def hooks_of(**plugins: object) -> HookCalls:
    hooks = new_hooks(plugins)
    quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
    hooks.configure(quotas, {}, PluginContext(options={}, quotas=quotas))
    hooks.flatten()
    return hooks


class Offering:
    """Offers terms, or raises."""

    headrace_hooks = 1

    def __init__(self, terms: RelayTerms | None = None, error: Exception | None = None) -> None:
        self.terms, self.error = terms, error

    @hookimpl
    def request_received(self, request: Request) -> None:
        """Be called for each request."""

    @hookimpl
    def relay_terms(self, request: Request, now_ms: int) -> RelayTerms | None:
        if self.error is not None:
            raise self.error
        return self.terms


def test_the_built_in_callbacks_need_no_call() -> None:
    hooks = hooks_of()
    assert hooks.relay.called.isdisjoint({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.HEARTBEAT})
    assert hooks.relay.has_linear_costs
    assert hooks.relay.costs(ApiKey.PRODUCE)[0] > 0
    assert hooks.relay.terms(request(), 0) == RelayTerms(), "without quotas nothing is charged"


def test_a_plugin_without_the_hook_gets_each_request_that_it_subscribes_to() -> None:
    class Watching:
        headrace_hooks = 1

        @hookimpl
        def request_interest(self) -> tuple[Interest, ...]:
            return (Interest(api_key=ApiKey.HEARTBEAT),)

        @hookimpl
        def request_received(self, request: Request) -> None:
            pass

    hooks = hooks_of(watching=Watching())
    assert ApiKey.HEARTBEAT in hooks.relay.called
    assert ApiKey.PRODUCE not in hooks.relay.called
    assert ApiKey.PRODUCE not in hooks_of(offering=Offering(RelayTerms())).relay.called


def test_terms_are_put_together_unless_two_plugins_charge_for_the_same() -> None:
    one = Offering(RelayTerms(fetch_max_bytes=5))
    other = Offering(RelayTerms(produced=BUCKET, fetch_alone=True))
    together = RelayTerms(produced=BUCKET, fetch_max_bytes=5, fetch_alone=True)
    assert hooks_of(one=one, other=other).relay.terms(request(), 0) == together
    assert hooks_of(one=other, other=Offering(RelayTerms(produced=BUCKET))).relay.terms(request(), 0) is None


def test_a_plugin_that_declines_or_raises_has_to_be_called() -> None:
    assert hooks_of(declining=Offering(None)).relay.terms(request(), 0) is None
    failing = hooks_of(failing=Offering(error=ValueError("x")))
    assert failing.relay.terms(request(), 0) is None
    assert failing.errors == 1


def test_costs_belong_to_the_estimate_of_the_same_plugin() -> None:
    class Estimating:
        headrace_hooks = 1

        @hookimpl
        def request_time_ms(self, request: Request) -> float:
            return 7.0

    class Linear(Estimating):
        @hookimpl
        def request_costs(self, api_key: int) -> tuple[float, float]:
            if api_key == ApiKey.FETCH:
                raise ValueError("x")
            return 7.0, 0.0

    assert not hooks_of(estimating=Estimating()).relay.has_linear_costs
    hooks = hooks_of(linear=Linear())
    assert hooks.relay.has_linear_costs
    assert hooks.relay.costs(ApiKey.PRODUCE) == (7.0, 0.0)
    assert hooks.relay.costs(ApiKey.FETCH) == pytest.approx(hooks_of().relay.costs(ApiKey.FETCH))
    assert hooks.errors == 1
