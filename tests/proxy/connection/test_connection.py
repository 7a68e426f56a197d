"""Scripts of one connection: what the broker and the client receive, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.connection.state.shared_state import Limits
from headrace.proxy.connection.state.timeouts import end_if_overdue, is_idle, reply_is_overdue, reply_is_stuck
from headrace.proxy.hooks.enforcement_switch import Enforcement
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from tests.proxy.playbook import MemorySocket, Party, framed, open_book, read_reply, reply, request

if TYPE_CHECKING:
    from trio.testing import MockClock

PRODUCE, FETCH, METADATA, HEARTBEAT = ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA, ApiKey.HEARTBEAT
FIND_COORDINATOR, HANDSHAKE, API_VERSIONS = ApiKey.FIND_COORDINATOR, ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS
SLOW = QuotaEntity(client_id="c")


def produce_quota(limit: float) -> tuple[QuotaKey, QuotaEntity, float]:
    return QuotaKey.PRODUCER_BYTE_RATE, SLOW, limit


def fetch_quota(limit: float) -> tuple[QuotaKey, QuotaEntity, float]:
    return QuotaKey.CONSUMER_BYTE_RATE, SLOW, limit


async def test_bytes_pass_unchanged_where_nothing_has_to_be_said(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        answer = reply(HEARTBEAT, 4)
        assert await book.round_trip(request(HEARTBEAT, 4), answer) == answer
        assert book.upstream.dialled == [None]


async def test_a_silent_probe_opens_no_upstream_connection(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        book.client.socket.shut_down_writing()
        await book.client.receives_the_end()
        assert book.upstream.dialled == []


async def test_many_small_requests_go_out_in_one_write(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await book.client.sends(*(request(HEARTBEAT, 4, n) for n in range(5)))
        await trio.testing.wait_all_tasks_blocked()
        assert len({await book.broker.receives() for _ in range(5)}) == 5
        await book.broker.sends(*(reply(HEARTBEAT, 4, n) for n in range(5)))
        assert [read_reply(HEARTBEAT, 4, await book.client.receives())["correlation_id"] for _ in range(5)] == [
            *range(5)
        ]


async def test_an_over_quota_produce_is_forwarded_and_the_next_one_waits(autojump_clock: MockClock) -> None:
    """KIP-219: 20,000 bytes at 1,000 B/s over 10 s throttle for 10 s, and the reply is sent at once."""
    async with open_book(quotas=[produce_quota(1000)]) as book:
        first = request(PRODUCE, 9, 1, acks=1, padding=20_000)
        throttle_ms = round((len(first) - 4) / 1000 * 1000 - 10_000)
        begin = trio.current_time()
        answer = await book.round_trip(first, reply(PRODUCE, 9, 1))
        assert trio.current_time() - begin < 1
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == pytest.approx(throttle_ms, abs=5)

        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.broker.receives()
        assert trio.current_time() - begin == pytest.approx(throttle_ms / 1000, abs=0.005)


async def test_requests_that_came_with_the_one_that_overdraws_wait_too(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        begin = trio.current_time()
        frames = [request(PRODUCE, 9, 1, acks=1, padding=20_000), request(HEARTBEAT, 4, 2), request(HEARTBEAT, 4, 3)]
        await book.client.sends(*frames)
        await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == frames[0]
        assert book.broker.receives_nothing()
        assert await book.broker.receives() == frames[1]
        assert await book.broker.receives() == frames[2]
        assert trio.current_time() - begin > 9


async def test_a_reply_during_a_mute_carries_what_remains(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        await book.client.sends(request(PRODUCE, 9, 1, acks=1, padding=20_000))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        await trio.sleep(4)
        await book.broker.sends(reply(PRODUCE, 9, 1))
        left_ms = read_reply(PRODUCE, 9, await book.client.receives())["throttle_time_ms"]
        assert 5900 < left_ms < 6200


async def test_a_broker_that_throttles_longer_wins(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        begin = trio.current_time()
        first = request(PRODUCE, 9, 1, acks=1, padding=20_000)
        answer = await book.round_trip(first, reply(PRODUCE, 9, 1, throttle_time_ms=30_000))
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == 30_000
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.broker.receives()
        assert trio.current_time() - begin == pytest.approx(30, abs=0.01)


@pytest.mark.parametrize("version", [0, 1, 8, 12, 13])
async def test_produce_of_every_shape_is_muted_and_gets_a_throttle_time_if_it_has_a_reply(
    autojump_clock: MockClock, version: int
) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        answer = await book.round_trip(request(PRODUCE, version, 1, acks=1, padding=20_000), reply(PRODUCE, version, 1))
        fields = read_reply(PRODUCE, version, answer)
        assert ("throttle_time_ms" in fields) is (version >= 1)
        assert fields.get("throttle_time_ms", 10_000) > 9000
        assert book.connection.mute.until_s > trio.current_time() + 9


async def test_produce_without_acks_has_no_reply_and_mutes_all_the_same(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        begin = trio.current_time()
        silent = request(PRODUCE, 9, 1, acks=0, padding=20_000)
        await book.client.sends(silent, request(HEARTBEAT, 4, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == silent
        assert len(book.connection.in_flight) == 0
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 2))
        assert read_reply(HEARTBEAT, 4, await book.client.receives())["correlation_id"] == 2
        assert trio.current_time() - begin > 9


@pytest.mark.parametrize("version", [4, 11, 12, 15, 16, 18])
async def test_a_fetch_over_quota_is_handed_on_whole_and_mutes(autojump_clock: MockClock, version: int) -> None:
    async with open_book(quotas=[fetch_quota(1000)]) as book:
        begin = trio.current_time()
        partition = {"partition_index": 0, "high_watermark": 1, "records": bytes(20_000)}
        answer = reply(FETCH, version, 1, responses=[{"partitions": [partition]}])
        got = await book.round_trip(request(FETCH, version, 1, max_bytes=5000), answer)
        fields = read_reply(FETCH, version, got)
        throttle_ms = fields.pop("throttle_time_ms")
        assert throttle_ms == pytest.approx(len(answer) - 4 - (5 if version >= 12 else 4) + 4 - 10_000, abs=2)
        assert fields["responses"][0]["partitions"][0]["records"] == bytes(20_000)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.broker.receives()
        assert trio.current_time() - begin == pytest.approx(throttle_ms / 1000, abs=0.01)


async def test_a_fetch_is_capped_at_what_its_bucket_holds(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[fetch_quota(100)]) as book:
        await book.client.sends(request(FETCH, 17, 1, max_bytes=10**6, min_bytes=1))
        await trio.testing.wait_all_tasks_blocked()
        assert await book.broker.receives() == request(FETCH, 17, 1, max_bytes=1000, min_bytes=1)


async def test_switched_off_nobody_is_throttled(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)], enforcement=Enforcement(enabled=False)) as book:
        await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=200_000), reply(PRODUCE, 9, 1))
        begin = trio.current_time()
        await book.round_trip(request(HEARTBEAT, 4, 2), reply(HEARTBEAT, 4, 2))
        assert trio.current_time() == begin


@pytest.mark.parametrize(
    "exempt", [Enforcement(exempt_users=["ANONYMOUS"]), Enforcement(exempt_client_ids=["c"])], ids=["user", "client id"]
)
async def test_the_exempt_are_not_throttled(autojump_clock: MockClock, exempt: Enforcement) -> None:
    async with open_book(quotas=[produce_quota(1000)], enforcement=exempt) as book:
        answer = await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=200_000), reply(PRODUCE, 9, 1))
        assert read_reply(PRODUCE, 9, answer)["throttle_time_ms"] == 0


async def test_a_released_mute_lets_the_next_request_through(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        begin = trio.current_time()
        await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=500_000), reply(PRODUCE, 9, 1))
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await trio.sleep(10)
        assert book.broker.receives_nothing()
        book.connection.mute.release()
        await book.broker.receives()
        assert trio.current_time() - begin < 12


async def test_a_client_that_hangs_up_while_muted_is_let_go(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=500_000), reply(PRODUCE, 9, 1))
        await book.client.sends(request(HEARTBEAT, 4, 2))
        begin = trio.current_time()
        book.client.socket.shut_down_writing()
        await book.broker.receives_the_end()
        assert trio.current_time() - begin < 5


async def test_the_proxy_connects_again_to_a_broker_that_closed_during_a_mute(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        begin = trio.current_time()
        await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=500_000), reply(PRODUCE, 9, 1))
        book.broker.socket.close()
        await trio.sleep(400)
        answer = reply(HEARTBEAT, 4, 2)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await book.upstream.wait_for_dial(2)
        assert trio.current_time() - begin > 480
        await book.broker.receives()
        await book.broker.sends(answer)
        assert await book.client.receives() == answer
        assert book.upstream.waited == [True, False], "only before it is known, it waits for handshakes of others"


async def test_metadata_shows_the_proxy_and_teaches_the_topology(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        brokers = [{"node_id": 2, "host": "kafka-2", "port": 9092}, {"node_id": 12, "host": "kafka-12", "port": 9092}]
        answer = await book.round_trip(request(METADATA, 12), reply(METADATA, 12, brokers=brokers, cluster_id="k"))
        fields = read_reply(METADATA, 12, answer)
        assert [(each["node_id"], each["host"], each["port"]) for each in fields["brokers"]] == [(2, "proxy", 9195)]
        assert str(book.listener.topology.address_of(2)) == "kafka-2:9092"
        assert book.listener.topology.out_of_range == {12}


async def test_api_versions_are_cut_to_what_the_proxy_carries(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        offered = [(PRODUCE, 0, 99), (HEARTBEAT, 0, 99), (999, 0, 1)]
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, low, high in offered]
        answer = await book.round_trip(request(API_VERSIONS, 3), reply(API_VERSIONS, 3, api_keys=keys))
        got = [
            (each["api_key"], each["min_version"], each["max_version"])
            for each in read_reply(API_VERSIONS, 3, answer)["api_keys"]
        ]
        assert got == [(PRODUCE, 0, 13), (HEARTBEAT, 0, 99)]


async def test_api_versions_newer_than_the_proxy_are_answered_in_turn(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        too_new = framed(b"\x00\x12\x00\x63\x00\x00\x00\x02\x00\x01c\x00\x00")
        await book.client.sends(request(HEARTBEAT, 4, 1), too_new)
        await trio.testing.wait_all_tasks_blocked()
        assert book.client.receives_nothing(), "the answer waits for its turn"
        await book.broker.receives()
        await book.broker.sends(reply(HEARTBEAT, 4, 1))
        assert (await book.client.receives())[4:8] == b"\x00\x00\x00\x01"
        fields = read_reply(API_VERSIONS, 0, await book.client.receives())
        assert (fields["correlation_id"], fields["error_code"]) == (2, 35)
        assert book.broker.receives_nothing()


async def test_a_version_that_was_not_offered_ends_the_connection(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await book.client.sends(framed(b"\x00\x03\x00\x63\x00\x00\x00\x02\x00\x01c\x00\x00\x00"))
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"client": 1}


@pytest.mark.parametrize(
    "broken", [b"\x00\x00\x00\x04\x00\x00\x00\x63", b"\x00\x00\x00\x02\x00\x00", b"\x7f\xff\xff\xff"]
)
async def test_a_broker_that_breaks_the_protocol_ends_the_connection(autojump_clock: MockClock, broken: bytes) -> None:
    async with open_book() as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.sends(broken)
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"upstream": 1}


async def test_a_broker_that_cannot_be_reached_ends_the_connection(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        book.upstream.fault = "cannot connect to kafka:9092: connection refused"
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"upstream": 1}


async def test_too_many_requests_in_flight_are_not_read(autojump_clock: MockClock) -> None:
    limits = Limits(max_frame_bytes=10**6, max_collected_bytes=10**6, max_in_flight_requests=2)
    async with open_book(limits=limits) as book:
        await book.client.sends(*(request(HEARTBEAT, 4, n) for n in range(4)))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        await book.broker.receives()
        assert book.broker.receives_nothing()
        await book.broker.sends(reply(HEARTBEAT, 4, 0))
        assert await book.broker.receives() == request(HEARTBEAT, 4, 2)


async def test_draining_finishes_what_is_in_flight(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        book.connection.begin_drain()
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await trio.sleep(3)
        assert book.broker.receives_nothing()
        await book.broker.sends(reply(HEARTBEAT, 4, 1))
        assert read_reply(HEARTBEAT, 4, await book.client.receives())["correlation_id"] == 1
        await book.client.receives_the_end()


async def test_idle_is_neither_muted_nor_waiting(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        await book.round_trip(request(PRODUCE, 9, 1, acks=1, padding=900_000), reply(PRODUCE, 9, 1))
        now_s = trio.current_time()
        assert not is_idle(book.connection, now_s + 880)
        assert is_idle(book.connection, now_s + 890 + 601)


async def test_a_broker_that_hangs_is_given_up(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await trio.testing.wait_all_tasks_blocked()
        now_s = trio.current_time()
        assert not reply_is_overdue(book.connection, now_s + 3599)
        await trio.sleep(1800)
        await book.client.sends(request(HEARTBEAT, 4, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert reply_is_overdue(book.connection, now_s + 3601), "another request does not extend it"
        end_if_overdue(book.connection, now_s + 3601)
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"upstream": 1}


async def test_a_reply_that_does_not_move_ends_the_connection(autojump_clock: MockClock) -> None:
    """The broker stops in the middle of it."""
    async with open_book() as book:
        await book.client.sends(request(HEARTBEAT, 4, 1))
        await book.upstream.wait_for_dial(1)
        await book.broker.receives()
        answer = reply(HEARTBEAT, 4, 1)
        await book.broker.sends(answer[:-1])
        await trio.testing.wait_all_tasks_blocked()
        now_s = trio.current_time()
        assert not reply_is_stuck(book.connection, now_s)
        assert not reply_is_stuck(book.connection, now_s + 599)
        end_if_overdue(book.connection, now_s + 601)
        await book.client.receives_the_end()
        assert book.shared.counters.errors == {"upstream": 1}


async def test_a_broker_that_closes_after_a_produce_without_acks_has_something_to_tell(
    autojump_clock: MockClock,
) -> None:
    """Closing is the only sign of failure, muted or not (``KafkaApis.sendNoOpResponseExemptThrottle``)."""
    async with open_book(quotas=[produce_quota(1000)]) as book:
        await book.client.sends(request(PRODUCE, 9, 1, acks=0, padding=20_000))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        book.broker.socket.close()
        begin = trio.current_time()
        await book.client.receives_the_end()
        assert trio.current_time() - begin < 1


async def test_a_broker_that_closes_in_the_middle_of_a_muted_request_ends_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_book(quotas=[produce_quota(1000)]) as book:
        await book.client.sends(request(PRODUCE, 9, 1, acks=0, padding=20_000)[:15_000])
        await trio.testing.wait_all_tasks_blocked()
        book.broker.socket.close()
        await book.client.receives_the_end()
        assert book.upstream.dialled == [None]
        assert book.shared.counters.errors == {"upstream": 1}


async def test_switched_off_a_fetch_that_is_in_flight_does_not_mute(autojump_clock: MockClock) -> None:
    async with open_book(quotas=[fetch_quota(1)]) as book:
        await book.client.sends(request(FETCH, 17, 1, max_bytes=10**6))
        await trio.testing.wait_all_tasks_blocked()
        await book.broker.receives()
        book.shared.enforcement.switch(enabled=False, by="test")
        partition = {"partition_index": 0, "high_watermark": 1, "records": bytes(20_000)}
        await book.broker.sends(reply(FETCH, 17, 1, responses=[{"partitions": [partition]}], throttle_time_ms=50))
        assert read_reply(FETCH, 17, await book.client.receives())["throttle_time_ms"] == 50
        assert book.connection.mute.until_s < trio.current_time()


async def test_rack_aware_clusters_do_not_flap(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        changes: list[frozenset[int]] = []
        book.listener.topology.on_change(changes.append)
        row = {"node_id": 2, "host": "kafka-2", "port": 9092}
        for number in range(3):
            brokers = [row | {"rack": "r1"}]
            await book.round_trip(request(METADATA, 12, number), reply(METADATA, 12, number, brokers=brokers))
            await book.round_trip(
                request(FIND_COORDINATOR, 3, number, key="g"), reply(FIND_COORDINATOR, 3, number, **row)
            )
        assert changes == [frozenset({2})]


async def test_a_client_with_headerless_sasl_tokens_passes(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        handshake = reply(HANDSHAKE, 0, 1, mechanisms=["PLAIN"])
        assert await book.round_trip(request(HANDSHAKE, 0, 1, mechanism="PLAIN"), handshake) == handshake
        token = framed(b"\x00A\x00secret-that-looks-like-a-request")
        assert await book.round_trip(token, framed(b"")) == framed(b"")
        answer = reply(HEARTBEAT, 4, 2)
        assert await book.round_trip(request(HEARTBEAT, 4, 2), answer) == answer


def test_the_stage_itself() -> None:
    one, other = MemorySocket.pair()
    assert Party(one).receives_nothing()
    assert other.receive_into(memoryview(bytearray(1))) is None


async def test_the_reason_and_the_drain_are_changed_by_methods_alone(autojump_clock: MockClock) -> None:
    async with open_book() as book:
        for name, value in (("reason", "another"), ("draining", True)):
            with pytest.raises(AttributeError):
                setattr(book.connection, name, value)
