"""Walks through Produce requests find the batches that Kafka's own classes wrote, with any split into windows."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.proxy.wire.errors import MalformedFrame, UnknownMessage
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.walks.produce import MAX_BATCHES, ProducedBatch, ProduceWalk
from testbed.kafka.jvm import KafkaClasses, kafka_classes, start_jvm

TOPIC_ID = bytes(range(16))
RECORDS = {"3.9.1": "org.apache.kafka.common.record", "4.4.0": "org.apache.kafka.common.record.internal"}
# Contents of a partition: the bytes of its batches, and the expected producer id of each.
Batches = list[tuple[bytes, int]]


@cache
def batch(producer_id: int, value_bytes: int = 5, records: int = 1) -> bytes:
    """Return a batch in the current message format, made by aiokafka."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        batch_size=1 << 20,
    )
    for offset in range(records):
        builder.append(offset, 1000, None, b"v" * value_bytes, [])
    return bytes(builder.build())


@cache
def old_messages(magic: int, count: int) -> bytes:
    """Return a message set in a format older than Kafka 0.11."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    for offset in range(count):
        builder.append(offset, timestamp=1000, key=None, value=b"value")
    return bytes(builder.build())


def request(version: int, topics: list[tuple[str, list[bytes | None]]], transactional_id: str | None = None) -> bytes:
    """Return a request's body; the index of each partition is its position."""
    return encode(
        "ProduceRequest",
        version,
        {
            **({"transactional_id": transactional_id} if version >= 3 else {}),
            "acks": -1,
            "timeout_ms": 30_000,
            "topic_data": [
                {
                    **({"topic_id": topic_id(name)} if version >= 13 else {"name": name}),
                    "partition_data": [{"index": index, "records": each} for index, each in enumerate(partitions)],
                }
                for name, partitions in topics
            ],
        },
    )


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\x00")[:16]


def walk(version: int, body: bytes, chunks: list[int], *, splice: bool) -> ProduceWalk:
    """Walk as a relay does: each window begins with the last one's tail; records after a window may be spliced."""
    walker = ProduceWalk(version, len(body))
    out, tail, rest = bytearray(), b"", body
    sizes = iter(chunks)
    while rest or tail:
        if splice and not tail and walker.skip_left:
            count = walker.skip_left
            out += rest[:count]
            rest = rest[count:]
            walker.passed_outside(count)
            continue
        size = max(next(sizes, 1), 1)
        window = bytearray(tail + rest[:size])
        rest = rest[size:]
        at = walker.walk(window, 0, len(window))
        out += window[:at]
        tail = bytes(window[at:])
    assert bytes(out) == body
    assert walker.done
    return walker


def whole(version: int, body: bytes) -> list[ProducedBatch]:
    """Return the batches of a body that is completely in one window, at some position of a larger buffer."""
    buffer = bytearray(b"\xff" * 7 + body + b"\xff" * 80)
    walker = ProduceWalk(version, len(body))
    assert walker.walk(buffer, 7, len(buffer)) == 7 + len(body)
    assert walker.done
    assert buffer == b"\xff" * 7 + body + b"\xff" * 80
    return walker.batches


partition_batches: st.SearchStrategy[Batches] = st.lists(
    st.builds(
        lambda producer_id, size: (batch(producer_id, size), producer_id),
        st.sampled_from([-1, 0, 7, 2**40, 2**63 - 1]),
        st.sampled_from([0, 1, 60, 200]),
    )
    | st.sampled_from([(old_messages(magic, 1), -1) for magic in (0, 1)]),
    min_size=1,
    max_size=3,
)
topics_of_batches = st.lists(
    st.tuples(
        st.sampled_from(["t", "orders", "übung", "x" * 200]), st.lists(st.none() | partition_batches, max_size=4)
    ),
    max_size=3,
)


@settings(deadline=None)
@given(
    version=st.integers(0, 13),
    topics=topics_of_batches,
    transactional_id=st.sampled_from([None, "", "transfer", "y" * 300]),
    chunks=st.lists(st.integers(1, 120), max_size=60),
    splice=st.booleans(),
)
def test_any_split_finds_every_batch_and_changes_no_byte(
    version: int,
    topics: list[tuple[str, list[Batches | None]]],
    transactional_id: str | None,
    chunks: list[int],
    *,
    splice: bool,
) -> None:
    joined = [
        (name, [None if each is None else b"".join(part for part, _ in each) for each in partitions])
        for name, partitions in topics
    ]
    body = request(version, joined, transactional_id)
    expected = [
        (topic_id(name) if version >= 13 else name, index, len(part), producer_id)
        for name, partitions in topics
        for index, each in enumerate(partitions)
        for part, producer_id in (each or [(b"", -1)])
    ]
    assert whole(version, body) == expected
    assert walk(version, body, chunks, splice=splice).batches == expected


@pytest.mark.parametrize("version", range(14))
def test_every_single_cut(version: int) -> None:
    body = request(version, [("a", [batch(5), batch(6, 200)]), ("b", [None, batch(-1)])], "tx")
    expected = whole(version, body)
    assert [each.producer_id for each in expected] == [5, 6, -1, -1]
    for cut in range(1, len(body)):
        assert walk(version, body, [cut, len(body)], splice=False).batches == expected


def test_the_records_are_left_to_be_spliced() -> None:
    body = request(12, [("a", [batch(5, 1000)])])
    records_at = body.index(batch(5, 1000))
    walker = ProduceWalk(12, len(body))
    window = bytearray(body[: records_at + 51])
    assert walker.walk(window, 0, len(window)) == len(window)
    assert walker.batches == [("a", 0, len(batch(5, 1000)), 5)]
    assert walker.skip_left == len(batch(5, 1000)) - 51
    walker.passed_outside(walker.skip_left)
    rest = bytearray(body[records_at + len(batch(5, 1000)) :])
    assert walker.walk(rest, 0, len(rest)) == len(rest)
    assert walker.done


# Comparison with Kafka's own classes.


def java_records(kafka: KafkaClasses, kind: str, producer_id: int) -> Any:
    """Return three records, in one batch if the format has batches."""
    jpype, package = start_jvm(), RECORDS[kafka.version]
    compression = kafka.cls("org.apache.kafka.common.compress.Compression")
    builder = kafka.cls(f"{package}.MemoryRecords").builder(
        jpype.java.nio.ByteBuffer.allocate(4096),
        jpype.JByte({"v0": 0, "v1": 1}.get(kind, 2)),
        compression.gzip().build() if kind == "transactional" else compression.NONE,
        kafka.cls("org.apache.kafka.common.record.TimestampType").CREATE_TIME,
        jpype.JLong(0),
        jpype.JLong(-1),
        jpype.JLong(producer_id),
        jpype.JShort(3 if producer_id >= 0 else -1),
        jpype.JInt(11 if producer_id >= 0 else -1),
        kind == "transactional",
        jpype.JInt(-1),
    )
    for count in (1, 20, 300):
        builder.append(jpype.JLong(1000), None, jpype.JArray(jpype.JByte)(b"value" * count))
    return builder.build()


def java_request(kafka: KafkaClasses, version: int, partitions: list[Any], *, transactional: bool) -> bytes:
    """Return a request with one topic; the index of each partition is its position."""
    name = "org.apache.kafka.common.message.ProduceRequestData"
    topic = kafka.cls(f"{name}$TopicProduceData")()
    if version >= 13:
        topic.setTopicId(kafka.cls("org.apache.kafka.common.Uuid")(0x0001020304050607, 0x08090A0B0C0D0E0F))
    else:
        topic.setName("orders")
    for index, records in enumerate(partitions):
        topic.partitionData().add(kafka.cls(f"{name}$PartitionProduceData")().setIndex(index).setRecords(records))
    message = kafka.cls(name)().setAcks(start_jvm().JShort(-1)).setTimeoutMs(1000)
    if transactional:
        message.setTransactionalId("transfer")
    message.topicData().add(topic)
    return kafka.encode(message, version)


@pytest.mark.parametrize("kind", ["transactional", "idempotent", "plain"])
@pytest.mark.parametrize("version", range(3, 14))
def test_batches_that_kafka_wrote(version: int, kind: str) -> None:
    kafka = kafka_classes("4.4.0")
    ids = [-1, -1, -1] if kind == "plain" else [0, 4711, 2**62 + 1]
    partitions = [java_records(kafka, kind, producer_id) for producer_id in ids]
    body = java_request(kafka, version, partitions, transactional=kind == "transactional")
    expected = [
        (TOPIC_ID if version >= 13 else "orders", index, records.sizeInBytes(), producer_id)
        for index, (records, producer_id) in enumerate(zip(partitions, ids, strict=True))
    ]
    assert whole(version, body) == expected
    assert walk(version, body, [37] * len(body), splice=True).batches == expected


@pytest.mark.parametrize("kind", ["v0", "v1"])
@pytest.mark.parametrize("version", range(3))
def test_message_sets_that_kafka_wrote(version: int, kind: str) -> None:
    kafka = kafka_classes("3.9.1")
    records = java_records(kafka, kind, -1)
    sizes = [each.sizeInBytes() for each in records.batches()]
    assert len(sizes) == 3
    body = java_request(kafka, version, [records], transactional=False)
    assert whole(version, body) == [("orders", 0, size, -1) for size in sizes]


# Invalid requests.


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (b"", [(0, -1)]),
        (b"\x01" * 50, [(50, -1)]),
        pytest.param(batch(9)[:-1], [(len(batch(9)) - 1, -1)], id="cut off"),
        pytest.param(batch(9) + batch(8)[:30], [(len(batch(9)), 9), (30, -1)], id="second cut off"),
        pytest.param(batch(9)[:8] + b"\xff\xff\xff\xff" + batch(9)[12:], [(len(batch(9)), -1)], id="negative length"),
        pytest.param(batch(9)[:8] + bytes(4) + batch(9)[12:], [(len(batch(9)), -1)], id="no length"),
        pytest.param(batch(9)[:16] + b"\x03" + batch(9)[17:], [(len(batch(9)), 9)], id="a later format"),
    ],
)
@pytest.mark.parametrize("version", [2, 8, 9, 13])
def test_records_that_a_broker_would_refuse(version: int, records: bytes, expected: list[tuple[int, int]]) -> None:
    body = request(version, [("a", [records, batch(1)])])
    found = [(each.records_bytes, each.producer_id) for each in whole(version, body)]
    assert found == [*expected, (len(batch(1)), 1)]


def test_batches_beyond_the_cap_are_counted_and_not_kept() -> None:
    body = request(9, [("a", [batch(n) for n in range(MAX_BATCHES + 2)]), ("b", [None])])
    for walker in (walk(9, body, [len(body)], splice=False), walk(9, body, [97] * len(body), splice=False)):
        assert [each.producer_id for each in walker.batches] == list(range(MAX_BATCHES))
        assert walker.left_out_bytes == {
            ("a", MAX_BATCHES): len(batch(0)),
            ("a", MAX_BATCHES + 1): len(batch(0)),
            ("b", 0): 0,
        }
        assert walker.left_out_ids == [MAX_BATCHES, MAX_BATCHES + 1]


@pytest.mark.parametrize("version", [9, 12, 13])
def test_tagged_fields_are_skipped(version: int) -> None:
    tags = b"\x02\x00\x03abc\x05\x00"
    name = TOPIC_ID if version >= 13 else b"\x02a"
    records = batch(3)
    partition = struct.pack(">i", 4) + bytes([len(records) + 1]) + records + tags
    body = b"\x00" + bytes(6) + b"\x02" + name + b"\x03" + partition + partition + tags + tags
    found = [(TOPIC_ID if version >= 13 else "a", 4, len(records), 3)] * 2
    assert whole(version, body) == found
    for size in range(1, 12):
        assert walk(version, body, [size] * len(body), splice=True).batches == found


@pytest.mark.parametrize("version", [0, 3, 9, 13])
def test_fields_that_reach_beyond_the_frame_are_an_error(version: int) -> None:
    body = request(version, [("a", [batch(1)])])
    with pytest.raises(MalformedFrame):
        ProduceWalk(version, len(body) - 1).walk(bytearray(body), 0, len(body) - 1)


@pytest.mark.parametrize("version", [0, 3, 9, 13])
@pytest.mark.parametrize("splice", [False, True])
def test_bytes_after_the_last_field_are_skipped(version: int, splice: bool) -> None:
    """Brokers ignore these bytes. The walk ends at the end of the frame, with any split into windows."""
    body = request(version, [("a", [batch(1)])])
    alone = walk(version, body, [len(body)], splice=False).batches
    for size in (1, 3, len(body) + 7):
        assert walk(version, body + bytes(7), [size] * (len(body) + 7), splice=splice).batches == alone


@pytest.mark.parametrize(
    ("version", "body"),
    [
        pytest.param(9, b"\x81\x80\x02", id="a compact string of 32,768 bytes"),
        pytest.param(0, bytes(6) + b"\xff\xff\xff\xff", id="null topics"),
        pytest.param(0, bytes(6) + b"\xff\xff\xff\xfe", id="-2 topics"),
        pytest.param(9, bytes(7) + b"\x00", id="null topics, compact"),
        pytest.param(0, bytes(6) + b"\x00\x00\x00\x01\xff\xff" + bytes(4), id="a topic without a name"),
        pytest.param(9, bytes(7) + b"\x02\x00\x01", id="a topic without a name, compact"),
        pytest.param(0, bytes(6) + b"\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff", id="null partitions"),
        pytest.param(13, bytes(7) + b"\x02" + TOPIC_ID + b"\x00", id="null partitions, compact"),
        pytest.param(13, bytes(7) + b"\x02" + TOPIC_ID + b"\x02" + bytes(4) + b"\x7f", id="records beyond the frame"),
        pytest.param(9, bytes(7) + b"\x80\x80\x80\x80\x80\x00", id="a varint of 6 bytes"),
        pytest.param(9, bytes(7) + b"\x01\x01\x00\x40", id="a tagged field beyond the frame"),
        pytest.param(9, bytes(7) + b"\xff\xff\xff\xff\x0f", id="more topics than the frame holds"),
    ],
)
def test_lengths_and_counts_that_cannot_be_are_errors(version: int, body: bytes) -> None:
    frame = bytearray(body + bytes(20))
    with pytest.raises(MalformedFrame):
        ProduceWalk(version, len(frame)).walk(frame, 0, len(frame))


@pytest.mark.parametrize("null", [b"\xff\xff", b"\xff\xfe", b"\x80\x00"])
def test_every_negative_length_is_null(null: bytes) -> None:
    """As for a broker: of the transactional id, and of the records."""
    one = b"\x00\x00\x00\x01"
    body = null + bytes(6) + one + b"\x00\x01a" + one + bytes(4) + null + bytes(2)
    assert decode("ProduceRequest", 3, body)["topic_data"][0]["partition_data"][0]["records"] is None
    assert [batch.records_bytes for batch in walk(3, body, [len(body)], splice=False).batches] == [0]


@pytest.mark.parametrize("version", [-1, 14])
def test_an_unknown_version_is_our_fault(version: int) -> None:
    with pytest.raises(UnknownMessage, match=f"v{version}"):
        ProduceWalk(version, 10)


@given(st.integers(0, 13), st.binary(min_size=1, max_size=200), st.lists(st.integers(1, 20), max_size=20))
def test_garbage_ends_in_an_error_or_a_walk(version: int, garbage: bytes, chunks: list[int]) -> None:
    try:
        batches = whole(version, garbage)
    except MalformedFrame:
        with pytest.raises(MalformedFrame):
            walk(version, garbage, chunks, splice=False)
        return
    assert walk(version, garbage, chunks, splice=False).batches == batches


@given(st.data())
def test_one_changed_byte_ends_in_an_error_or_a_walk(data: st.DataObject) -> None:
    version = data.draw(st.integers(0, 13))
    body = bytearray(request(version, [("a", [batch(5), None]), ("b", [batch(6, 200)])], "tx"))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        batches = whole(version, bytes(body))
    except MalformedFrame:
        return
    assert walk(version, bytes(body), [11] * len(body), splice=True).batches == batches
