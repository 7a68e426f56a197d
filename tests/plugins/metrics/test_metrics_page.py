"""From buckets to the Prometheus page, through the proxy's own hook calls and its page; the SDK's instruments."""

from __future__ import annotations

import shutil
import subprocess
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest
import trio
from opentelemetry.sdk.metrics.export import NumberDataPoint
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from headrace.plugins.metrics import Metrics
from headrace.plugins.metrics.instruments import Instruments
from headrace.plugins.metrics.names import BYTE_RATE, MEASURES
from headrace.plugins.metrics.page import series_of
from headrace.plugins.metrics.snapshot import Snapshot
from headrace.proxy.admin.metrics_page import MetricsPage
from headrace.proxy.counters import AdminCounters
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.hookspecs import PluginContext
from tests.plugins.metrics.metered import MUTATIONS, NOW_MS, PRODUCE, Metered, drain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.quota_callbacks.hookspecs import Metric

SDK_LIMIT = 2000
"""The SDK's default number of attribute sets of an instrument beyond which it reports an overflow."""


class SharedState:
    """The part of the proxy's state that the page reads for plugins."""

    def __init__(self, hooks: HookCalls) -> None:
        self.hooks = hooks

    async def deliver_completed(self) -> None:
        """Do nothing: no request is completed."""


class PluginsPage(MetricsPage):
    """The page without what is the proxy's own."""

    def _nothing(self, *_: object) -> Iterator[Any]:
        return iter(())

    _connection_metrics = _tls_metrics = _byte_metrics = _quota_metrics = _loop_metrics = _nothing


def plugged(metered: Metered, **options: Any) -> HookCalls:
    manager = new_plugin_manager()
    register(manager, "metrics", Metrics())
    hooks = HookCalls(manager)
    context = PluginContext(
        options={}, quotas=metered.quotas, now_ms=lambda: metered.now_ms, muted=lambda: metered.muted
    )
    hooks.configure(metered.quotas, {"metrics": options}, context)
    hooks.flatten()
    return hooks


async def page_of(metered: Metered, **options: Any) -> str:
    hooks = plugged(metered, **options)
    page = PluginsPage(SharedState(hooks), (), AdminCounters())  # type: ignore[arg-type]
    with trio.fail_after(60):
        text = await page.render()
    assert hooks.errors == 0, hooks.failures
    return text.decode()


def samples(page: str, name: str) -> dict[tuple[str, ...], float]:
    """By labels' values, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name
    }


async def test_a_page_has_kafkas_metrics() -> None:
    metered = Metered(limit=500)
    metered.use("alice", 20_000, client_id='a "b"\n')
    metered.use("alice", 6000, MUTATIONS)
    metered.muted = {"producer_byte_rate": 2}
    page = await page_of(metered)
    alice = ('a "b"\n', "producer_byte_rate", "alice")
    assert samples(page, "headrace_quota_byte_rate") == {alice: 2000}
    assert samples(page, "headrace_quota_throttle_time") == {alice: 30_000}
    assert samples(page, "headrace_quota_limit")[alice] == 500
    assert samples(page, "headrace_quota_tokens") == {("", "controller_mutation_rate", "alice"): 5500 - 6000}
    assert samples(page, "headrace_quota_mutation_rate") == {("", "controller_mutation_rate", "alice"): 200}
    assert samples(page, "headrace_quota_queue_size")["producer_byte_rate",] == 2
    assert samples(page, "headrace_quota_exempt_request_time") == {("request_percentage",): 0}
    assert samples(page, "headrace_quota_entities")["producer_byte_rate", "own"] == 1
    assert "target_info" not in page
    assert "otel_scope" not in page


async def test_promtool_accepts_the_page() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    metered = Metered(limit=500)
    for user in ("alice", "bøb", 'q"uote\\'):
        metered.use(user, 20_000)
        metered.use(user, 50, MUTATIONS)
    page = await page_of(metered, max_series=7)
    assert 'user="other"' in page
    checked = await trio.to_thread.run_sync(
        lambda: subprocess.run(
            [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
        )
    )
    ours = [line for line in (checked.stdout + checked.stderr).splitlines() if "headrace_" in line]
    assert (checked.returncode, ours) == (0, [])


async def test_a_page_of_more_series_than_the_sdk_would_tell_is_whole() -> None:
    metered = Metered()
    for number in range(2 * SDK_LIMIT):
        metered.use(f"user-{number}")
    page = await page_of(metered)
    rates = samples(page, "headrace_quota_byte_rate")
    assert len(rates) == 10_000 // 3 + 1
    assert sum(rates.values()) == pytest.approx(2 * SDK_LIMIT * 10)
    assert "overflow" not in page


async def test_the_loop_runs_on_while_a_long_page_is_made() -> None:
    metered = Metered()
    for number in range(20_000):
        metered.use(f"user-{number}")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await page_of(metered)
        nursery.cancel_scope.cancel()
    assert turns > 50


async def test_what_came_and_went_is_not_kept() -> None:
    metered = Metered()
    hooks = plugged(metered, max_series=30, idle_s=1)
    page = PluginsPage(SharedState(hooks), (), AdminCounters())  # type: ignore[arg-type]
    for turn in range(30):
        metered.now_ms = NOW_MS + turn * 2000
        for number in range(10):
            metered.use(f"user-{turn}-{number}")
        text = (await page.render()).decode()
        users = {user for _, _, user in samples(text, "headrace_quota_byte_rate")}
        assert users == {f"user-{turn}-{number}" for number in range(10)}
        assert "overflow" not in text
    assert hooks.errors == 0, hooks.failures


def test_the_sdk_is_made_to_forget() -> None:
    """The SDK keeps every attribute set that an observable instrument has reported, so instruments are recreated."""
    metered = Metered()
    reader, instruments = metered.reader(max_series=30, idle_s=1), Instruments(max_series=30)
    first = instruments._reader
    for turn in range(4):
        metered.now_ms = NOW_MS + turn * 2000
        for number in range(10):
            metered.use(f"user-{turn}-{number}")
        instruments.collect(drain(reader.steps()))
    assert instruments._reader is not first


def test_without_series_there_is_no_error() -> None:
    snapshot = drain(Metered().reader().steps())
    assert {series.name for series in series_of(snapshot)} == {"quota_exempt_request_time", "quota_queue_size"}


def test_the_page_and_the_sdk_have_the_same_points() -> None:
    metered = Metered(limit=500)
    for user in ("alice", "bob", "carol"):
        metered.use(user, 20_000)
        metered.use(user, 6000, MUTATIONS)
    snapshot = drain(metered.reader(max_series=14).steps())
    data = Instruments(max_series=14).collect(snapshot)
    assert data is not None
    exported = [
        (metric.name, dict(point.attributes or {}), point.value)
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    ]
    page = [(f"headrace.{s.name.replace('quota_', 'quota.', 1)}", s.labels, s.value) for s in series_of(snapshot)]
    assert len(page) > 20
    assert page == exported


def test_points_with_the_same_labels_are_one_series() -> None:
    points = {measure.kafka: [] for measure in MEASURES} | {BYTE_RATE: [({"user": "a"}, 1.0), ({"user": "a"}, 2.0)]}
    (series,) = series_of(Snapshot(points=points, admitted=2))
    assert (series.name, series.value) == ("quota_byte_rate", 2.0)


# --- the plugin ---


def test_it_is_found_as_a_strangers_plugin_is() -> None:
    (point,) = entry_points(group="headrace.plugins", name="metrics")
    assert point.load() is Metrics


async def test_switched_off_there_are_no_series() -> None:
    metered = Metered()
    metered.use("alice")
    assert "headrace_quota" not in await page_of(metered, enabled=False)


async def test_the_sdk_switched_off_switches_it_off(otel_environment: pytest.MonkeyPatch) -> None:
    otel_environment.setenv("OTEL_SDK_DISABLED", "true")
    metered = Metered()
    metered.use("alice")
    with capture_logs() as logs:
        assert "headrace_quota" not in await page_of(metered)
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("metrics of entities stay off", "OTEL_SDK_DISABLED is true")
    ]


def test_it_asks_for_no_request() -> None:
    hooks = plugged(Metered())
    assert not any(
        hooks.request_callbacks(key) or hooks.response_callbacks(key) or key in hooks.completions for key in range(256)
    )


async def test_without_a_page_nothing_is_read() -> None:
    metered = Metered()
    metered.use("alice")
    hooks = plugged(metered)
    collected: list[Metric] = list(hooks.collect_metrics())
    assert collected == []
    await hooks.prepare_metrics()
    assert {metric.labels.get("user") for metric in hooks.collect_metrics()} == {"alice", None}
    assert metered.bucket("alice").last_used_ms == NOW_MS, "to be read is not to be used"
    assert metered.bucket("alice").key is PRODUCE
