"""The hooks behind the metrics page, and long work that shares the processor with the event loop."""

from __future__ import annotations

import gc
import math
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy import long_work
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.long_work import PIECE, PausingList, collector_off, in_slices
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.entities import QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, Metric, PluginContext, hookimpl

if TYPE_CHECKING:
    from collections.abc import Generator


class Slow:
    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.ready = 0

    @hookimpl
    async def prepare_metrics(self) -> None:
        await trio.lowlevel.checkpoint()
        self.ready += 1

    @hookimpl
    def collect_metrics(self) -> list[Metric]:
        return [Metric(name="ready", help="Ready.", value=self.ready)]


class Broken:
    headrace_hooks = HOOK_VERSION

    @hookimpl
    async def prepare_metrics(self) -> None:
        raise OSError("stuck")


async def test_plugins_prepare_their_metrics_and_one_that_raises_is_skipped() -> None:
    manager = new_plugin_manager()
    for name, plugin in (("slow", Slow()), ("broken", Broken()), ("slower", Slow())):
        register(manager, name, plugin)
    hooks = HookCalls(manager)
    await hooks.prepare_metrics()
    await hooks.prepare_metrics()
    assert [metric.value for metric in hooks.collect_metrics()] == [2, 2]
    assert hooks.failures == {"broken": 2}


def test_every_plugin_receives_its_options_and_the_shared_context() -> None:
    given: dict[str, PluginContext] = {}

    class Given:
        headrace_hooks = HOOK_VERSION

        def __init__(self, name: str) -> None:
            self.name = name

        @hookimpl
        def configure(self, context: PluginContext) -> None:
            given[self.name] = context

    manager = new_plugin_manager()
    for name in ("one", "two"):
        register(manager, name, Given(name))
    hooks = HookCalls(manager)
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit
    )
    hooks.configure(quotas, {"one": {"x": 1}}, PluginContext(options={"y": 2}, quotas=quotas, now_ms=lambda: 7))
    assert {name: (context.options, context.now_ms()) for name, context in given.items()} == {
        "one": ({"x": 1}, 7),
        "two": ({}, 7),
    }
    assert all(context.quotas is quotas for context in given.values())


def test_without_a_proxy_there_is_no_loop_to_run_on() -> None:
    quotas = ClientQuotas(
        windows=dict.fromkeys(QuotaKey, Window()), metric_tags=lambda *_: None, quota_limit=lambda *_: None
    )
    context = PluginContext(options={}, quotas=quotas)
    with pytest.raises(RuntimeError, match="no event loop runs"):
        context.run_on_loop(trio.lowlevel.checkpoint)
    assert (context.muted(), context.now_ms()) == ({}, 0)


# --- yielding ---


def count_to(number: int, seen: list[str]) -> Generator[None, None, int]:
    for _ in range(number):
        seen.append("step")
        yield
    return number


async def others(seen: list[str]) -> None:
    while True:
        seen.append("other")
        await trio.lowlevel.checkpoint()


async def test_others_run_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    seen: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others, seen)
        assert await in_slices(count_to(20, seen)) == 20
        nursery.cancel_scope.cancel()
    assert seen.count("other") >= 19
    assert "step step step" not in " ".join(seen), "trio runs the tasks of a batch in random order"


async def test_no_other_task_runs_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", math.inf)
    seen: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others, seen)
        assert await in_slices(count_to(20, seen)) == 20
        assert seen == ["step"] * 20
        nursery.cancel_scope.cancel()


def test_a_pausing_list_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(long_work.time, "sleep", pauses.append)
    items = list(range(3 * PIECE + 1))
    assert [*iter(PausingList(items))] == items
    assert len(pauses) == 3


def test_the_collector_is_off_until_the_last_is_done() -> None:
    assert gc.isenabled()
    first, second = collector_off(), collector_off()
    with first:
        with second:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_off():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
