"""Scripts of KIP-936 at the proxy: batches are read while they are forwarded, and too many new ids mute the client."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.wire.walks.produce import MAX_BATCHES
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.buckets.kinds import ProducerIdBucket
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.producer_ids import MOST_LOOKED_UP
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import HOOK_VERSION, hookimpl
from headrace.quota_callbacks.policies import EnforcementMode, Quota, QuotaPolicy
from headrace.quota_callbacks.requests import Interest, Request
from headrace.quota_callbacks.verdicts import Throttle
from tests.proxy.playbook import Book, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

PRODUCE, HEARTBEAT = ApiKey.PRODUCE, ApiKey.HEARTBEAT
KEY = QuotaKey.PRODUCER_IDS_RATE
USER = QuotaEntity(user="ANONYMOUS")
WINDOWS = {KEY: Window(samples=11, seconds=100)}
BATCH = Struct(">qiibIhiqqqhii")


def batch(producer_id: int, padding: int = 0) -> bytes:
    length = BATCH.size - 12 + padding
    return BATCH.pack(0, length, -1, 2, 0, 0, 0, 0, 0, producer_id, 0, 0, 1) + bytes(padding)


def produce(number: int, *producer_ids: int, version: int = 9, acks: int = 1, padding: int = 0) -> bytes:
    partitions = [
        {"index": index, "records": batch(producer_id, padding)} for index, producer_id in enumerate(producer_ids)
    ]
    name = {"topic_id": b"t" * 16} if version >= 13 else {"name": "t"}
    return request(PRODUCE, version, number, acks=acks, topic_data=[{**name, "partition_data": partitions}])


def quota(rate: float, policy: QuotaPolicy | None = None) -> list[tuple[QuotaKey, QuotaEntity, Quota]]:
    return [(KEY, USER, Quota(value=rate) if policy is None else Quota(value=rate, policy=policy))]


async def waits_s(book: Book) -> float:
    begin_s = trio.current_time()
    await book.client.sends(request(HEARTBEAT, 4, 99))
    await book.broker.receives()
    waited_s = trio.current_time() - begin_s
    await book.broker.sends(reply(HEARTBEAT, 4, 99))
    await book.client.receives()
    return waited_s


@pytest.mark.parametrize("version", [3, 8, 9, 13])
async def test_ids_beyond_the_quota_mute(version: int, autojump_clock: MockClock) -> None:
    """Two ids in 100 s: a third one throttles for 50 s."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        answer = await book.round_trip(produce(1, 7, 8, 7, version=version), reply(PRODUCE, version, 1))
        assert read_reply(PRODUCE, version, answer)["throttle_time_ms"] == 0
        answer = await book.round_trip(produce(2, 7, 9, 8, version=version), reply(PRODUCE, version, 2))
        assert read_reply(PRODUCE, version, answer)["throttle_time_ms"] == 50_000
        assert await waits_s(book) == pytest.approx(50, abs=0.01)


async def test_ids_behind_more_batches_than_are_kept_count_once_for_each_partition(autojump_clock: MockClock) -> None:
    """A broker accepts one batch of a partition: the id of a second one is counted while batches are kept."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        nothing = [{"index": index, "records": None} for index in range(MAX_BATCHES)]
        rows = [{"index": index, "records": batch(100 + index) + batch(200 + index)} for index in range(4)]
        topics = [{"name": "invented", "partition_data": nothing}, {"name": "t", "partition_data": rows}]
        answer = await book.round_trip(request(PRODUCE, 9, 1, acks=1, topic_data=topics), reply(PRODUCE, 9, 1))
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == 100_000


async def test_of_many_ids_some_are_looked_up_and_all_are_charged(autojump_clock: MockClock) -> None:
    """Looking up thousands would hold the event loop for a tenth of a second."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        ids = range(3 * MOST_LOOKED_UP)
        looked_up = []

        def noted(bucket: ProducerIdBucket, number: int, now_ms: int) -> Throttle | None:
            """Charge the id without the filters, which take one new id in a thousand for one that was seen."""
            looked_up.append(number)
            return bucket.charge_new(now_ms)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProducerIdBucket, "charge", noted)
            answer = await book.round_trip(produce(1, -1, *ids, *ids), reply(PRODUCE, 9, 1))
        assert looked_up == [*ids[:MOST_LOOKED_UP]]
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == (len(ids) - 2) * 50_000


async def test_a_decision_has_the_number_of_ids(autojump_clock: MockClock) -> None:
    """The number is in the unit of the limit, unlike the tokens in ``observed``."""
    async with open_book(quotas=quota(2), windows=WINDOWS) as book:
        await book.round_trip(produce(1, 7, 8, 9), reply(PRODUCE, 9, 1))
        [row] = book.shared.decisions.page(trio.current_time())
    assert (row["rate"], row["observed"]) == (pytest.approx(3, abs=0.01), pytest.approx(-1, abs=0.01))
    assert (row["limit"], row["window_s"]) == (2, 100)


async def test_no_id_is_no_id(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(0.001), windows=WINDOWS) as book:
        answer = await book.round_trip(produce(1, -1, -1), reply(PRODUCE, 9, 1))
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == 0


async def test_a_producer_without_acks_is_muted_too(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        frame = produce(1, 1, 2, acks=0)
        await book.client.sends(frame)
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == frame
        assert await waits_s(book) == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("cut", [1, 7, 40, 61, 100, 3000])
async def test_however_the_request_is_cut(cut: int, autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        frame = produce(1, 5, 6, padding=2000)
        for begin in range(0, len(frame), cut):
            await book.client.sends(frame[begin : begin + cut])
            await trio.testing.wait_all_tasks_blocked()
        await book.upstream.wait_for_dial(1)
        assert await book.broker.receives() == frame
        await book.broker.sends(reply(PRODUCE, 9, 1))
        answer = read_reply(PRODUCE, 9, await book.client.receives())
        assert answer["throttle_time_ms"] == pytest.approx(100_000, abs=1)


async def test_a_request_that_lies_about_its_records_ends_the_connection(autojump_clock: MockClock) -> None:
    async with open_book(quotas=quota(1), windows=WINDOWS) as book:
        frame = bytearray(produce(1, 5))
        at = frame.index(BATCH.pack(0, BATCH.size - 12, -1, 2, 0, 0, 0, 0, 0, 5, 0, 0, 1))
        frame[at - 1] = 0x7F  # the compact length of the records
        await book.client.sends(bytes(frame))
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"client": 1}


async def test_without_a_quota_nothing_is_walked(autojump_clock: MockClock) -> None:
    """Batches are not read in this case: even an invalid request is forwarded, and the broker rejects it."""
    async with open_book() as book:
        frame = bytearray(produce(1, 5))
        frame[-BATCH.size - 5] ^= 0x7F
        await book.round_trip(bytes(frame), reply(PRODUCE, 9, 1))


async def test_paced_ids_mute_until_their_place_comes(autojump_clock: MockClock) -> None:
    policy = QuotaPolicy(mode=EnforcementMode.PACED, burst_s=0)
    async with open_book(quotas=quota(2, policy), windows=WINDOWS) as book:
        await book.round_trip(produce(1, 1), reply(PRODUCE, 9, 1))
        assert await waits_s(book) == pytest.approx(0, abs=0.01)
        await book.round_trip(produce(2, 2), reply(PRODUCE, 9, 2, throttle_time_ms=0))
        assert await waits_s(book) == pytest.approx(50, abs=0.01)


async def test_a_plugin_reads_bytes_by_topic_and_throttles(autojump_clock: MockClock) -> None:
    class ByTopic:
        headrace_hooks = HOOK_VERSION
        seen: list[tuple[object, int, int, int]] = []  # noqa: RUF012

        @hookimpl
        def request_interest(self) -> tuple[Interest, ...]:
            return (Interest(api_key=PRODUCE),)

        @hookimpl
        def request_received(self, request: Request) -> None:
            request.read_batches = True

        @hookimpl
        def batches_received(self, request: Request) -> Throttle:
            self.seen += [tuple(each) for each in request.batches]
            return Throttle(throttle_ms=3000)

    plugin = ByTopic()
    async with open_book(plugins={"by_topic": plugin}) as book:
        await book.round_trip(produce(1, 4, -1), reply(PRODUCE, 9, 1))
        assert plugin.seen == [("t", 0, BATCH.size, 4), ("t", 1, BATCH.size, -1)]
        assert await waits_s(book) == pytest.approx(3, abs=0.01)
