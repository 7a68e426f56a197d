"""Whole traces of a real client's requests, from the real proxy in front of a real broker to an OTLP receiver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer

from testbed.kafka.tools import Tool, run_tool
from testbed.proxy_process import ProxyProcess
from tests.faults.waiting import wait_until
from tests.otlp_receiver import OtlpReceiver

if TYPE_CHECKING:
    from tests.otlp_receiver import ReceivedTrace
    from tests.shared_cluster import FirstBroker

CONFIG = """
[plugins.options.tracing]
enabled = true
sample_ratio = 1.0

[[quotas]]
entity = { client-id = "traced" }
producer_byte_rate = "20kB"
"""


def named(traces: list[ReceivedTrace], name: str) -> list[ReceivedTrace]:
    return [trace for trace in traces if trace.request.name == name]


def test_a_client_is_followed_from_its_first_byte_to_its_last_reply(kafka: FirstBroker) -> None:
    broker = kafka.brokers[0]
    with OtlpReceiver() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
            "OTEL_SERVICE_NAME": "headrace-under-test",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, environment=environment) as proxy:
            servers = proxy.bootstrap_servers
            run_tool(
                Tool.TOPICS,
                ["--bootstrap-server", servers, "--create", "--topic", "traced-topic", "--replica-assignment", "0"],
            )
            producer = Producer({"bootstrap.servers": servers, "client.id": "traced"})
            producer.produce("traced-topic", b"x" * 250_000)
            assert producer.flush(60) == 0
            del producer
            reader = {"bootstrap.servers": servers, "client.id": "reader", "group.id": "readers"}
            consumer = Consumer(reader | {"auto.offset.reset": "earliest"})
            consumer.subscribe(["traced-topic"])
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            consumer.close()
            names = {"ApiVersions", "Metadata", "Fetch", "mute"}
            wait_until(lambda: names <= {span.name for span in receiver.spans}, "traces with these spans have come")
            assert proxy.stop() == 0
            printed = proxy.log
        traces = receiver.wait_for_traces(1)
    assert "Traceback" not in printed
    throttled = [trace for trace in named(traces, "Produce") if trace.mute is not None]
    assert throttled, [trace.request.name for trace in traces]
    for trace in throttled:
        check_throttled(trace, broker.host, broker.port)
    assert {trace.request.resource["service.name"] for trace in traces} == {"headrace-under-test"}
    for trace in traces:
        assert trace.request.status != "ERROR" or "closed" in trace.request.description, trace
        if trace.broker is not None:
            assert trace.request.start_ns <= trace.broker.start_ns <= trace.broker.end_ns <= trace.request.end_ns


def check_throttled(trace: ReceivedTrace, host: str, port: int) -> None:
    root = trace.request
    assert root.attributes["messaging.system"] == "kafka"
    assert root.attributes["messaging.client.id"] == "traced"
    assert root.attributes["server.port"] == port
    assert root.attributes["server.address"] == host
    assert root.attributes["headrace.verdict"] == "throttle"
    assert root.attributes["headrace.quota.key"] == "producer_byte_rate"
    assert root.attributes["headrace.quota.entity"] == "client-id=traced"
    assert root.attributes["headrace.quota.limit"] == 20_000
    assert root.attributes["headrace.request_bytes"] > 250_000
    assert trace.mute is not None
    assert trace.mute.length_ns == root.attributes["headrace.throttle_ms"] * 1_000_000
    assert trace.broker is not None
    assert trace.broker.parent_id == root.span_id
