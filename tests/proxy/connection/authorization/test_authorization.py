"""Scripts of authorization: what reaches the broker, what reaches the client, and what is charged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.plugins.authorization import Authorization
from headrace.proxy.connection.authorization import requests
from headrace.proxy.connection.state import in_flight
from headrace.proxy.connection.state.in_flight import MOST_AMENDMENT_BYTES
from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.hooks.decisions import Kind
from headrace.proxy.network.held_bytes import held
from headrace.proxy.wire.messages.codec import decode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.authorization import Action, Operation
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from tests.proxy.connection.test_paced import Costs, paced
from tests.proxy.mutation_script import CREATE, WINDOWS, create, created, outcome, quota
from tests.proxy.playbook import Book, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from trio.testing import MockClock

    from headrace.quota_callbacks.requests import Connection

OPERATIONS = {"mine": ["Read", "Write", "Create"], "seen": ["Describe"]}
RULES = [
    {"principal": "User:*", "operations": operations, "resource_type": "topic", "name": name}
    for name, operations in OPERATIONS.items()
] + [{"principal": "User:*", "operations": ["Read"], "resource_type": "group", "name": "mine"}]
IDS = {"mine": b"m" * 16, "theirs": b"t" * 16}
BYTES = [(QuotaKey.PRODUCER_BYTE_RATE, QuotaEntity(user="ANONYMOUS"), 1000.0)]


def book(rules: Sequence[object] = RULES, **more: Any) -> AbstractAsyncContextManager[Book]:
    """Open a book with these rules."""
    plugins = {"authorization": Authorization(), **more.pop("plugins", {})}
    return open_book(plugins=plugins, options={"authorization": {"enabled": True, "rules": rules}}, **more)


def produce(*names: str, version: int = 9, acks: int = 1, size: int = 10) -> bytes:
    partitions = [{"index": 0, "records": bytes(size)}]
    topics = [{"name": name, "partition_data": partitions} for name in names]
    return request(ApiKey.PRODUCE, version, topic_data=topics, acks=acks)


def asked(frame: bytes, api_key: ApiKey, version: int) -> dict[str, Any]:
    """Return the body of a request that reached the broker; its header has a client id of one byte."""
    body_at = 4 + 8 + 2 + 1 + (1 if version >= {ApiKey.PRODUCE: 9, ApiKey.FETCH: 12}.get(api_key, 9) else 0)
    return decode(f"{api_key.name.title()}Request", version, frame[body_at:])


async def test_what_is_allowed_passes_unchanged(autojump_clock: MockClock) -> None:
    async with book() as script:
        answer = reply(ApiKey.PRODUCE, 9, responses=[{"name": "mine", "partition_responses": [{"index": 0}]}])
        assert await script.round_trip(produce("mine"), answer) == answer
        heartbeat = request(ApiKey.HEARTBEAT, 4, group_id="mine")
        assert await script.round_trip(heartbeat, reply(ApiKey.HEARTBEAT, 4)) == reply(ApiKey.HEARTBEAT, 4)
        metadata = request(ApiKey.METADATA, 9, topics=[])
        assert await script.round_trip(metadata, reply(ApiKey.METADATA, 9)) == reply(ApiKey.METADATA, 9)
        assert script.shared.counters.denied == {}
        assert script.shared.counters.allowed == {ApiKey.PRODUCE: 1, ApiKey.HEARTBEAT: 1, ApiKey.METADATA: 1}


async def test_what_is_denied_reaches_no_broker_and_is_shown(autojump_clock: MockClock) -> None:
    async with book() as script:
        await script.client.sends(request(ApiKey.HEARTBEAT, 4, group_id="theirs"))
        assert read_reply(ApiKey.HEARTBEAT, 4, await script.client.receives())["error_code"] == 30
        (decision,) = script.shared.decisions
        assert (decision.kind, decision.entity, decision.rule) == (
            Kind.DENIED,
            "Read on Group theirs",
            "no rule allows it",
        )
        assert script.shared.counters.denied == {("Read", "Group", "Heartbeat"): 1}
        assert not script.shared.counters.allowed
        assert script.upstream.dialled == []


async def test_the_rest_of_a_produce_is_forwarded_and_its_reply_completed(autojump_clock: MockClock) -> None:
    async with book() as script:
        await script.client.sends(produce("theirs", "mine", "seen"))
        await script.upstream.wait_for_dial(1)
        went_on = asked(await script.broker.receives(), ApiKey.PRODUCE, 9)
        assert [row["name"] for row in went_on["topic_data"]] == ["mine"]
        await script.broker.sends(
            reply(ApiKey.PRODUCE, 9, responses=[{"name": "mine", "partition_responses": [{"index": 0}]}])
        )
        rows = read_reply(ApiKey.PRODUCE, 9, await script.client.receives())["responses"]
        found = {row["name"]: row["partition_responses"][0]["error_code"] for row in rows}
        assert found == {"mine": 0, "theirs": 29, "seen": 29}
        assert not script.shared.counters.allowed


async def test_a_denied_request_costs_no_bytes(autojump_clock: MockClock) -> None:
    async with book(quotas=BYTES) as script:
        for _ in range(20):
            await script.client.sends(produce("theirs", size=5000))
            answer = read_reply(ApiKey.PRODUCE, 9, await script.client.receives())
            assert answer["throttle_time_ms"] == 0
        accepted = reply(ApiKey.PRODUCE, 9, responses=[{"name": "mine", "partition_responses": [{"index": 0}]}])
        passed = read_reply(ApiKey.PRODUCE, 9, await script.round_trip(produce("mine", size=100), accepted))
        assert passed["throttle_time_ms"] == 0
        # and it gives nothing back: 30,000 bytes at 1,000 a second are too many
        passed = read_reply(ApiKey.PRODUCE, 9, await script.round_trip(produce("mine", size=30_000), accepted))
        assert passed["throttle_time_ms"] > 10_000


async def test_a_denied_produce_without_acks_ends_the_connection(autojump_clock: MockClock) -> None:
    for names in (("theirs",), ("mine", "theirs")):
        async with book() as script:
            await script.client.sends(produce(*names, acks=0))
            await script.client.receives_the_end()
            assert script.shared.counters.errors == {"client": 1}


async def test_pipelined_requests_are_answered_in_order(autojump_clock: MockClock) -> None:
    async with book() as script:
        await script.client.sends(
            request(ApiKey.HEARTBEAT, 4, correlation_id=1, group_id="mine"),
            request(ApiKey.HEARTBEAT, 4, correlation_id=2, group_id="theirs"),
            request(ApiKey.HEARTBEAT, 4, correlation_id=3, group_id="mine"),
        )
        await script.upstream.wait_for_dial(1)
        for number in (1, 3):
            await script.broker.receives()
            await script.broker.sends(reply(ApiKey.HEARTBEAT, 4, correlation_id=number))
        frames = [await script.client.receives() for _ in range(3)]
        assert [int.from_bytes(frame[4:8], "big") for frame in frames] == [1, 2, 3]
        assert [read_reply(ApiKey.HEARTBEAT, 4, frame)["error_code"] for frame in frames] == [0, 30, 0]


async def test_no_fetch_session_is_opened_and_none_is_continued(autojump_clock: MockClock) -> None:
    topics = [{"topic": "mine", "partitions": [{"partition": 0, "partition_max_bytes": 10}]}]
    async with book() as script:
        opening = request(ApiKey.FETCH, 12, session_id=5, session_epoch=0, max_bytes=100, topics=topics)
        await script.client.sends(opening)
        await script.upstream.wait_for_dial(1)
        went_on = asked(await script.broker.receives(), ApiKey.FETCH, 12)
        assert (went_on["session_id"], went_on["session_epoch"]) == (0, -1)
        await script.broker.sends(reply(ApiKey.FETCH, 12))
        await script.client.receives()
        # a session of another client, which names no topics
        await script.client.sends(request(ApiKey.FETCH, 12, session_id=7, session_epoch=3, max_bytes=100))
        assert read_reply(ApiKey.FETCH, 12, await script.client.receives())["error_code"] == 70


async def test_a_denied_topic_of_a_fetch_is_added_to_the_reply(autojump_clock: MockClock) -> None:
    topics = [{"topic": name, "partitions": [{"partition": 3}]} for name in ("mine", "theirs")]
    async with book() as script:
        await script.client.sends(request(ApiKey.FETCH, 12, max_bytes=50_000_000, topics=topics))
        await script.upstream.wait_for_dial(1)
        went_on = asked(await script.broker.receives(), ApiKey.FETCH, 12)
        assert [row["topic"] for row in went_on["topics"]] == ["mine"]
        assert went_on["max_bytes"] == 4 * 1024 * 1024
        partitions = [{"partition_index": 3, "records": b"records"}]
        await script.broker.sends(reply(ApiKey.FETCH, 12, responses=[{"topic": "mine", "partitions": partitions}]))
        rows = read_reply(ApiKey.FETCH, 12, await script.client.receives())["responses"]
        found = {row["topic"]: (row["partitions"][0]["error_code"], row["partitions"][0]["records"]) for row in rows}
        assert found == {"mine": (0, b"records"), "theirs": (29, b"")}


async def test_the_broker_is_asked_for_the_name_of_an_id_once(autojump_clock: MockClock) -> None:
    topics = [{"topic_id": topic_id, "partitions": [{"partition": 0}]} for topic_id in (*IDS.values(), b"u" * 16)]
    fetch = request(ApiKey.FETCH, 13, max_bytes=100, topics=topics)
    async with book() as script:
        await script.client.sends(fetch)
        await script.upstream.wait_for_dial(1)
        await script.broker.receives()  # the question
        named = [{"name": name, "topic_id": topic_id} for name, topic_id in IDS.items()]
        named.append({"name": None, "topic_id": b"u" * 16, "error_code": 100})  # type: ignore[dict-item]
        await script.broker.sends(reply(ApiKey.METADATA, 12, topics=named))
        went_on = asked(await script.broker.receives(), ApiKey.FETCH, 13)
        assert [row["topic_id"] for row in went_on["topics"]] == [IDS["mine"]]
        await script.broker.sends(reply(ApiKey.FETCH, 13))
        rows = read_reply(ApiKey.FETCH, 13, await script.client.receives())["responses"]
        found = {row["topic_id"]: row["partitions"][0]["error_code"] for row in rows}
        assert found == {IDS["theirs"]: 29, b"u" * 16: 100}
        await script.client.sends(request(ApiKey.FETCH, 13, max_bytes=100, topics=topics[:1]))
        assert asked(await script.broker.receives(), ApiKey.FETCH, 13)["topics"]  # at once


async def test_metadata_of_all_topics_lists_those_that_may_be_described(autojump_clock: MockClock) -> None:
    rows = [{"name": name, "topic_id": bytes([number]) * 16} for number, name in enumerate(("mine", "theirs", "seen"))]
    async with book() as script:
        listed = request(ApiKey.METADATA, 12, topics=None)
        answer = await script.round_trip(listed, reply(ApiKey.METADATA, 12, topics=rows))
        assert [row["name"] for row in read_reply(ApiKey.METADATA, 12, answer)["topics"]] == ["mine", "seen"]


async def test_metadata_creates_no_topic_without_permission(autojump_clock: MockClock) -> None:
    async with book() as script:
        named = request(ApiKey.METADATA, 9, topics=[{"name": name} for name in ("seen", "theirs")])
        await script.client.sends(named)
        await script.upstream.wait_for_dial(1)
        went_on = asked(await script.broker.receives(), ApiKey.METADATA, 9)
        assert [row["name"] for row in went_on["topics"]] == ["seen"]
        assert went_on["allow_auto_topic_creation"] is False
        await script.broker.sends(reply(ApiKey.METADATA, 9, topics=[{"name": "seen"}]))
        rows = read_reply(ApiKey.METADATA, 9, await script.client.receives())["topics"]
        assert {row["name"]: row["error_code"] for row in rows} == {"seen": 0, "theirs": 29}


@pytest.mark.parametrize(
    ("unknown", "forwarded"),
    [(["mine"], ["mine", "seen"]), (["mine", "seen"], ["mine"]), (["seen"], ["mine"]), ([], ["mine", "seen"])],
)
async def test_metadata_creates_the_topics_that_may_be_created(
    autojump_clock: MockClock, unknown: list[str], forwarded: list[str]
) -> None:
    async with book() as script:
        names = [{"name": name} for name in ("mine", "seen", "theirs")]
        await script.client.sends(request(ApiKey.METADATA, 9, topics=names))
        await script.upstream.wait_for_dial(1)
        question = asked(await script.broker.receives(), ApiKey.METADATA, 4)
        assert [row["name"] for row in question["topics"]] == ["mine", "seen"]
        assert question["allow_auto_topic_creation"] is False
        found = [{"name": name, "error_code": 3 if name in unknown else 0} for name in ("mine", "seen")]
        await script.broker.sends(reply(ApiKey.METADATA, 4, topics=found))
        went_on = asked(await script.broker.receives(), ApiKey.METADATA, 9)
        assert [row["name"] for row in went_on["topics"]] == forwarded
        assert went_on["allow_auto_topic_creation"] is ("mine" in unknown)
        await script.broker.sends(reply(ApiKey.METADATA, 9, topics=[{"name": name} for name in forwarded]))
        rows = read_reply(ApiKey.METADATA, 9, await script.client.receives())["topics"]
        seen = 0 if "seen" in forwarded else 3
        assert {row["name"]: row["error_code"] for row in rows} == {"mine": 0, "seen": seen, "theirs": 29}


async def test_old_metadata_requests_leave_out_what_they_would_create(autojump_clock: MockClock) -> None:
    async with book() as script:
        names = [{"name": name} for name in ("mine", "seen", "theirs")]
        await script.client.sends(request(ApiKey.METADATA, 1, topics=names))
        await script.upstream.wait_for_dial(1)
        await script.broker.receives()  # the question whether seen exists
        await script.broker.sends(reply(ApiKey.METADATA, 4, topics=[{"name": "seen", "error_code": 3}]))
        await script.broker.receives()
        await script.broker.sends(reply(ApiKey.METADATA, 1, topics=[{"name": "mine"}]))
        rows = read_reply(ApiKey.METADATA, 1, await script.client.receives())["topics"]
        assert {row["name"]: row["error_code"] for row in rows} == {"mine": 0, "seen": 3, "theirs": 29}
        assert script.shared.counters.denied == {("Describe", "Topic", "Metadata"): 1}, "once, in spite of the question"


async def test_a_token_for_oneself_needs_no_rule(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at a broker (``KafkaApis.handleCreateTokenRequest``)."""
    monkeypatch.setattr(requests, "_owns_tokens", lambda _: True)

    def create_token(owner: str) -> bytes:
        principal = {"owner_principal_type": "User", "owner_principal_name": owner}
        return request(ApiKey.CREATE_DELEGATION_TOKEN, 3, renewers=[], max_lifetime_ms=-1, **principal)

    async with book() as script:
        await script.round_trip(create_token("ANONYMOUS"), reply(ApiKey.CREATE_DELEGATION_TOKEN, 3))
        await script.client.sends(create_token("theirs"))
        answer = read_reply(ApiKey.CREATE_DELEGATION_TOKEN, 3, await script.client.receives())
        assert answer["error_code"] == 65


async def test_a_request_with_too_many_topics_ends_the_connection(autojump_clock: MockClock) -> None:
    names = [{"name": f"{number}", "partitions": []} for number in range(500)]
    async with book(limits=Limits(max_request_rows=400)) as script:
        await script.client.sends(request(ApiKey.LIST_OFFSETS, 5, topics=names))
        await script.client.receives_the_end()
        assert script.shared.counters.errors == {"client": 1}


class Answers:
    """A plugin that returns, or raises, always the same."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, result: object) -> None:
        self.result = result

    @hookimpl
    def authorize_requests(self, connection: Connection, actions: Sequence[Action]) -> Any:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.mark.parametrize("result", [RuntimeError("broken"), SystemExit(3), [], [1], "yes", [True, True]])
async def test_a_plugin_that_fails_denies(autojump_clock: MockClock, result: object) -> None:
    async with open_book(plugins={"broken": Answers(result)}) as script:
        await script.client.sends(request(ApiKey.HEARTBEAT, 4, group_id="mine"))
        assert read_reply(ApiKey.HEARTBEAT, 4, await script.client.receives())["error_code"] == 30
        assert script.shared.hooks.failures.keys() == {"broken"}


async def test_a_plugin_that_does_not_decide_leaves_it_to_others(autojump_clock: MockClock) -> None:
    undecided = {"undecided": Answers(None)}
    for opened, code in ((open_book(plugins=undecided), 30), (book(plugins=undecided), 0)):
        async with opened as script:
            await script.client.sends(request(ApiKey.HEARTBEAT, 4, group_id="mine"))
            if code == 0:
                await script.upstream.wait_for_dial(1)
                await script.broker.receives()
                await script.broker.sends(reply(ApiKey.HEARTBEAT, 4))
            assert read_reply(ApiKey.HEARTBEAT, 4, await script.client.receives())["error_code"] == code


async def test_the_user_of_the_moment_decides(autojump_clock: MockClock) -> None:
    class OnlyAlice:
        headrace_hooks = HOOK_VERSION

        @hookimpl
        def authorize_requests(self, connection: Connection, actions: Sequence[Action]) -> list[bool]:
            return [connection.user == "alice" and each.operation is Operation.READ for each in actions]

    async with open_book(plugins={"alice": OnlyAlice()}) as script:
        heartbeat = request(ApiKey.HEARTBEAT, 4, group_id="mine")
        script.connection.info.user = "alice"
        await script.round_trip(heartbeat, reply(ApiKey.HEARTBEAT, 4))
        script.connection.info.user = "bob"
        await script.client.sends(heartbeat)
        assert read_reply(ApiKey.HEARTBEAT, 4, await script.client.receives())["error_code"] == 30


async def test_what_is_kept_for_a_reply_counts_as_memory(autojump_clock: MockClock) -> None:
    groups = [{"group_id": f"mine{number}", "topics": None} for number in range(30)]
    filtered = request(ApiKey.OFFSET_FETCH, 8, groups=groups)
    topics = [{"name": name} for name in ("mine", *(f"theirs{number}" for number in range(100)))]
    split = request(ApiKey.LIST_OFFSETS, 7, topics=topics)
    rules = [*RULES, {"principal": "User:*", "operations": ["Read"], "resource_type": "group", "name": "*"}]
    for frame, least in ((request(ApiKey.LIST_GROUPS, 4), 1000), (filtered, 5000), (split, 10_000)):
        async with book(rules) as script:
            before = held.count
            await script.client.sends(frame)
            await script.upstream.wait_for_dial(1)
            await script.broker.receives()
            in_flight = script.connection.in_flight
            assert in_flight.held_bytes >= in_flight.amendment_bytes > least
            assert held.count - before >= in_flight.amendment_bytes
            api_key = int.from_bytes(frame[4:6], "big")
            await script.broker.sends(reply(api_key, int.from_bytes(frame[6:8], "big")))
            await script.client.receives()
            assert (in_flight.held_bytes, in_flight.amendment_bytes) == (0, 0)


async def test_a_client_is_not_read_while_much_is_kept_for_its_replies(autojump_clock: MockClock) -> None:
    topics = [{"name": name} for name in ("mine", *(f"theirs{number}" for number in range(500)))]
    async with book() as script:
        frames = [request(ApiKey.LIST_OFFSETS, 7, correlation_id=number, topics=topics) for number in range(50)]
        await script.client.sends(*frames)
        await script.upstream.wait_for_dial(1)
        in_flight, forwarded = script.connection.in_flight, 0
        while not in_flight.full:
            await script.broker.receives()
            forwarded += 1
        assert 5 < forwarded < 30
        assert MOST_AMENDMENT_BYTES <= in_flight.amendment_bytes < 1.2 * MOST_AMENDMENT_BYTES
        for number in range(len(frames)):
            if number >= forwarded:
                await script.broker.receives()
            await script.broker.sends(reply(ApiKey.LIST_OFFSETS, 7, correlation_id=number, topics=topics[:1]))
            answer = await script.client.receives()
            assert len(read_reply(ApiKey.LIST_OFFSETS, 7, answer)["topics"]) == len(topics)


async def test_a_held_request_does_not_wait_for_the_memory_of_its_own_reply(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MOST_AMENDMENT_BYTES", 1000)
    split = request(ApiKey.LIST_OFFSETS, 7, topics=[{"name": "mine"}, {"name": "theirs"}])
    async with book(plugins={"costs": Costs(1000)}, quotas=paced(50, QuotaKey.REQUEST_PERCENTAGE)) as script:
        for _ in range(2):
            await script.client.sends(split)
            await script.upstream.wait_for_dial(1)
            await script.broker.receives()
            await script.broker.sends(reply(ApiKey.LIST_OFFSETS, 7, topics=[{"name": "mine"}]))
            assert len(read_reply(ApiKey.LIST_OFFSETS, 7, await script.client.receives())["topics"]) == 2
        assert trio.current_time() > 1


async def test_what_a_quota_refuses_of_the_rest_is_answered_with_what_is_denied(autojump_clock: MockClock) -> None:
    async with book(quotas=quota(1), windows=WINDOWS) as script:
        await script.round_trip(create(7, ("mine", 100)), created(7, "mine"))
        await script.client.sends(create(7, ("mine", 1), ("theirs", 1)))
        assert outcome(await script.client.receives(), CREATE, 7)[0] == {"mine": 89, "theirs": 29}


async def test_a_regular_expression_does_not_reach_the_broker_without_permission_for_all_topics(
    autojump_clock: MockClock,
) -> None:
    everything = {"principal": "User:*", "operations": ["Describe"], "resource_type": "topic", "name": "*"}
    secret = {**everything, "effect": "deny", "name": "secret"}
    heartbeat = request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, group_id="mine", subscribed_topic_regex="^sec.*")
    for more, code in (([], 29), ([everything], 0), ([everything, secret], 29)):
        async with book([*RULES, *more]) as script:
            if code == 0:
                answer = reply(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)
                assert await script.round_trip(heartbeat, answer) == answer
                continue
            await script.client.sends(heartbeat)
            answer = await script.client.receives()
            assert read_reply(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, answer)["error_code"] == code
            assert [each.entity for each in script.shared.decisions] == ["Describe on all topics"]
