"""Whole traces, as a receiver sees them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.tracing.records import LONGEST_TEXT, only_topic, record_of
from headrace.plugins.tracing.spans import SpanBuilder
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address, ClusterMetadata
from headrace.quota_callbacks.verdicts import Reason
from tests.plugins.tracing.traced import (
    CREATE_TOPICS,
    FETCH,
    METADATA,
    OVER_FETCH,
    OVER_MUTATIONS,
    PRODUCE,
    connection,
    failed,
    refused,
    request,
    throttled,
)

if TYPE_CHECKING:
    from headrace.quota_callbacks.requests import Request
    from tests.otlp_receiver import OtlpReceiver, ReceivedTrace
    from tests.plugins.tracing.traced import Traced

MS = 1_000_000


def trace_of(tracing: Traced, otlp_receiver: OtlpReceiver, traced: Request) -> ReceivedTrace:
    tracing.complete(traced)
    return otlp_receiver.wait_for_trace()


def test_a_forwarded_request_is_a_server_span_with_the_brokers_part_in_it(
    tracing: Traced, otlp_receiver: OtlpReceiver
) -> None:
    before_ns = time.time_ns()
    trace = trace_of(tracing, otlp_receiver, request())
    after_ns = time.time_ns()
    root, broker = trace.request, trace.broker
    assert broker is not None
    assert len(trace.spans) == 2
    assert (root.name, root.kind, root.status) == ("Produce", "SERVER", "UNSET")
    assert (broker.name, broker.kind, broker.status) == ("Produce", "CLIENT", "UNSET")
    assert broker.parent_id == root.span_id
    assert before_ns <= root.end_ns <= after_ns
    assert root.length_ns == 12 * MS
    assert broker.start_ns - root.start_ns == 1 * MS
    assert broker.length_ns == 9 * MS


def test_the_attributes_of_a_forwarded_request(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, request())
    shared = {
        "messaging.system": "kafka",
        "messaging.operation.name": "Produce",
        "messaging.operation.type": "send",
        "messaging.client.id": "producer-1",
        "server.address": "kafka-1.example",
        "server.port": 9092,
    }
    assert trace.request.attributes == shared | {
        "client.address": "10.0.0.7",
        "client.port": 50123,
        "user.name": "alice",
        "headrace.api_key": 0,
        "headrace.api_version": 9,
        "headrace.correlation_id": 77,
        "headrace.connection_id": 12,
        "headrace.node_id": 1,
        "headrace.acks": -1,
        "headrace.request_bytes": 1000,
        "headrace.response_bytes": 50,
        "headrace.verdict": "forward",
    }
    assert trace.broker is not None
    assert trace.broker.attributes == shared


def test_scope_and_schema(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    root = trace_of(tracing, otlp_receiver, request()).request
    assert root.scope == "headrace.tracing"
    assert root.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert root.resource["service.name"] == "headrace"
    assert otlp_receiver.exports[0].path == "/v1/traces"


def test_a_throttled_produce_is_muted_from_when_the_quota_bound(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    produce = throttled()
    produce.throttled_s = produce.received_s + 0.001
    trace = trace_of(tracing, otlp_receiver, produce)
    mute = trace.mute
    assert mute is not None
    assert (mute.kind, mute.parent_id) == ("INTERNAL", trace.request.span_id)
    assert mute.start_ns - trace.request.start_ns == 1 * MS
    assert mute.length_ns == 1500 * MS
    quota = {
        "headrace.throttle_ms": 1500,
        "headrace.quota.key": "producer_byte_rate",
        "headrace.quota.entity": "user=alice",
        "headrace.quota.observed": 2048.0,
        "headrace.quota.limit": 1024.0,
    }
    assert mute.attributes == quota
    assert trace.request.attributes.items() >= quota.items()
    assert trace.request.attributes["headrace.verdict"] == "throttle"
    assert trace.request.status == "UNSET"
    assert trace.broker is not None


@pytest.mark.parametrize("quota", ["consumer_byte_rate", "request_percentage"])
def test_what_is_charged_by_the_reply_mutes_from_the_reply(
    quota: str, tracing: Traced, otlp_receiver: OtlpReceiver
) -> None:
    reason = Reason(quota=quota, entity=OVER_FETCH.entity, observed=3.5, limit=2.0)
    fetch = request(FETCH, throttle_ms=40, reason=reason)
    fetch.throttled_s = fetch.reply_s
    trace = trace_of(tracing, otlp_receiver, fetch)
    mute, broker = trace.mute, trace.broker
    assert mute is not None
    assert broker is not None
    assert mute.start_ns == broker.end_ns
    assert mute.length_ns == 40 * MS
    assert trace.request.attributes["messaging.operation.type"] == "receive"


def test_a_throttle_without_a_reason(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, throttled(reason=None))
    assert trace.mute is not None
    assert trace.mute.attributes == {"headrace.throttle_ms": 1500}


def test_a_refused_request_never_reached_the_broker(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, refused())
    (root,) = trace.spans
    assert root.name == "CreateTopics orders"
    assert root.attributes["messaging.destination.name"] == "orders"
    assert "messaging.operation.type" not in root.attributes
    assert root.attributes["headrace.verdict"] == "refuse"
    assert root.attributes["headrace.refused_code"] == 89
    assert root.attributes["headrace.quota.key"] == "controller_mutation_rate"
    assert root.attributes["error.type"] == "THROTTLING_QUOTA_EXCEEDED"
    assert (root.status, root.description) == ("ERROR", "controller_mutation_rate of user=alice")


def test_a_refusal_that_mutes_as_well(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, refused(throttle_ms=600))
    assert trace.mute is not None
    assert trace.mute.start_ns == trace.request.start_ns
    assert trace.broker is None


def test_a_request_that_is_refused_in_part_has_the_brokers_part(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, refused(forwarded_s=100.001, reply_s=100.010))
    assert trace.broker is not None
    assert trace.broker.status == "UNSET"
    assert trace.request.attributes["headrace.verdict"] == "refuse"


@pytest.mark.parametrize(("code", "name"), [(-1, "UNKNOWN_SERVER_ERROR"), (35, "UNSUPPORTED_VERSION"), (29, "29")])
def test_a_refusal_without_a_reason(code: int, name: str, tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    root = trace_of(tracing, otlp_receiver, refused(refused_code=code, reason=None)).request
    assert (root.attributes["error.type"], root.status, root.description) == (name, "ERROR", "")


def test_a_request_whose_broker_goes_away_has_failed(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, failed())
    root, broker = trace.request, trace.broker
    assert broker is not None
    for span in (root, broker):
        assert (span.status, span.attributes["error.type"]) == ("ERROR", "upstream_fault")
        assert span.description == "upstream: the broker closed; requests in flight: 1"
    assert broker.end_ns == root.end_ns
    assert root.attributes["headrace.verdict"] == "forward"


def test_a_reply_that_breaks_off_was_begun_by_the_broker(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, failed(error="client: reset by peer", reply_s=100.010))
    assert trace.request.status == "ERROR"
    assert trace.broker is not None
    assert (trace.broker.status, trace.broker.length_ns) == ("UNSET", 9 * MS)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        ("client: a frame of 3000000000 bytes", "client_fault"),
        ("the client closed its side; requests in flight: 2", "client_fault"),
        ("the client hung up while it was muted", "client_fault"),
        ("upstream: no route to host", "upstream_fault"),
        ("proxy: KeyError: 7", "proxy_fault"),
        ("connection closed", "_OTHER"),
        ("idle", "_OTHER"),
    ],
)
def test_whose_fault_a_failure_is(error: str, fault: str, tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    root = trace_of(tracing, otlp_receiver, failed(error=error, forwarded_s=None)).request
    assert (root.attributes["error.type"], root.description) == (fault, error)


def test_a_produce_without_acks_ends_with_its_hand_over(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, request(acks=0, reply_s=None, response_bytes=0))
    assert trace.broker is not None
    assert trace.broker.length_ns == 11 * MS
    assert (trace.broker.status, trace.request.status) == ("UNSET", "UNSET")
    assert trace.request.attributes["headrace.acks"] == 0
    assert trace.request.attributes["headrace.response_bytes"] == 0


def test_the_brokers_own_throttle(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    trace = trace_of(tracing, otlp_receiver, request(broker_throttle_ms=250))
    assert trace.request.attributes["headrace.broker_throttle_ms"] == 250
    assert trace.request.attributes["headrace.verdict"] == "forward"
    assert trace.mute is None


@pytest.mark.parametrize(
    ("api_key", "name", "operation_type"),
    [
        (METADATA, "Metadata", None),
        (ApiKey.OFFSET_COMMIT, "OffsetCommit", "settle"),
        (ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", "settle"),
        (ApiKey.SHARE_FETCH, "ShareFetch", "receive"),
        (ApiKey.SHARE_ACKNOWLEDGE, "ShareAcknowledge", "settle"),
        (ApiKey.API_VERSIONS, "ApiVersions", None),
    ],
)
def test_names_are_kafkas(
    api_key: int, name: str, operation_type: str | None, tracing: Traced, otlp_receiver: OtlpReceiver
) -> None:
    root = trace_of(tracing, otlp_receiver, request(api_key)).request
    assert root.name == root.attributes["messaging.operation.name"] == name
    assert root.attributes.get("messaging.operation.type") == operation_type


def test_a_connection_of_which_little_is_known(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    sender = connection(user="ANONYMOUS", node_id=None, upstream=None)
    unknown = request(METADATA, sender=sender, client_id="", forwarded_s=None, reply_s=None, response_bytes=0)
    attributes = trace_of(tracing, otlp_receiver, unknown).request.attributes
    assert attributes["user.name"] == "ANONYMOUS"
    for absent in ("messaging.client.id", "server.address", "server.port", "headrace.node_id", "headrace.acks"):
        assert absent not in attributes


@pytest.mark.parametrize("host", ["10.1.2.80", "2001:db8::7"])
def test_a_broker_known_by_its_ip_is_the_peer(host: str, tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    sender = connection(upstream=Address(host=host, port=9094))
    broker = trace_of(tracing, otlp_receiver, request(sender=sender)).broker
    assert broker is not None
    assert broker.attributes["network.peer.address"] == broker.attributes["server.address"] == host
    assert broker.attributes["network.peer.port"] == 9094


def test_the_clusters_id_once_it_is_known(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    cluster = ClusterMetadata(cluster_id="MkU3OEVBNTcwNTJENDM2Qk", controller_id=1, brokers=())
    tracing.hooks.update_cluster_metadata(cluster)
    trace = trace_of(tracing, otlp_receiver, request())
    for span in trace.spans:
        assert span.attributes["messaging.kafka.cluster.id"] == "MkU3OEVBNTcwNTJENDM2Qk"


def test_an_api_that_came_after_this_release() -> None:
    (root,) = SpanBuilder().spans(record_of(request(900, forwarded_s=None), 1))
    assert root.name == "api_key_900"


def test_a_request_that_ends_before_its_time_was_taken() -> None:
    (root,) = SpanBuilder().spans(record_of(request(completed_s=None, forwarded_s=None), 1))
    assert root.start_time == root.end_time


def test_long_and_broken_text_is_cut_and_mended(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    long = "x" * 30_000
    sender = connection(user="al\ud800ice")
    reason = Reason(quota="producer_byte_rate", entity=f"client-id={long}", observed=1.0, limit=1.0)
    trace = trace_of(
        tracing,
        otlp_receiver,
        failed(sender=sender, client_id=long, error=f"client: {long}", reason=reason, throttle_ms=1),
    )
    root = trace.request
    assert root.attributes["user.name"] == "al?ice"
    assert root.attributes["messaging.client.id"] == "x" * LONGEST_TEXT
    assert len(root.description) == len(root.attributes["headrace.quota.entity"]) == LONGEST_TEXT


def test_traces_do_not_mix(tracing: Traced, otlp_receiver: OtlpReceiver) -> None:
    tracing.complete(*(request(correlation_id=number, throttle_ms=number + 1) for number in range(50)))
    traces = otlp_receiver.wait_for_traces(50)
    assert [trace.request.attributes["headrace.correlation_id"] for trace in traces] == list(range(50))
    for number, trace in enumerate(traces):
        assert {span.parent_id for span in trace.spans} == {"", trace.request.span_id}
        assert trace.mute is not None
        assert trace.mute.length_ns == (number + 1) * MS
    assert len({span.span_id for trace in traces for span in trace.spans}) == 150


def test_a_record_keeps_nothing_of_the_proxy_alive() -> None:
    traced = request(body={"topics": [{"name": "orders"}]})
    record = record_of(traced, 7)
    assert traced.connection not in record
    assert traced.body not in record


@pytest.mark.parametrize(
    ("body", "topic"),
    [
        ({"topics": [{"name": "orders"}]}, "orders"),
        ({"topics": [{"name": "orders"}, {"name": "bills"}]}, None),
        ({"topics": [{"name": None, "topic_id": "8f…"}]}, None),
        ({"topics": []}, None),
        ({"topics": None}, None),
        ({"topic_data": [{"name": "orders"}]}, "orders"),
        ({"topic_names": ["orders"]}, "orders"),
        ({"components": []}, None),
    ],
)
def test_the_one_topic_of_a_request(body: dict[str, Any], topic: str | None) -> None:
    assert only_topic(body) == topic


moments = st.floats(min_value=0, max_value=3600, allow_nan=False)


@given(
    times=st.lists(moments, min_size=4, max_size=4).map(sorted),
    begun_s=st.floats(min_value=0, max_value=1e8),
    is_forwarded=st.booleans(),
    is_answered=st.booleans(),
    throttle_ms=st.integers(min_value=0, max_value=2**31 - 1),
    reason=st.sampled_from([None, OVER_FETCH, OVER_MUTATIONS]),
    code=st.sampled_from([0, 89]),
    error=st.none() | st.text(),
    api_key=st.sampled_from([PRODUCE, FETCH, CREATE_TOPICS]),
)
def test_every_request_becomes_one_tree(
    times: list[float],
    begun_s: float,
    is_forwarded: bool,
    is_answered: bool,
    throttle_ms: int,
    reason: Reason | None,
    code: int,
    error: str | None,
    api_key: int,
) -> None:
    received_s, forwarded_s, reply_s, completed_s = (begun_s + time_s for time_s in times)
    traced = request(
        api_key,
        received_s=received_s,
        forwarded_s=forwarded_s if is_forwarded else None,
        reply_s=reply_s if is_answered else None,
        completed_s=completed_s,
        throttle_ms=throttle_ms,
        reason=reason,
        refused_code=code,
        error=error,
    )
    record = record_of(traced, 5)
    spans = BUILDER.spans(record)
    root = spans[-1]
    assert len(spans) == record.span_count
    assert root.parent is None
    assert root.end_time - root.start_time == round((completed_s - received_s) * 1e9)
    assert (root.status.is_ok) == (error is None and code == 0)
    for child in spans[:-1]:
        assert child.context.trace_id == root.context.trace_id == 5
        assert child.parent.span_id == root.context.span_id
        assert root.start_time <= child.start_time <= child.end_time
        assert child.name == "mute" or child.end_time <= root.end_time


BUILDER = SpanBuilder()
