"""Plugins that raise ``SystemExit`` and the like wherever they are called: the proxy goes on, or does not start.

One that holds the event loop is named.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.errors import StartupError
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import Choice, load_plugins, new_plugin_manager, register
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.raw_client import RawClient
from tests.security.host.hostile_plugin import AT_START, HOOKS, KINDS, hostile
from tests.security.loop_turns import long_turns
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker

ROOT = Path(__file__).parents[3]
SASL_AUTHENTICATE = ApiKey.SASL_AUTHENTICATE
BLOCKING = "tests.security.host.hostile_plugin:Blocking"
CONFIG = """
[plugins]
load = ["tests.security.host.hostile_plugin:Watching", "tests.security.host.hostile_plugin:hostile", "BLOCKING"]
[[quotas]]
entity = { user = "alice" }
producer_byte_rate = %d
""".replace("BLOCKING", BLOCKING)
WITH_A_PROPERTY = """
class Meta(type):
    @property
    def headrace_hooks(cls):
        raise SystemExit(1)

class Plugin(metaclass=Meta): ...
"""


def hooks_of(plugin: Any) -> HookCalls:
    manager = new_plugin_manager()
    register(manager, "hostile", plugin)
    hooks = HookCalls(manager)
    quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
    hooks.configure(quotas, {})
    hooks.flatten()
    return hooks


def test_every_hook_of_a_running_proxy_may_raise_anything(kafka: FirstBroker) -> None:
    """Log-ins, requests, metrics, a reload and the end: each calls hooks, and none of them ends anything.

    Beside them is a plugin that sleeps at the start and at the reload.
    """
    bootstrap = kafka.addresses(LISTENER)
    with ProxyProcess(bootstrap, config=CONFIG % 10**9) as proxy:
        for number in range(2 * len(KINDS)):
            with RawClient(proxy.port, client_id=f"client-{number}") as client:
                client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
                token = f"\0alice\0{SECRETS['alice']}".encode()
                reply = client.call(SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
                assert struct.unpack_from(">h", reply) == (0,)
                client.call(messages.METADATA, 1, messages.NO_TOPICS)
            assert proxy.get("/livez")[0] == 200
            assert proxy.get("/metrics")[0] == 200
        proxy.reload(CONFIG % 10**8)
        proxy.wait_for_log("configuration changed")
        eventually(lambda: is_named(proxy.log), "the plugin that held the event loop in the log")
        assert series(proxy, f'headrace_plugin_slow_calls_total{{plugin="{BLOCKING}"}}') > 0
        assert long_turns(proxy, 0.1) > 0, "the loop's lag was measured"
        failures = proxy.metric("headrace_plugin_errors_total")
        hooks = {
            "request_received",
            "response_received",
            "requests_completed",
            "connection_opened",
            "connection_closed",
        }
        hooks |= {"prepare_metrics", "collect_metrics", "authentication_started", "update_quota"}
        eventually(lambda: all(f"hook={hook}" in proxy.log for hook in hooks), "every hook that was called in the log")
        assert failures > 10 * len(KINDS)
        assert proxy.stop() == 0


def is_named(log: str) -> bool:
    """Whether a line has the plugin that held the event loop, its hook and the setting."""
    wanted = ("a plugin held the event loop", BLOCKING, "update_quota", "plugins.slow_call = 100 ms")
    return any(all(each in line for each in wanted) for line in log.splitlines())


@pytest.mark.parametrize("hook", AT_START)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_what_is_raised_at_the_start_is_an_error_of_the_plugin(hook: str, kind: BaseException) -> None:
    def raising(_self: object) -> Any:
        raise kind

    plugin = type("Plugin", (), {"headrace_hooks": HOOK_VERSION, hook: hookimpl(raising)})()
    with pytest.raises(StartupError, match=f"plugin 'hostile'.*{type(kind).__name__}"):
        hooks_of(plugin)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit(0)", "cannot be loaded: SystemExit: 0"),
        ("import sys; sys.exit('goodbye')", "cannot be loaded: SystemExit: goodbye"),
        ("raise KeyboardInterrupt", "cannot be loaded: KeyboardInterrupt: "),
        (WITH_A_PROPERTY, "cannot be registered: SystemExit: 1"),
        (
            "class Plugin:\n    headrace_hooks = 1\n    def __init__(self): raise SystemExit(1)",
            "cannot be instantiated: SystemExit: 1",
        ),
    ],
)
def test_what_is_raised_while_a_plugin_is_loaded(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quits_the_program.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quits_the_program", raising=False)
    path = "quits_the_program:Plugin"
    choice = Choice(autoload=False, load=(path,))
    with pytest.raises(StartupError, match=f"plugin '{path}' {message}"):
        load_plugins(new_plugin_manager(), choice)


def test_the_command_ends_with_an_error_and_not_with_the_plugins_status(tmp_path: Path) -> None:
    (tmp_path / "quits.py").write_text("raise SystemExit(0)")
    file = tmp_path / "headrace.toml"
    file.write_text(
        'upstream.bootstrap_servers = ["127.0.0.1:1"]\nlisten.address = "127.0.0.1:9192"\nplugins.load = ["quits"]\n'
    )
    command = [sys.executable, "-m", "headrace.proxy.cli", "check-config", str(file)]
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stderr) == (1, "plugin 'quits' cannot be loaded: SystemExit: 0\n1 problem\n")


async def test_cancellation_is_the_only_thing_that_passes() -> None:
    class Slow:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        async def prepare_metrics(self) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await trio.sleep_forever()

    hooks = hooks_of(Slow())
    with trio.move_on_after(0.01) as scope:
        await hooks.prepare_metrics()
    assert scope.cancelled_caught
    assert hooks.errors == 0


def test_no_hook_is_left_out() -> None:
    """`hostile` implements every hook but those of the start, so that the first test calls them all."""
    assert {"request_received", "connection_closed", "close"} <= set(HOOKS)
    assert all(hasattr(hostile, name) for name in HOOKS)
