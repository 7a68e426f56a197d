"""Settings that take effect at a reload."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from headrace.config import loads
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.server.reloading import READ_TIMEOUT_S
from headrace.proxy.server.server import Server
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trio.testing import MockClock

    from headrace.quota_callbacks.hookspecs import PluginContext

REQUIRED = 'upstream.bootstrap_servers = ["127.0.0.1:9"]\nlisten.address = "127.0.0.1:9192"\n'
LONGEST_HANG_S = 10.0


@pytest.fixture(autouse=True)
def log_settings() -> Iterator[None]:
    """Undo what a reload changes for the whole process."""
    yield
    structlog.reset_defaults()


async def test_the_bounds_of_handshakes() -> None:
    new = f'{REQUIRED}[limits]\nmax_tls_handshakes = 5\ntls_handshake_timeout = "2s"\n'
    server = Server(loads(REQUIRED), load=partial(loads, new))
    assert await server.reloader.reload()
    handshakes = server.shared.handshakes
    assert (handshakes.most, handshakes.timeout_s) == (5, 2.0)
    server.shared.pipes.close()
    server.shared.hooks.close()


async def test_half_of_the_connections_that_there_are_descriptors_for_stay_the_most_of_an_address() -> None:
    with serving("", "") as (server, _):
        admission = server._admission
        admission.overload.most_connections = 9
        assert await server.reloader.reload()
        assert admission.limits.max_connections_per_ip == 5


class Adjustable:
    """A plugin whose option ``size`` can change, and whose option ``kind`` needs a restart."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.hangs_until = threading.Event()
        self.hangs_until.set()

    @hookimpl
    def configure(self, context: PluginContext) -> None:
        self.options = context.options

    @hookimpl
    def changed_options(self, options: Mapping[str, Any]) -> Callable[[], None] | None:
        self.asked.set()
        self.hangs_until.wait(LONGEST_HANG_S)
        if options.get("size") == "odd":
            raise ValueError('size is "odd"; expected a number')
        if options.get("kind") != self.options.get("kind"):
            return None
        return self.fail if options.get("size") == "fails" else partial(setattr, self, "options", options)

    def fail(self) -> None:
        raise RuntimeError("a fault of the plugin")


class Fixed:
    """A plugin that reads its options at start only."""

    headrace_hooks = HOOK_VERSION


@contextlib.contextmanager
def serving(*texts: str) -> Iterator[tuple[Server, Adjustable]]:
    """A server with both plugins and the first configuration; each reload reads the next one."""
    configurations = (loads(REQUIRED + text) for text in texts)
    manager, adjustable = new_plugin_manager(), Adjustable()
    register(manager, "adjustable", adjustable)
    register(manager, "fixed", Fixed())
    server = Server(next(configurations), plugins=manager, load=configurations.__next__)
    yield server, adjustable
    server.shared.pipes.close()
    server.shared.hooks.close()


def options(size: str, *, kind: int = 1, fixed: int = 1) -> str:
    return f"[plugins.options.adjustable]\nsize = {size}\nkind = {kind}\n[plugins.options.fixed]\nsize = {fixed}\n"


async def test_options_of_plugins_change_if_the_plugin_can_do_that() -> None:
    with serving(options("1"), options("2", fixed=2), options("3", kind=2)) as (server, adjustable):
        with capture_logs() as logs:
            assert await server.reloader.reload()
        assert adjustable.options == {"size": 2, "kind": 1}
        changes = [each for each in logs if "change" in each]  # on a busy machine, a call may be reported as slow
        assert [(each["event"], each["change"]) for each in changes] == [
            ("configuration changed", "plugins.options.adjustable: changed"),
            ("configuration change waits for a restart", "plugins.options.fixed: changed (needs a restart)"),
        ]
        assert await server.reloader.reload()
        assert adjustable.options == {"size": 2, "kind": 1}
        assert server.reloader.config.plugins.options == {"adjustable": {"size": 2, "kind": 1}, "fixed": {"size": 1}}


async def test_options_that_a_plugin_fails_to_put_into_force_are_not_noted_and_are_tried_again() -> None:
    fails = options('"fails"')
    with serving(options("1"), fails + "[limits]\nmax_tls_handshakes = 5\n", fails) as (server, adjustable):
        for errors in (1, 2):
            with capture_logs() as logs:
                assert await server.reloader.reload()
            assert server.shared.hooks.failures == {"adjustable": errors}
            waiting = [each["change"] for each in logs if "waits for a restart" in each["event"]]
            assert waiting == ["plugins.options.adjustable: changed (needs a restart)"]
            assert server.reloader.config.plugins.options["adjustable"] == {"size": 1, "kind": 1} == adjustable.options


@pytest.mark.parametrize("wrong", [options('"odd"'), "idle_timeout = -1\n" + options("2")])
async def test_an_invalid_option_leaves_all_settings_as_they_are(wrong: str) -> None:
    with serving(options("1"), "[limits]\nmax_tls_handshakes = 5\n" + wrong) as (server, adjustable):
        before = server.shared.handshakes.most
        with capture_logs() as logs:
            assert not await server.reloader.reload()
        assert adjustable.options == {"size": 1, "kind": 1}
        assert server.shared.handshakes.most == before
        assert {each["event"] for each in logs} == {"the configuration is invalid; the old one stays in force"}


async def test_a_plugin_that_hangs_is_not_awaited(mock_clock: MockClock) -> None:
    """Signals are handled after a reload, also those that stop the proxy."""
    new = "[limits]\nmax_tls_handshakes = 5\n" + options("2")
    with serving(options("1"), new) as (server, adjustable), capture_logs() as logs:
        before = server.shared.handshakes.most
        adjustable.hangs_until.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.reloader.reload)
            await trio.to_thread.run_sync(adjustable.asked.wait)
            mock_clock.jump(READ_TIMEOUT_S)
        assert not adjustable.hangs_until.is_set()
        adjustable.hangs_until.set()
        assert adjustable.options == {"size": 1, "kind": 1}
        assert server.shared.handshakes.most == before
    assert [each["problem"] for each in logs] == ["plugins.options: plugins did not check them within 30 s"]


async def test_a_quota_that_no_plugin_enforces_has_its_line_at_a_reload() -> None:
    """The plugins of `serving` enforce none."""
    quota = '[[quotas]]\nentity = { user = "a" }\nproducer_byte_rate = 5\n'
    with serving("") as (server, _):
        server.reloader._load = lambda: loads(REQUIRED + quota, "headrace.toml", schema=None)
        with capture_logs() as logs:
            assert not await server.reloader.reload()
    (problem,) = (each["problem"] for each in logs)
    assert problem.startswith("headrace.toml:5: quotas[0].producer_byte_rate: would not be enforced for user=a: no")
