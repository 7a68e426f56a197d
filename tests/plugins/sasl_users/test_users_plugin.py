"""The plugin between the proxy's own hook calls: without its option, with it, and with a file that cannot be used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.plugins.sasl_users import SaslUsers
from headrace.proxy.errors import PluginConfigurationError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.sasl.plain import plain_message
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.requests import Address, Connection
from tests.plugins.sasl_users.user_files import write_users

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Start = Callable[..., HookCalls]

CONNECTION = Connection(connection_id=1, peer=Address(host="192.0.2.1", port=1))


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    def started(*, dry: bool = False, **options: object) -> HookCalls:
        manager = new_plugin_manager()
        register(manager, "sasl_users", SaslUsers())
        hooks = HookCalls(manager)
        request.addfinalizer(hooks.close)
        quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
        context = PluginContext(options={}, quotas=quotas, dry=dry)
        hooks.configure(quotas, {"sasl_users": options}, context)
        hooks.flatten()
        return hooks

    return started


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "headrace-users"]


def test_without_its_option_it_does_nothing(start: Start) -> None:
    hooks = start()
    assert hooks.sasl.server_exchange(CONNECTION, "PLAIN") is None
    assert list(hooks.collect_metrics()) == []
    assert threads() == []


def test_it_authenticates_by_the_mechanisms_that_it_has(start: Start, tmp_path: Path) -> None:
    hooks = start(file=write_users(tmp_path / "users.db", alice="secret"))
    found = hooks.sasl.server_exchange(CONNECTION, "PLAIN")
    assert found is not None
    name, exchange = found
    assert name == "sasl_users"
    assert exchange.respond(plain_message("alice", "secret")).principal == "alice"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert hooks.sasl.server_exchange(CONNECTION, mechanism) is not None
    for mechanism in ("SCRAM-SHA-1", "plain", "OAUTHBEARER", ""):
        assert hooks.sasl.server_exchange(CONNECTION, mechanism) is None
    assert hooks.errors == 0


def test_it_reports_the_users_and_failures(start: Start, tmp_path: Path) -> None:
    hooks = start(file=write_users(tmp_path / "users.db", alice="a", bob="b"))
    values = {each.name: (each.value, each.total) for each in hooks.collect_metrics()}
    assert values == {"sasl_users": (2, False), "sasl_users_read_failures": (0, True)}


def test_closing_ends_its_thread(start: Start, tmp_path: Path) -> None:
    hooks = start(file=write_users(tmp_path / "users.db"))
    assert threads() == ["headrace-users"]
    hooks.close()
    assert threads() == []


@pytest.mark.parametrize("dry", [False, True])
def test_a_file_that_cannot_be_used_is_an_error_of_the_option(start: Start, tmp_path: Path, *, dry: bool) -> None:
    with pytest.raises(PluginConfigurationError) as raised:
        start(file=str(tmp_path / "none.db"), dry=dry)
    assert "plugins.options.sasl_users.file" in str(raised.value)
    assert "there is no such file: create it by headrace users add" in str(raised.value)
    with pytest.raises(PluginConfigurationError, match=r"sasl_users\.file = 7: expected the path"):
        start(file=7, dry=dry)
    with pytest.raises(PluginConfigurationError, match="unknown key"):
        start(files="users.db", dry=dry)


def test_a_check_of_the_configuration_starts_nothing(start: Start, tmp_path: Path) -> None:
    hooks = start(file=write_users(tmp_path / "users.db", alice="a"), dry=True)
    assert threads() == []
    assert hooks.sasl.server_problem("PLAIN") == "", "but its users could authenticate"
