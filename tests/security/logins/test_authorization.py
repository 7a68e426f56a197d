"""A client with few permissions: it tries to learn, read and create what others may use, and to cost them time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.plugins.authorization import Authorization
from headrace.proxy.connection.state.shared_state import Limits
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.playbook import Book, open_book, read_reply, reply, request
from tests.security.logins.test_tokens_of_the_proxy import APIS, NOT_ALLOWED, VERSION

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from trio.testing import MockClock

RULES = [
    {"principal": "User:*", "operations": ["Read"], "resource_type": "topic", "name": "mine"},
    {"principal": "User:*", "operations": ["Describe"], "resource_type": "topic", "name": "app-changelog"},
    {"principal": "User:*", "operations": ["Read"], "resource_type": "group", "name": "group"},
]
IDS = {"mine": b"m" * 16, "theirs": b"t" * 16}


def book(**more: Any) -> AbstractAsyncContextManager[Book]:
    options = {"authorization": {"enabled": True, "rules": RULES}}
    return open_book(plugins={"authorization": Authorization()}, options=options, **more)


async def test_no_list_of_topics_continues_with_a_hidden_name(autojump_clock: MockClock) -> None:
    for next_topic, names in (("theirs", ["mine", None]), ("mine", ["mine"])):
        async with book() as script:
            cursor = {"topic_name": next_topic, "partition_index": 0}
            rows = [{"name": name} for name in ("mine", "hidden")]
            answer = await script.round_trip(
                request(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=2),
                reply(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=rows, next_cursor=cursor),
            )
            assert b"theirs" not in answer
            assert b"hidden" not in answer
            found = read_reply(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, answer)
            assert [row["name"] for row in found["topics"]] == names
            assert found["topics"][-1]["error_code"] == (0 if names == ["mine"] else 29)
            assert found["next_cursor"] == (cursor if names == ["mine"] else None)


async def test_all_offsets_of_a_share_group_are_those_of_visible_topics(autojump_clock: MockClock) -> None:
    async with book() as script:
        topics = [{"topic_name": name, "topic_id": IDS[name]} for name in IDS]
        answer = await script.round_trip(
            request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[{"group_id": "group", "topics": None}]),
            reply(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, groups=[{"group_id": "group", "topics": topics}]),
        )
        (group,) = read_reply(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, answer)["groups"]
        assert [row["topic_name"] for row in group["topics"]] == ["mine"]


async def test_a_share_session_of_another_shows_no_records_of_its_topics(autojump_clock: MockClock) -> None:
    async with book() as script:
        script.shared.topic_names.learn((topic_id, name) for name, topic_id in IDS.items())
        partitions = [{"partition_index": 0, "records": b"records"}]
        rows = [{"topic_id": topic_id, "partitions": partitions} for topic_id in (*IDS.values(), b"u" * 16)]
        answer = await script.round_trip(
            request(ApiKey.SHARE_FETCH, 1, group_id="group", member_id="another", share_session_epoch=5, max_bytes=100),
            reply(ApiKey.SHARE_FETCH, 1, responses=rows),
        )
        found = read_reply(ApiKey.SHARE_FETCH, 1, answer)["responses"]
        assert [(row["topic_id"], row["partitions"][0]["records"]) for row in found] == [(IDS["mine"], b"records")]


@pytest.mark.parametrize("api_key", APIS)
async def test_nobody_gets_delegation_tokens_of_the_proxys_identity(autojump_clock: MockClock, api_key: ApiKey) -> None:
    async with book() as script:
        await script.client.sends(request(api_key, VERSION))
        assert read_reply(api_key, VERSION, await script.client.receives())["error_code"] == NOT_ALLOWED
        assert script.upstream.dialled == []


@pytest.mark.parametrize("exists", [True, False])
async def test_a_streams_topology_creates_no_topics_without_permission(
    autojump_clock: MockClock, *, exists: bool
) -> None:
    internal = {"name": "app-changelog", "partitions": 0, "replication_factor": 0, "topic_configs": []}
    part = {"subtopology_id": "0", "source_topics": ["mine"], "state_changelog_topics": [internal]}
    heartbeat = request(
        ApiKey.STREAMS_GROUP_HEARTBEAT, 0, group_id="group", topology={"epoch": 1, "subtopologies": [part]}
    )
    async with book() as script:
        await script.client.sends(heartbeat)
        await script.upstream.wait_for_dial(1)
        await script.broker.receives()  # the question whether the topic exists
        row = {"name": "app-changelog", "error_code": 0 if exists else 3}
        await script.broker.sends(reply(ApiKey.METADATA, 4, topics=[row]))
        if exists:
            assert await script.broker.receives() == heartbeat
            await script.broker.sends(reply(ApiKey.STREAMS_GROUP_HEARTBEAT, 0))
        answer = read_reply(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, await script.client.receives())
        assert answer["error_code"] == (0 if exists else 29)
        assert script.shared.counters.denied == ({} if exists else {("Create", "Topic", "StreamsGroupHeartbeat"): 1})


async def test_numbers_of_denied_partitions_are_limited_as_rows_are(autojump_clock: MockClock) -> None:
    """The reply has a row for each; 250,000 of them took 1.7 seconds."""
    topics = [{"name": "theirs", "partition_indexes": list(range(500))}]
    for group in ("group", "other"):
        asked = request(ApiKey.OFFSET_FETCH, 5, group_id=group, topics=topics)
        async with book(limits=Limits(max_request_rows=400)) as script:
            await script.client.sends(asked)
            await script.client.receives_the_end()
            assert script.shared.counters.errors == {"client": 1}
        async with book(limits=Limits(max_request_rows=501)) as script:
            await script.client.sends(asked)
            assert read_reply(ApiKey.OFFSET_FETCH, 5, await script.client.receives())
