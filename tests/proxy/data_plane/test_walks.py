"""Differential: what the threads forward, edit and read is what `headrace.proxy.wire` does, however bytes are split."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame, MalformedMessage
from headrace.proxy.wire.heads import cap_fetch, read_request_head
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS, FetchWalk
from headrace.proxy.wire.walks.produce import ProduceWalk
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.data_plane.wire import Wire, needs_engine, new_seen_ids
from tests.proxy.playbook import reply, request

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_engine

CAP = 5000
ENDPOINTS = [{"node_id": 1, "host": "kafka-1", "port": 9092}]
slow_to_generate = settings(suppress_health_check=[HealthCheck.too_slow])


def heartbeat(number: int, _: int) -> tuple[bytes, bytes]:
    return request(ApiKey.HEARTBEAT, 4, number), reply(ApiKey.HEARTBEAT, 4, number)


def throttled(number: int, _: int) -> tuple[bytes, bytes]:
    return request(ApiKey.HEARTBEAT, 4, number), reply(ApiKey.HEARTBEAT, 4, number, throttle_time_ms=1)


def metadata(number: int, _: int) -> tuple[bytes, bytes]:
    return request(ApiKey.METADATA, 12, number), reply(ApiKey.METADATA, 12, number)


def produce(number: int, size: int) -> tuple[bytes, bytes]:
    version = (8, 10, 13)[size % 3]
    return request(ApiKey.PRODUCE, version, number, acks=1, padding=size), reply(ApiKey.PRODUCE, version, number)


def produce_with_hints(number: int, size: int) -> tuple[bytes, bytes]:
    asked = request(ApiKey.PRODUCE, 10, number, acks=1, padding=size)
    return asked, reply(ApiKey.PRODUCE, 10, number, node_endpoints=ENDPOINTS)


def produce_without_acks(number: int, size: int) -> tuple[bytes, bytes]:
    return request(ApiKey.PRODUCE, 8, number, acks=0, padding=size), b""


def fetch(number: int, size: int) -> tuple[bytes, bytes]:
    version = (4, 12, 16, 17)[size % 4]
    partitions = [{"partition_index": n, "records": bytes(size), "high_watermark": 1} for n in range(size % 7)]
    hints = {"node_endpoints": ENDPOINTS} if version >= FIRST_VERSION_WITH_HINTS and size % 3 else {}
    answer = reply(ApiKey.FETCH, version, number, responses=[{"partitions": partitions}], **hints)
    return request(ApiKey.FETCH, version, number, max_bytes=10**6, min_bytes=size * 4), answer


def other_client(number: int, _: int) -> tuple[bytes, bytes]:
    return request(ApiKey.HEARTBEAT, 4, number, client_id="d"), reply(ApiKey.HEARTBEAT, 4, number)


def wrong_number(number: int, _: int) -> tuple[bytes, bytes]:
    return request(ApiKey.HEARTBEAT, 4, number), reply(ApiKey.HEARTBEAT, 4, number + 1)


RETURNED_REQUESTS = (metadata, produce_without_acks, other_client)
RETURNED_REPLIES = (throttled, produce_with_hints, wrong_number)
KINDS = [heartbeat, produce, fetch]
exchanges = st.lists(
    st.tuples(st.sampled_from([*KINDS * 4, *RETURNED_REQUESTS, *RETURNED_REPLIES]), st.integers(0, 3000)),
    min_size=1,
    max_size=10,
)
cuts = st.lists(st.one_of(st.integers(1, 30), st.integers(1, 4000)), max_size=25)


def forwarded_request(frame: bytes) -> bytes:
    buffer = bytearray(frame)
    head = read_request_head(buffer, 0, len(buffer), 10**7)
    assert head is not None
    if head.fetch_limits_at is not None:
        cap_fetch(buffer, head.fetch_limits_at, CAP)
    return bytes(buffer)


def forwarded_reply(asked: bytes, frame: bytes) -> bytes:
    api_key, version = struct.unpack_from(">hh", asked, 4)
    buffer = bytearray(frame)
    if api_key == ApiKey.FETCH and version >= FIRST_VERSION_WITH_HINTS:
        assert FetchWalk(len(frame) - 9).walk(buffer, 9, len(frame)) == len(frame)
    return bytes(buffer)


def first_of(kinds: list[Any], returned: tuple[Any, ...]) -> int:
    return next((number for number, (make, _) in enumerate(kinds) if make in returned), len(kinds))


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        if at < len(data):
            yield data[at : at + size]
            at += size
    if at < len(data):
        yield data[at:]


@slow_to_generate
@given(kinds=exchanges, client_cuts=cuts, broker_cuts=cuts)
def test_both_sides_get_what_the_relays_forward(
    engine: Any, kinds: list[Any], client_cuts: list[int], broker_cuts: list[int]
) -> None:
    pairs = [make(number, size) for number, (make, size) in enumerate(kinds)]
    stream = b"".join(asked for asked, _ in pairs)
    served = first_of(kinds, RETURNED_REQUESTS)
    with Wire(engine, fetch_bytes=CAP) as wire:
        for piece in pieces(stream, client_cuts):
            wire.send_read("client", piece)
        # a connection with a request that it cannot process returns, and its replies are the control plane's
        answered = first_of(kinds[:served], RETURNED_REPLIES) if served == len(kinds) else 0
        if served == len(kinds):
            for piece in pieces(b"".join(answer for _, answer in pairs), broker_cuts):
                wire.send_read("broker", piece)
        rest = wire.recalled()
        assert rest.fault is None
        assert rest.reason == ("request" if served < len(kinds) else "reply" if answered < served else "recalled")
        expected = b"".join(forwarded_request(asked) for asked, _ in pairs[:served])
        assert bytes(wire.received["broker"]) == expected
        assert rest.request_tail + wire.unread("client") == stream[len(expected) :]
        came = b"".join(forwarded_reply(asked, answer) for asked, answer in pairs[:answered])
        assert bytes(wire.received["client"]) == came
        if served == len(kinds):
            replies = b"".join(answer for _, answer in pairs)
            assert rest.reply_tail + wire.unread("broker") == replies[len(came) :]
        assert [row[2] for row in rest.in_flight] == list(range(answered, served))
        assert wire.progress.hints == sum(
            answer != forwarded_reply(asked, answer) for asked, answer in pairs[:answered]
        )


# --- damaged messages ---

damage = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3)
windows = st.lists(st.integers(1, 90), max_size=12)


def damaged(body: bytes, changes: list[tuple[float, int]]) -> bytes:
    changed = bytearray(body)
    for place, value in changes:
        changed[int(place * (len(changed) - 1))] = value
    return bytes(changed)


def batch(producer_id: int, size: int, magic: int) -> bytes:
    header = struct.pack(">qiibIhiqqqhii", 0, 49 + size, 0, magic, 0, 0, 0, 0, 0, producer_id, 0, 0, 0)
    return header + bytes(size)


batches = st.lists(
    st.builds(batch, st.sampled_from([-1, 5, 6, 2**40]), st.integers(0, 60), st.sampled_from([0, 1, 2])), max_size=3
)


@slow_to_generate
@given(st.sampled_from([8, 9, 12, 13]), st.lists(st.lists(batches, max_size=3), max_size=3), damage, windows)
def test_producer_ids_are_those_of_the_walk(
    engine: Any, version: int, topics: list[Any], changes: Any, sizes: list[int]
) -> None:
    rows = [
        {"partition_data": [{"index": n, "records": b"".join(found)} for n, found in enumerate(partitions)]}
        for partitions in topics
    ]
    frame = request(ApiKey.PRODUCE, version, 1, acks=1, topic_data=rows)
    head = read_request_head(bytearray(frame), 0, len(frame), 10**7)
    assert head is not None
    frame = frame[: head.body_at + 7] + damaged(frame[head.body_at + 7 :] + b"\0", changes)[:-1]
    walk = ProduceWalk(version, len(frame) - head.body_at, 100)
    fault = None
    try:
        position = head.body_at
        while not walk.done:
            position = walk.walk(bytearray(frame), position, len(frame))
    except MalformedFrame as error:
        fault = ("rows" if "limits.max_request_rows" in str(error) else "client", 0)
    with Wire(engine, producer_ids=new_seen_ids(), most_rows=100) as wire:
        for piece in pieces(frame, sizes):
            wire.send_read("client", piece)
        rest = wire.recalled()
    assert rest.fault == fault
    if fault is None:
        assert rest.producer_ids == [number for *_, number in walk.batches if number >= 0]
        assert bytes(wire.received["broker"]) == frame


@slow_to_generate
@given(st.integers(0, 3000), damage, windows)
def test_damaged_replies_to_fetches_are_those_of_the_walk(
    engine: Any, size: int, changes: Any, sizes: list[int]
) -> None:
    size = size // 4 * 4 + 2  # a version with hints
    asked, answer = fetch(1, size)
    answer = answer[:13] + damaged(answer[13:], changes)
    expected, walk = bytearray(answer), FetchWalk(len(answer) - 9)
    walked = True
    try:
        walk.walk(expected, 9, len(expected))
    except MalformedFrame:
        walked = False
    with Wire(engine) as wire:
        wire.send_read("client", asked)
        for piece in pieces(answer, sizes):
            wire.send_read("broker", piece)
        rest = wire.recalled()
    if walked:
        assert (rest.fault, wire.progress.hints) == (None, walk.hints)
        assert wire.received["client"] == expected
    else:
        assert rest.fault == ("upstream", 0)


@slow_to_generate
@given(st.integers(0, 13), st.integers(0, 3), st.booleans(), damage, windows)
def test_replies_to_produces_pass_only_if_nothing_is_to_edit(
    engine: Any, version: int, count: int, hints: bool, changes: Any, sizes: list[int]
) -> None:
    if version < 3:
        version = 3  # clients of Kafka 4 have no older one
    more = {"node_endpoints": ENDPOINTS} if hints and version >= 10 else {}
    rows = [{"partition_responses": [{"index": n} for n in range(count)]}]
    answer = reply(ApiKey.PRODUCE, version, 1, responses=rows, **more)
    body_at = 9 if version >= 9 else 8
    answer = answer[:body_at] + damaged(answer[body_at:], changes)
    try:
        body = answer[body_at:]
        throttle_at, hints_at = find_produce_tail(body, version)
        may_pass = hints_at is None and (throttle_at is None or body[throttle_at : throttle_at + 4] == bytes(4))
    except MalformedMessage:
        may_pass = False
    with Wire(engine) as wire:
        wire.send_read("client", request(ApiKey.PRODUCE, version, 1, acks=1))
        for piece in pieces(answer, sizes):
            wire.send_read("broker", piece)
        rest = wire.recalled()
        passed = rest.in_flight == []
        assert may_pass or not passed
        assert passed or changes or hints, "a usual reply passes"
        assert (bytes(wire.received["client"]), rest.reply_tail + wire.unread("broker")) == (
            (answer, b"") if passed else (b"", answer)
        )
