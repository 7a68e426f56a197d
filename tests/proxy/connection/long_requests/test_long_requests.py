"""Requests of thousands of topics: between two looks for events, little of the work for one of them is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy import long_work
from headrace.proxy.connection import refusals
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Interest, Request
from headrace.quota_callbacks.verdicts import Refuse
from tests.proxy.connection.long_requests.calls_of_steps import counted_calls
from tests.proxy.connection.test_fetched_records import Fetches
from tests.proxy.mutation_script import CREATE, DELETE, METADATA, WINDOWS, asked, create, created, outcome, quota
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from trio.testing import MockClock

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from tests.proxy.connection.long_requests.calls_of_steps import CallsOfSteps
    from tests.proxy.playbook import Book

TOPICS = 2000
NAMES = [f"topic-{number}" for number in range(TOPICS)]
REFUSED = 89
MOST_CALLS = 12 * TOPICS
"""Stepping over the rows of a message takes up to ten calls for each, and is one step: ten milliseconds for ten
thousand rows. Decoding them, or writing answers, takes several times as many."""


class Refusing:
    """A plugin that refuses all requests of an API by their heads."""

    headrace_hooks = HOOK_VERSION

    def __init__(self, verdict: Refuse, api_key: ApiKey = CREATE) -> None:
        self._verdict = verdict
        self._api_key = api_key

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (Interest(api_key=self._api_key),)

    @hookimpl
    def request_received(self, request: Request) -> Refuse:
        return self._verdict


async def in_steps(book: Book, sent: bytes, answers: Sequence[bytes]) -> tuple[bytes, list[bytes], CallsOfSteps]:
    """Send a request, and ``answers`` to what the broker receives; return the reply, that, and the proxy's calls."""
    received = []
    with counted_calls() as calls:
        await book.client.sends(sent)
        if answers:
            await book.upstream.wait_for_dial(1)
        for answer in answers:
            received.append(await book.broker.receives())
            await book.broker.sends(answer)
        found = await book.client.receives()
    return found, received, calls


@pytest.fixture(autouse=True)
def _every_pause_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)


def validated(version: int) -> bytes:
    return reply(CREATE, version, 1, topics=[{"name": name, "num_partitions": 1} for name in NAMES])


async def test_topics_that_are_refused_in_part(autojump_clock: MockClock) -> None:
    """The quota admits half of them: the request is read, validated and split, and the reply read and merged."""
    sent = create(7, *((name, 1) for name in NAMES))
    admitted = NAMES[: TOPICS // 2 + 1]
    for _ in range(2):  # the first time, readers and writers of the messages are built
        async with open_book(quotas=quota(TOPICS / 20), windows=WINDOWS) as book:
            found, received, calls = await in_steps(book, sent, [validated(7), created(7, *admitted)])
        assert [row["name"] for row in asked(received[1], CREATE, 7)["topics"]] == admitted
        errors, _ = outcome(found, CREATE, 7)
        assert list(errors) == NAMES
        assert [name for name in NAMES if errors[name] == 0] == admitted
    assert calls.most < MOST_CALLS < calls.total / 5


async def test_topics_that_are_all_refused(autojump_clock: MockClock) -> None:
    """The proxy writes the whole answer."""
    sent = create(7, *((name, 1) for name in NAMES), number=2)
    for _ in range(2):  # the first time, readers and writers of the messages are built
        async with open_book(quotas=quota(TOPICS / 20), windows=WINDOWS) as book:
            await in_steps(book, create(7, ("first", 2 * TOPICS)), [created(7, "first")])
            found, _, calls = await in_steps(book, sent, [])
        errors, throttle_ms = outcome(found, CREATE, 7)
        assert errors == dict.fromkeys(NAMES, REFUSED)
        assert throttle_ms > 0
    assert calls.most < MOST_CALLS < calls.total / 2


async def test_a_connection_that_ends_during_a_refusal_is_not_charged(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanges = []

    def end(state: ConnectionState, exchange: Exchange, _refusal: Refuse) -> None:
        exchanges.append(exchange)
        state.end("the refusal has begun", None)

    monkeypatch.setattr(refusals, "note_refusal", end)
    async with open_book(quotas=quota(TOPICS / 20), windows=WINDOWS) as book:
        await book.client.sends(create(7, *((name, 1) for name in NAMES)))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        await book.broker.sends(validated(7))
        await book.client.receives_the_end()
        assert book.shared.hooks.mutation_budget(exchanges[0], 0) == TOPICS / 2


async def test_a_fetch_of_many_partitions_that_is_charged_by_topic(autojump_clock: MockClock) -> None:
    plugin = Fetches()
    partitions = [{"partition_index": number, "records": b"1234567890"} for number in range(TOPICS)]
    sent = reply(ApiKey.FETCH, 11, 1, responses=[{"topic": "t", "partitions": partitions}])
    async with open_book(plugins={"fetches": plugin}) as book:
        found, _, calls = await in_steps(book, request(ApiKey.FETCH, 11, 1), [sent])
        assert plugin.seen == [{"t": 10 * TOPICS}]
        assert read_reply(ApiKey.FETCH, 11, found) == {**read_reply(ApiKey.FETCH, 11, sent), "throttle_time_ms": 1000}
        assert book.connection.memory_bytes == 0
    assert calls.most < calls.total / 20


async def test_a_large_reply_counts_as_memory_while_it_waits_for_its_turn(autojump_clock: MockClock) -> None:
    def long() -> Generator[None, None, None]:
        while True:
            yield

    sent = reply(METADATA, 9, 1, topics=[{"name": name} for name in NAMES])
    async with open_book() as book:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(book.shared.long_steps.run, "another", long())
            await book.client.sends(request(METADATA, 9, 1, topics=None))
            await book.upstream.wait_for_dial(1)
            await book.broker.receives()
            await book.broker.sends(sent)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
            assert book.connection.memory_bytes == len(sent)
            nursery.cancel_scope.cancel()
        assert len(read_reply(METADATA, 9, await book.client.receives())["topics"]) == TOPICS
        assert book.connection.memory_bytes == 0


@pytest.mark.exhaustive
async def test_topics_of_many_partitions_that_are_deleted(autojump_clock: MockClock) -> None:
    partitions = [{"partition_index": number, "replica_nodes": [1, 2, 3]} for number in range(200)]
    topics = [{"name": name, "partitions": partitions} for name in NAMES[:50]]
    sent = request(DELETE, 5, 1, topic_names=NAMES)
    answers = [reply(METADATA, 4, 1, topics=topics), reply(DELETE, 5, 1, responses=[{"name": name} for name in NAMES])]
    for _ in range(2):  # the first time, readers and writers of the messages are built
        async with open_book(quotas=quota(TOPICS), windows=WINDOWS) as book:
            found, _, calls = await in_steps(book, sent, answers)
        assert outcome(found, DELETE, 5)[0] == dict.fromkeys(NAMES, 0)
    assert calls.most < MOST_CALLS < calls.total / 5


@pytest.mark.parametrize("version", [*(pytest.param(old, marks=pytest.mark.exhaustive) for old in (3, 9)), 12])
async def test_topics_that_would_be_created(autojump_clock: MockClock, version: int) -> None:
    """Half of the topics exist; the quota admits none of the others, so the reply to the lookup is the answer."""
    partitions = [{"partition_index": number, "replica_nodes": [1, 2, 3]} for number in range(5)]
    topics: list[dict[str, Any]] = [
        {"name": name, "error_code": 3}
        if number % 2
        else {
            "name": name,
            "partitions": partitions,
            **({"topic_id": (number + 1).to_bytes(16)} if version >= 10 else {}),
        }
        for number, name in enumerate(NAMES)
    ]
    sent = request(METADATA, version, 2, topics=[{"name": name} for name in NAMES])
    lookup_version = max(version, 4)
    answers = [reply(METADATA, lookup_version, 2, topics=topics), reply(CREATE, 5, 2, topics=_validated_names())]
    if version < 4:  # the request is forwarded
        answers.append(reply(METADATA, version, 2, topics=topics))
    for _ in range(2):  # the first time, readers and writers of the messages are built
        async with open_book(quotas=quota(TOPICS / 20), windows=WINDOWS) as book:
            book.shared.topic_names.follow()
            await in_steps(book, create(7, ("first", 2 * TOPICS)), [created(7, "first")])
            found, received, calls = await in_steps(book, sent, answers)
            assert len(book.shared.topic_names) == (TOPICS // 2 if version >= 10 else 0)
        assert asked(received[0], METADATA, lookup_version)["allow_auto_topic_creation"] is False
        assert [row["name"] for row in asked(received[1], CREATE, 5)["topics"]] == NAMES[1::2]
        assert len(read_reply(METADATA, version, found)["topics"]) == TOPICS
    assert calls.most < MOST_CALLS / 2 < calls.total / 5


def _validated_names() -> list[dict[str, Any]]:
    return [{"name": name, "num_partitions": 1} for name in NAMES[1::2]]


async def test_names_of_topics_that_are_learned(autojump_clock: MockClock) -> None:
    topics = [
        {"name": name, "topic_id": number.to_bytes(16), "partitions": [{"partition_index": 0}]}
        for number, name in enumerate(NAMES, 1)
    ]
    answers = [reply(METADATA, 12, 1, topics=topics)]
    for _ in range(2):  # the first time, readers of the message are built
        async with open_book() as book:
            book.shared.topic_names.follow()
            found, _, calls = await in_steps(book, request(METADATA, 12, 1, topics=None), answers)
            assert len(book.shared.topic_names) == TOPICS
        assert len(read_reply(METADATA, 12, found)["topics"]) == TOPICS
    assert calls.most < MOST_CALLS / 5 < calls.total / 5


async def test_a_request_that_a_plugin_refuses(autojump_clock: MockClock) -> None:
    refusing = Refusing(Refuse(error_code=44, message="not here", throttle_ms=5000))
    for _ in range(2):  # the first time, readers and writers of the messages are built
        async with open_book(plugins={"refusing": refusing}) as book:
            found, _, calls = await in_steps(book, create(7, *((name, 1) for name in NAMES)), [])
        errors, throttle_ms = outcome(found, CREATE, 7)
        assert errors == dict.fromkeys(NAMES, 44)
        assert throttle_ms == 5000
    assert calls.most < MOST_CALLS < calls.total / 2


async def test_a_refusal_with_a_row_for_each_number_has_a_bound(autojump_clock: MockClock) -> None:
    """A request of 1 MiB may have 260,000 partition numbers, each of which would have a row in the answer."""
    markers: list[dict[str, Any]] = [{"topics": [{"name": "t", "partition_indexes": list(range(20_000))}]}]

    refusing = Refusing(Refuse(error_code=44), ApiKey.WRITE_TXN_MARKERS)
    async with open_book(plugins={"refusing": refusing}) as book:
        await book.client.sends(request(ApiKey.WRITE_TXN_MARKERS, 1, 1, markers=markers))
        await book.client.receives_the_end()
        await trio.testing.wait_all_tasks_blocked()
        assert "limits.max_request_rows = 10000" in (book.connection.reason or "")
