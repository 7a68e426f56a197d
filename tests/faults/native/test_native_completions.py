"""Usage records and traces of some traffic are equal on both data planes."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker, reset_after_ten
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.otlp_receiver import OtlpReceiver

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built")

CONFIG: Final = """
[plugins.options.usage_records]
folder = "{folder}"
[plugins.options.tracing]
enabled = true
sample_ratio = 1.0
queue_size = 100000
[[quotas]]
entity = {{ client-id = "charged" }}
request_percentage = 1e6
[[quotas]]
entity = {{ client-id = "throttled" }}
producer_byte_rate = 1
"""
SUMMED: Final = ("requests", "errors", "request_bytes", "response_bytes", "mutations", "producer_ids")
COUNT: Final = 40
HEARTBEAT_MS: Final = 0.012
"""The estimate of a broker's time (`headrace.quota_callbacks.builtin.request_costs`)."""


def beat(client: RawClient) -> None:
    assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == HEARTBEAT_REPLY


def traffic(proxy: ProxyProcess, folder: Path) -> int:
    """Return the number of connections that were relayed natively, and wait for their usage while they are open."""
    with RawClient(proxy.port, client_id="charged") as one, RawClient(proxy.port, client_id="free") as other:
        for _ in range(COUNT):
            beat(one)
            beat(other)
        native = int(proxy.metric("headrace_native_connections") or 0)
        wait_until(lambda: sums_of(usage_of(folder))["free", messages.HEARTBEAT]["requests"] == COUNT, "it is recorded")
        for _ in range(COUNT):
            beat(one)
    with RawClient(proxy.port, client_id="killed") as client:
        for _ in range(10):
            beat(client)
        client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        assert client.rest() == b""
    return native


def usage_of(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text(encoding="utf-8").splitlines()]
    return [record for line in lines if (record := json.loads(line))["kind"] == "usage"]


def sums_of(records: list[dict[str, Any]]) -> dict[tuple[str, int], Counter[str]]:
    found: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for record in records:
        found[record["client_id"], record["api_key"]].update(
            {name: record[name] for name in (*SUMMED, "thread_ms", "broker_ms")}
        )
    return found


def shapes_of(receiver: OtlpReceiver) -> Counter[str]:
    """Return how often there are spans with the same name, kind, status and attributes, besides what differs."""
    found: Counter[str] = Counter()
    own = {"headrace.correlation_id", "client.port", "headrace.connection_id", "server.port"}
    left_out = own | {"network.peer.port", "messaging.kafka.cluster.id"}  # which the proxy has to learn first
    for trace in receiver.wait_for_traces(1):
        assert trace.broker is not None
        root, broker = trace.request, trace.broker
        assert root.start_ns <= broker.start_ns <= broker.end_ns <= root.end_ns <= time.time_ns()
        assert own <= root.attributes.keys()
        for span in (root, broker):
            kept = {name: value for name, value in span.attributes.items() if name not in left_out}
            found[f"{span.name} {span.kind} {span.status} {kept}"] += 1
    return found


def test_both_planes_report_the_same(tmp_path: Path) -> None:
    sums, shapes = {}, {}
    for plane in ("native", "python"):
        folder = tmp_path / plane
        with FakeBroker({"killed": reset_after_ten}) as broker, OtlpReceiver() as receiver:
            environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
            arguments = (*JSON_LOG, "--data-plane", plane)
            config = CONFIG.format(folder=folder)
            began_s = int(time.time())  # noqa: TID251 -- records have the wall clock's seconds
            with ProxyProcess(
                broker.address, config=config, arguments=arguments, environment=environment, has_token=True
            ) as proxy:
                assert traffic(proxy, folder) == (2 if plane == "native" else 0)
                wait_until(lambda proxy=proxy: proxy.metric("headrace_connections") == 0, "all have ended")  # type: ignore[misc]
                receiver.wait_for_traces(3 * COUNT + 11)
                assert proxy.stop() == 0
                assert_no_traceback(proxy)
            records = usage_of(folder)
            assert all(began_s <= each["second"] <= time.time() for each in records)  # noqa: TID251
            sums[plane] = sums_of(records)
            shapes[plane] = shapes_of(receiver)
    assert shapes["native"] == shapes["python"]
    for name, expected in sums["python"].items():
        found = sums["native"][name]
        assert {each: found[each] for each in SUMMED} == {each: expected[each] for each in SUMMED}, name
    assert sums["native"].keys() == sums["python"].keys()
    assert sums["native"]["charged", messages.HEARTBEAT]["requests"] == 2 * COUNT
    assert sums["native"]["killed", messages.HEARTBEAT]["errors"] == 1
    for plane in sums:
        for client_id, count in (("charged", 2 * COUNT), ("free", COUNT), ("killed", 10)):
            row = sums[plane][client_id, messages.HEARTBEAT]
            assert row["thread_ms"] >= count * HEARTBEAT_MS * 0.99, (plane, client_id)
            assert row["broker_ms"] > row["thread_ms"] * 0.01
