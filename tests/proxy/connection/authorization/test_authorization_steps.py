"""The work of the longest requests is divided into short steps, between which other clients are served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy import long_work
from headrace.proxy.connection.relay import FRAMES_A_STEP
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.connection.authorization.test_authorization import book
from tests.proxy.connection.long_requests.calls_of_steps import counted_calls
from tests.proxy.playbook import read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.wire.messages.codec import Message

MOST_CALLS: Final = 5_000
ROWS: Final = 4_900
RULES: Final = [
    {"principal": "User:*", "operations": ["All"], "resource_type": kind, "pattern_type": "prefixed", "name": "m"}
    for kind in ("topic", "group")
]


def _topics(prefix: str, count: int = ROWS, **more: Any) -> list[Message]:
    return [{"name": f"{prefix}{number}", **more} for number in range(count)]


HALF: Final = [*_topics("mine", ROWS // 2), *_topics("theirs", ROWS // 2)]
DENIED: Final[list[tuple[ApiKey, int, Message]]] = [
    (ApiKey.CREATE_TOPICS, 7, {"topics": _topics("theirs", configs=[])}),
    (
        ApiKey.PRODUCE,
        9,
        {"acks": 1, "topic_data": [{"name": "theirs", "partition_data": [{"index": n} for n in range(9_900)]}]},
    ),
    (
        ApiKey.OFFSET_COMMIT,
        8,
        {"group_id": "theirs", "topics": _topics("mine", partitions=[{"partition_index": 0}])},
    ),
    (ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": [f"{number:02x}" for number in range(9_900)]}),
]
"""Requests that are answered by the proxy: rows by themselves, one row with many rows in it, and as a whole."""


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [DENIED[0], *(pytest.param(*each, marks=pytest.mark.exhaustive) for each in DENIED[1:])],
)
async def test_a_long_request_is_denied_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, api_key: ApiKey, version: int, fields: Message
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)  # pause wherever a pause is possible
    async with book(RULES) as script:
        with counted_calls() as calls:
            await script.client.sends(request(api_key, version, **fields))
            answer = await script.client.receives()
        assert read_reply(api_key, version, answer)
        assert script.upstream.dialled == []
        assert calls.total > 20 * MOST_CALLS  # it is a long request
        assert calls.most < MOST_CALLS


@pytest.mark.parametrize("prefix", ["m", "x"], ids=["allowed", "denied"])
async def test_many_requests_that_come_at_once_are_authorized_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    many = request(ApiKey.DESCRIBE_GROUPS, 5, groups=[f"{prefix}{number}" for number in range(200)])
    count = FRAMES_A_STEP
    async with book(RULES) as script:
        with counted_calls() as calls:
            await script.client.sends(many * count)
            if prefix == "m":
                await script.upstream.wait_for_dial(1)
                for _ in range(count):
                    await script.broker.receives()
            else:
                answers = [read_reply(ApiKey.DESCRIBE_GROUPS, 5, await script.client.receives()) for _ in range(count)]
                assert {each["error_code"] for answer in answers for each in answer["groups"]} == {30}
        assert calls.total > 5 * MOST_CALLS
        assert calls.most < 2 * MOST_CALLS  # of two requests


@pytest.mark.exhaustive
async def test_a_long_request_is_split_and_its_reply_completed_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    async with book(RULES) as script:
        with counted_calls() as calls:
            await script.client.sends(request(ApiKey.LIST_OFFSETS, 7, topics=HALF))
            await script.upstream.wait_for_dial(1)
            await script.broker.receives()
            await script.broker.sends(reply(ApiKey.LIST_OFFSETS, 7, topics=HALF[: ROWS // 2]))
            completed = await script.client.receives()
        assert len(read_reply(ApiKey.LIST_OFFSETS, 7, completed)["topics"]) == len(HALF)
        assert calls.total > 20 * MOST_CALLS
        assert calls.most < MOST_CALLS


@pytest.mark.exhaustive
async def test_topics_that_may_not_be_created_are_found_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    rules = [{**RULES[0], "operations": ["Describe"]}, RULES[1]]
    changelogs = _topics("mine", 9_900)
    topology = {"epoch": 1, "subtopologies": [{"subtopology_id": "1", "state_changelog_topics": changelogs}]}
    unknown = [{**row, "error_code": 3} for row in changelogs]
    async with book(rules) as script:
        with counted_calls() as calls:
            await script.client.sends(
                request(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, group_id="mine", member_id="m", topology=topology)
            )
            await script.upstream.wait_for_dial(1)
            await script.broker.receives()
            await script.broker.sends(reply(ApiKey.METADATA, 4, topics=unknown))
            answer = await script.client.receives()
        assert read_reply(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, answer)["error_code"] == 29
        assert calls.total > 20 * MOST_CALLS
        assert calls.most < 2 * MOST_CALLS
