"""Switched off, the plugin costs nothing: no call, no thread, no import of the SDK."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.plugins.tracing import Tracing
from headrace.quota_callbacks.api_keys import API_NAMES
from headrace.quota_callbacks.requests import ClusterMetadata
from tests.plugins.tracing.traced import request, throttled

if TYPE_CHECKING:
    from tests.otlp_receiver import OtlpReceiver
    from tests.plugins.conftest import StartTracing


def export_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-tracing"]


def test_it_is_found_as_a_strangers_plugin_is() -> None:
    (point,) = entry_points(group="headrace.plugins", name="tracing")
    assert point.load() is Tracing


@pytest.mark.parametrize("options", [{}, {"enabled": False, "sample_ratio": 1}], ids=["by default", "said so"])
def test_off_there_is_no_call_and_no_thread(options: dict[str, object], start_tracing: StartTracing) -> None:
    tracing = start_tracing(Tracing(), **options)
    assert not tracing.hooks.completions
    assert export_threads() == []
    tracing.complete(request(), throttled())
    tracing.hooks.update_cluster_metadata(ClusterMetadata(cluster_id="x", controller_id=None, brokers=()))
    assert tracing.metrics == {}
    tracing.hooks.close()


def test_on_it_wants_every_api_and_asks_no_request(otlp_receiver: OtlpReceiver, start_tracing: StartTracing) -> None:
    tracing = start_tracing(Tracing(), enabled=True)
    assert tracing.hooks.completions >= API_NAMES.keys()
    assert not any(tracing.hooks.request_callbacks(key) or tracing.hooks.response_callbacks(key) for key in API_NAMES)
    assert tracing.hooks.bodies == frozenset()
    (thread,) = export_threads()
    assert thread.daemon
    tracing.hooks.close()
    assert export_threads() == []


@pytest.mark.parametrize(("name", "value"), [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")])
def test_a_variable_keeps_it_off(
    name: str, value: str, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv(name, value)
    with capture_logs() as logs:
        tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
    assert not tracing.hooks.completions
    assert export_threads() == []
    assert logs == [{"event": "tracing stays off", "reason": f"{name} is {value}", "log_level": "info"}]


SWITCHED_OFF = """
import sys, threading
from headrace.plugins.tracing import Tracing
from headrace.quota_callbacks.hookspecs import PluginContext

plugin = Tracing()
plugin.configure(PluginContext(options={}, quotas=None))
assert plugin.request_interest() == ()
plugin.close()
assert threading.active_count() == 1
print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "requests", "google")])
"""


def test_off_the_sdk_is_not_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SWITCHED_OFF], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
