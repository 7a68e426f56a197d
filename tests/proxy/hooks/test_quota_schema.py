"""Quota keys and entity types of plugins, combined with the built-in ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.definitions import (
    BUILTIN_SCHEMA,
    USER_AND_CLIENT_ID,
    EntityTypeDefinition,
    QuotaKeyDefinition,
    ValueType,
)
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.requests import Interest, Request
from headrace.quota_callbacks.testing import make_connection, make_request
from headrace.quota_callbacks.verdicts import Throttle

if TYPE_CHECKING:
    from headrace.quota_callbacks.buckets.quota_scope import QuotaScope

RATE = QuotaKeyDefinition(
    name="request_rate", value_type=ValueType.DOUBLE, entity_types=USER_AND_CLIENT_ID, help="Requests a second."
)
TEAM = EntityTypeDefinition(name="team", help="A team.", keys=frozenset({"producer_byte_rate", "request_rate"}))
ALICE = QuotaEntity(user="alice")
BLUE = QuotaEntity(other=(("team", "blue"),))


class Defines:
    headrace_hooks = HOOK_VERSION

    def __init__(self, *definitions: Any, enforced: frozenset[str] = frozenset()) -> None:
        self._definitions = definitions
        self._enforced = enforced

    @hookimpl
    def quota_definitions(self) -> tuple[Any, ...]:
        return self._definitions

    @hookimpl
    def enforced_quotas(self) -> frozenset[str]:
        return self._enforced


def hooks_of(**plugins: Any) -> HookCalls:
    manager = new_plugin_manager()
    for name, plugin in {"default_quotas": DefaultQuotaCallback(), **plugins}.items():
        register(manager, name, plugin)
    hooks = HookCalls(manager)
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit
    )
    hooks.configure(quotas, {})
    hooks.flatten()
    return hooks


def test_without_definitions_the_schema_is_the_built_in_one() -> None:
    schema = hooks_of().schema
    assert schema.keys == BUILTIN_SCHEMA.keys
    assert schema.entity_types == BUILTIN_SCHEMA.entity_types


def test_definitions_of_several_plugins_refer_to_each_other() -> None:
    schema = hooks_of(teams=Defines(TEAM), rates=Defines(RATE)).schema
    assert set(schema.keys_of(frozenset({"team"}))) == {"producer_byte_rate", "request_rate"}
    assert "request_rate" in schema.keys_of(frozenset({"user", "client-id"}))
    schema.check("producer_byte_rate", 1000, BLUE)
    with pytest.raises(ValueError, match="consumer_byte_rate is for client-id or user or user with client-id only"):
        schema.check("consumer_byte_rate", 1000, BLUE)
    with pytest.raises(ValueError, match="request_rate is for client-id or team or user or user with client-id only"):
        schema.check("request_rate", 1000, QuotaEntity(ip="192.0.2.1"))


def test_a_check_that_fails_refuses_and_is_counted() -> None:
    def check_name(name: str) -> None:
        raise KeyError(name)

    def check_value(entity: QuotaEntity, value: float) -> None:
        raise SystemExit(f"{entity} {value}")

    hooks = hooks_of(mine=Defines(replace(TEAM, check=check_name), replace(RATE, check=check_value)))
    team = hooks.schema.entity_types["team"]
    assert team.check is not None
    with pytest.raises(ValueError, match="team could not be checked, since its plugin has failed"):
        team.check("blue")
    with pytest.raises(ValueError, match="request_rate could not be checked"):
        hooks.schema.check("request_rate", 1, ALICE)
    assert hooks.failures == {"mine": 2}


def test_a_key_of_a_plugin_has_kafkas_precedence_and_a_bucket() -> None:
    hooks = hooks_of(rates=Defines(RATE, enforced=frozenset({"request_rate"})))
    quotas = hooks.quotas
    assert quotas is not None
    assert hooks.enforced.keys == {"request_rate"}
    assert quotas.bucket("request_rate", "alice", "app") is None
    hooks.update_quota("request_rate", QuotaEntity(user=DEFAULT), Quota(value=5.0))
    hooks.update_quota("request_rate", ALICE, Quota(value=7.0))
    quotas.quotas_changed()
    limits = {user: quotas.bucket("request_rate", user, "app") for user in ("alice", "bob")}
    assert {user: bucket and (bucket.limit, bucket.entity) for user, bucket in limits.items()} == {
        "alice": (7.0, "user=alice"),
        "bob": (5.0, "user=<default>"),
    }
    hooks.remove_quota("request_rate", ALICE)
    quotas.quotas_changed()
    alice = quotas.bucket("request_rate", "alice", "app")
    assert alice is not None
    assert alice.limit == 5.0


def test_the_default_callback_leaves_entities_of_plugins_alone() -> None:
    hooks = hooks_of(teams=Defines(TEAM), rates=Defines(RATE))
    hooks.update_quota(QuotaKey.PRODUCER_BYTE_RATE, BLUE, Quota(value=1000))
    assert hooks.quota_metric_tags(QuotaKey.PRODUCER_BYTE_RATE, "alice", "app") is None
    hooks.remove_quota(QuotaKey.PRODUCER_BYTE_RATE, BLUE)
    assert hooks.errors == 0


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        ({"a": Defines(TEAM, RATE), "b": Defines(TEAM)}, "the plugins 'b' and 'a' both define the entity type team"),
        ({"a": Defines(RATE), "b": Defines(RATE)}, "the plugins 'b' and 'a' both define the quota key request_rate"),
        ({"a": Defines(RATE, RATE)}, "plugin 'a': quota_definitions: the quota key request_rate is defined twice"),
        (
            {"a": Defines(EntityTypeDefinition(name="user", help="A user."))},
            "plugin 'a' defines the entity type user, which is built in",
        ),
        ({"a": Defines(TEAM)}, "plugin 'a': quota_definitions: the entity type team has an unknown quota key 'request"),
        (
            {"a": Defines(EntityTypeDefinition(name="my team", help="A team."))},
            "plugin 'a': quota_definitions: the entity type 'my team' must be a letter",
        ),
        ({"a": Defines("team")}, "plugin 'a': quota_definitions: 'team' is neither a QuotaKeyDefinition nor an Entity"),
        (
            {"a": Defines(enforced=frozenset({"requests"}))},
            "plugin 'a': enforced_quotas: ValueError: there is no quota key 'requests'",
        ),
    ],
)
def test_invalid_definitions_stop_the_start(plugins: dict[str, Any], message: str) -> None:
    with pytest.raises(StartupError) as caught:
        hooks_of(**plugins)
    assert str(caught.value).startswith(message)


def test_definitions_that_raise_stop_the_start() -> None:
    class Broken(Defines):
        @hookimpl
        def quota_definitions(self) -> tuple[Any, ...]:
            raise LookupError("no definitions here")

    with pytest.raises(StartupError, match="plugin 'a': quota_definitions: no definitions here"):
        hooks_of(a=Broken())


class Charges:
    """Enforces a key for users, and for each other entity type that has it."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, *, scoped: bool = True) -> None:
        self.scopes: list[QuotaScope] = []
        self.callback: object = Scoped() if scoped else None

    @hookimpl
    def enforced_quotas(self) -> frozenset[str]:
        return frozenset({"producer_byte_rate"})

    @hookimpl
    def scoped_callback(self, scope: QuotaScope) -> object | None:
        self.scopes.append(scope)
        return self.callback


class Scoped:
    """A callback for the buckets of a scope: of its hooks, only those of requests are called."""

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (Interest(api_key=ApiKey.PRODUCE),)

    @hookimpl
    def request_received(self, request: Request) -> Throttle:
        return Throttle(throttle_ms=request.request_bytes)

    @hookimpl
    def quota_limit(self) -> float:
        raise AssertionError("only hooks of requests are called")

    def response_received(self) -> None:
        raise AssertionError("it is not marked as the implementation of a hook")


BY_TAGS = replace(TEAM, keys=frozenset({"producer_byte_rate"}), metric_tags=lambda *_: {"team": "blue"})


def test_callbacks_enforce_the_keys_of_entity_types_that_leave_it_to_them() -> None:
    charges = Charges()
    hooks = hooks_of(teams=Defines(BY_TAGS), charges=charges)
    (scope,) = charges.scopes
    assert (scope.entity_type, scope.keys) == ("team", {"producer_byte_rate"})
    assert (hooks.enforced.of(BLUE), hooks.enforced.of(ALICE)) == ({"producer_byte_rate"}, {"producer_byte_rate"})
    assert hooks.request_callbacks(ApiKey.FETCH) == ()
    (call,) = hooks.request_callbacks(ApiKey.PRODUCE)
    assert call[0] == "charges for team"
    verdict = hooks.request_received((call,), make_request(ApiKey.PRODUCE, request_bytes=7), 0)
    assert verdict is not None
    assert verdict.throttle_ms == 7
    assert hooks.response_callbacks(ApiKey.PRODUCE) == ()
    assert hooks.quota_limit("producer_byte_rate", {}) is None
    assert hooks.errors == 0


def test_without_such_a_callback_the_quotas_are_not_enforced() -> None:
    assert hooks_of(teams=Defines(BY_TAGS), charges=Charges(scoped=False)).enforced.of(BLUE) == frozenset()
    by_itself = replace(TEAM, keys=BY_TAGS.keys)
    assert hooks_of(teams=Defines(by_itself), charges=Charges()).enforced.of(BLUE) is None


def test_a_hook_for_scoped_callbacks_that_raises_stops_the_start() -> None:
    class Raises(Charges):
        @hookimpl
        def scoped_callback(self, scope: QuotaScope) -> object | None:
            raise LookupError(scope.entity_type)

    with pytest.raises(StartupError, match="plugin 'charges': scoped_callback: team"):
        hooks_of(teams=Defines(BY_TAGS), charges=Raises())


class Unmarked:
    def request_received(self) -> None:
        raise AssertionError("it is not marked as the implementation of a hook")


class Misspelt:
    @hookimpl
    def request_received(self, requests: Request) -> None:
        raise AssertionError("it cannot be called")


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Unmarked(), "has no hook of requests that is marked with hookimpl"),
        (True, "True has no hook of requests"),
        (Misspelt(), "has the argument 'requests'; known are request, now_ms"),
    ],
)
def test_a_scoped_callback_without_valid_hooks_stops_the_start(callback: object, message: str) -> None:
    charges = Charges()
    charges.callback = callback
    with pytest.raises(StartupError, match=f"plugin 'charges': scoped_callback: .*{message}"):
        hooks_of(teams=Defines(BY_TAGS), charges=charges)


def raises(_key: str, user: str, _client_id: str) -> dict[str, str]:
    raise KeyError(user)


@pytest.mark.parametrize(
    "metric_tags",
    [raises, *(lambda *_, found=found: found for found in ({}, {"user": "alice"}, {"team": None}, ["team"]))],
)
def test_tags_that_are_wrong_are_an_error_of_their_plugin_and_charge_nothing(metric_tags: Any) -> None:
    """Those of a user would charge the user twice."""
    entity_type = replace(BY_TAGS, metric_tags=metric_tags)
    hooks = hooks_of(teams=Defines(entity_type), byte_rate=ByteRate())
    produce = make_request(ApiKey.PRODUCE, connection=make_connection(user="alice"), request_bytes=70_000)
    assert hooks.request_received(hooks.request_callbacks(ApiKey.PRODUCE), produce, 0) is None
    assert hooks.failures == {"teams": 1}
    assert list(hooks.quotas or ()) == []
