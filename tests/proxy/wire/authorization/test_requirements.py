"""What every request requires: nothing passes unnoticed, and splitting and merging keep the rest as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.wire.apis import APIS
from headrace.proxy.wire.authorization.denied_rows import DeniedRows
from headrace.proxy.wire.authorization.produced_topic import single_topic
from headrace.proxy.wire.authorization.request_parts import ALL_TOPICS
from headrace.proxy.wire.authorization.requirements import requirements_in_steps, requirements_of
from headrace.proxy.wire.authorization.table import TABLE, WITHOUT_REQUIREMENTS
from headrace.proxy.wire.authorization.visible_rows import Viewer, filter_of, filter_reply_in_steps
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.messages.stepwise import finish
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Operation, ResourceType
from headrace.quota_callbacks.error_codes import ErrorCode
from tests.proxy.wire.samples import sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from headrace.proxy.wire.authorization.requirement_types import RowKey


def known(topic_id: bytes) -> str | None:
    return f"topic-{topic_id.hex()}"


def unknown(_topic_id: bytes) -> str | None:
    return None


def every_request(rng: Random) -> Iterator[tuple[int, int, dict[str, Any], bytes]]:
    """Yield some requests of every API in every version that clients may send."""
    for api in APIS.values():
        if api.controller_only:
            continue
        for version in range(api.min_version, api.max_version + 1):
            for _ in range(3):
                name = f"{api.name}Request"
                body = encode(name, version, sample(rng, name, version))
                yield api.key, version, decode(name, version, body), body


def test_every_api_is_in_the_table_or_needs_no_permission() -> None:
    for api in APIS.values():
        listed = (api.key in TABLE) + (api.key in WITHOUT_REQUIREMENTS)
        assert listed == (0 if api.controller_only else 1), api.name


def test_a_regular_expression_needs_permission_for_all_topics() -> None:
    for expression, asked in (("^orders", [ALL_TOPICS]), ("", []), (None, [])):
        body = encode("ConsumerGroupHeartbeatRequest", 1, {"group_id": "g", "subscribed_topic_regex": expression})
        assert list(requirements_of(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, body, known).found[1:]) == asked
    part = {"subtopology_id": "0", "source_topic_regex": ["^orders"]}
    topology = {"epoch": 1, "subtopologies": [part]}
    body = encode("StreamsGroupHeartbeatRequest", 0, {"group_id": "g", "topology": topology})
    assert requirements_of(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, body, known).found[1:] == (ALL_TOPICS,)


def test_requirements_in_steps_are_those_at_once(rng: Random) -> None:
    for key, version, _request, body in every_request(rng):
        for name_of in (known, unknown):
            expected = requirements_of(key, version, body, name_of)
            assert finish(requirements_in_steps(key, version, body, name_of)) == expected, (APIS[key].name, version)


def test_an_api_outside_the_table_is_closed() -> None:
    (one,) = requirements_of(ApiKey.ALTER_PARTITION, 0, b"", known).found
    assert (one.error_code, one.row) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    assert one.any_of[0].operation is Operation.CLUSTER_ACTION


NAMES = {"topic", "topic_name", "group_id", "transactional_id", "topic_names", "groups_names"}
ROWS_WITH_NAMES = {"topics", "topic_data", "v3_and_below_topics"}
NOT_ASKED_FOR = {"forgotten_topics_data", "cursor"}
"""What a session of Fetch forgets, and where a list begins: neither shows anything."""


def names_in(value: Any) -> Iterator[str]:
    """Yield the topics, groups and transactional ids in a request; not those of topics that also have an id."""
    for row in value if isinstance(value, list) else [value]:
        for field, content in row.items() if isinstance(row, dict) else ():
            if field in NAMES:
                yield from (each for each in (content if isinstance(content, list) else [content]) if each is not None)
            elif field not in NOT_ASKED_FOR:
                yield from names_in(content)
            if field in ROWS_WITH_NAMES and content is not None:
                named = [each for each in content if isinstance(each, dict) and each.get("name") is not None]
                yield from (each["name"] for each in named if not any(each.get("topic_id", b"")))


def test_every_topic_group_and_transactional_id_of_a_request_is_asked_for(rng: Random) -> None:
    checked = set()
    for key, version, request, body in every_request(rng):
        if key not in TABLE:
            continue
        actions = {action for one in requirements_of(key, version, body, known).found for action in one.any_of}
        if {action.resource_type for action in actions} == {ResourceType.CLUSTER}:
            continue
        found = set(names_in(request))
        assert found <= {action.name for action in actions}, (APIS[key].name, version)
        if found:
            checked.add(key)
    assert len(checked) > 25


def test_a_topic_whose_name_is_not_known_is_denied_and_reported() -> None:
    topic = {"topic_id": b"i" * 16, "partitions": []}
    body = encode("FetchRequest", 13, {"topics": [topic, topic]})
    found = requirements_of(ApiKey.FETCH, 13, body, unknown)
    assert found.unknown_ids == (b"i" * 16,)
    assert [(one.any_of, one.error_code, one.row) for one in found.found] == [
        ((), ErrorCode.UNKNOWN_TOPIC_ID, b"i" * 16)
    ]


def test_a_topic_that_is_listed_often_is_asked_for_once() -> None:
    body = encode("FetchRequest", 4, {"topics": [{"topic": "a", "partitions": []}] * 100})
    assert len(requirements_of(ApiKey.FETCH, 4, body, unknown).found) == 1


@pytest.mark.parametrize("version", [14, 15, 18])
def test_a_follower_needs_cluster_action(version: int) -> None:
    replica = {"replica_id": 3} if version < 15 else {"replica_state": {"replica_id": 3, "replica_epoch": 1}}
    body = encode("FetchRequest", version, {"topics": [{"topic_id": b"i" * 16, "partitions": []}], **replica})
    (one,) = requirements_of(ApiKey.FETCH, version, body, known).found
    assert [each.operation for each in one.any_of] == [Operation.CLUSTER_ACTION]


def test_epochs_are_for_consumers_and_followers() -> None:
    body = encode("OffsetForLeaderEpochRequest", 4, {"replica_id": -1, "topics": [{"topic": "a", "partitions": []}]})
    (one,) = requirements_of(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body, known).found
    assert [(each.operation, each.resource_type) for each in one.any_of] == [
        (Operation.DESCRIBE, ResourceType.TOPIC),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ]


def test_splitting_keeps_other_rows_and_merging_adds_one_for_each_denied(rng: Random) -> None:
    split = 0
    for key, version, _request, body in every_request(rng):
        if not DeniedRows.can_split(key):
            continue
        required = requirements_of(key, version, body, known).found
        rows: list[RowKey] = list(dict.fromkeys(one.row for one in required if one.row is not None))
        if not rows:
            continue
        for denied in (rows, rows[:1], rows[1:]):
            if denied:
                parts = finish(DeniedRows.split_in_steps(key, version, body, dict.fromkeys(denied, 29)))
                split += 1
                if parts.left is not None:
                    left = requirements_of(key, version, parts.left, known).found
                    assert not {one.row for one in left} & set(denied), (APIS[key].name, version)
                own = finish(parts.reply_in_steps()).with_throttle_time(7)
                reply = decode(f"{APIS[key].name}Response", version, own)
                if "throttle_time_ms" in reply:
                    assert reply["throttle_time_ms"] == 7
    assert split > 100


def test_a_reply_keeps_the_rows_of_the_broker() -> None:
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("mine", "theirs")]
    parts = finish(
        DeniedRows.split_in_steps(
            ApiKey.LIST_OFFSETS, 7, encode("ListOffsetsRequest", 7, {"topics": topics}), {"theirs": 29}
        )
    )
    assert [row["name"] for row in decode("ListOffsetsRequest", 7, parts.left or b"")["topics"]] == ["mine"]
    answered = {"name": "mine", "partitions": [{"partition_index": 0, "offset": 5}]}
    from_broker = encode("ListOffsetsResponse", 7, {"throttle_time_ms": 3, "topics": [answered]})
    merged = finish(parts.add_to_in_steps(from_broker))
    reply = decode("ListOffsetsResponse", 7, merged)
    found = {row["name"]: row["partitions"][0]["error_code"] for row in reply["topics"]}
    assert (found, reply["throttle_time_ms"]) == ({"mine": 0, "theirs": 29}, 3)


def test_a_group_that_is_named_often_is_answered_as_often_with_the_topics_of_each(rng: Random) -> None:
    """Otherwise the reply would grow with the square of the request."""
    count = 300
    named = [[f"topic-{number}"] if rng.random() < 0.5 else ["mine", f"topic-{number}"] for number in range(count)]
    groups = [
        {"group_id": "g", "topics": [{"name": name, "partition_indexes": []} for name in names]} for names in named
    ]
    denied: dict[RowKey, int] = {("g", f"topic-{number}"): 29 for number in range(count)}
    parts = finish(
        DeniedRows.split_in_steps(ApiKey.OFFSET_FETCH, 8, encode("OffsetFetchRequest", 8, {"groups": groups}), denied)
    )
    left = decode("OffsetFetchRequest", 8, parts.left or b"")["groups"]
    rows = [{"name": "mine", "partitions": []}]
    answers = [{"group_id": "g", "topics": rows if each["topics"] else [], "error_code": 0} for each in left]
    from_broker = encode("OffsetFetchResponse", 8, {"groups": answers})
    reply = decode("OffsetFetchResponse", 8, finish(parts.add_to_in_steps(from_broker)))
    assert [[topic["name"] for topic in group["topics"]] for group in reply["groups"]] == [
        sorted(names, key=lambda name: name != "mine") for names in named
    ]


def test_partitions_of_a_transaction_are_added_all_or_not_at_all() -> None:
    topics = [{"name": name, "partitions": [0]} for name in ("mine", "theirs")]
    body = encode("AddPartitionsToTxnRequest", 3, {"v3_and_below_topics": topics})
    parts = finish(DeniedRows.split_in_steps(ApiKey.ADD_PARTITIONS_TO_TXN, 3, body, {"theirs": 29}))
    assert parts.left is None
    reply = decode("AddPartitionsToTxnResponse", 3, finish(parts.reply_in_steps()).body)
    found = {
        row["name"]: row["results_by_partition"][0]["partition_error_code"]
        for row in reply["results_by_topic_v3_and_below"]
    }
    assert found == {"mine": 55, "theirs": 29}


def test_a_filtered_reply_is_what_it_was_if_everything_is_visible(rng: Random) -> None:
    viewer = Viewer("bob", lambda actions: [True] * len(actions), known)
    filtered = 0
    for key, version, _request, body in every_request(rng):
        changes = filter_of(key, version, body)
        if changes is not None:
            name = f"{APIS[key].name}Response"
            reply = encode(name, version, sample(rng, name, version))
            assert finish(filter_reply_in_steps(key, version, reply, changes, viewer)) == reply, (name, version)
            filtered += 1
    assert filtered > 20


def test_groups_are_listed_that_may_be_described() -> None:
    reply = encode("ListGroupsResponse", 4, {"groups": [{"group_id": "mine"}, {"group_id": "theirs"}]})
    changes = filter_of(ApiKey.LIST_GROUPS, 4, encode("ListGroupsRequest", 4, {}))
    assert changes is not None
    for cluster, expected in ((False, ["mine"]), (True, ["mine", "theirs"])):
        viewer = Viewer(
            "bob",
            lambda actions, cluster=cluster: [
                cluster if each.resource_type is ResourceType.CLUSTER else each.name == "mine" for each in actions
            ],
            known,
        )
        left = decode(
            "ListGroupsResponse", 4, finish(filter_reply_in_steps(ApiKey.LIST_GROUPS, 4, reply, changes, viewer))
        )
        assert [row["group_id"] for row in left["groups"]] == expected


def test_a_produce_to_one_topic_is_known_by_its_beginning() -> None:
    for version in range(APIS[ApiKey.PRODUCE].max_version + 1):
        topic = {"name": "orders", "topic_id": b"i" * 16, "partition_data": [{"index": 0, "records": bytes(1000)}]}
        row = {key: value for key, value in topic.items() if key != ("topic_id" if version < 13 else "name")}
        for transactional_id in (None, "tx") if version >= 3 else (None,):
            fields: dict[str, Any] = {"topic_data": [row], "acks": 1, "timeout_ms": 1}
            if transactional_id is not None:
                fields["transactional_id"] = transactional_id
            body = encode("ProduceRequest", version, fields)
            expected = requirements_of(ApiKey.PRODUCE, version, body, known).found
            whole = single_topic(version, body, known)
            assert whole == expected, version
            for length in range(80):
                assert single_topic(version, body[:length], known) in (None, expected), (version, length)
            two = encode("ProduceRequest", version, {**fields, "topic_data": [row, row]})
            assert single_topic(version, two, known) is None
