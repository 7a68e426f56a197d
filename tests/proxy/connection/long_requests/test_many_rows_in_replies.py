"""Replies with a row for each of the request, which was forwarded without reading it: their rows are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.proxy import long_work
from headrace.proxy.connection.state.shared_state import Limits
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.connection.long_requests.calls_of_steps import counted_calls
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.wire.messages.codec import Message

LIMITS: Final = Limits(max_frame_bytes=10**6, max_collected_bytes=10**6, max_in_flight_requests=5, max_request_rows=100)
HINTS: Final = [{"node_id": 1, "host": "kafka-1", "port": 9092}]


def partitions(count: int, name: str = "index") -> list[Message]:
    return [{name: index} for index in range(count)]


def produced(*counts: int) -> Message:
    return {"responses": [{"partition_responses": partitions(count)} for count in counts]}


def refused(errors: int) -> Message:
    """A partition with record errors whose texts have two lengths in turn."""
    texts = [{"batch_index": index, "batch_index_error_message": "x" * (20 + index % 2)} for index in range(errors)]
    return {"responses": [{"partition_responses": [{"index": 0, "error_code": 32, "record_errors": texts}]}]}


REPLIES: Final[list[tuple[ApiKey, int, Message, Message]]] = [
    *((ApiKey.PRODUCE, version, produced(49, 49), produced(49, 50)) for version in (3, 8, 9, 13)),
    (ApiKey.PRODUCE, 7, produced(*[0] * 100), produced(*[0] * 101)),
    *((ApiKey.PRODUCE, version, refused(98), refused(99)) for version in (8, 9, 13)),
    (ApiKey.PRODUCE, 10, {**produced(99), "node_endpoints": HINTS}, {**produced(100), "node_endpoints": HINTS}),
    (
        ApiKey.FIND_COORDINATOR,
        4,
        {"coordinators": [{"key": "group", "host": "kafka-1"}] * 100},
        {"coordinators": [{"key": "group", "host": "kafka-1"}] * 101},
    ),
    (
        ApiKey.SHARE_FETCH,
        1,
        {"responses": [{"partitions": partitions(99, "partition_index")}]},
        {"responses": [{"partitions": partitions(100, "partition_index")}]},
    ),
]


@pytest.mark.parametrize(("api_key", "version", "most", "more"), REPLIES)
async def test_a_reply_of_too_many_rows_ends_the_connection(
    api_key: ApiKey, version: int, most: Message, more: Message, autojump_clock: MockClock
) -> None:
    async with open_book(limits=LIMITS) as book:
        fields: dict[str, Any] = {"acks": 1} if api_key == ApiKey.PRODUCE else {}
        sent = request(api_key, version, 1, **fields)
        await book.client.sends(sent, sent)
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(reply(api_key, version, 1, **most))
        assert read_reply(api_key, version, await book.client.receives())
        await book.broker.receives()
        await book.broker.sends(reply(api_key, version, 1, **more))
        await book.client.receives_the_end()
        (cause,) = book.shared.counters.errors
        assert cause == "client"


async def test_many_coordinators_are_read_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    sent = reply(ApiKey.FIND_COORDINATOR, 4, 1, coordinators=[{"key": "group", "host": "kafka-1"}] * 4000)
    async with open_book() as book:
        await book.client.sends(request(ApiKey.FIND_COORDINATOR, 4, 1))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        with counted_calls() as calls:
            await book.broker.sends(sent)
            found = read_reply(ApiKey.FIND_COORDINATOR, 4, await book.client.receives())["coordinators"]
        assert {row["host"] for row in found} == {"proxy"}
        assert len(found) == 4000
    assert calls.most < calls.total / 5


async def test_many_renewers_of_tokens_are_skipped_in_short_steps(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The throttle time of the reply follows them."""
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    renewers = [{"principal_type": "User", "principal_name": "a"}] * 400
    sent = reply(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, 1, tokens=[{"token_id": "t", "renewers": renewers}] * 10)
    async with open_book() as book:
        await book.client.sends(request(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, 1))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        with counted_calls() as calls:
            await book.broker.sends(sent)
            assert await book.client.receives() == sent
    assert calls.most < calls.total / 5


@pytest.mark.parametrize("count", [100, 1500, 5000])
async def test_many_partitions_of_a_fetch_are_read_in_short_steps(count: int, autojump_clock: MockClock) -> None:
    """Three groups of fields of each are read; the hints of new leaders follow them."""
    responses = [{"partitions": [{"partition_index": index} for index in range(count)]}]
    sent = reply(ApiKey.FETCH, 17, 1, responses=responses, node_endpoints=HINTS)
    async with open_book() as book:
        await book.client.sends(request(ApiKey.FETCH, 17, 1, max_bytes=10**6))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        with counted_calls() as calls:
            await book.broker.sends(sent)
            answer = await book.client.receives()
    assert len(answer) == len(sent)
    found = read_reply(ApiKey.FETCH, 17, answer)
    assert found["node_endpoints"] == []
    assert [row["partition_index"] for row in found["responses"][0]["partitions"]] == list(range(count))
    assert calls.most < 10_000
    assert count < 5000 or calls.most < calls.total / 5
