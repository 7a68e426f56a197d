"""A Produce of thousands of batches, which no limit on rows counts: they are read in steps that take about 1 ms."""

from __future__ import annotations

from operator import itemgetter
from struct import pack
from typing import TYPE_CHECKING

import pytest

from headrace.proxy import long_work
from headrace.proxy.connection import whole_requests
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.requests import Interest, Request
from tests.proxy.connection.authorization.test_authorization import book
from tests.proxy.connection.authorization.test_authorization_steps import MOST_CALLS, RULES
from tests.proxy.connection.long_requests.calls_of_steps import counted_calls
from tests.proxy.connection.test_producer_ids import PRODUCE
from tests.proxy.playbook import open_book, reply

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.proxy.wire.heads import Buffer

BATCHES = 5_000
SHORTEST = pack(">qi14x", 0, 14)
"""A batch of an old format, of 26 bytes. A broker would refuse it."""
RECORDS = SHORTEST * BATCHES
LARGE = pack(">qi", 0, 200_000 - 12) + bytes(200_000 - 12)


def topic(name: bytes, *partitions: bytes) -> bytes:
    rows = [pack(">ii", index, len(records)) + records for index, records in enumerate(partitions)]
    return pack(">h", len(name)) + name + pack(">i", len(rows)) + b"".join(rows)


def produce(*topics: bytes) -> bytes:
    frame = pack(">hhihchhii", PRODUCE, 8, 1, 1, b"c", -1, 1, 1000, len(topics)) + b"".join(topics)
    return pack(">i", len(frame)) + frame


class Batches:
    """A plugin that reads the batches of each Produce."""

    headrace_hooks = HOOK_VERSION

    def __init__(self) -> None:
        self.bytes = self.abandoned = 0

    @hookimpl
    def request_interest(self) -> tuple[Interest, ...]:
        return (Interest(api_key=PRODUCE),)

    @hookimpl
    def request_received(self, request: Request) -> None:
        request.read_batches = True

    @hookimpl
    def request_abandoned(self) -> None:
        self.abandoned += 1

    @hookimpl
    def batches_received(self, request: Request) -> None:
        self.bytes += sum(map(itemgetter(2), request.batches)) + sum(request.left_out_bytes.values())


@pytest.mark.parametrize("topics", [1, 2], ids=["while it is forwarded", "read whole to be authorized"])
async def test_many_batches_are_read_in_short_steps(
    topics: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    plugin = Batches()
    records = (RECORDS, LARGE, RECORDS)
    sent = produce(*(topic(b"mine%d" % number, *records) for number in range(topics)))
    opened = open_book(plugins={"batches": plugin}) if topics == 1 else book(RULES, plugins={"batches": plugin})
    async with opened as script:
        with counted_calls() as calls:
            await script.client.sends(sent)
            await script.upstream.wait_for_dial(1)
            received = await script.broker.receives()
        assert received == sent
        assert plugin.bytes == topics * sum(map(len, records))
        await script.broker.sends(reply(PRODUCE, 8, 1))
        await script.client.receives()
        assert script.connection.memory_bytes == 0
    assert calls.total > 10 * MOST_CALLS
    assert calls.most < 2 * MOST_CALLS  # a step reads 500 batches


async def test_a_connection_that_ends_while_they_are_read_is_not_charged(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the request was forwarded by then."""
    monkeypatch.setattr(long_work, "SLICE_S", 0.0)
    plugin = Batches()

    class Ending(ProduceWalk):
        def walk(self, buffer: Buffer, position: int, end: int) -> int:
            script.connection.end("the walk has begun", None)
            return super().walk(buffer, position, end)

    monkeypatch.setattr(whole_requests, "ProduceWalk", Ending)
    async with book(RULES, plugins={"batches": plugin}) as script:
        await script.client.sends(produce(topic(b"mine", RECORDS), topic(b"mine-too")))
        await script.client.receives_the_end()
    assert script.upstream.dialled == []
    assert plugin.abandoned == 1
    assert plugin.bytes == 0
