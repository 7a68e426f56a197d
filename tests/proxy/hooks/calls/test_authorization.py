"""Calling the hooks for authorization: which plugins take part, what they may return, and what a denial costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.authorization import NO_RULE
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Action, Operation, ResourceType
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.verdicts import Throttle
from tests.proxy.playbook import open_book, read_reply, request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Request

CONNECTION = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))
READ, WRITE = (Action(each, ResourceType.TOPIC, "orders") for each in (Operation.READ, Operation.WRITE))


class Allows:
    headrace_hooks = HOOK_VERSION

    def __init__(self, *operations: Operation, takes_part: bool = True) -> None:
        self.operations = operations
        self.takes_part = takes_part

    @hookimpl
    def authorizes_requests(self) -> bool:
        if not self.operations:
            raise ValueError("no operations")
        return self.takes_part

    @hookimpl
    def authorize_requests(self, actions: Sequence[Action]) -> list[bool]:
        return [each.operation in self.operations for each in actions]

    @hookimpl
    def explain_denial(self, action: Action) -> str | None:
        return None if action.operation in self.operations else f"not {action}"


def hooks(*plugins: Allows) -> HookCalls:
    manager = new_plugin_manager()
    for number, plugin in enumerate(plugins):
        register(manager, f"plugin-{number}", plugin)
    made = HookCalls(manager)
    made.flatten()
    return made


def test_nothing_is_asked_without_a_plugin_that_takes_part() -> None:
    assert not hooks().authorization.active
    assert not hooks(Allows(Operation.READ, takes_part=False)).authorization.active
    assert hooks(Allows(Operation.READ)).authorization.active


def test_an_action_is_allowed_that_one_plugin_allows_and_none_denies() -> None:
    both, read = Allows(Operation.READ, Operation.WRITE), Allows(Operation.READ)
    for plugins, expected in (((both,), [True, True]), ((both, read), [True, False]), ((read, both), [True, False])):
        assert list(hooks(*plugins).authorization.authorize(CONNECTION, [READ, WRITE])) == expected


def test_the_plugin_that_denies_explains_it() -> None:
    calls = hooks(Allows(Operation.READ, Operation.WRITE), Allows(Operation.READ)).authorization
    assert calls.explain(CONNECTION, WRITE) == "not Write on Topic orders"
    assert calls.explain(CONNECTION, READ) == NO_RULE


def test_a_plugin_that_cannot_say_whether_it_takes_part_prevents_the_start() -> None:
    with pytest.raises(StartupError, match="plugin 'plugin-0': authorizes_requests: no operations"):
        hooks(Allows())


class Charges(Allows):
    """Throttles whoever is denied for a second."""

    def __init__(self) -> None:
        super().__init__(Operation.DESCRIBE)
        self.received = 0

    @hookimpl
    def request_received(self, request: Request) -> None:
        self.received += 1

    @hookimpl
    def request_denied(self, request: Request, now_ms: int) -> Throttle:
        return Throttle(throttle_ms=1000)


async def test_a_denied_request_is_charged_by_its_own_hook(autojump_clock: MockClock) -> None:
    plugin = Charges()
    async with open_book(plugins={"charges": plugin}) as script:
        await script.client.sends(request(ApiKey.HEARTBEAT, 4, group_id="mine"))
        answer = read_reply(ApiKey.HEARTBEAT, 4, await script.client.receives())
        assert (answer["error_code"], answer["throttle_time_ms"], plugin.received) == (30, 1000, 0)
