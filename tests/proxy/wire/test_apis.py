"""The API table is compared with a transcript of Kafka's (`kafka_api_table.md`), and with Kafka's own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.proxy.wire import apis
from headrace.proxy.wire.apis import APIS, Api
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.jvm import kafka_classes, start_jvm
from tests.proxy.wire.oracle import NEW, OLD, java_versions

TRANSCRIPT = Path(__file__).with_name("kafka_api_table.md")
REMOVED_IN_4 = {4, 5, 6, 7}
UNFIXED_THROTTLE = {
    ApiKey.PRODUCE,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}


def transcript() -> dict[int, list[str]]:
    """Return the rows of the table by key: API, versions, flexible, throttle field, back-off to 4.3.1, in 4.4.0."""
    rows = [line.strip("|\n ").split("|") for line in TRANSCRIPT.read_text(encoding="utf-8").splitlines()]
    cells = [[cell.strip() for cell in row] for row in rows]
    return {int(row[0]): row[1:] for row in cells if row[0].isdigit()}


ROWS = transcript()


def number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)


def test_the_transcript_and_the_table_name_the_same_apis() -> None:
    assert APIS.keys() - REMOVED_IN_4 == ROWS.keys()
    assert len(ROWS) == 91


@pytest.mark.parametrize("key", ROWS)
def test_transcript(key: int) -> None:
    name, versions, flexible, throttle, _, back_off = ROWS[key]
    low, _, high = versions.rstrip("*").partition("-")
    api = APIS[key]
    assert api.name == name.removesuffix(" †")
    assert api.controller_only == name.endswith("†")
    assert api.max_version == int(high or low)
    assert api.min_version <= int(low)  # 3.9 has older versions
    assert api.flexible_from == number(flexible)
    assert api.throttle_from == number(throttle)
    assert api.back_off_from == number(back_off)


@pytest.mark.parametrize("kafka", [OLD, NEW])
def test_versions_cover_both_kafkas(kafka: str) -> None:
    for key, versions in java_versions(kafka).items():
        assert APIS[key].knows(versions.start)
        assert APIS[key].knows(versions.stop - 1)


def test_versions_begin_and_end_where_a_kafka_does() -> None:
    both = [java_versions(OLD), java_versions(NEW)]
    for api in APIS.values():
        ranges = [versions[api.key] for versions in both if api.key in versions]
        assert api.min_version == min(one.start for one in ranges)
        assert api.max_version == max(one.stop for one in ranges) - 1
    assert not APIS[ApiKey.PRODUCE].knows(14)


@pytest.mark.parametrize("kafka", [OLD, NEW])
def test_header_versions_are_kafkas(kafka: str) -> None:
    types: Any = kafka_classes(kafka).cls("org.apache.kafka.common.message.ApiMessageType")
    compared = 0
    for key, versions in java_versions(kafka).items():
        java = types.fromApiKey(key)
        for version in versions:
            assert apis.request_header_version(key, version) == java.requestHeaderVersion(version), (key, version)
            assert apis.response_header_version(key, version) == java.responseHeaderVersion(version), (key, version)
            compared += 1
    assert compared > 250


def test_header_versions_of_the_unknown() -> None:
    assert (apis.request_header_version(ApiKey.PRODUCE, 99), apis.response_header_version(ApiKey.PRODUCE, 99)) == (2, 1)
    assert (
        apis.request_header_version(ApiKey.SASL_HANDSHAKE, 99),
        apis.response_header_version(ApiKey.SASL_HANDSHAKE, 99),
    ) == (1, 0)
    assert (apis.request_header_version(9999, 0), apis.response_header_version(9999, 0)) == (2, 1)
    assert apis.response_header_version(ApiKey.API_VERSIONS, 99) == 0


def test_java_backs_off_from_the_versions_in_the_table() -> None:
    """The source is `shouldClientThrottle` of the response classes of 4.4.0."""
    kafka = kafka_classes(NEW)
    parse = kafka.cls("org.apache.kafka.common.requests.AbstractResponse").parseResponse
    accessor = kafka.cls("org.apache.kafka.common.protocol.ByteBufferAccessor")
    keys: Any = kafka.cls("org.apache.kafka.common.protocol.ApiKeys")
    wrap = start_jvm().java.nio.ByteBuffer.wrap
    for key, versions in java_versions(NEW).items():
        for version in versions:
            body = encode(f"{APIS[key].name}Response", version, {})
            response = parse(keys.forId(key), accessor(wrap(body)), version)
            assert response.shouldClientThrottle(version) == (version >= apis.back_off_from(key)), (key, version)


EVERY = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]


def test_throttle_offset_is_where_the_schema_has_it() -> None:
    for api, version in EVERY:
        name = f"{api.name}Response"
        body = bytearray(encode(name, version, {}))
        at = apis.throttle_offset(api.key, version)
        done = at is not None
        if at is not None:
            body[at : at + 4] = (0x01020304).to_bytes(4, "big")
        decoded = decode(name, version, body)
        assert done == (decoded.get("throttle_time_ms") == 0x01020304), (name, version)
        if not done:
            assert "throttle_time_ms" not in decoded or api.key in UNFIXED_THROTTLE


def test_a_version_that_is_not_known_has_no_throttle_offset() -> None:
    assert apis.throttle_offset(ApiKey.HEARTBEAT, 0) is None
    assert apis.throttle_offset(ApiKey.HEARTBEAT, 5) is None
    assert apis.throttle_offset(9999, 0) is None


def test_what_must_be_rewritten() -> None:
    rewritten = {api.key for api in APIS.values() if apis.must_rewrite(api.key, api.max_version)}
    assert rewritten == {
        ApiKey.PRODUCE,
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.API_VERSIONS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
    assert not apis.must_rewrite(ApiKey.PRODUCE, 9)
    assert apis.must_rewrite(ApiKey.PRODUCE, 10)
    assert not apis.must_rewrite(9999, 0)
    assert {api.key for api in APIS.values() if api.must_know} > rewritten


def test_names() -> None:
    assert apis.API_NAMES[3] == "Metadata"
    assert isinstance(APIS[3], Api)
    assert APIS[ApiKey.CREATE_TOPICS].name == "CreateTopics"
