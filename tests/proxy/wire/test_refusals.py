"""Parts of refusals that are not compared with Kafka: the frame, own messages, and requests that cannot be refused."""

from __future__ import annotations

import pytest

from headrace.proxy.wire.api_versions import unsupported_version_reply
from headrace.proxy.wire.apis import APIS, response_header_version
from headrace.proxy.wire.errors import MalformedMessage, OurFault, RefusalImpossible, UnknownMessage
from headrace.proxy.wire.messages.codec import Message, decode, encode
from headrace.proxy.wire.refusal_templates import TEMPLATES
from headrace.proxy.wire.refusals import IRREFUSABLE, response_frame
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.wire.at_once import refuse_whole

POLICY_VIOLATION = 44
TEXT = "not on a Friday"


def refuse(api_key: int, version: int, request: Message, message: str | None = TEXT, throttle: int = 250) -> Message:
    body = encode(f"{APIS[api_key].name}Request", version, request)
    frame = refuse_whole(api_key, version, 99, body, POLICY_VIOLATION, message, throttle)
    header = 8 + response_header_version(api_key, version)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    assert int.from_bytes(frame[4:8]) == 99
    assert not any(frame[8:header])
    return decode(f"{APIS[api_key].name}Response", version, frame[header:])


def test_every_api_can_be_refused_or_has_a_reason_why_not() -> None:
    assert TEMPLATES.keys() | IRREFUSABLE.keys() == APIS.keys()
    assert not TEMPLATES.keys() & IRREFUSABLE.keys()
    assert all(APIS[key].controller_only for key in IRREFUSABLE)


def test_a_message_is_set_if_the_version_has_a_field() -> None:
    assert refuse(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, {})["error_message"] == TEXT
    assert refuse(ApiKey.SHARE_FETCH, 1, {})["error_message"] == TEXT
    groups = refuse(ApiKey.DESCRIBE_GROUPS, 6, {"groups": ["g"]})["groups"]
    assert [(row["group_id"], row["error_code"], row["error_message"]) for row in groups] == [("g", 44, TEXT)]
    assert "error_message" not in refuse(ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"]})["groups"][0]


def test_no_message_is_null_or_empty_where_null_is_not_allowed() -> None:
    assert refuse(ApiKey.DESCRIBE_CLUSTER, 0, {}, None)["error_message"] is None
    assert refuse(ApiKey.FIND_COORDINATOR, 1, {}, None)["error_message"] is None
    assert refuse(ApiKey.SASL_AUTHENTICATE, 0, {}, None)["error_message"] is None


def test_the_throttle_time_is_given_where_the_version_has_it() -> None:
    assert refuse(ApiKey.CREATE_TOPICS, 2, {"topics": [{"name": "t"}]})["throttle_time_ms"] == 250
    assert "throttle_time_ms" not in refuse(ApiKey.CREATE_TOPICS, 1, {"topics": [{"name": "t"}]})
    assert refuse(ApiKey.INIT_PRODUCER_ID, 4, {})["throttle_time_ms"] == 250


def test_a_produce_is_refused_partition_by_partition() -> None:
    rows = [{"topic_id": bytes(range(16)), "partition_data": [{"index": one, "records": b"r" * 10} for one in (3, 4)]}]
    response = refuse(ApiKey.PRODUCE, 13, {"acks": -1, "topic_data": rows})
    (topic,) = response["responses"]
    assert topic["topic_id"] == bytes(range(16))
    partitions = topic["partition_responses"]
    assert [(row["index"], row["error_code"], row["base_offset"]) for row in partitions] == [(3, 44, -1), (4, 44, -1)]
    assert {row["error_message"] for row in partitions} == {TEXT}


@pytest.mark.parametrize(
    ("api_key", "version", "request_", "why"),
    [
        (ApiKey.PRODUCE, 9, {"acks": 0}, "acks=0 has no response"),
        (ApiKey.METADATA, 12, {"topics": None}, "Metadata v12: its response has no field for error 44"),
        (ApiKey.DESCRIBE_LOG_DIRS, 2, {"topics": []}, "DescribeLogDirs v2: its response has no field"),
        (ApiKey.ELECT_LEADERS, 0, {"topic_partitions": None}, "ElectLeaders v0: its response has no field"),
        (ApiKey.BROKER_HEARTBEAT, 1, {}, "no broker serves it to clients"),
    ],
)
def test_what_cannot_be_refused(api_key: int, version: int, request_: Message, why: str) -> None:
    with pytest.raises(RefusalImpossible, match=why) as caught:
        refuse(api_key, version, request_)
    assert isinstance(caught.value, OurFault)


def test_an_unknown_api_cannot_be_refused() -> None:
    with pytest.raises(RefusalImpossible, match="api key 9999: it is unknown"):
        refuse_whole(9999, 0, 1, b"", POLICY_VIOLATION, None, 0)


def test_metadata_for_all_topics_can_be_refused_from_version_13_on() -> None:
    assert refuse(ApiKey.METADATA, 13, {"topics": None})["error_code"] == POLICY_VIOLATION


def test_a_request_that_names_nothing_is_answered_with_nothing() -> None:
    assert refuse(ApiKey.CREATE_TOPICS, 7, {"topics": []})["topics"] == []
    assert refuse(ApiKey.METADATA, 12, {"topics": []})["topics"] == []


def test_an_unsupported_api_versions_is_answered_in_version_0() -> None:
    frame = unsupported_version_reply(5)
    response = decode("ApiVersionsResponse", 0, frame[8:])
    assert (response["error_code"], response["api_keys"][0]["api_key"]) == (35, 18)


def test_broken_bodies_and_unknown_versions() -> None:
    with pytest.raises(MalformedMessage, match="CreateTopicsRequest v7"):
        refuse_whole(ApiKey.CREATE_TOPICS, 7, 1, b"\x7f", POLICY_VIOLATION, None, 0)
    with pytest.raises(UnknownMessage, match="CreateTopicsRequest v8"):
        refuse_whole(ApiKey.CREATE_TOPICS, 8, 1, b"", POLICY_VIOLATION, None, 0)


def test_a_response_frame_has_the_header_of_its_version() -> None:
    assert response_frame(ApiKey.HEARTBEAT, 3, 7, b"body") == b"\0\0\0\x08\0\0\0\x07body"
    assert response_frame(ApiKey.HEARTBEAT, 4, 7, b"body") == b"\0\0\0\x09\0\0\0\x07\0body"
    assert response_frame(ApiKey.API_VERSIONS, 5, 7, b"body") == b"\0\0\0\x08\0\0\0\x07body"
