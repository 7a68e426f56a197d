"""The broker's ApiVersions response is restricted to the APIs and versions that the proxy supports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.wire import api_versions
from headrace.proxy.wire.api_versions import (
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    UNSUPPORTED_VERSION,
    OfferedApi,
    highest_allowed,
    layout_version,
    restrict_api_versions,
    throttled_api_versions,
    unsupported_version_reply,
)
from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import MalformedMessage, UnknownMessage
from headrace.proxy.wire.messages.codec import TAGS, Message, decode, encode
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.jvm import start_jvm
from tests.proxy.wire.oracle import NEW, java_versions, judge, kafka_classes
from tests.proxy.wire.samples import sample

if TYPE_CHECKING:
    from random import Random


def offer(*rows: tuple[int, int, int], **more: Any) -> Message:
    return {"api_keys": [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in rows], **more}


def restricted(version: int, message: Message, throttle: int | None = None) -> dict[int, tuple[int, int]]:
    result = restrict_api_versions(version, encode("ApiVersionsResponse", version, message), throttle)
    rows = decode("ApiVersionsResponse", version, result.body)["api_keys"]
    return {row["api_key"]: (row["min_version"], row["max_version"]) for row in rows}


def test_the_response_of_a_current_broker_is_not_changed() -> None:
    """The ranges of 4.4, for every API that its brokers list."""
    rows = [(key, versions.start, versions.stop - 1) for key, versions in java_versions(NEW).items()]
    body = encode("ApiVersionsResponse", 5, offer(*rows))
    assert restrict_api_versions(5, body).body == body


def test_only_apis_that_the_proxy_reads_are_capped() -> None:
    rows = [(key, 0, 99) for key in range(max(APIS) + 1)]
    kept = restricted(4, offer(*rows))
    for key, api in APIS.items():
        assert kept[key] == (0, api.max_version if api.must_know else 99)
    assert kept[ApiKey.PRODUCE] == (0, 13)


def test_produce_is_never_capped_under_12_and_its_minimum_stays() -> None:
    """transaction.version 2 needs Produce 12; old librdkafka decides on the minimum (KAFKA-18659)."""
    assert APIS[ApiKey.PRODUCE].max_version >= 12
    for high in range(12, 40):
        assert restricted(3, offer((0, 0, high)))[0][0] == 0
        assert restricted(3, offer((0, 0, high)))[0][1] >= 12
    assert restricted(3, offer((0, 3, 12)))[0] == (3, 12)


def test_unknown_apis_and_those_with_nothing_left_are_cut() -> None:
    body = encode("ApiVersionsResponse", 3, offer((3, 50, 60), (12, 50, 60), (9999, 0, 1), (1, 0, 17)))
    result = restrict_api_versions(3, body)
    assert result.cut == (3, 9999)
    assert result.offered[0] == OfferedApi(api_key=ApiKey.METADATA, min_version=50, max_version=60)
    assert [row["api_key"] for row in decode("ApiVersionsResponse", 3, result.body)["api_keys"]] == [12, 1]


def test_the_one_version_that_both_have_is_offered() -> None:
    highest = APIS[ApiKey.FETCH].max_version
    assert highest_allowed(ApiKey.FETCH, highest, highest + 1) == highest
    assert highest_allowed(ApiKey.FETCH, highest + 1, highest + 1) is None


def test_controller_only_apis_are_not_changed() -> None:
    for api in APIS.values():
        if api.controller_only:
            assert highest_allowed(api.key, 0, 1000) == 1000


@pytest.mark.parametrize("version", range(6))
def test_all_else_is_kept(version: int, rng: Random) -> None:
    """Features, epochs, ids and unknown tagged fields."""
    for _ in range(30):
        check_all_else(version, sample(rng, "ApiVersionsResponse", version), rng.choice((None, 0, 1000)))


def check_all_else(version: int, message: Message, throttle: int | None) -> None:
    if message["error_code"] == UNSUPPORTED_VERSION:
        message["error_code"] = 0
    body = encode("ApiVersionsResponse", version, message)
    result = restrict_api_versions(version, body, throttle)
    expected = dict(message)
    expected["api_keys"] = [
        {**row, "max_version": allowed}
        for row in message["api_keys"]
        if (allowed := highest_allowed(row["api_key"], row["min_version"], row["max_version"])) is not None
    ]
    if throttle is not None and version >= 1:
        expected["throttle_time_ms"] = throttle
    assert result.body == encode("ApiVersionsResponse", version, expected)
    assert (result.error_code, result.layout_version) == (message["error_code"], version)
    assert len(result.offered) == len(message["api_keys"]) == len(expected["api_keys"]) + len(result.cut)


def test_features_and_tagged_fields_byte_for_byte() -> None:
    more = {
        "supported_features": [{"name": "transaction.version", "max_version": 2, TAGS: {3: b"f"}}],
        "finalized_features_epoch": 12,
        "finalized_features": [{"name": "transaction.version", "max_version_level": 2}],
        "zk_migration_ready": True,
        TAGS: {99: b"unknown"},
    }
    body = encode("ApiVersionsResponse", 4, offer((3, 0, 99), (8888, 0, 0), **more))
    expected = encode("ApiVersionsResponse", 4, offer((3, 0, 13), **more))
    assert restrict_api_versions(4, body).body == expected


@pytest.mark.parametrize("asked", range(6))
def test_the_unsupported_version_reply_has_the_layout_of_version_0(asked: int) -> None:
    """A broker that does not support the version of the request answers in version 0 (KIP-511)."""
    body = encode("ApiVersionsResponse", 0, offer((18, 0, 9), (0, 0, 9), error_code=UNSUPPORTED_VERSION))
    assert layout_version(asked, body) == 0
    result = restrict_api_versions(asked, body, 50)
    assert (result.error_code, result.layout_version) == (UNSUPPORTED_VERSION, 0)
    assert decode("ApiVersionsResponse", 0, result.body) == decode(
        "ApiVersionsResponse", 0, encode("ApiVersionsResponse", 0, offer((18, 0, 5), (0, 0, 9), error_code=35))
    )


def test_our_own_unsupported_version_reply_is_kafkas() -> None:
    kafka = judge(ApiKey.API_VERSIONS, 5)
    requests = kafka.cls("org.apache.kafka.common.requests.AbstractRequest")
    keys = kafka.cls("org.apache.kafka.common.protocol.ApiKeys")
    accessor = kafka.cls("org.apache.kafka.common.protocol.ByteBufferAccessor")
    error = kafka.cls("org.apache.kafka.common.protocol.Errors").forCode(UNSUPPORTED_VERSION).exception()
    body = encode("ApiVersionsRequest", 5, {})
    request = requests.parseRequest(keys.forId(18), 5, accessor(start_jvm().java.nio.ByteBuffer.wrap(body))).request
    theirs = kafka_classes(NEW).encode(request.getErrorResponse(0, error).data(), 0)
    assert unsupported_version_reply(0x01020304) == (4 + len(theirs)).to_bytes(4) + b"\x01\x02\x03\x04" + theirs


def test_broken_answers() -> None:
    with pytest.raises(
        MalformedMessage, match="ApiVersionsResponse v3: error_code at byte 0: 1 bytes are too short for an error code"
    ):
        restrict_api_versions(3, b"\0")
    with pytest.raises(MalformedMessage, match="api_keys"):
        restrict_api_versions(3, b"\0\0\xff\xff\xff\xff\x07")
    with pytest.raises(UnknownMessage):
        restrict_api_versions(6, b"\0\0")


@pytest.mark.parametrize("version", range(5))
def test_a_response_that_is_remembered_is_the_one_that_was_rewritten(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks again and again costs little, however often it is throttled meanwhile."""
    message = offer((0, 0, 99), (3, 0, 99), (9999, 0, 1), **({"throttle_time_ms": 7} if version else {}))
    body = encode("ApiVersionsResponse", version, message)
    expected = {ms: restrict_api_versions(version, body, ms).body for ms in (0, 7, 7000)}
    api_versions._remembered.cache_clear()
    assert throttled_api_versions(version, body, lambda _broker_ms: 7) == expected[7]
    monkeypatch.setattr(api_versions, "restrict_api_versions", None)
    for ms in (7, 0, 7000, 7):
        assert throttled_api_versions(version, memoryview(body), lambda _broker_ms, ms=ms: ms) == expected[ms]  # type: ignore[misc]
    asked: list[int] = []
    throttled_api_versions(version, body, lambda broker_ms: asked.append(broker_ms) or broker_ms)  # type: ignore[func-returns-value]
    assert asked == ([7] if version else [])


def test_what_is_remembered_is_bounded() -> None:
    api_versions._remembered.cache_clear()
    for number in range(2 * MAX_REMEMBERED):
        throttled_api_versions(0, encode("ApiVersionsResponse", 0, offer((0, 0, number))), int)
    assert api_versions._remembered.cache_info().currsize == MAX_REMEMBERED
    api_versions._remembered.cache_clear()
    rows = [(9999, 0, 1)] * (MAX_REMEMBERED_BYTES // 6 + 1)
    throttled_api_versions(0, encode("ApiVersionsResponse", 0, offer(*rows)), int)
    assert api_versions._remembered.cache_info().currsize == 0
