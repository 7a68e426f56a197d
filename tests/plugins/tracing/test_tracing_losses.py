"""Receivers that are slow, hang, refuse or are gone; and a queue that is full."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.plugins.tracing import Tracing, export_thread
from headrace.plugins.tracing.export_thread import ExportThread, PausingSpans
from headrace.plugins.tracing.options import TracingOptions
from headrace.plugins.tracing.record_queue import RecordQueue
from headrace.plugins.tracing.records import record_of
from headrace.plugins.tracing.spans import SpanBuilder
from testbed.processes.ports import free_port_block
from tests.faults.waiting import wait_until
from tests.plugins.tracing.traced import request, throttled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from tests.otlp_receiver import OtlpReceiver
    from tests.plugins.conftest import StartTracing
    from tests.plugins.tracing.traced import Traced

RECORD = record_of(request(), 1)
QUEUE_FULL = ("tracing_dropped", "queue_full")
EXPORT_FAILED = ("tracing_dropped", "export_failed")
CLOSING = ("tracing_dropped", "closing")
EXPORTED = ("tracing_spans", "exported")
FAILED = ("tracing_spans", "failed")


def wait_for_metric(tracing: Traced, name: tuple[str, ...], at_least: float, deadline_s: float = 20) -> None:
    end_s = time.monotonic() + deadline_s
    while tracing.metrics[name] < at_least:
        assert time.monotonic() < end_s, tracing.metrics
        threading.Event().wait(0.005)


@pytest.fixture
def impatient(otel_environment: pytest.MonkeyPatch) -> None:
    """Closing gives up soon, so that a test of it does not take seconds."""
    otel_environment.setattr(export_thread, "FLUSH_DEADLINE_S", 0.3)


@pytest.fixture
def patient(otel_environment: pytest.MonkeyPatch) -> None:
    """Closing has time for everything that waits, also on a busy machine."""
    otel_environment.setattr(export_thread, "FLUSH_DEADLINE_S", 60.0)


# --- the queue --------------------------------------------------------------------------------------------------------


def test_a_full_queue_takes_no_more_and_counts() -> None:
    queue = RecordQueue(3, wake_at=10)
    for number in range(5):
        if queue.has_room():
            queue.put(record_of(request(), number))
    assert (len(queue), queue.dropped) == (3, 2)
    assert [queue.take().trace_id for _ in range(3)] == [0, 1, 2]
    assert queue.take() is None
    assert queue.has_room()


def woken(queue: RecordQueue) -> bool:
    """Return whether the queue has woken the thread, and reset it."""
    released = not queue._wake_lock.locked()
    queue.wait(0)
    return released


def test_the_thread_is_woken_when_many_records_wait_and_only_then() -> None:
    queue = RecordQueue(100, wake_at=2)
    queue.put(RECORD)
    assert not woken(queue)
    queue.put(RECORD)
    queue.put(RECORD)
    queue.wake()
    assert woken(queue)
    assert not woken(queue)


def test_the_thread_is_woken_before_a_small_queue_is_full() -> None:
    queue = RecordQueue(4, wake_at=256)
    queue.put(RECORD)
    queue.put(RECORD)
    assert woken(queue)


def test_wake_ends_the_wait_of_the_thread() -> None:
    queue = RecordQueue(4, wake_at=1)
    thread = threading.Thread(target=queue.wait, args=(60,))
    thread.start()
    queue.put(RECORD)
    thread.join(20)
    assert not thread.is_alive()


def test_iterating_pauses_after_every_span() -> None:
    pauses: list[str] = []
    built = SpanBuilder().spans(record_of(throttled(), 1))
    spans = PausingSpans(built, lambda: pauses.append("pause"))
    assert len(spans) == 3
    assert list(spans) == built
    assert len(pauses) == 3


# --- receivers --------------------------------------------------------------------------------------------------------


def test_a_receiver_that_hangs_costs_records_and_not_the_loop(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, impatient: None
) -> None:
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1, queue_size=8)
    otlp_receiver.hang()
    tracing.complete(request())
    otlp_receiver.wait_until_hanging()
    slowest_s = 0.0
    for _ in range(100):
        started_s = time.perf_counter()
        tracing.complete(request())
        slowest_s = max(slowest_s, time.perf_counter() - started_s)
    assert slowest_s < 5, "the loop waited for the exporter, which gives up after 10 s"
    assert tracing.metrics[QUEUE_FULL] == 92
    assert tracing.metrics["tracing_queue_length",] == 8
    started_s = time.monotonic()
    tracing.hooks.close()
    assert time.monotonic() - started_s < 5
    assert tracing.metrics[CLOSING] == 9
    assert tracing.metrics[EXPORTED] == 0


def test_what_hung_is_delivered_when_the_receiver_goes_on(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing
) -> None:
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1, queue_size=8)
    otlp_receiver.hang()
    tracing.complete(request())
    otlp_receiver.wait_until_hanging()
    tracing.complete(*[request()] * 20)
    otlp_receiver.release()
    otlp_receiver.wait_for_traces(9)
    wait_for_metric(tracing, EXPORTED, 18)
    assert tracing.metrics[QUEUE_FULL] == 12
    tracing.complete(request())
    otlp_receiver.wait_for_traces(10)


def test_a_hanging_receiver_is_given_up_after_the_time_out(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
    otlp_receiver.hang()
    tracing.complete(request())
    wait_for_metric(tracing, EXPORT_FAILED, 1)
    assert tracing.metrics[FAILED] == 2


def test_a_receiver_that_is_gone(
    start_tracing: StartTracing,
    otel_environment: pytest.MonkeyPatch,
    impatient: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    otel_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port_block(1)}")
    otel_environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with capture_logs() as logs:
        tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
        tracing.complete(request(), request())
        wait_for_metric(tracing, EXPORT_FAILED, 2)
        tracing.complete(request())
        wait_for_metric(tracing, EXPORT_FAILED, 3)
        tracing.hooks.close()
    (line,) = [entry for entry in logs if entry["event"] == "traces are being lost"]
    assert line["log_level"] == "warning"
    assert line["queue_full"] == 0
    assert line["export_failed"] >= 1
    assert "Failed to export" in line["last_error"]
    assert capfd.readouterr().err == "", "the SDK's own lines are kept back"


def test_closing_does_not_wait_for_a_receiver_that_is_gone(
    start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch, impatient: None
) -> None:
    """With this time-out, the thread tries for half a minute, with longer and longer pauses; it is asked to give up."""
    otel_environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port_block(1)}")
    otel_environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    otel_environment.setattr(export_thread, "ABORT_DEADLINE_S", 15.0)
    with capture_logs() as logs:
        tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
        tracing.complete(request())
        wait_until(lambda: tracing.metrics["tracing_queue_length",] == 0, "the thread has taken it")
        tracing.hooks.close()
    assert tracing.metrics[EXPORT_FAILED] == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-tracing"]
    assert logs


def test_a_receiver_that_refuses(otlp_receiver: OtlpReceiver, start_tracing: StartTracing) -> None:
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
    otlp_receiver.answer(400)
    with capture_logs() as logs:
        tracing.complete(throttled())
        wait_for_metric(tracing, FAILED, 3)
        tracing.complete(request())
        otlp_receiver.wait_for_traces(1)
    wait_for_metric(tracing, EXPORTED, 2)
    assert tracing.metrics[EXPORT_FAILED] == 1
    assert any("400" in str(entry.get("last_error")) for entry in logs)


def test_a_receiver_that_is_busy_is_asked_again(otlp_receiver: OtlpReceiver, tracing: Traced) -> None:
    otlp_receiver.answer(503, times=2, headers={"Retry-After": "0"})
    tracing.complete(request())
    otlp_receiver.wait_for_traces(1)
    wait_for_metric(tracing, EXPORTED, 2)
    assert tracing.metrics[EXPORT_FAILED] == 0


class Broken:
    """An exporter with a mistake in it."""

    def __init__(self) -> None:
        self.calls = 0

    def export(self, spans: Sequence[ReadableSpan]) -> object:
        self.calls += 1
        raise ZeroDivisionError("exporter")

    def shutdown(self) -> None:
        pass


def test_the_thread_outlives_a_mistake_of_the_exporter() -> None:
    queue, exporter = RecordQueue(10, wake_at=1), Broken()
    thread = ExportThread(queue, TracingOptions(enabled=True, batch_spans=1), make_exporter=lambda: exporter)
    with capture_logs() as logs:
        thread.start()
        for _ in range(3):
            queue.put(RECORD)
        end_s = time.monotonic() + 20
        while exporter.calls < 3:
            assert time.monotonic() < end_s
            threading.Event().wait(0.005)
        thread.close()
    assert thread.lost_in_export == 3
    assert logs[0]["last_error"].endswith("ZeroDivisionError: exporter")


def test_losses_are_logged_when_they_begin_and_then_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr(export_thread.time, "monotonic", lambda: now_s)
    report = export_thread._LossReport()
    with capture_logs() as logs:
        report.update(0, 0, None)
        report.update(5, 5, None)
        report.update(9, 7, "no")
        now_s = 1059.9
        report.update(10, 8, "no")
        now_s = 1060.0
        report.update(10, 8, "no")
        report.update(10, 8, "no")
    assert [(entry["requests"], entry["queue_full"], entry["export_failed"]) for entry in logs] == [
        (5, 5, 0),
        (5, 8, 2),
    ]


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_closing_exports_what_waits(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
    tracing.complete(*[request()] * 5)
    assert otlp_receiver.spans == []
    tracing.hooks.close()
    assert len(otlp_receiver.spans) == 10
    assert tracing.metrics[EXPORTED] == 10
    assert tracing.metrics[CLOSING] == 0


@pytest.mark.usefixtures("patient")
def test_closing_gives_up_at_the_first_failure() -> None:
    queue, exporter = RecordQueue(100, wake_at=50), Broken()
    thread = ExportThread(queue, TracingOptions(enabled=True, batch_spans=1), make_exporter=lambda: exporter)
    for _ in range(5):
        queue.put(RECORD)
    with capture_logs() as logs:
        thread.start()
        thread.close()
        thread.close()
    assert exporter.calls == 1
    assert (thread.lost_in_export, thread.lost_at_close) == (1, 4)
    assert [entry["requests"] for entry in logs] == [1, 4]


@pytest.mark.usefixtures("patient")
def test_a_busy_queue_wakes_the_thread_before_its_delay(
    otlp_receiver: OtlpReceiver, start_tracing: StartTracing, otel_environment: pytest.MonkeyPatch
) -> None:
    otel_environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    otel_environment.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1)
    tracing.complete(*[throttled()] * 7)
    otlp_receiver.wait_for_traces(5)
    tracing.hooks.close()
    assert len(otlp_receiver.spans) == 21
    assert max(len(export.spans) for export in otlp_receiver.exports) <= 10


@pytest.mark.usefixtures("patient")
def test_every_request_is_exported_or_counted(otlp_receiver: OtlpReceiver, start_tracing: StartTracing) -> None:
    """More than the thread can take: what it does not export is dropped at the queue, and nothing is lost unseen."""
    tracing = start_tracing(Tracing(), enabled=True, sample_ratio=1, queue_size=50)
    tracing.complete(*[request() for _ in range(3000)])
    tracing.hooks.close()
    metrics = tracing.metrics
    assert metrics[EXPORTED] / 2 + metrics[QUEUE_FULL] == 3000
    assert len(otlp_receiver.spans) == metrics[EXPORTED]
    assert metrics[CLOSING] == metrics[EXPORT_FAILED] == 0
