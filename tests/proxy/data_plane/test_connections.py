"""Connections that the threads relay: what is charged, what makes a connection return, and what is left of it."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.proxy.wire.heads import read_request_head
from headrace.proxy.wire.walks.produce import MAX_BATCHES, ProduceWalk
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.data_plane.wire import Account, Wire, needs_engine, new_engine, new_seen_ids
from tests.proxy.playbook import reply, request

pytestmark = needs_engine

MIB = 2**20
BEAT, BEATEN = request(ApiKey.HEARTBEAT, 4), reply(ApiKey.HEARTBEAT, 4)


def produced(number: int = 1, padding: int = 100) -> bytes:
    return request(ApiKey.PRODUCE, 10, number, acks=1, padding=padding)


def fetched(number: int, size: int, version: int = 12) -> bytes:
    rows = [{"partitions": [{"records": bytes(size)}]}]
    return reply(ApiKey.FETCH, version, number, responses=rows)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# --- large frames, backpressure ---


def test_large_frames_are_spliced(engine: Any) -> None:
    asked, answer = produced(1, 3 * MIB), fetched(2, 5 * MIB, 17)
    with Wire(engine) as wire:
        wire.send("client", asked + request(ApiKey.FETCH, 17, 2, max_bytes=MIB))
        wire.until(lambda: wire.progress.in_flight == 2)
        wire.send("broker", reply(ApiKey.PRODUCE, 10, 1) + answer)
        wire.until(lambda: wire.progress.in_flight == 0)
        rest = wire.recalled()
        assert (rest.reason, rest.in_flight, rest.fault) == ("recalled", [], None)
        assert wire.received["broker"][: len(asked)] == asked
        assert wire.received["client"].endswith(answer)
        spliced = wire.progress.bytes[4]
        assert 7 * MIB < spliced < len(asked) + len(answer)


def test_deaf_clients_take_only_as_many_pipes_as_there_may_be() -> None:
    """Further large replies are copied, so that descriptors are left for sockets."""
    engine = new_engine(2)
    engine.limit_pipes(2)
    answer = fetched(1, 9 * MIB)
    try:
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(Wire(engine)) for _ in range(6)]
            opened = descriptors()
            left = [begun_reply(wire, answer) for wire in wires]
            assert opened < descriptors() <= opened + 2 * 2
            for wire, rest in zip(wires, left, strict=True):
                wire.reads = {"client", "broker"}
                wire.send("broker", rest)
                wire.until(lambda wire=wire: len(wire.received["client"]) == len(answer))  # type: ignore[misc]
                assert wire.received["client"] == answer
    finally:
        engine.stop()


def begun_reply(wire: Wire, answer: bytes) -> bytes:
    """Let the broker send as much of a reply as the system accepts while the client does not read; return the rest."""
    wire.reads = {"broker"}
    wire.send("client", request(ApiKey.FETCH, 12, 1, max_bytes=MIB))
    wire.until(lambda: wire.progress.in_flight == 1)
    at = wire.broker.send(answer)
    wire.until(lambda: wire.progress.bytes[4] > 0 or wire.progress.held > 0)  # a pipe, or memory, has a part of it
    with contextlib.suppress(BlockingIOError):
        while at < len(answer):
            at += wire.broker.send(answer[at:])
    return answer[at:]


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_client_that_does_not_read_stops_the_broker_and_not_for_ever(engine: Any) -> None:
    asked = [request(ApiKey.FETCH, 12, number, max_bytes=MIB) for number in range(20)]
    answers = [fetched(number, MIB) for number in range(20)]
    with Wire(engine) as wire:
        wire.reads = {"broker"}
        wire.send("client", b"".join(asked))
        wire.until(lambda: wire.progress.in_flight == 20)
        stream, at = b"".join(answers), 0
        while at < len(stream):  # until the system accepts no more
            try:
                at += wire.broker.send(stream[at:])
            except BlockingIOError:
                break
        assert at < len(stream)
        engine.recall(wire.progress.id)
        wire.reads = {"client", "broker"}
        wire.until(lambda: wire.rest is not None or wire.progress.bytes[1] > MIB)
        while at < len(stream) and wire.rest is None:
            try:
                at += wire.broker.send(stream[at:])
            except BlockingIOError:
                wire._read()
        rest = wire.returned()
        left = len(rest.in_flight)
        assert rest.reason == "recalled"
        assert bytes(wire.received["client"]) == b"".join(answers[: 20 - left])


def test_the_most_in_flight(engine: Any) -> None:
    with Wire(engine, most_in_flight=2) as wire:
        wire.send_read("client", BEAT * 5)
        wire.until(lambda: len(wire.received["broker"]) == 2 * len(BEAT))
        assert not wire.progress.is_arriving
        wire.send_read("broker", BEATEN)
        wire.until(lambda: len(wire.received["broker"]) == 3 * len(BEAT))
        rest = wire.recalled()
        assert (len(rest.in_flight), rest.request_tail) == (2, BEAT * 2)


def test_from_a_time_on_requests_are_left_to_the_control_plane(engine: Any) -> None:
    until_ns = time.monotonic_ns() + 2_000_000_000
    with Wire(engine, until_ns=until_ns) as wire:
        wire.send("client", BEAT)
        wire.until(lambda: len(wire.received["broker"]) == len(BEAT))
        wire.until(lambda: time.monotonic_ns() >= until_ns)
        wire.send("broker", BEATEN)
        wire.send("client", BEAT + BEAT)
        rest = wire.returned()
        assert (rest.reason, rest.request_tail) == ("request", BEAT + BEAT)
        assert wire.received["broker"] == BEAT
    with Wire(engine, until_ns=0) as wire:
        wire.send("client", BEAT)
        assert wire.returned().request_tail == BEAT
        assert not wire.received["broker"]


def test_a_fetch_alone(engine: Any) -> None:
    ask = request(ApiKey.FETCH, 12, 1, max_bytes=MIB)
    with Wire(engine, fetches_alone=True) as wire:
        wire.send_read("client", BEAT + ask + BEAT)
        wire.until(lambda: len(wire.received["broker"]) == len(BEAT) + len(ask))
        wire.send_read("broker", BEATEN)
        wire.send_read("broker", fetched(1, 10))
        wire.until(lambda: len(wire.received["broker"]) == 2 * len(BEAT) + len(ask))
        assert [row[8] for row in wire.recalled().in_flight] == [False]


def test_a_tail_and_requests_in_flight_are_taken_over(engine: Any) -> None:
    before = (ApiKey.HEARTBEAT, 4, 7, 0, len(BEAT) - 4, 1, 1, True, False)
    with Wire(engine, request_tail=BEAT[:9], in_flight=[before]) as wire:
        wire.send_read("client", BEAT[9:])
        wire.send_read("broker", reply(ApiKey.HEARTBEAT, 4, 7) + BEATEN)
        rest = wire.recalled()
        assert (bytes(wire.received["broker"]), rest.in_flight) == (BEAT, [])


# --- charges ---


def test_bytes_are_charged_as_by_the_callbacks(engine: Any) -> None:
    writes, reads = Account(engine), Account(engine)
    with Wire(engine, produced=writes.number, fetched=reads.number) as wire:
        wire.send_read("client", produced(1) + request(ApiKey.FETCH, 12, 2, max_bytes=MIB))
        wire.send_read("broker", reply(ApiKey.PRODUCE, 10, 1) + fetched(2, 500))
        assert wire.recalled().reason == "recalled"
    assert sum(writes.settle(0)) == len(produced(1)) - 4
    assert sum(reads.settle(0)) == len(fetched(2, 500)) - 9 + 4  # the body and 4 bytes (`byte_rate`)


def test_the_estimate_of_the_request_time(engine: Any) -> None:
    used = Account(engine)
    with Wire(engine, request_time=used.number) as wire:
        wire.send_read("client", BEAT)
        wire.send_read("broker", BEATEN)
        rest = wire.recalled()
    sizes = len(BEAT) + len(BEATEN) - 8
    estimate = round((0.5 + 0.25 * sizes / 1024) * 1e6)
    charged = sum(used.settle(0))
    assert 0 < charged <= estimate + rest.thread_ns + 10**9  # no more than was observed, and the thread's time


def test_a_request_beyond_the_credit_returns(engine: Any) -> None:
    writes = Account(engine, len(produced(1)) - 4)
    with Wire(engine, produced=writes.number) as wire:
        wire.send("client", produced(1) + produced(2) + BEAT)
        rest = wire.returned()
        assert (rest.reason, rest.asks_arrival) == ("credit", False)
        assert bytes(wire.received["broker"]) == produced(1)
        assert rest.request_tail + wire.unread("client") == produced(2) + BEAT
    assert writes.settle(0) == [len(produced(1)) - 4]


def test_no_more_requests_are_in_flight_than_there_is_credit_for() -> None:
    """The credit is what fifteen requests and a half cost by the model; the engine has not seen any that cost more."""
    engine = new_engine()
    try:
        used = Account(engine, int(15.5e6 * (0.5 + 0.25 * (len(BEAT) - 4) / 1024)))
        with Wire(engine, request_time=used.number) as wire:
            wire.send("client", BEAT * 30)
            rest = wire.returned()
            assert (rest.reason, len(rest.in_flight)) == ("credit", 15)
            assert rest.request_tail + wire.unread("client") == BEAT * 15
        assert used.settle(0) == []
    finally:
        engine.stop()


def test_the_bytes_that_connections_hold_are_summed() -> None:
    engine = new_engine()
    try:
        ask = request(ApiKey.FETCH, 12, 1, max_bytes=MIB)
        with Wire(engine, fetches_alone=True) as one, Wire(engine, fetches_alone=True) as other:
            for wire in (one, other):
                wire.send_read("client", ask + BEAT * 50)
                wire.until(lambda wire=wire: wire.progress.held == 50 * len(BEAT))
            wire.until(lambda: engine.held() == 100 * len(BEAT))
            assert one.recalled().reason == "recalled"
            other.until(lambda: engine.held() == 50 * len(BEAT))
        assert engine.held() == 0
    finally:
        engine.stop()


def test_a_credit_that_is_gone_when_a_request_has_arrived(engine: Any) -> None:
    writes = Account(engine)
    with Wire(engine, produced=writes.number) as wire:
        wire.send_read("client", produced(1)[:50])
        assert wire.progress.is_arriving
        writes.settle(10)
        wire.send("client", produced(1)[50:] + BEAT)
        rest = wire.returned()
        assert (rest.reason, rest.asks_arrival, [row[7] for row in rest.in_flight]) == ("credit", True, [False])
        assert bytes(wire.received["broker"]) == produced(1)
    assert writes.settle(0) == []


def test_a_reply_beyond_the_credit_returns_and_charges_nothing(engine: Any) -> None:
    reads, used = Account(engine), Account(engine, 1)
    with Wire(engine, fetched=reads.number, request_time=used.number) as wire:
        wire.send_read("client", request(ApiKey.FETCH, 12, 2, max_bytes=MIB))
        wire.send("broker", fetched(2, 500))
        rest = wire.returned()
        assert (rest.reason, len(rest.in_flight)) == ("credit", 1)
        assert rest.reply_tail + wire.unread("broker") == fetched(2, 500)
    assert (reads.settle(0), used.settle(0)) == ([], [])


def test_a_withdrawn_credit_delays_and_does_not_return(engine: Any) -> None:
    used = Account(engine)
    with Wire(engine, request_time=used.number) as wire:
        used.settle(None)
        wire.send_read("client", BEAT)
        assert (wire.progress.requests, wire.rest) == (0, None)
        used.settle(10**12)
        wire.until(lambda: wire.progress.requests == 1)
        used.settle(None)
        wire.send_read("broker", BEATEN)
        assert (bytes(wire.received["client"]), wire.rest) == (b"", None)
        used.settle(10**12)
        wire.until(lambda: bytes(wire.received["client"]) == BEATEN)


def test_one_meter_does_not_charge_a_reply_twice(engine: Any) -> None:
    one = Account(engine)
    with pytest.raises(ValueError, match="one meter twice"):
        Wire(engine, fetched=one.number, request_time=one.number)
    with pytest.raises(KeyError, match="no meter"):
        Wire(engine, produced=10**6)


def batch(producer_id: int) -> bytes:
    return struct.pack(">qiibIhiqqqhii", 0, 49, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, 0, 0)


def with_ids(number: int, ids: list[int]) -> bytes:
    rows = [{"partition_data": [{"index": 0, "records": b"".join(map(batch, ids))}]}]
    return request(ApiKey.PRODUCE, 10, number, acks=1, topic_data=rows)


def test_seen_producer_ids_pass_and_new_ones_return(engine: Any) -> None:
    seen = new_seen_ids()
    seen.add(5, 2**62)
    seen.add(6, 0)  # until a time that is over
    writes = Account(engine)
    with Wire(engine, producer_ids=seen, produced=writes.number) as wire:
        wire.send("client", with_ids(1, [5, -1, 5]) + with_ids(2, [5, 6, 7, 6]) + BEAT)
        rest = wire.returned()
        assert (rest.reason, rest.producer_ids) == ("credit", [6, 7, 6])
        assert [row[2] for row in rest.in_flight] == [1, 2]
        assert not rest.asks_arrival, "its bytes were charged"
        assert rest.request_tail + wire.unread("client") == BEAT
    assert sum(writes.settle(0)) == len(with_ids(1, [1] * 3)) + len(with_ids(1, [1] * 4)) - 8


def test_ids_that_are_closed_let_each_produce_return(engine: Any) -> None:
    seen = new_seen_ids()
    seen.add(5, 2**62)
    with Wire(engine, producer_ids=seen) as wire:
        wire.send_read("client", with_ids(1, [5]))
        seen.close()
        wire.send("client", BEAT + with_ids(2, [5]))
        rest = wire.returned()
        assert (rest.reason, [row[0] for row in rest.in_flight]) == ("credit", [ApiKey.PRODUCE, ApiKey.HEARTBEAT])
        assert rest.request_tail + wire.unread("client") == with_ids(2, [5])


def test_of_many_batches_the_first_ids_and_those_that_begin_a_partition_are_read(engine: Any) -> None:
    seen = new_seen_ids()
    seen.add(5, 2**62)
    partitions = [[5] * MAX_BATCHES + [6], [], [7, 8], [5, 8], [9]]
    rows = [{"index": at, "records": b"".join(map(batch, ids))} for at, ids in enumerate(partitions)]
    with Wire(engine, producer_ids=seen) as wire:
        wire.send("client", with_ids(1, [5] * (MAX_BATCHES + 1)))
        wire.until(lambda: wire.progress.requests == 1)
        frame = request(ApiKey.PRODUCE, 10, 2, acks=1, topic_data=[{"partition_data": rows}])
        wire.send("client", frame)
        rest = wire.returned()
        assert (rest.producer_ids, len(rest.in_flight)) == ([7, 9], 2)
    head = read_request_head(bytearray(frame), 0, len(frame), 10**7)
    assert head is not None
    position, walk = head.body_at, ProduceWalk(10, len(frame) - head.body_at)
    while not walk.done:
        position = walk.walk(bytearray(frame), position, len(frame))
    assert walk.left_out_ids == [7, 5, 9]


# --- ends ---


@pytest.mark.parametrize(
    "frame", [b"\0\0\0\x02", b"\xff\xff\xff\xff", b"\0\0\0\x0a" + bytes(10), b"GET / HTTP/1.1\r\n"]
)
def test_what_is_no_request_returns_untouched(engine: Any, frame: bytes) -> None:
    with Wire(engine) as wire:
        wire.send("client", BEAT + frame)
        rest = wire.returned()
        assert (rest.reason, rest.fault) == ("request", None)
        assert rest.request_tail + wire.unread("client") == frame


@pytest.mark.parametrize("answer", [b"\0\0\0\x02", b"\0\0\0\x04\0\0\0\x01", b"HTTP/1.1 400 Bad Request\r\n"])
def test_what_is_no_reply_returns_untouched(engine: Any, answer: bytes) -> None:
    with Wire(engine) as wire:
        wire.send_read("client", BEAT)
        wire.send("broker", answer)
        rest = wire.returned()
        assert (rest.reason, rest.fault, len(rest.in_flight)) == ("reply", None, 1)
        assert rest.reply_tail + wire.unread("broker") == answer


def test_a_reply_without_a_request_returns(engine: Any) -> None:
    with Wire(engine) as wire:
        wire.send("broker", BEATEN)
        rest = wire.returned()
        assert (rest.reason, rest.reply_tail + wire.unread("broker")) == ("reply", BEATEN)


def test_the_client_ends_anywhere(engine: Any) -> None:
    for end in range(0, len(BEAT) * 2 + 1, 5):
        with Wire(engine) as wire:
            wire.send_read("client", (BEAT * 2)[:end])
            wire.client.shutdown(socket.SHUT_WR)
            rest = wire.returned()
            begun = len(wire.received["broker"])
            assert (rest.reason, rest.fault) == ("end", None)
            assert bytes(wire.received["broker"]) + rest.request_tail == (BEAT * 2)[:end]
            if end in {len(BEAT), 2 * len(BEAT)}:
                assert rest.request_left == 0
            assert begun + rest.request_left in {0, len(BEAT), 2 * len(BEAT)}


def test_the_broker_ends_anywhere(engine: Any) -> None:
    for end in range(len(BEATEN) * 2 + 1):
        with Wire(engine) as wire:
            wire.send_read("client", BEAT * 3)
            wire.send_read("broker", (BEATEN * 2)[:end])
            wire.broker.shutdown(socket.SHUT_WR)
            rest = wire.returned()
            assert (rest.reason, rest.fault, rest.reply_lost) == ("end", None, False)
            assert bytes(wire.received["client"]) + rest.reply_tail == (BEATEN * 2)[:end]
            assert len(rest.in_flight) >= 1


@pytest.mark.parametrize("side", ["client", "broker"])
@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_a_reset_is_the_fault_of_the_side_that_has_reset(engine: Any, side: str, size: int) -> None:
    """In the middle of a large request, which the broker does not read, and between two frames."""
    with Wire(engine) as wire:
        wire.reads = set()
        stream = BEAT + (produced(2, size)[:-1] if size > MIB else b"")
        while stream:
            try:
                stream = stream[wire.client.send(stream) :]
            except BlockingIOError:
                break
        wire.until(lambda: wire.progress.requests == (2 if size > MIB else 1))
        wire.until(lambda: wire.progress.bytes[3] > 0)
        reset(getattr(wire, side))
        if size > MIB and side == "client":
            wire.reads = {"broker"}  # what was read before the reset is flushed first
        rest = wire.returned()
        assert rest.fault is not None
        assert (rest.fault[0] == "client") == (side == "client")
        assert rest.fault[1] in {errno.ECONNRESET, errno.EPIPE}


def test_a_half_closed_client_that_does_not_read_holds_nothing(engine: Any) -> None:
    with Wire(engine, longest_frame=100 * MIB) as wire:
        wire.reads = {"broker"}
        wire.send("client", request(ApiKey.FETCH, 12, 1, max_bytes=MIB))
        wire.until(lambda: wire.progress.in_flight == 1)
        stream = memoryview(fetched(1, 64 * MIB))
        with contextlib.suppress(BlockingIOError):
            while stream:
                stream = stream[wire.broker.send(stream) :]
        assert stream
        engine.recall(wire.progress.id)
        wire.client.shutdown(socket.SHUT_WR)
        rest = wire.returned()
        assert rest.reply_left > 0
        assert rest.fault is None


def test_a_recall_in_the_middle_of_frames_waits_for_their_end(engine: Any) -> None:
    answer = fetched(1, 1000, 17)
    with Wire(engine) as wire:
        wire.send_read("client", request(ApiKey.FETCH, 17, 1, max_bytes=MIB) + produced(2)[:60])
        wire.send_read("broker", answer[:400])
        engine.recall(wire.progress.id)
        wire.send_read("broker", answer[400:] + BEATEN[:3])
        assert wire.rest is None
        wire.send("client", produced(2)[60:] + BEAT)
        rest = wire.returned()
        assert rest.reason in {"recalled", "reply"}, "the thread may see the early reply before the recall"
        assert [row[2] for row in rest.in_flight] == [2]
        assert bytes(wire.received["client"]) == answer
        assert rest.request_tail + wire.unread("client") == BEAT
        assert rest.reply_tail + wire.unread("broker") == BEATEN[:3]


def test_a_connection_is_taken_back_in_the_middle_of_frames(engine: Any) -> None:
    answer = fetched(1, 1000, 17)
    with Wire(engine) as wire:
        wire.send_read("client", request(ApiKey.FETCH, 17, 1, max_bytes=MIB) + produced(2)[:60])
        wire.send_read("broker", answer[:400])
        rest = engine.take_back(wire.progress.id)
        wire.rest = rest
        assert (rest.request_left, rest.reply_left) == (len(produced(2)) - 60, len(answer) - 400)
        assert [row[7] for row in rest.in_flight] == [True, False]
        assert engine.take_back(wire.progress.id) is None


def test_a_connection_that_has_returned_is_found_by_take_back(engine: Any) -> None:
    with Wire(engine) as wire:
        wire.client.shutdown(socket.SHUT_WR)
        rest = engine.take_back(wire.progress.id)  # whether the thread has noticed the end or not
        wire.rest = rest
        assert rest.id == wire.progress.id
        assert engine.returned() == []


def test_requests_are_counted_by_api() -> None:
    engine = new_engine()
    with Wire(engine) as wire:
        wire.send_read("client", BEAT * 3 + produced(1))
        wire.recalled()
        counts = {api_key: count for api_key, count in enumerate(engine.requests()) if count}
    assert counts == {ApiKey.HEARTBEAT: 3, ApiKey.PRODUCE: 1}
    engine.stop()
    with pytest.raises(RuntimeError, match="no thread of the engine runs"):
        Wire(engine)


def test_edited_apis_have_no_row() -> None:
    engine = new_engine()
    for api_key, version in [
        (ApiKey.METADATA, 12),
        (ApiKey.FIND_COORDINATOR, 4),
        (ApiKey.SHARE_FETCH, 1),
        (ApiKey.API_VERSIONS, 3),
        (ApiKey.CREATE_TOPICS, 7),
        (ApiKey.ALTER_CLIENT_QUOTAS, 1),
        (ApiKey.SASL_HANDSHAKE, 1),
    ]:
        with Wire(engine) as wire:
            frame = request(api_key, version)
            wire.send("client", frame)
            rest = wire.returned()
            assert (rest.reason, rest.request_tail + wire.unread("client")) == ("request", frame), api_key
    engine.stop()


def test_many_requests_in_flight_count_as_memory(engine: Any) -> None:
    with Wire(engine, most_in_flight=1000) as wire:
        for count, counted in ((16, 0), (17, 1), (500, 484)):
            wire.send_read("client", BEAT * (count - wire.progress.in_flight))
            wire.until(lambda count=count: wire.progress.in_flight == count)
            assert 24 * counted <= wire.progress.held <= 80 * counted
        wire.send_read("broker", b"".join(BEATEN for _ in range(490)))
        wire.until(lambda: wire.progress.in_flight == 10)
        assert wire.progress.held == 0
