"""Tracing between the proxy's own hook calls and a real receiver."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from tests.otlp_receiver import OtlpReceiver
from tests.plugins.tracing.traced import Traced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.plugins.tracing import Tracing

    StartTracing = Callable[..., Traced]


@pytest.fixture(autouse=True)
def otel_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of the SDK's but what a test sets; exports soon, so that no test waits for a batch to fill."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    return monkeypatch


@pytest.fixture
def otlp_receiver(otel_environment: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A receiver of traces, with OTEL_EXPORTER_OTLP_ENDPOINT pointing at it."""
    with OtlpReceiver() as receiver:
        otel_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        yield receiver


@pytest.fixture
def start_tracing(request: pytest.FixtureRequest) -> StartTracing:
    """Register and configure the plugin as the proxy does, with options; it is closed after the test."""

    def start(plugin: Tracing, **options: Any) -> Traced:
        manager = new_plugin_manager()
        register(manager, "tracing", plugin)
        hooks = HookCalls(manager)
        quotas = ClientQuotas(windows={}, metric_tags=hooks.quota_metric_tags, quota_limit=hooks.quota_limit)
        hooks.configure(quotas, {"tracing": options})
        hooks.flatten()
        request.addfinalizer(hooks.close)
        return Traced(hooks)

    return start


@pytest.fixture
def tracing(otlp_receiver: OtlpReceiver, start_tracing: StartTracing) -> Traced:
    """The plugin, keeping every request and exporting to `otlp_receiver`."""
    from headrace.plugins.tracing import Tracing

    return start_tracing(Tracing(seed=1), enabled=True, sample_ratio=1)
