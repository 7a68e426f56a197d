"""Splitting a mutation and merging the response: admitted topics are copied, refused ones keep their position."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.errors import MalformedMessage, UnknownMessage
from headrace.proxy.wire.messages.codec import TAGS, Message, decode, encode
from headrace.proxy.wire.mutations import TopicRefusal
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey
from tests.proxy.wire.at_once import merge_response, read_mutation, split_request
from tests.proxy.wire.oracle import through_java

THROTTLING_QUOTA_EXCEEDED = 89
REFUSAL = TopicRefusal(error_code=THROTTLING_QUOTA_EXCEEDED, error_message="The throttling quota has been exceeded.")
RESPONSE_ROWS = {ApiKey.CREATE_TOPICS: "topics", ApiKey.DELETE_TOPICS: "responses", ApiKey.CREATE_PARTITIONS: "results"}
EVERY = [(key, version) for key in RESPONSE_ROWS for version in range(APIS[key].min_version, APIS[key].max_version + 1)]

NAMES = ["a", "b", "häufig", "c"]


def request_of(api_key: int, version: int, names: list[str], *, tags: dict[int, bytes] | None = None) -> Message:
    """Return a mutation of these topics, with unknown tagged fields if the version can have them."""
    flexible = version >= (APIS[api_key].flexible_from or 99)
    extra = {TAGS: tags} if flexible and tags else {}
    if api_key == ApiKey.CREATE_TOPICS:
        rows: list[Any] = [{"name": name, "num_partitions": 3, **extra} for name in names]
        return {"topics": rows, **extra}
    if api_key == ApiKey.CREATE_PARTITIONS:
        return {"topics": [{"name": name, "count": 9, **extra} for name in names], **extra}
    if version >= 6:
        return {"topics": [{"name": name, **extra} for name in names], **extra}
    return {"topic_names": names, **extra}


def response_of(api_key: int, version: int, names: list[str], *, tags: dict[int, bytes] | None = None) -> Message:
    flexible = version >= (APIS[api_key].flexible_from or 99)
    extra = {TAGS: tags} if flexible and tags else {}
    return {RESPONSE_ROWS[ApiKey(api_key)]: [{"name": name, "error_code": 0, **extra} for name in names], **extra}


@pytest.mark.parametrize(("api_key", "version"), EVERY)
@given(names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True), data=st.data())
def test_a_split_and_merged_mutation(api_key: int, version: int, names: list[str], data: st.DataObject) -> None:
    """The merged response equals that of a broker that refuses the topics itself."""
    request_name, response_name = f"{API_NAMES[api_key]}Request", f"{API_NAMES[api_key]}Response"
    tags = {77: b"kept"}
    refused_names = data.draw(st.sets(st.sampled_from(names)))
    admitted = [name for name in names if name not in refused_names]
    refused = dict.fromkeys(refused_names, REFUSAL)
    body = encode(request_name, version, request_of(api_key, version, names, tags=tags))

    forwarded = split_request(api_key, version, body, refused)

    if admitted:
        assert forwarded == encode(request_name, version, request_of(api_key, version, admitted, tags=tags))
        answer = encode(response_name, version, response_of(api_key, version, admitted, tags=tags))
    else:
        assert forwarded is None
        answer = None
    merged = merge_response(api_key, version, answer, names, refused, 1234)
    assert through_java(response_name, version, merged) == merged
    decoded = decode(response_name, version, merged)
    rows = decoded[RESPONSE_ROWS[ApiKey(api_key)]]
    assert [row["name"] for row in rows] == names
    assert [row["error_code"] for row in rows] == [89 if name in refused else 0 for name in names]
    assert decoded.get("throttle_time_ms", 1234) == 1234
    for row in rows:
        is_refused = row["name"] in refused
        if "error_message" in row:
            assert (row["error_message"] or None) == (REFUSAL.error_message if is_refused else None)
        assert row.get(TAGS) == (tags if not is_refused and version >= APIS[api_key].flexible_from else None)


def test_error_messages_only_where_the_version_has_them() -> None:
    with_message = {
        (key, version)
        for key, version in EVERY
        if b"exceeded" in merge_response(key, version, None, ["a"], {"a": REFUSAL}, 0)
    }
    assert {key for key, version in EVERY if (key, version) not in with_message} == {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
    }
    assert min(version for key, version in with_message if key == ApiKey.CREATE_TOPICS) == 1
    assert min(version for key, version in with_message if key == ApiKey.DELETE_TOPICS) == 5
    assert min(version for key, version in with_message if key == ApiKey.CREATE_PARTITIONS) == 0


def test_deleting_by_id() -> None:
    by_id, by_name, gone = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))
    request = {"topics": [{"topic_id": gone}, {"name": "named"}, {"topic_id": by_id}]}
    body = encode("DeleteTopicsRequest", 6, request)
    keys = [topic.key for topic in read_mutation(ApiKey.DELETE_TOPICS, 6, body).topics]
    assert keys == [gone, "named", by_id]

    forwarded = split_request(ApiKey.DELETE_TOPICS, 6, body, {gone: REFUSAL})
    assert forwarded == encode("DeleteTopicsRequest", 6, {"topics": request["topics"][1:]})

    # The broker answers in an order of its own, and includes the names of topics given by id.
    answer = {
        "responses": [
            {"name": "found", "topic_id": by_id, "error_code": 0},
            {"name": "named", "topic_id": by_name, "error_code": 29, "error_message": "no"},
        ]
    }
    merged = merge_response(
        ApiKey.DELETE_TOPICS, 6, encode("DeleteTopicsResponse", 6, answer), keys, {gone: REFUSAL}, 5
    )
    rows = decode("DeleteTopicsResponse", 6, merged)["responses"]
    assert [(row["name"], row["topic_id"], row["error_code"], row["error_message"]) for row in rows] == [
        (None, gone, 89, REFUSAL.error_message),
        ("named", by_name, 29, "no"),
        ("found", by_id, 0, None),
    ]


def test_a_repeated_topic_is_answered_once_and_unknown_rows_are_kept() -> None:
    body = encode("CreateTopicsRequest", 7, request_of(ApiKey.CREATE_TOPICS, 7, ["a", "b", "a"]))
    refused = {"a": REFUSAL}
    forwarded = split_request(ApiKey.CREATE_TOPICS, 7, body, refused)
    assert forwarded == encode("CreateTopicsRequest", 7, request_of(ApiKey.CREATE_TOPICS, 7, ["b"]))
    answer = encode("CreateTopicsResponse", 7, response_of(ApiKey.CREATE_TOPICS, 7, ["stranger", "b", "b"]))
    merged = decode(
        "CreateTopicsResponse", 7, merge_response(ApiKey.CREATE_TOPICS, 7, answer, ["a", "b", "a"], refused, 0)
    )
    assert [row["name"] for row in merged["topics"]] == ["a", "b", "b", "stranger"]


def test_without_refused_topics_nothing_is_changed() -> None:
    body = encode("CreateTopicsRequest", 7, request_of(ApiKey.CREATE_TOPICS, 7, ["a"], tags={9: b"x"})) + b""
    assert split_request(ApiKey.CREATE_TOPICS, 7, memoryview(body), {}) == body
    assert split_request(ApiKey.CREATE_TOPICS, 7, body, {"z": REFUSAL}) == body


def test_reading_the_topics_of_a_mutation() -> None:
    create = {
        "topics": [
            {"name": "default", "num_partitions": -1},
            {"name": "five", "num_partitions": 5},
            {
                "name": "assigned",
                "num_partitions": -1,
                "assignments": [{"partition_index": index, "broker_ids": [1]} for index in range(2)],
            },
        ],
        "validate_only": True,
    }
    read = read_mutation(ApiKey.CREATE_TOPICS, 5, encode("CreateTopicsRequest", 5, create))
    assert [(topic.key, topic.partitions) for topic in read.topics] == [("default", -1), ("five", 5), ("assigned", 2)]
    assert read.validate_only
    grow = read_mutation(
        ApiKey.CREATE_PARTITIONS, 3, encode("CreatePartitionsRequest", 3, {"topics": [{"name": "t", "count": 7}]})
    )
    assert [(topic.key, topic.partitions) for topic in grow.topics] == [("t", 7)]
    assert not grow.validate_only
    drop = read_mutation(ApiKey.DELETE_TOPICS, 1, encode("DeleteTopicsRequest", 1, {"topic_names": ["t", "u"]}))
    assert [(topic.key, topic.partitions) for topic in drop.topics] == [("t", None), ("u", None)]


def test_other_apis_and_broken_bodies() -> None:
    with pytest.raises(UnknownMessage, match="api key 3 is not a controller mutation"):
        read_mutation(ApiKey.METADATA, 0, b"")
    with pytest.raises(UnknownMessage, match="CreateTopicsRequest v8"):
        split_request(ApiKey.CREATE_TOPICS, 8, b"", {"a": REFUSAL})
    with pytest.raises(MalformedMessage, match="CreateTopicsRequest v7: topics"):
        split_request(ApiKey.CREATE_TOPICS, 7, b"\x05\x00", {"a": REFUSAL})
