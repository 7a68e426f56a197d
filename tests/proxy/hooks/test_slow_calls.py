"""A callback that holds the event loop is named, whatever hook it implements and whoever wrote it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.hooks import slow_calls as slow_calls_module
from headrace.proxy.hooks.calls import hook_calls as calls_module
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.hooks.slow_calls import NOT_MEASURED, VERDICT_HOOKS
from headrace.quota_callbacks import hookspecs
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.controller_mutation import ControllerMutation
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.builtin.producer_ids import ProducerIds
from headrace.quota_callbacks.builtin.request_percentage import RequestPercentage
from headrace.quota_callbacks.definitions import EntityTypeDefinition
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl
from headrace.quota_callbacks.identities import QuotaOperation, UserSource
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.requests import Address, ClusterMetadata, Connection, Interest, Request
from headrace.quota_callbacks.sasl import SaslStep, UpstreamSasl

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

LIMIT_S = 0.1
TOOK_S = 0.25
BUILT_IN = (ByteRate, ControllerMutation, DefaultQuotaCallback, ProducerIds, RequestPercentage)
CONNECTION = Connection(connection_id=1, peer=Address(host="h", port=1))
ENTITY = QuotaEntity(user="u")
CLUSTER = ClusterMetadata(cluster_id="c", controller_id=None, brokers=())
ACTION = Action(Operation.READ, ResourceType.TOPIC, "t")


class Clock:
    """The clock with which calls are measured; a callback that blocks is one that advances it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def block(self, *_arguments: object) -> None:
        self.now_s += TOOK_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (calls_module, slow_calls_module):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


def hooks_of(**plugins: object) -> HookCalls:
    manager = new_plugin_manager()
    for name, plugin in plugins.items():
        register(manager, name, plugin)
    hooks = HookCalls(manager, slow_call_s=LIMIT_S)
    hooks.flatten()
    return hooks


def plugin_with(**methods: Callable[..., Any]) -> object:
    """A plugin with these hooks."""
    implementations = {name: hookimpl(method) for name, method in methods.items()}
    return type("Plugin", (), {"headrace_hooks": HOOK_VERSION, **implementations})()


def request(api_key: ApiKey = ApiKey.PRODUCE) -> Request:
    return Request(CONNECTION, api_key, 7, 1, "c", 100, 0.0)


ON_THE_LOOP: dict[str, Callable[[HookCalls], object]] = {
    "quota_metric_tags": lambda hooks: hooks.quota_metric_tags("producer_byte_rate", "u", "c"),
    "quota_limit": lambda hooks: hooks.quota_limit("producer_byte_rate", {}),
    "update_quota": lambda hooks: hooks.update_quota(QuotaKey.PRODUCER_BYTE_RATE, ENTITY, Quota(value=1.0)),
    "remove_quota": lambda hooks: hooks.remove_quota(QuotaKey.PRODUCER_BYTE_RATE, ENTITY),
    "quota_reset_required": lambda hooks: hooks.request_received((), request(), 0),
    "update_cluster_metadata": lambda hooks: hooks.update_cluster_metadata(CLUSTER),
    "request_received": lambda hooks: hooks.request_received(hooks.request_callbacks(ApiKey.PRODUCE), request(), 0),
    "request_arrived": lambda hooks: hooks.request_arrived(request(), 0),
    "batches_received": lambda hooks: hooks.batches_received(request(), 0),
    "records_fetched": lambda hooks: hooks.records_fetched(request(), 0),
    "request_abandoned": lambda hooks: hooks.request_abandoned(request(), 0),
    "request_denied": lambda hooks: hooks.request_denied(request(), 0),
    "mutation_budget": lambda hooks: hooks.mutation_budget(request(), 0),
    "request_time_ms": lambda hooks: hooks.request_time_ms(request()),
    "relay_terms": lambda hooks: hooks.relay.terms(request(), 0),
    "response_received": lambda hooks: hooks.response_received(hooks.response_callbacks(ApiKey.PRODUCE), request(), 0),
    "authentication_started": lambda hooks: hooks.authentication_started(CONNECTION, "PLAIN"),
    "rewrite_user": lambda hooks: hooks.users.rewritten(CONNECTION, "u", UserSource.BROKER),
    "sasl_server_exchange": lambda hooks: hooks.sasl.server_exchange(CONNECTION, "PLAIN"),
    "sasl_client_exchange": lambda hooks: hooks.sasl.client_exchange(None, UpstreamSasl(mechanism="PLAIN")),
    "authorize_quotas": lambda hooks: hooks.authorize_quotas(CONNECTION, QuotaOperation.DESCRIBE),
    "authorize_requests": lambda hooks: hooks.authorization.authorize(CONNECTION, ()),
    "explain_denial": lambda hooks: hooks.authorization.explain(CONNECTION, ACTION),
    "connection_opened": lambda hooks: hooks.connection_opened(CONNECTION),
    "connection_closed": lambda hooks: hooks.connection_closed(CONNECTION, None),
    "request_completed": lambda hooks: hooks.request_completed(request()),
    "requests_completed": lambda hooks: (hooks.request_completed(request()), hooks.completed.deliver()),
    "not_ready": lambda hooks: hooks.not_ready(),
    "collect_metrics": lambda hooks: list(hooks.collect_metrics()),
}
"""A call of each hook that is called while clients are served, on the event loop."""
ELSEWHERE = NOT_MEASURED | {"quota_definitions", "authorizes_requests", "changed_options", "request_costs"}
"""The others, which are called before clients are served, or in a thread."""


@pytest.mark.parametrize("blocks", [False, True])
def test_slow_calls_are_counted_and_logged_once_a_minute(clock: Clock, blocks: bool) -> None:
    def connection_opened(_self: object) -> None:
        if blocks:
            clock.block()
        raise ValueError("after a while")

    hooks = hooks_of(sleeper=plugin_with(connection_opened=connection_opened))
    with capture_logs() as lines:
        for _ in range(3):
            hooks.connection_opened(CONNECTION)
    slow = [line for line in lines if line["event"] == "a plugin held the event loop"]
    assert hooks.failures == {"sleeper": 3}
    assert hooks.slow_calls.counts == ({"sleeper": 3} if blocks else {})
    if blocks:
        [line] = slow
        assert (line["plugin"], line["hook"]) == ("sleeper", "connection_opened")
        assert line["took_ms"] == TOOK_S * 1000
        assert line["limit"] == "plugins.slow_call = 100 ms"


@pytest.mark.parametrize("hook", ON_THE_LOOP)
def test_every_hook_on_the_event_loop_is_measured(clock: Clock, hook: str) -> None:
    def quick(_self: object) -> None:
        """Do nothing, before and behind the slow one."""

    def slow(_self: object) -> None:
        clock.block()

    first, slow_one, last = (plugin_with(**{hook: method}) for method in (quick, slow, quick))
    hooks = hooks_of(first=first, slow_one=slow_one, last=last)
    ON_THE_LOOP[hook](hooks)
    expected = len(hooks.schema.keys) - 1 if hook == "quota_reset_required" else 1  # called for each key but one
    assert hooks.slow_calls.counts == {"slow_one": expected}


def test_putting_changed_options_into_force_is_measured(clock: Clock) -> None:
    hooks = hooks_of(slow_one=plugin_with(changed_options=lambda _self, options: clock.block))
    functions = hooks.configuration.changed_options({}, {"slow_one": {"size": 2}})
    assert hooks.slow_calls.counts == {}
    functions["slow_one"]()
    assert hooks.slow_calls.counts == {"slow_one": 1}


def test_no_hook_is_left_out() -> None:
    hooks = {name for name, value in vars(hookspecs).items() if hasattr(value, "headrace_spec")}
    assert set(ON_THE_LOOP) == hooks - ELSEWHERE
    assert set(ON_THE_LOOP) > VERDICT_HOOKS


@pytest.mark.parametrize("kind", BUILT_IN)
def test_built_in_callbacks_are_named_as_any_other(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: type[object]
) -> None:
    """Each hook of each of them, which is most of what is called for a request."""
    hooks = [name for name in ON_THE_LOOP if hasattr(kind, name)]
    assert hooks
    for hook in hooks:
        with monkeypatch.context() as patched:
            patched.setattr(kind, hook, hookimpl(lambda _self: clock.block()))
            interest = hookimpl(lambda _self: (Interest(api_key=ApiKey.PRODUCE),))
            patched.setattr(kind, "request_interest", interest, raising=False)
            found = hooks_of(built_in=kind())
            ON_THE_LOOP[hook](found)
        assert found.slow_calls.counts == {"built_in": 1}, hook


def test_a_slow_call_that_another_call_has_made_counts_once(clock: Clock) -> None:
    """A built-in callback asks plugins for limits: the plugin is named, and not the callback."""
    hooks: HookCalls

    def request_received(_self: object) -> None:
        hooks.quota_limit("producer_byte_rate", {})
        hooks.quota_limit("consumer_byte_rate", {})
        clock.now_s += own_s

    def quota_limit(_self: object) -> None:
        clock.block()

    hooks = hooks_of(asking=plugin_with(request_received=request_received), asked=plugin_with(quota_limit=quota_limit))
    own_s = LIMIT_S / 2
    ON_THE_LOOP["request_received"](hooks)
    assert hooks.slow_calls.counts == {"asked": 2}
    own_s = TOOK_S
    ON_THE_LOOP["request_received"](hooks)
    assert hooks.slow_calls.counts == {"asked": 4, "asking": 1}


def test_a_callback_that_raises_after_a_while_is_named(clock: Clock) -> None:
    def request_received(_self: object) -> None:
        clock.block()
        raise ValueError("after a while")

    hooks = hooks_of(raising=plugin_with(request_received=request_received))
    ON_THE_LOOP["request_received"](hooks)
    assert hooks.slow_calls.counts == hooks.failures == {"raising": 1}


def test_a_generator_of_metrics_is_measured_where_it_runs(clock: Clock) -> None:
    def collect_metrics(_self: object) -> Iterator[Metric]:
        yield Metric(name="size", help="A size.", value=1.0)
        clock.block()

    hooks = hooks_of(slow_one=plugin_with(collect_metrics=collect_metrics))
    assert [metric.value for metric in hooks.collect_metrics()] == [1.0]
    assert hooks.slow_calls.counts == {"slow_one": 1}


def test_the_tags_of_an_entity_type_are_measured_as_a_call_of_their_plugin(clock: Clock) -> None:
    def metric_tags(*_names: str) -> dict[str, str]:
        clock.block()
        return {"team": "blue"}

    team = EntityTypeDefinition(name="team", help="A team.", metric_tags=metric_tags)
    hooks = hooks_of(teams=plugin_with(quota_definitions=lambda _self: (team,)))
    found = hooks.schema.entity_types["team"].metric_tags
    assert found is not None
    assert found("producer_byte_rate", "u", "c") == {"team": "blue"}
    assert hooks.slow_calls.counts == {"teams": 1}


def test_methods_of_observers_are_measured(clock: Clock) -> None:
    hooks = hooks_of()
    hooks.call_observer("observing", clock.block)
    assert hooks.slow_calls.counts == {"observing": 1}


def test_checks_of_names_are_measured(clock: Clock) -> None:
    team = EntityTypeDefinition(name="team", help="A team.", check=clock.block)
    hooks = hooks_of(teams=plugin_with(quota_definitions=lambda _self: (team,)))
    check = hooks.schema.entity_types["team"].check
    assert check is not None
    check("blue")
    assert hooks.slow_calls.counts == {"teams": 1}


def test_calls_in_other_threads_do_not_count(clock: Clock) -> None:
    hooks = hooks_of()
    thread = threading.Thread(target=hooks.call_observer, args=("observing", clock.block))
    thread.start()
    thread.join()
    assert hooks.slow_calls.counts == {}


async def test_each_step_of_an_async_hook_is_measured(clock: Clock) -> None:
    async def prepare_metrics(_self: object) -> None:
        clock.block()
        await trio.lowlevel.checkpoint()
        clock.block()
        with trio.move_on_after(0):
            await trio.sleep_forever()

    hooks = hooks_of(slow_one=plugin_with(prepare_metrics=prepare_metrics))
    await hooks.prepare_metrics()
    assert hooks.slow_calls.counts == {"slow_one": 2}
    assert hooks.failures == {}


async def test_time_in_which_an_async_hook_waits_does_not_count(clock: Clock) -> None:
    async def block() -> None:
        clock.block()

    async def prepare_metrics(_self: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(block)

    hooks = hooks_of(waiting=plugin_with(prepare_metrics=prepare_metrics))
    await hooks.prepare_metrics()
    assert hooks.slow_calls.counts == {}


async def test_sasl_exchanges_are_measured(clock: Clock) -> None:
    class Exchange:
        mechanism = "SLOW"
        blocks = False

        def respond(self, token: bytes | None) -> Any:
            if token is None:
                return wait()
            clock.block()
            return SaslStep()

    async def wait() -> None:
        await trio.lowlevel.checkpoint()
        clock.block()

    hooks = hooks_of()
    hooks.sasl.server_step("slow_one", Exchange(), b"token")
    assert hooks.slow_calls.counts == {"slow_one": 1}
    await hooks.sasl.client_token("slow_one", Exchange(), None)
    assert hooks.slow_calls.counts == {"slow_one": 2}


def test_functions_that_a_plugin_runs_on_the_event_loop_are_measured(clock: Clock) -> None:
    contexts: list[PluginContext] = []

    async def block() -> None:
        await trio.lowlevel.checkpoint()
        clock.block()

    def run(function: Callable[[], Awaitable[None]]) -> None:
        trio.run(function)

    hooks = hooks_of(slow_one=plugin_with(configure=lambda _self, context: contexts.append(context)))
    quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
    hooks.configure(quotas, {}, PluginContext(options={}, quotas=quotas, run_on_loop=run))
    contexts[0].run_on_loop(block)
    assert hooks.slow_calls.counts == {"slow_one": 1}
