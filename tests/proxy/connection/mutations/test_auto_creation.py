"""Scripts of Metadata requests that would create topics: lookups, charges, refusals by turning it off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from tests.proxy.mutation_script import (
    ADD,
    CREATE,
    KEY,
    METADATA,
    WINDOWS,
    asked,
    create,
    created,
    next_at_s,
    outcome,
    quota,
)
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock


def metadata_request(version: int, *names: str, number: int = 1, auto: bool = True) -> bytes:
    fields: dict[str, Any] = {"topics": [{"name": name} for name in names]}
    if version >= 4:
        fields["allow_auto_topic_creation"] = auto
    return request(METADATA, version, number, **fields)


def known(version: int, number: int, *rows: tuple[str, int]) -> bytes:
    return reply(METADATA, version, number, topics=[{"name": name, "error_code": code} for name, code in rows])


async def test_metadata_of_topics_that_exist_costs_no_second_request(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.client.sends(metadata_request(9, "a"))
        await book.upstream.wait_for_dial(1)
        assert asked(await book.broker.receives(), METADATA, 9)["allow_auto_topic_creation"] is False
        await book.broker.sends(known(9, 1, ("a", 0)))
        assert read_reply(METADATA, 9, await book.client.receives())["topics"][0]["name"] == "a"
        assert book.broker.receives_nothing()


async def test_metadata_that_creates_within_the_quota_is_charged_and_goes_on(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        sent = metadata_request(9, "a", "new")
        await book.client.sends(sent)
        await book.upstream.wait_for_dial(1)
        asked(await book.broker.receives(), METADATA, 9)
        await book.broker.sends(known(9, 1, ("a", 0), ("new", 3)))
        lookup = asked(await book.broker.receives(), CREATE, 5)
        assert ([row["name"] for row in lookup["topics"]], lookup["validate_only"]) == (["new"], True)
        await book.broker.sends(reply(CREATE, 5, 1, topics=[{"name": "new", "num_partitions": 12}]))
        assert await book.broker.receives() == sent
        await book.broker.sends(known(9, 1, ("a", 0), ("new", 3)))
        assert read_reply(METADATA, 9, await book.client.receives())["throttle_time_ms"] == 0

        await book.client.sends(create(6, ("t", 1), number=2))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"t": 89}, 2000)

        await trio.sleep(3)
        again = metadata_request(9, "new", number=3)
        await book.client.sends(again)  # the topic does not exist yet; it is not charged twice
        asked(await book.broker.receives(), METADATA, 9)
        await book.broker.sends(known(9, 3, ("new", 3)))
        assert await book.broker.receives() == again, "a client that could not create it may try again"
        await book.broker.sends(known(9, 3, ("new", 5)))
        assert read_reply(METADATA, 9, await book.client.receives())["topics"][0]["error_code"] == 5


async def test_partitions_that_are_added_before_the_broker_shows_the_topic_are_charged(
    autojump_clock: MockClock,
) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        sent = metadata_request(9, "new")
        await book.client.sends(sent)
        await book.upstream.wait_for_dial(1)
        asked(await book.broker.receives(), METADATA, 9)
        await book.broker.sends(known(9, 1, ("new", 3)))
        asked(await book.broker.receives(), CREATE, 5)
        await book.broker.sends(reply(CREATE, 5, 1, topics=[{"name": "new", "num_partitions": 1}]))
        assert await book.broker.receives() == sent
        await book.broker.sends(known(9, 1, ("new", 3)))
        await book.client.receives()
        await book.client.sends(request(ADD, 3, 2, topics=[{"name": "new", "count": 101}]))
        asked(await book.broker.receives(), METADATA, 4)
        await book.broker.sends(known(4, 2, ("new", 3)))
        asked(await book.broker.receives(), ADD, 3)
        await book.broker.sends(reply(ADD, 3, 2, results=[{"name": "new"}]))
        await book.client.receives()
        await book.client.sends(create(6, ("t", 1), number=3))
        assert outcome(await book.client.receives(), CREATE, 6) == ({"t": 89}, 91_000)


async def test_a_topic_that_does_not_come_to_be_is_charged_once_in_ten_minutes(autojump_clock: MockClock) -> None:
    """As on a cluster without auto-creation of topics."""
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        for number, at_s, charged in ((1, 0, True), (2, 30, False), (3, 599, False), (4, 601, True)):
            await trio.sleep_until(at_s)
            sent = metadata_request(9, "typo", number=number)
            await book.client.sends(sent)
            await book.upstream.wait_for_dial(1)
            asked(await book.broker.receives(), METADATA, 9)
            await book.broker.sends(known(9, number, ("typo", 3)))
            if charged:
                asked(await book.broker.receives(), CREATE, 5)
                await book.broker.sends(reply(CREATE, 5, number, topics=[{"name": "typo", "num_partitions": 1}]))
            assert await book.broker.receives() == sent
            await book.broker.sends(known(9, number, ("typo", 3)))
            await book.client.receives()


async def test_metadata_beyond_the_quota_creates_nothing_and_mutes_nobody(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("t", 60)), created(6, "t"))
        begin_s = trio.current_time()
        await book.client.sends(metadata_request(9, "new", number=2))
        assert asked(await book.broker.receives(), METADATA, 9)["allow_auto_topic_creation"] is False
        await book.broker.sends(known(9, 2, ("new", 3)))
        asked(await book.broker.receives(), CREATE, 5)
        await book.broker.sends(reply(CREATE, 5, 2, topics=[{"name": "new", "num_partitions": 1}]))
        assert read_reply(METADATA, 9, await book.client.receives())["topics"][0]["error_code"] == 3
        assert book.shared.counters.refused == 1
        assert await next_at_s(book) == pytest.approx(begin_s, abs=0.01)


async def test_old_metadata_has_no_flag_and_is_charged_and_muted(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        sent = metadata_request(3, "new")
        await book.client.sends(sent)
        await book.upstream.wait_for_dial(1)
        assert asked(await book.broker.receives(), METADATA, 4)["allow_auto_topic_creation"] is False
        await book.broker.sends(known(4, 1, ("new", 3)))
        asked(await book.broker.receives(), CREATE, 5)
        await book.broker.sends(reply(CREATE, 5, 1, topics=[{"name": "new", "num_partitions": 14}]))
        assert await book.broker.receives() == sent
        await book.broker.sends(known(3, 1, ("new", 5)))
        assert read_reply(METADATA, 3, await book.client.receives())["throttle_time_ms"] == 4000
        assert await next_at_s(book) == pytest.approx(4, abs=0.01)


async def test_metadata_that_creates_nothing_passes_untouched(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        for number, sent in enumerate((metadata_request(9, "a", auto=False), request(METADATA, 9, 1, topics=None))):
            await book.round_trip(sent, known(9, 1, ("a", 3)))
            assert book.shared.counters.lookups == 0, number


async def test_the_reason_why_metadata_was_refused_is_recorded(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        await book.round_trip(create(6, ("t", 60)), created(6, "t"))
        await book.client.sends(metadata_request(9, "new", number=2))
        asked(await book.broker.receives(), METADATA, 9)
        await book.broker.sends(known(9, 2, ("new", 3)))
        asked(await book.broker.receives(), CREATE, 5)
        await book.broker.sends(reply(CREATE, 5, 2, topics=[{"name": "new", "num_partitions": 1}]))
        await book.client.receives()
        decision = list(book.shared.decisions)[-1]
        assert (decision.kind, decision.quota, decision.entity) == ("refused", KEY.value, "client-id=c")
        assert decision.observed == pytest.approx(-50, abs=0.1)
