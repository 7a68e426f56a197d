"""Quotas of topics, over memory sockets and on a fake clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.plugins.topic_quotas import TopicQuotas, plugin
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import DEFAULT, EntityName, QuotaEntity, QuotaKey
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.testing import make_context, make_request
from tests.proxy.playbook import open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

    from headrace.quota_callbacks.hookspecs import PluginContext
    from headrace.quota_callbacks.requests import Request
    from headrace.quota_callbacks.verdicts import Throttle
    from tests.proxy.playbook import Book

PRODUCE, FETCH = ApiKey.PRODUCE, ApiKey.FETCH
PRODUCED, FETCHED = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE
OPTIONS = {"topic_quotas": {"enabled": True}}
OBSERVE, PACED = QuotaPolicy(observe=True), QuotaPolicy(mode=EnforcementMode.PACED)

DENIED, INVALID_RECORD, UNKNOWN_PARTITION = 29, 87, 3


def topic(name: EntityName) -> QuotaEntity:
    return QuotaEntity(other=(("topic", name),))


ORDERS, ALL_ORDERS, ANY_TOPIC = topic("orders"), topic("orders.*"), topic(DEFAULT)


async def produce(book: Book, number: int, **bytes_by_topic: int) -> int:
    """Produce when the client is not muted; return the throttle time in ms."""
    await trio.sleep_until(book.connection.mute.until_s)
    rows = [
        {"name": name.replace("_", "."), "partition_data": [{"index": 0, "records": bytes(size)}]}
        for name, size in bytes_by_topic.items()
    ]
    frame = request(PRODUCE, 9, number, acks=1, topic_data=rows)
    answer = await book.round_trip(frame, reply(PRODUCE, 9, number))
    throttle_ms: int = read_reply(PRODUCE, 9, answer)["throttle_time_ms"]
    return throttle_ms


def fetched(version: int, number: int, rows: dict[str | bytes, int], **fields: Any) -> bytes:
    """Return a Fetch reply with records of these sizes."""
    responses = [
        {
            ("topic" if isinstance(name, str) else "topic_id"): name,
            "partitions": [{"partition_index": index, "records": bytes(size // 2)} for index in range(2)],
        }
        for name, size in rows.items()
    ]
    return reply(FETCH, version, number, responses=responses, **fields)


async def test_all_clients_of_a_topic_share_its_quota(autojump_clock: MockClock) -> None:
    async with open_book(
        plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=[(PRODUCED, ORDERS, 1000)]
    ) as book:
        book.connection.info.user = "alice"
        assert await produce(book, 1, free=90_000) == 0
        assert await produce(book, 2, orders=8000) == 0
        book.connection.info.user = "bob"
        assert await produce(book, 3, free=9000, orders=5000) == 3000
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.limit) == ("producer_byte_rate", "topic=orders", 1000)


async def test_a_pattern_limits_each_topic_by_itself(autojump_clock: MockClock) -> None:
    quotas = [(PRODUCED, ALL_ORDERS, 1000), (PRODUCED, ANY_TOPIC, 10_000), (PRODUCED, topic("orders.us"), 2000)]
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, 1, orders_eu=10_000) == 0
        assert await produce(book, 2, orders_fr=10_000) == 0
        assert await produce(book, 3, orders_us=20_000) == 0
        assert await produce(book, 4, orders=100_000) == 0
        assert await produce(book, 5, orders_fr=3000, orders_us=2000) == 3000
        assert [decision.entity for decision in book.shared.decisions] == ["topic=orders.fr"]


async def test_ids_of_topics_stand_for_their_names(autojump_clock: MockClock) -> None:
    orders, unknown = bytes(range(16)), bytes(range(1, 17))
    quotas = [(PRODUCED, ORDERS, 1000), (FETCHED, ORDERS, 1000)]
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=quotas) as book:
        topics = [{"name": "orders", "topic_id": orders, "partitions": [{"partition_index": 0}]}]
        await book.round_trip(request(ApiKey.METADATA, 12, 1), reply(ApiKey.METADATA, 12, 1, topics=topics))
        for number, topic_id in enumerate((unknown, orders), 2):
            rows = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": bytes(13_000)}]}]
            frame = request(PRODUCE, 13, number, acks=1, topic_data=rows)
            answer = await book.round_trip(frame, reply(PRODUCE, 13, number))
            assert read_reply(PRODUCE, 13, answer)["throttle_time_ms"] == (3000 if topic_id == orders else 0)
        await trio.sleep_until(book.connection.mute.until_s)
        await book.round_trip(request(FETCH, 17, 4), fetched(17, 4, {unknown: 90_000, orders: 14_000}))
        assert [(each.quota, each.throttle_ms) for each in book.shared.decisions] == [
            ("producer_byte_rate", 3000),
            ("consumer_byte_rate", 4000),
        ]


async def test_a_topic_without_a_known_name_has_the_quota_of_all_topics(autojump_clock: MockClock) -> None:
    """Otherwise a client could keep the names of its topics from the proxy."""
    quotas = [(PRODUCED, ANY_TOPIC, 1000), (PRODUCED, topic("0*"), 10)]
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=quotas) as book:
        rows = [{"topic_id": bytes(range(16)), "partition_data": [{"index": 0, "records": bytes(13_000)}]}]
        answer = await book.round_trip(request(PRODUCE, 13, 1, acks=1, topic_data=rows), reply(PRODUCE, 13, 1))
        assert read_reply(PRODUCE, 13, answer)["throttle_time_ms"] == 3000
        assert [each.entity for each in book.shared.decisions] == ["topic=:000102030405060708090a0b0c0d0e0f"]


@pytest.mark.parametrize("version", [4, 11, 12])
async def test_fetched_records_are_charged_to_their_topics(autojump_clock: MockClock, version: int) -> None:
    async with open_book(
        plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=[(FETCHED, ORDERS, 1000)]
    ) as book:
        rows: dict[str | bytes, int] = {"orders": 12_000, "free": 60_000}
        sent, limited = (fetched(version, 1, rows, throttle_time_ms=ms) for ms in (0, 2000))
        assert await book.round_trip(request(FETCH, version, 1), sent) == limited
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.throttle_ms) == ("consumer_byte_rate", "topic=orders", 2000)
        began = trio.current_time()
        await book.round_trip(request(FETCH, version, 2), fetched(version, 2, {"free": 10}))
        assert trio.current_time() - began == pytest.approx(2, abs=0.01)


async def test_the_next_fetch_waits_for_the_verdict_on_this_one(autojump_clock: MockClock) -> None:
    async with open_book(
        plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=[(FETCHED, ORDERS, 1000)]
    ) as book:
        began = trio.current_time()
        await book.client.sends(request(FETCH, 12, 1) + request(FETCH, 12, 2))
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == request(FETCH, 12, 1)
        await book.broker.sends(fetched(12, 1, {"orders": 12_000}))
        assert await book.broker.receives() == request(FETCH, 12, 2)
        assert trio.current_time() - began == pytest.approx(2, abs=0.01)


async def test_a_quota_is_changed_and_removed_while_a_connection_is_open(autojump_clock: MockClock) -> None:
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS) as book:
        hooks, quotas = book.shared.hooks, book.shared.hooks.quotas
        assert quotas is not None
        assert await produce(book, 1, orders=50_000) == 0
        for entity, limit, throttle_ms in ((ANY_TOPIC, 1000, 2000), (ORDERS, 2000, 1000)):
            hooks.update_quota(PRODUCED, entity, Quota(value=limit))
            quotas.quotas_changed()
            await trio.sleep(60)
            assert await produce(book, 2, orders=12_000 if limit == 1000 else 22_000) == throttle_ms
        for entity in (ANY_TOPIC, ORDERS):
            hooks.remove_quota(PRODUCED, entity)
        quotas.quotas_changed()
        assert await produce(book, 3, orders=500_000) == 0
        assert hooks.errors == 0


async def test_an_observed_quota_throttles_nobody_and_hides_no_other(autojump_clock: MockClock) -> None:
    quotas = [(PRODUCED, ORDERS, Quota(value=1, policy=OBSERVE)), (PRODUCED, topic("logs"), 1000)]
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, 1, orders=50_000) == 0
        assert await produce(book, 2, orders=50_000, logs=12_000) == 2000
        assert [decision.kind.value for decision in book.shared.decisions] == ["observed", "throttled"]


async def test_a_paced_quota_mutes_since_the_bytes_have_passed(autojump_clock: MockClock) -> None:
    quotas = [(PRODUCED, ORDERS, Quota(value=1000, policy=PACED))]
    async with open_book(plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=quotas) as book:
        assert await produce(book, 1, orders=1000) == 0
        assert await produce(book, 2, orders=3000) == 3000
        (decision,) = book.shared.decisions
        assert decision.kind.value == "throttled"


def test_the_cache_is_bounded_and_follows_the_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MAX_CACHED", 3)
    quotas = TopicQuotas()
    context = make_context(OPTIONS["topic_quotas"], quota_limit=quotas.quota_limit)
    quotas.configure(context)
    quotas.update_quota(PRODUCED, ANY_TOPIC, 1000, QuotaPolicy())
    produced = make_request(PRODUCE)
    produced.batches = [(f"t{number}", 0, 100, -1) for number in range(8)]
    produced.read_refused, produced.refused = True, {}
    assert quotas.response_received(produced, 0) is None
    assert len(context.quotas) == 8
    assert context.quotas.expire(10_000_000) == 8
    produced.batches = [("t7", 0, 20_000, -1)]
    assert quotas.response_received(produced, 10_000_000) is not None
    assert len(context.quotas) == 1


def test_nothing_is_defined_and_nothing_called_unless_it_is_enabled() -> None:
    quotas = TopicQuotas()
    context = make_context()
    quotas.configure(context)
    assert quotas.quota_definitions() == ()
    assert quotas.request_interest() == ()
    assert not context.topics.followed


def test_topics_are_read_only_while_there_are_quotas() -> None:
    quotas = TopicQuotas()
    quotas.configure(make_context(OPTIONS["topic_quotas"]))
    produced, fetch = (make_request(key) for key in (PRODUCE, FETCH))
    for each in (produced, fetch):
        quotas.request_received(each, 0)
    assert (produced.read_batches, fetch.read_fetched) == (False, False)
    quotas.update_quota(FETCHED, ORDERS, 1000, QuotaPolicy())
    for each in (produced, fetch):
        quotas.request_received(each, 0)
    assert (produced.read_batches, fetch.read_fetched) == (False, True)


def produced_by(user: str, *parts: tuple[str | bytes, int, int], acks: int = 1) -> Request:
    """Return a Produce of topics, partitions and sizes that was forwarded."""
    made = make_request(PRODUCE)
    made.connection.user = user
    made.acks, made.forwarded_s, made.read_refused = acks, 0.0, True
    made.batches = [(topic, partition, size, -1) for topic, partition, size in parts]
    made.refused = {}
    return made


def limited_to(limit: float, entity: QuotaEntity = ORDERS) -> tuple[TopicQuotas, PluginContext]:
    quotas = TopicQuotas()
    context = make_context(OPTIONS["topic_quotas"], quota_limit=quotas.quota_limit)
    quotas.configure(context)
    quotas.update_quota(PRODUCED, entity, limit, QuotaPolicy())
    return quotas, context


def test_what_the_broker_refuses_is_not_charged() -> None:
    quotas, context = limited_to(1000)
    refused = produced_by("mallory", ("orders", 0, 10**9))
    refused.refused = {("orders", 0): DENIED}
    assert quotas.batches_received(refused, 0) is None
    assert quotas.response_received(refused, 0) is None
    assert len(context.quotas) == 0
    partly = produced_by("alice", ("orders", 0, 12_000), ("orders", 1, 10**9))
    partly.refused = {("orders", 1): DENIED}
    verdict = quotas.response_received(partly, 0)
    assert verdict is not None
    assert verdict.throttle_ms == 2000


@pytest.mark.parametrize("acks", [0, 1])
def test_without_a_reply_only_a_user_who_may_write_uses_up_the_quota(acks: int) -> None:
    """A Produce with acks=0 has no reply; another one has none if its connection is closed before."""
    quotas, _ = limited_to(1000)

    def send(user: str, size: int, now_ms: int) -> Throttle | None:
        request = produced_by(user, ("orders", 0, size), acks=acks)
        verdict = quotas.batches_received(request, now_ms)
        if acks:
            quotas.request_abandoned(request, now_ms)
        return verdict

    first = send("mallory", 100_000, 0)
    assert (first is not None) == (acks == 0), "she is limited, too, and a closed connection cannot be throttled"
    assert quotas.response_received(produced_by("alice", ("orders", 0, 1000)), 0) is None
    send("alice", 12_000, 1)
    verdict = quotas.response_received(produced_by("bob", ("orders", 0, 1)), 2)
    assert verdict is not None, "alice has used it up: the broker has let her write before"


def test_a_user_whose_permission_was_withdrawn_uses_up_nothing_more() -> None:
    quotas, _ = limited_to(1000)
    assert quotas.response_received(produced_by("mallory", ("orders", 0, 100)), 0) is None
    refused = produced_by("mallory", ("orders", 0, 100))
    refused.refused = {("orders", 0): DENIED}
    quotas.response_received(refused, 0)
    quotas.batches_received(produced_by("mallory", ("orders", 0, 10**6), acks=0), 0)
    assert quotas.response_received(produced_by("alice", ("orders", 0, 100)), 0) is None


def test_who_waits_for_a_topic_does_not_wait_behind_others_who_do() -> None:
    """Their requests may be for other topics, and would never be charged to this one."""
    quotas, _ = limited_to(1000)
    throttled = [quotas.response_received(produced_by(user, ("orders", 0, 8000)), 0) for user in ("alice", "bob")]
    assert throttled[0] is None
    assert throttled[1] is not None
    assert quotas.response_received(produced_by("alice", ("orders", 0, 1)), 0) is not None
    until_ms = quotas.response_received(produced_by("bob", ("orders", 0, 1)), 0)
    assert until_ms is not None
    for number in range(50):
        held = quotas.request_received(on_a_new_connection("alice", 1 + number), 1 + number)
        assert held is not None
        assert not held.ask_again
    request = on_a_new_connection("bob", 100)
    held = quotas.request_received(request, 100)
    assert held is not None
    assert held.hold
    assert held.throttle_ms <= until_ms.throttle_ms
    assert quotas.request_received(request, 200) is None, "it is held once"
    assert quotas.request_received(on_a_new_connection("carol", 100), 100) is None, "carol was not throttled"


def on_a_new_connection(user: str, now_ms: int) -> Request:
    made = produced_by(user)
    made.received_s = now_ms / 1000
    return made


def test_another_error_than_a_missing_permission_withdraws_none() -> None:
    quotas, context = limited_to(1000)
    assert quotas.response_received(produced_by("alice", ("orders", 0, 100)), 0) is None
    failed = produced_by("alice", ("orders", 2**31 - 1, 100))
    failed.refused = {("orders", 2**31 - 1): UNKNOWN_PARTITION}
    quotas.response_received(failed, 0)
    quotas.batches_received(produced_by("alice", ("orders", 0, 10**6), acks=0), 0)
    assert len(context.quotas) == 1, "there is no bucket for the sender alone"


@pytest.mark.parametrize("left_out", [False, True])
def test_a_partition_that_is_listed_twice_is_charged_whatever_the_reply_says(left_out: bool) -> None:
    """A broker appends the first part, and the reply has the error of the second one, which is empty."""
    quotas, _ = limited_to(1000)
    assert quotas.response_received(produced_by("alice", ("orders", 0, 100)), 0) is None
    twice = produced_by("alice", *(() if left_out else (("orders", 0, 12_000), ("orders", 0, 0))))
    twice.left_out_bytes = {("orders", 0): 12_000} if left_out else {}
    twice.refused = {("orders", 0): INVALID_RECORD}
    verdict = quotas.response_received(twice, 0)
    assert verdict is not None
    assert verdict.throttle_ms > 0


def test_a_partition_that_is_listed_twice_by_who_was_never_let_in_is_charged_to_the_sender() -> None:
    quotas, _ = limited_to(1000)
    twice = produced_by("mallory", ("orders", 0, 10**6), ("orders", 0, 0))
    twice.refused = {("orders", 0): INVALID_RECORD}
    assert quotas.response_received(twice, 0) is not None
    assert quotas.response_received(produced_by("alice", ("orders", 0, 100)), 0) is None


def test_batches_beyond_the_maximum_are_charged() -> None:
    quotas, _ = limited_to(1000)
    request = produced_by("alice", *(("fake", number, 0) for number in range(4096)))
    request.left_out_bytes = {("orders", 0): 12_000, ("orders", 1): 10**9}
    request.refused = {("orders", 1): DENIED}
    verdict = quotas.response_received(request, 0)
    assert verdict is not None
    assert verdict.throttle_ms == 2000


def test_a_name_that_no_topic_can_have_has_no_bucket() -> None:
    quotas, context = limited_to(1000, ANY_TOPIC)
    quotas.batches_received(produced_by("mallory", ("x" * 250, 0, 10**6), acks=0), 0)
    assert len(context.quotas) == 0
    quotas.batches_received(produced_by("mallory", ("x" * 249, 0, 10**6), acks=0), 0)
    assert len(context.quotas) == 1


def test_invented_names_count_for_their_sender() -> None:
    quotas, context = limited_to(1000, ANY_TOPIC)
    quotas.batches_received(produced_by("mallory", ("invented", 0, 1), acks=0), 0)
    (bucket,) = context.quotas
    assert bucket.owner is not None
    assert bucket.owner[0] == "mallory"


def test_a_throttled_user_sends_one_request_at_a_time() -> None:
    """Else it could send many before the first reply, which charges it."""
    quotas, _ = limited_to(1000)
    assert quotas.response_received(produced_by("alice", ("orders", 0, 20_000)), 0) is not None
    alone = []
    for user, now_ms in (("alice", 1), ("bob", 1), ("alice", plugin.ALONE_MS)):
        request = produced_by(user, ("orders", 0, 1))
        quotas.request_received(request, now_ms)
        alone.append(request.alone)
    assert alone == [True, False, False]


async def test_a_share_fetch_is_charged_and_its_reply_has_the_throttle_time(autojump_clock: MockClock) -> None:
    orders = bytes(range(16))
    async with open_book(
        plugins={"topic_quotas": TopicQuotas()}, options=OPTIONS, quotas=[(FETCHED, ORDERS, 1000)]
    ) as book:
        topics = [{"name": "orders", "topic_id": orders, "partitions": [{"partition_index": 0}]}]
        await book.round_trip(request(ApiKey.METADATA, 12, 1), reply(ApiKey.METADATA, 12, 1, topics=topics))
        responses = [{"topic_id": orders, "partitions": [{"partition_index": 0, "records": bytes(12_000)}]}]
        sent = reply(ApiKey.SHARE_FETCH, 1, 2, responses=responses)
        answer = await book.round_trip(request(ApiKey.SHARE_FETCH, 1, 2, max_bytes=1000), sent)
        (decision,) = book.shared.decisions
        assert (decision.quota, decision.entity, decision.throttle_ms) == ("consumer_byte_rate", "topic=orders", 2000)
        assert read_reply(ApiKey.SHARE_FETCH, 1, answer)["throttle_time_ms"] == 2000
