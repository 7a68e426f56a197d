"""Every response with a broker's address is rewritten, and nothing else in it is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.apis import APIS, must_rewrite
from headrace.proxy.wire.endpoints import MOST_BROKERS, BrokerAddress, Rewritten, rewrite_endpoints
from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage, UnknownMessage
from headrace.proxy.wire.messages.codec import TAGS, Message, decode, encode
from headrace.proxy.wire.messages.schemas import Field, schema
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.proxy.wire.oracle import through_java
from tests.proxy.wire.samples import LONG, sample

if TYPE_CHECKING:
    from random import Random

REWRITTEN = [
    ApiKey.PRODUCE,
    ApiKey.METADATA,
    ApiKey.FIND_COORDINATOR,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.SHARE_FETCH,
    ApiKey.SHARE_ACKNOWLEDGE,
]
EVERY = [(key, version) for key in REWRITTEN for version in range(APIS[key].min_version, APIS[key].max_version + 1)]

ARRAYS = {
    ApiKey.PRODUCE: "node_endpoints",
    ApiKey.METADATA: "brokers",
    ApiKey.DESCRIBE_CLUSTER: "brokers",
    ApiKey.SHARE_FETCH: "node_endpoints",
    ApiKey.SHARE_ACKNOWLEDGE: "node_endpoints",
}
LIMIT = 100


def advertise(node_id: int) -> tuple[str, int] | None:
    """Advertise a hundred brokers, as a proxy with that range of ids does."""
    return ("proxy.example.com", 19093 + node_id) if 0 <= node_id < LIMIT else None


def rewrite(api_key: int, version: int, message: Message, throttle: int | None = None) -> tuple[Rewritten, Message]:
    name = f"{API_NAMES[api_key]}Response"
    rewritten = rewrite_endpoints(api_key, version, encode(name, version, message), advertise, throttle)
    return rewritten, decode(name, version, rewritten.body)


def expected_of(api_key: int, message: Message) -> Message:
    """Return the expected response in plain values, computed without `edit`."""
    expected = dict(message)
    if (array := ARRAYS.get(ApiKey(api_key))) is not None:
        if array in message:
            expected[array] = [row for one in message[array] if (row := expected_row(one)) is not None]
    elif "coordinators" in message:
        expected["coordinators"] = [expected_coordinator(row) for row in message["coordinators"]]
    else:
        expected = dict(expected_coordinator(message))
    return expected


def expected_row(row: Message) -> Message | None:
    place = advertise(row.get("node_id", row.get("broker_id", -1)))
    return None if place is None else {**row, "host": place[0], "port": place[1]}


def expected_coordinator(row: Message) -> Message:
    node_id = row["node_id"]
    if node_id < 0:
        return row
    if (place := advertise(node_id)) is not None:
        return {**row, "host": place[0], "port": place[1]}
    changed: Message = {"error_code": 15, "node_id": -1, "host": "", "port": -1}
    if "error_message" in row:
        changed["error_message"] = f"broker {node_id} is outside the range of ids that the proxy is configured for"
    return {**row, **changed}


def check_the_generic_way(rng: Random, api_key: int, version: int) -> None:
    """Check that rewriting a random response has the same result as decoding, changing and encoding it."""
    name = f"{API_NAMES[api_key]}Response"
    message = sample(rng, name, version)
    for rows in (message.get("brokers", ()), message.get("node_endpoints", ()), message.get("coordinators", ())):
        for row in rows:
            row["node_id" if "node_id" in row else "broker_id"] = rng.randint(-2, LIMIT + 2)
    if "node_id" in message:
        message["node_id"] = rng.randint(-2, LIMIT + 2)
    throttle = rng.choice((None, 0, rng.randrange(1 << 30)))
    body = encode(name, version, message)

    rewritten = rewrite_endpoints(api_key, version, body, advertise, throttle)

    expected = expected_of(api_key, message)
    if throttle is not None and "throttle_time_ms" in message:
        expected["throttle_time_ms"] = throttle
    assert decode(name, version, rewritten.body) == expected, (name, version, message)
    if expected == message:
        assert rewritten.body == body, (name, version, message)
    if expected.get("node_endpoints") != []:  # an empty array, which `encode` leaves out as the default
        assert rewritten.body == encode(name, version, expected), (name, version, message)
        assert through_java(name, version, rewritten.body) == rewritten.body, (name, version, message)


def test_rewriting_any_response_equals_decoding_and_encoding(rng: Random) -> None:
    for key, version in EVERY:
        for _ in range(8):
            check_the_generic_way(rng, key, version)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("api_key", "version"), EVERY)
@LONG
@given(rng=st.randoms(use_true_random=False))
def test_any_response_at_length(api_key: int, version: int, rng: Random) -> None:
    check_the_generic_way(rng, api_key, version)


@pytest.mark.parametrize("version", range(14))
def test_metadata(version: int) -> None:
    rows = [{"node_id": one, "host": f"b{one}", "port": 9092} for one in (1, 500, 2)]
    message: Message = {"brokers": rows}
    if version >= 1:
        message["controller_id"] = 500
        rows[0]["rack"] = "east"
    if version >= 2:
        message["cluster_id"] = "cluster"
    rewritten, decoded = rewrite(ApiKey.METADATA, version, message, 77)
    assert [(row["node_id"], row["host"], row["port"]) for row in decoded["brokers"]] == [
        (1, "proxy.example.com", 19094),
        (2, "proxy.example.com", 19095),
    ]
    assert rewritten.brokers[0] == BrokerAddress(node_id=1, host="b1", port=9092, rack="east" if version else None)
    assert [broker.node_id for broker in rewritten.brokers] == [1, 500, 2]
    assert rewritten.left_out == (500,)
    assert rewritten.cluster_id == ("cluster" if version >= 2 else None)
    assert rewritten.controller_id == (500 if version >= 1 else None)
    assert decoded.get("throttle_time_ms", 77) == 77


def test_a_response_with_too_many_brokers_is_malformed() -> None:
    rows = [{"node_id": number, "host": "b", "port": 9092} for number in range(MOST_BROKERS)]
    rewrite(ApiKey.METADATA, 2, {"brokers": rows})
    with pytest.raises(MalformedFrame, match="more than 2,000 brokers"):
        rewrite(ApiKey.METADATA, 2, {"brokers": [*rows, {"node_id": MOST_BROKERS, "host": "b", "port": 9092}]})


@pytest.mark.parametrize("version", range(7))
def test_a_coordinator_in_and_outside_the_range(version: int) -> None:
    def answer(node_id: int) -> Message:
        row = {"node_id": node_id, "host": "b", "port": 9092}
        return row if version < 4 else {"coordinators": [{"key": "g", **row}]}

    def row_of(decoded: Message) -> Message:
        return decoded if version < 4 else decoded["coordinators"][0]

    rewritten, decoded = rewrite(ApiKey.FIND_COORDINATOR, version, answer(7))
    row = row_of(decoded)
    assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (0, 7, "proxy.example.com", 19100)
    assert rewritten.brokers == (BrokerAddress(node_id=7, host="b", port=9092, rack=None),)

    rewritten, decoded = rewrite(ApiKey.FIND_COORDINATOR, version, answer(700))
    row = row_of(decoded)
    assert (row["error_code"], row["node_id"], row["host"], row["port"]) == (15, -1, "", -1)
    assert "broker 700 is outside the range" in row.get("error_message", "broker 700 is outside the range")
    assert rewritten.left_out == (700,)

    failed = {"error_code": 15, "node_id": -1, "host": "", "port": -1}
    message = failed if version < 4 else {"coordinators": [{"key": "g", **failed}]}
    rewritten, decoded = rewrite(ApiKey.FIND_COORDINATOR, version, message)
    assert rewritten.body == encode("FindCoordinatorResponse", version, message)
    assert (rewritten.brokers, rewritten.left_out) == ((), ())


def test_describe_cluster_has_other_field_names() -> None:
    brokers = [{"broker_id": one, "host": "b", "port": 1, "rack": "r", "is_fenced": True} for one in (0, -1)]
    rewritten, decoded = rewrite(
        ApiKey.DESCRIBE_CLUSTER, 2, {"brokers": brokers, "cluster_id": "c", "controller_id": 4, TAGS: {9: b"x"}}, 3
    )
    assert decoded["brokers"] == [{**brokers[0], "host": "proxy.example.com", "port": 19093}]
    assert (rewritten.cluster_id, rewritten.controller_id, rewritten.left_out) == ("c", 4, (-1,))
    assert (decoded["throttle_time_ms"], decoded[TAGS]) == (3, {9: b"x"})


def test_other_apis_and_broken_bodies() -> None:
    with pytest.raises(UnknownMessage, match="api key 12: no addresses"):
        rewrite_endpoints(ApiKey.HEARTBEAT, 0, b"", advertise)
    with pytest.raises(UnknownMessage, match="MetadataResponse v14"):
        rewrite_endpoints(ApiKey.METADATA, 14, b"", advertise)
    with pytest.raises(UnknownMessage, match="ProduceResponse v14"):
        rewrite_endpoints(ApiKey.PRODUCE, 14, b"", advertise)
    for key, version in EVERY:
        with pytest.raises(MalformedMessage, match=f"{API_NAMES[key]}Response v{version}: "):
            rewrite_endpoints(key, version, b"\0\0\0", advertise)


def test_the_rewritten_apis_are_those_of_the_api_table() -> None:
    assert {api.key for api in APIS.values() if must_rewrite(api.key, api.max_version)} == {
        *REWRITTEN,
        ApiKey.API_VERSIONS,
    }


class TestProduceTail:
    """`find_produce_tail` is compared with the generic codec."""

    @pytest.mark.parametrize("version", range(14))
    def test_it_finds_what_the_generic_way_finds(self, version: int, rng: Random) -> None:
        for _ in range(20):
            message = sample(rng, "ProduceResponse", version)
            body = encode("ProduceResponse", version, message)
            throttle_at, hints_at = find_produce_tail(memoryview(body), version)
            if version == 0:
                assert throttle_at is None
            else:
                assert throttle_at is not None
                other = {**message, "throttle_time_ms": message["throttle_time_ms"] ^ 0x7FFFFFFF}
                assert encode("ProduceResponse", version, other)[:throttle_at] == body[:throttle_at]
                assert int.from_bytes(body[throttle_at : throttle_at + 4], signed=True) == message["throttle_time_ms"]
            assert (hints_at is not None) == bool(message.get("node_endpoints"))
            if hints_at is not None:
                assert body[hints_at] == 0

    @pytest.mark.parametrize("version", range(14))
    def test_it_refuses_what_the_generic_way_refuses(self, version: int, rng: Random) -> None:
        """Strings and hints are skipped, so errors inside them are not detected."""
        for _ in range(40):
            body = bytearray(encode("ProduceResponse", version, sample(rng, "ProduceResponse", version)))
            if rng.randrange(2):
                del body[rng.randrange(len(body)) :]
            else:
                body[rng.randrange(len(body))] = rng.randrange(256)
            try:
                find_produce_tail(body, version)
            except MalformedMessage:
                with pytest.raises(MalformedMessage):
                    decode("ProduceResponse", version, body)

    @pytest.mark.parametrize("version", range(14))
    def test_every_truncation_is_refused(self, version: int) -> None:
        partitions = [{"index": one, "base_offset": one} for one in range(3)]
        body = encode("ProduceResponse", version, {"responses": [{"partition_responses": partitions}] * 2})
        for cut in range(len(body)):
            with pytest.raises(MalformedMessage, match=f"ProduceResponse v{version}"):
                find_produce_tail(body[:cut], version)
        assert find_produce_tail(body + b"\0", version) == find_produce_tail(body, version)


CONTROLLERS = "spoken between brokers and controllers; no broker serves it to clients"
CLIENT_HOST = "where a client is, not a broker"
ACL_HOST = "the host that an access rule is for"
STREAMS = "an endpoint of the Streams application's own"

# Fields of responses that look like an address and are not rewritten, with the reason why clients do not connect to it.
EXEMPT = {
    "FetchResponse.node_endpoints": "hidden while it is forwarded: headrace.proxy.wire.walks.fetch",
    "DescribeQuorumResponse.nodes.listeners": "the controllers' listeners, which an operator reads and no client dials",
    "DescribeClusterResponse.endpoint_type": "a number that stands for brokers or controllers",
    "DescribeAclsResponse.resources.acls.host": ACL_HOST,
    "DeleteAclsResponse.filter_results.matching_acls.host": ACL_HOST,
    "DescribeGroupsResponse.groups.members.client_host": CLIENT_HOST,
    "ConsumerGroupDescribeResponse.groups.members.client_host": CLIENT_HOST,
    "ShareGroupDescribeResponse.groups.members.client_host": CLIENT_HOST,
    "StreamsGroupDescribeResponse.groups.members.client_host": CLIENT_HOST,
    "StreamsGroupDescribeResponse.groups.members.user_endpoint": STREAMS,
    "StreamsGroupHeartbeatResponse.partitions_by_user_endpoint": STREAMS,
    "StreamsGroupHeartbeatResponse.endpoint_information_epoch": "a number that counts changes",
    "VoteResponse.node_endpoints": CONTROLLERS,
    "BeginQuorumEpochResponse.node_endpoints": CONTROLLERS,
    "EndQuorumEpochResponse.node_endpoints": CONTROLLERS,
    "FetchSnapshotResponse.node_endpoints": CONTROLLERS,
    "UpdateRaftVoterResponse.current_leader": CONTROLLERS,
}
SUSPICIOUS = ("host", "port", "endpoint", "listener", "address", "advertised", "url", "uri")


def suspicious(prefix: str, fields: tuple[Field, ...]) -> list[str]:
    found = []
    for field in fields:
        path = f"{prefix}.{field.name}"
        if any(word in field.name.split("_") or f"{word}s" in field.name.split("_") for word in SUSPICIOUS):
            found.append(path)
        found += suspicious(path, field.fields)
    return found


def test_no_response_names_an_address_that_is_not_rewritten() -> None:
    """Reads every schema of every version, so that a new field with an address fails this test."""
    covered = {f"{API_NAMES[key]}Response.{array}" for key, array in ARRAYS.items()}
    covered |= {f"FindCoordinatorResponse.{name}" for name in ("host", "port", "coordinators")}
    found = {
        path
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        for path in suspicious(f"{api.name}Response", schema(f"{api.name}Response", version).fields)
    }
    explained = {one for one in covered | EXEMPT.keys() for path in found if path == one or path.startswith(f"{one}.")}
    assert explained == covered | EXEMPT.keys(), "an entry is in no schema"
    assert {path for path in found if not any(path == one or path.startswith(f"{one}.") for one in explained)} == set()


def test_exempt_for_being_the_controllers_are_only_the_controllers() -> None:
    for path, reason in EXEMPT.items():
        api = next(one for one in APIS.values() if path.startswith(f"{one.name}Response."))
        assert api.controller_only == (reason == CONTROLLERS)


def test_controller_only_apis_are_the_ones_no_broker_lists() -> None:
    assert {api.key for api in APIS.values() if api.controller_only} == {
        4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82
    }  # fmt: skip


def test_nothing_but_addresses_differs() -> None:
    """Unknown tagged fields at every level, varints that are longer than necessary, and records are copied."""
    row = {"node_id": 1, "host": "b", "port": 1, "rack": None, TAGS: {5: b"row"}}
    partition: dict[str, Any] = {"partition_index": 1, "records": b"records", TAGS: {6: b"partition"}}
    message = {
        "responses": [{"topic_id": bytes(16), "partitions": [partition], TAGS: {7: b"topic"}}],
        "node_endpoints": [row],
        TAGS: {8: b"top"},
    }
    _rewritten, decoded = rewrite(ApiKey.SHARE_FETCH, 2, message)
    given_ = decode("ShareFetchResponse", 2, encode("ShareFetchResponse", 2, message))
    assert decoded == {**given_, "node_endpoints": [{**row, "host": "proxy.example.com", "port": 19094}]}
