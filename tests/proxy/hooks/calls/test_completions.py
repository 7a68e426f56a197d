"""Which plugins are called for a completed request, and which get it in sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.errors import StartupError
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.request_sums import LATENCY_BOUNDS_S, RequestSums
from headrace.quota_callbacks.requests import Interest, Request
from headrace.quota_callbacks.testing import make_connection, make_request
from headrace.quota_callbacks.verdicts import Reason
from tests.proxy.playbook import new_hooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.proxy.hooks.calls.hook_calls import HookCalls

CONNECTION = make_connection(user="alice")
REASON = Reason(quota="producer_byte_rate", entity="user=alice", observed=2.0, limit=1.0)


class Single:
    """Gets requests one by one."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.sums: list[RequestSums] = []

    @hookimpl
    def request_completed(self, request: Request) -> None:
        self.requests.append(request)


class Summing(Single):
    """Gets sums, and each request to create topics."""

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (
            Interest(api_key=ApiKey.PRODUCE, end_only=True),
            Interest(api_key=ApiKey.CREATE_TOPICS, end_only=True, each_completed=True),
        )

    @hookimpl
    def requests_completed(self, batch: Sequence[RequestSums]) -> None:
        self.sums += batch


class Sampling(Single):
    def __init__(self, ratio: Any) -> None:
        super().__init__()
        self.ratio = ratio

    @hookimpl
    def request_sample_ratio(self) -> Any:
        return self.ratio


def completed(api_key: int = ApiKey.PRODUCE, **changes: object) -> Request:
    made = make_request(api_key, connection=CONNECTION, client_id="app")
    fields = {"forwarded_s": 1.0, "reply_s": 1.004, "completed_s": 1.005, "response_bytes": 40}
    for name, value in (fields | changes).items():
        setattr(made, name, value)
    return made


def hooks_of(**plugins: object) -> HookCalls:
    hooks = new_hooks(plugins)
    hooks.flatten()
    return hooks


NOT_ORDINARY: dict[str, object] = {
    "throttle_ms": 5,
    "broker_throttle_ms": 5,
    "refused_code": 89,
    "error": "",
    "reason": REASON,
}


def test_ordinary_requests_are_in_one_batch_and_others_are_reported() -> None:
    plugin = Summing()
    hooks = hooks_of(plugin=plugin)
    others = [completed(**{name: value}) for name, value in NOT_ORDINARY.items()]
    for each in (completed(), completed(reply_s=1.001), *others):
        hooks.request_completed(each)
    hooks.completed.deliver()
    hooks.completed.deliver()
    assert plugin.requests == others
    (sums,) = plugin.sums
    assert (sums.connection, sums.user, sums.client_id, sums.api_key) == (CONNECTION, "alice", "app", ApiKey.PRODUCE)
    assert (sums.requests, sums.request_bytes, sums.response_bytes) == (2, 200, 80)
    assert sums.broker_s == pytest.approx(0.005)
    assert sums.latencies == [1, 0, 1] + [0] * (len(LATENCY_BOUNDS_S) - 2)


def test_sums_are_kept_apart_by_user_and_client_id() -> None:
    plugin = Summing()
    hooks = hooks_of(plugin=plugin)
    connection = make_connection()
    for user, client_id in [("a", "x"), ("b", "x"), ("b", "y"), ("b", "y")]:
        connection.user = user
        hooks.request_completed(make_request(ApiKey.PRODUCE, connection=connection, client_id=client_id))
    hooks.connection_closed(connection, None)
    assert [(each.user, each.client_id, each.requests) for each in plugin.sums] == [
        ("a", "x", 1),
        ("b", "x", 1),
        ("b", "y", 2),
    ]


def test_who_asks_for_each_request_of_an_api_gets_it_and_no_sums() -> None:
    plugin, all_apis = Summing(), type("AllApis", (Summing,), {"request_interest": None})()
    hooks = hooks_of(plugin=plugin, all_apis=all_apis)
    for api_key in (ApiKey.CREATE_TOPICS, ApiKey.PRODUCE, ApiKey.FETCH):
        hooks.request_completed(completed(api_key))
    hooks.completed.deliver()
    assert [each.api_key for each in plugin.requests] == [ApiKey.CREATE_TOPICS]
    assert [each.api_key for each in plugin.sums] == [ApiKey.PRODUCE]
    assert {each.api_key for each in all_apis.sums} == {ApiKey.CREATE_TOPICS, ApiKey.PRODUCE, ApiKey.FETCH}
    assert all_apis.requests == []


def test_only_what_has_to_be_reported_by_itself_is_called_for() -> None:
    assert ApiKey.PRODUCE in hooks_of(single=Single()).relay.called
    assert ApiKey.PRODUCE not in hooks_of(plugin=Summing(), sampling=Sampling(0.5)).relay.called
    assert ApiKey.CREATE_TOPICS in hooks_of(plugin=Summing()).relay.called
    assert ApiKey.PRODUCE in hooks_of(sampling=Sampling(None)).relay.called


def test_a_request_is_in_all_samples_with_a_higher_ratio() -> None:
    plugins = {f"ratio_{ratio}": Sampling(ratio) for ratio in (0, 0.25, 0.5, 1)}
    hooks = hooks_of(**plugins)
    assert hooks.completed.sample_ratio == 1
    draws = iter([0.0, 0.25, 0.4, 0.5, 0.999])
    hooks.completed.draw = lambda: next(draws)
    for _ in range(5):
        hooks.request_completed(completed())
    hooks.request_completed(completed(refused_code=89))
    assert [len(plugin.requests) for plugin in plugins.values()] == [0 + 1, 1 + 1, 3 + 1, 5 + 1]
    assert Single().requests == []


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan"), "half"])
def test_a_wrong_ratio_stops_the_start(ratio: object) -> None:
    with pytest.raises(StartupError, match="plugin 'sampling': request_sample_ratio: "):
        hooks_of(sampling=Sampling(ratio))


def test_native_sums_are_added_to_those_of_the_python_relays() -> None:
    plugin = Summing()
    hooks = hooks_of(plugin=plugin)
    hooks.request_completed(completed())
    latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)
    row = (ApiKey.PRODUCE, 7, 3, 300, 90, 5_000, 2_000_000, [*latencies[:-1], 3])
    hooks.completed.add_native(CONNECTION, "app", [row, (ApiKey.FETCH, 7, 1, 1, 1, 1, 1, latencies)])
    hooks.completed.add_native(CONNECTION, "app", [row])
    hooks.completed.deliver()
    assert sorted((each.second == 7, each.requests) for each in plugin.sums) == [(False, 1), (True, 6)]
    native = next(each for each in plugin.sums if each.second == 7)
    assert (native.request_bytes, native.response_bytes, native.thread_ns) == (600, 180, 10_000)
    assert (native.broker_s, native.latencies[-1]) == (pytest.approx(0.004), 6)
