"""OTLP: a thread takes a snapshot from the event loop and pushes it; failures are reported and affect nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.plugins.metrics import Metrics, push_thread
from headrace.plugins.metrics.options import MetricsOptions
from headrace.plugins.metrics.push_thread import PushThread
from headrace.quota_callbacks.hookspecs import PluginContext
from tests.otlp_receiver import OtlpReceiver
from tests.plugins.metrics.metered import Metered, drain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headrace.plugins.metrics.snapshot import Snapshot
    from tests.otlp_receiver import ReceivedPoint


def is_alice(point: ReceivedPoint) -> bool:
    return point.name == "headrace.quota.byte_rate" and point.attributes["user"] == "alice"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "headrace-metrics"]


@pytest.fixture
def started(
    otlp_receiver: OtlpReceiver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PushThread]:
    """Starts a thread that pushes every 10 ms; closed after the test. A busy machine has time for the last push."""
    monkeypatch.setattr(push_thread, "FLUSH_DEADLINE_S", 60.0)

    def start(take: Callable[[], Snapshot], interval_s: float = 0.01) -> PushThread:
        thread = PushThread(take, MetricsOptions(push=True, push_interval_s=interval_s))
        request.addfinalizer(thread.close)
        thread.start()
        return thread

    return start


def snapshots() -> Callable[[], Snapshot]:
    metered = Metered(limit=500)
    metered.use("alice", 20_000)
    reader = metered.reader()
    return lambda: drain(reader.steps())


def test_the_receiver_gets_what_the_page_would_say(
    otlp_receiver: OtlpReceiver, started: Callable[..., PushThread], otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_SERVICE_NAME", "headrace-under-test")
    thread = started(snapshots())
    point = otlp_receiver.wait_for_points(is_alice)[0]
    assert (point.value, point.unit, point.scope) == (2000, "By/s", "headrace.metrics")
    assert point.attributes == {"quota": "producer_byte_rate", "user": "alice", "client_id": ""}
    assert point.resource["service.name"] == "headrace-under-test"
    assert {export.path for export in otlp_receiver.exports} == {"/v1/metrics"}
    throttles = otlp_receiver.wait_for_points(lambda point: point.name == "headrace.quota.throttle_time")
    assert {(point.value, point.unit) for point in throttles} == {(30_000, "ms")}
    thread.close()
    assert (thread.pushed, thread.failed) == (len(otlp_receiver.exports), 0)
    assert threads() == []


def test_the_last_state_is_pushed_at_the_end(otlp_receiver: OtlpReceiver, started: Callable[..., PushThread]) -> None:
    thread = started(snapshots(), interval_s=3600)
    assert otlp_receiver.exports == []
    thread.close()
    assert otlp_receiver.wait_for_points(is_alice)
    assert thread.pushed == 1


def test_a_receiver_that_refuses_is_logged_once(
    otlp_receiver: OtlpReceiver, started: Callable[..., PushThread]
) -> None:
    otlp_receiver.answer(400, times=3)
    with capture_logs() as logs:
        thread = started(snapshots())
        otlp_receiver.wait_for_points(is_alice)
        thread.close()
    assert thread.failed == 3
    (line,) = [line for line in logs if line["log_level"] == "warning"]
    assert line["event"] == "metrics were not pushed"
    assert "400" in line["last_error"]


def test_a_receiver_that_hangs_does_not_keep_the_end_waiting(
    otlp_receiver: OtlpReceiver, started: Callable[..., PushThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_thread, "FLUSH_DEADLINE_S", 0.05)
    otlp_receiver.hang()
    thread = started(snapshots())
    otlp_receiver.wait_until_hanging()
    thread.close()
    assert thread.pushed == 0
    otlp_receiver.release()


def test_a_loop_that_does_not_run_costs_a_push(otlp_receiver: OtlpReceiver, started: Callable[..., PushThread]) -> None:
    asked = threading.Semaphore(0)
    snapshot = snapshots()()

    def take() -> Snapshot:
        asked.release()
        if thread.failed < 2:
            raise RuntimeError("the event loop does not run yet")
        return snapshot

    with capture_logs() as logs:
        thread = PushThread(take, MetricsOptions(push=True, push_interval_s=0.01))
        thread.start()
        otlp_receiver.wait_for_points(is_alice)
        thread.close()
    assert thread.failed == 2
    assert "RuntimeError: the event loop does not run yet" in str(logs)


# --- the plugin ---


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """One that no variable points at."""
    with OtlpReceiver() as receiver:
        yield receiver


async def test_the_loop_alone_reads_buckets(receiver: OtlpReceiver, otel_environment: pytest.MonkeyPatch) -> None:
    otel_environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "10")
    metered, token, readers = Metered(), trio.lowlevel.current_trio_token(), set()
    metered.use("alice")

    def now_ms() -> int:
        readers.add(threading.get_ident())
        return metered.now_ms

    def run_on_loop(function: Callable[[], Awaitable[None]]) -> None:
        trio.from_thread.run(function, trio_token=token)

    context: Any = PluginContext(
        options={"otlp_endpoint": receiver.endpoint}, quotas=metered.quotas, now_ms=now_ms, run_on_loop=run_on_loop
    )
    plugin = Metrics()
    plugin.configure(context)
    with trio.fail_after(60):
        points = await trio.to_thread.run_sync(receiver.wait_for_points, is_alice)
        assert points[0].value == 10
        await trio.to_thread.run_sync(plugin.close)
    assert readers == {threading.get_ident()}
    pushes = {metric.labels["outcome"]: metric.value for metric in plugin.collect_metrics()}
    assert pushes == {"pushed": len(receiver.exports), "failed": 0}


def test_nobody_to_push_to_no_thread() -> None:
    plugin = Metrics()
    plugin.configure(PluginContext(options={}, quotas=Metered().quotas))
    assert threads() == []
    assert list(plugin.collect_metrics()) == []
    plugin.close()
