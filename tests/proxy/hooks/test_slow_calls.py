"""A plugin that holds the event loop is named."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from headrace.proxy.hooks.calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Address, Connection

LIMIT_S = 0.2


class Sleeper:
    """Blocks when a connection is opened, and then raises."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, sleep_s: float) -> None:
        self._sleep_s = sleep_s

    @hookimpl
    def connection_opened(self) -> None:
        time.sleep(self._sleep_s)
        raise ValueError("after a while")


@pytest.mark.parametrize("sleep_s", [0.0, 2 * LIMIT_S])
def test_a_slow_call_is_logged_and_counted_once_a_minute(sleep_s: float) -> None:
    manager = new_plugin_manager()
    register(manager, "sleeper", Sleeper(sleep_s))
    hooks = HookCalls(manager, slow_call_s=LIMIT_S)
    hooks.flatten()
    with capture_logs() as lines:
        for _ in range(3):
            hooks.connection_opened(Connection(connection_id=1, peer=Address(host="h", port=1)))
    slow = [line for line in lines if line["event"] == "a plugin held the event loop"]
    assert hooks.failures == {"sleeper": 3}
    assert hooks.slow_calls.counts == ({"sleeper": 3} if sleep_s else {})
    if sleep_s:
        [line] = slow
        assert (line["plugin"], line["hook"]) == ("sleeper", "connection_opened")
        assert line["took_ms"] >= 2 * LIMIT_S * 1000
        assert line["limit"] == "plugins.slow_call = 200 ms"


def test_a_built_in_callback_is_measured_but_for_each_request() -> None:
    hooks = HookCalls(new_plugin_manager(), slow_call_s=LIMIT_S)
    call = ByteRate().request_received
    assert hooks.slow_calls.measured("byte_rate", "request_received", call, ByteRate.__module__) is call
    update = DefaultQuotaCallback().update_quota
    assert (
        hooks.slow_calls.measured("default_quotas", "update_quota", update, DefaultQuotaCallback.__module__)
        is not update
    )
