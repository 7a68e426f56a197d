"""Quotas of teams, over memory sockets and on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.plugins.metrics.names import labels_of
from headrace.plugins.team_quotas import TeamQuotas
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.testing import make_connection, make_context, make_request
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.proxy.playbook import Book

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
OPTIONS = {"team_quotas": {"teams": {"blue": {"users": ["alice", "bob"]}, "red": {"client_ids": ["red-*"]}}}}
BLUE, RED, ANY_TEAM = (QuotaEntity(other=(("team", name),)) for name in ("blue", "red", DEFAULT))


async def produce(book: Book, user: str, number: int, size: int, client_id: str = "c") -> int:
    """Produce when the client is not muted; return the throttle time in ms."""
    await trio.sleep_until(book.connection.mute.until_s)
    book.connection.info.user = user
    frame = request(PRODUCE, 9, number, client_id, acks=1, padding=size)
    answer = await book.round_trip(frame, reply(PRODUCE, 9, number))
    throttle_ms: int = read_reply(PRODUCE, 9, answer)["throttle_time_ms"]
    return throttle_ms


async def test_a_team_shares_one_bucket(autojump_clock: MockClock) -> None:
    async with open_book(
        plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=[(PRODUCED, BLUE, 1000)]
    ) as book:
        assert await produce(book, "alice", 1, 6000) == 0
        assert await produce(book, "carol", 2, 60_000) == 0
        assert await produce(book, "bob", 3, 6000) == pytest.approx(2000, abs=100)
        assert await produce(book, "carol", 4, 60_000) == 0
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.limit) == ("producer_byte_rate", "team=blue", 1000)


async def test_the_quotas_of_team_and_user_are_both_enforced_and_the_longest_throttle_counts(
    autojump_clock: MockClock,
) -> None:
    quotas = [(PRODUCED, BLUE, 2000), (PRODUCED, QuotaEntity(user="bob"), 500)]
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, "bob", 1, 10_000) == pytest.approx(10_000, abs=300)
        await trio.sleep(20)
        assert await produce(book, "bob", 2, 4_000) == 0
        assert await produce(book, "alice", 3, 20_000) == pytest.approx(2000, abs=200)
        assert [decision.entity for decision in book.shared.decisions] == ["user=bob", "team=blue"]


async def test_members_by_client_id_and_the_default_of_all_teams(autojump_clock: MockClock) -> None:
    quotas = [(PRODUCED, ANY_TEAM, 1000), (PRODUCED, BLUE, 10**6)]
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, "alice", 1, 20_000, "red-1") == 0
        assert await produce(book, "carol", 2, 6000, "red-1") == 0
        assert await produce(book, "dave", 3, 6000, "red-2") == pytest.approx(2000, abs=100)
        assert await produce(book, "dave", 4, 90_000, "green") == 0
        (decision,) = book.shared.decisions
        assert decision.entity == "team=<default>"


async def test_a_quota_is_changed_and_removed_while_a_connection_is_open(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS) as book:
        hooks, quotas = book.shared.hooks, book.shared.hooks.quotas
        assert quotas is not None
        assert await produce(book, "alice", 1, 50_000) == 0
        hooks.update_quota(PRODUCED, BLUE, Quota(value=1000))
        quotas.quotas_changed()
        assert await produce(book, "alice", 2, 20_000) == pytest.approx(10_000, abs=300)
        hooks.remove_quota(PRODUCED, BLUE)
        quotas.quotas_changed()
        assert await produce(book, "alice", 3, 50_000) == 0
        assert hooks.errors == 0


async def test_fetches_are_charged(autojump_clock: MockClock) -> None:
    quotas = [(FETCHED, BLUE, 1000), (FETCHED, QuotaEntity(user="alice"), 500)]  # not bob's
    async with open_book(plugins={"team_quotas": TeamQuotas()}, options=OPTIONS, quotas=quotas) as book:
        book.connection.info.user = "bob"
        for number in (1, 2):
            frame = request(FETCH, 12, number, max_bytes=5000)
            row = {"topic": "t", "partitions": [{"partition_index": 0, "records": bytes(9000)}]}
            await book.round_trip(frame, reply(FETCH, 12, number, responses=[row]))
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity) == ("consumer_byte_rate", "team=blue")
        assert decision.throttle_ms == pytest.approx(8000, abs=300)


@pytest.mark.parametrize(("of_user", "capped_at"), [(None, 10_000), (20_000, 10_000), (5000, 5000)])
def test_the_lower_cap_of_a_fetch_holds(of_user: int | None, capped_at: int) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(OPTIONS["team_quotas"], quota_limit=plugin.quota_limit))
    plugin.update_quota(FETCHED, BLUE, 1000, QuotaPolicy())
    fetch = make_request(FETCH, connection=make_connection(user="alice"))
    fetch.fetch_max_bytes = of_user
    assert plugin.request_received(fetch, 0) is None
    assert fetch.fetch_max_bytes == capped_at
    assert fetch.alone


async def test_paced_requests_of_a_team_are_held(autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED)
    async with open_book(
        plugins={"team_quotas": TeamQuotas()},
        options=OPTIONS,
        quotas=[(PRODUCED, BLUE, Quota(value=1000, policy=policy))],
    ) as book:
        began = trio.current_time()
        for number, user in enumerate(("alice", "bob", "alice", "bob")):
            await produce(book, user, number, 1000)
        assert trio.current_time() - began == pytest.approx(2, abs=0.3)
        assert {decision.entity for decision in book.shared.decisions} == {"team=blue"}


async def test_a_new_connection_of_a_throttled_team_waits(autojump_clock: MockClock) -> None:
    plugin = TeamQuotas()
    async with open_book(plugins={"team_quotas": plugin}, options=OPTIONS, quotas=[(PRODUCED, BLUE, 1000)]) as book:
        assert await produce(book, "alice", 1, 20_000) > 9000
        now_ms = int(trio.current_time() * 1000)
        other = make_request(
            PRODUCE, connection=make_connection(user="bob"), request_bytes=100, received_s=now_ms / 1000 + 1
        )
        verdict = plugin.request_received(other, now_ms + 1000)
        assert verdict is not None
        assert (verdict.hold, verdict.ask_again) == (True, True)
        assert verdict.throttle_ms > 8000
        plugin.request_abandoned(other, now_ms + 1000)
        assert not other.notes


def test_a_bucket_is_shown_and_kept_as_that_of_the_team() -> None:
    plugin = TeamQuotas()
    context = make_context(OPTIONS["team_quotas"], quota_limit=plugin.quota_limit)
    plugin.configure(context)
    plugin.update_quota(PRODUCED, BLUE, 1000, QuotaPolicy())
    alice = make_connection(user="alice")
    assert plugin.request_received(make_request(PRODUCE, connection=alice, request_bytes=20_000), 0) is not None
    (bucket,) = context.quotas
    assert labels_of(bucket) == {"quota": "producer_byte_rate", "team": "blue"}
    assert (bucket.limit, bucket.entity) == (1000, "team=blue")
    restarted = make_context(quota_limit=plugin.quota_limit).quotas
    restarted.restore("producer_byte_rate", bucket.tags, bucket.state(0), 0)
    (restored,) = restarted
    assert restored.observed(0) == bucket.observed(0) > 0


@pytest.mark.parametrize("options", [{}, {"teams": {}}])
def test_without_teams_nothing_is_defined_and_nothing_called(options: dict[str, Any]) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(options))
    assert plugin.quota_definitions() == ()
    assert plugin.request_interest() == ()


def test_a_quota_of_an_unknown_team_is_kept_and_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = TeamQuotas()
    plugin.configure(make_context(OPTIONS["team_quotas"]))
    assert plugin.update_quota(PRODUCED, QuotaEntity(other=(("team", "bleu"),)), 1, QuotaPolicy())
    assert "there is no such team" in capsys.readouterr().out
    assert not plugin.update_quota(PRODUCED, QuotaEntity(user="alice"), 1, QuotaPolicy())
    assert not plugin.remove_quota(PRODUCED, QuotaEntity(user="alice"))
    assert isinstance(make_context(), PluginContext)
