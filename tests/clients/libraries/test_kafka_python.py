"""kafka-python 3 through the proxy."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import aiokafka.codec
import aiokafka.record.util
import pytest

from tests.clients.fronts import DEADLINE_S, Front, eventually, unique
from tests.clients.libraries.payloads import (
    CODEC_CASES,
    LARGE_BYTES,
    LARGE_LIMIT,
    SMALL,
    SPLICED,
    codecs_in_log,
    digest,
    large,
)

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
    from kafka.errors import KafkaConfigurationError, NoError
    from kafka.structs import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_MS = 50


@pytest.fixture(autouse=True)
def compressors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give kafka-python aiokafka's compiled codecs, instead of installing four more packages for its own."""
    records = "kafka.record.default_records"
    for name in ("snappy", "lz4", "zstd"):
        monkeypatch.setattr(f"kafka.codec.{name}", aiokafka.codec)
        for function in (f"{name}_encode", f"{name}_decode"):
            monkeypatch.setattr(f"{records}.{function}", getattr(aiokafka.codec, function))
    monkeypatch.setattr(f"{records}.calc_crc32c", lambda data: aiokafka.record.util.calc_crc32c(bytes(data)))


@pytest.fixture
def admin(front: Front) -> Iterator[KafkaAdminClient]:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=front.bootstrap_servers)) as client:
        yield client


@pytest.fixture
def topic(front: Front, admin: KafkaAdminClient) -> str:
    return create(front, admin, "kafka-python", 1)


def create(front: Front, admin: KafkaAdminClient, prefix: str, partitions: int) -> str:
    """A topic that takes large messages."""
    name, configs = unique(prefix), {"max.message.bytes": str(LARGE_LIMIT)}
    admin.create_topics({name: {"num_partitions": partitions, "configs": configs}})
    front.wait_for_topic(name, partitions)
    return name


@contextlib.contextmanager
def consuming(front: Front, group: str | None = None, **config: Any) -> Iterator[KafkaConsumer]:
    """A consumer that begins at the start; with a group, one that notices a rebalance at once."""
    consumer = KafkaConsumer(
        bootstrap_servers=front.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        **config,
    )
    with contextlib.closing(consumer):
        yield consumer


def send(front: Front, topic: str, values: Sequence[bytes], **config: Any) -> None:
    """Produce, and wait until every message has arrived."""
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=front.bootstrap_servers, linger_ms=20, **config)
    ) as producer:
        futures = [producer.send(topic, value) for value in values]
        producer.flush(DEADLINE_S)
        assert {future.get(DEADLINE_S).topic for future in futures} == {topic}


def read(consumer: KafkaConsumer, count: int) -> list[bytes]:
    """The values of the next ``count`` messages."""
    found: list[bytes] = []

    def more() -> bool:
        for messages in consumer.poll(POLL_MS).values():
            found.extend(message.value for message in messages)
        return len(found) >= count

    eventually(more, f"{count} messages; there are {len(found)}", pause_s=0)
    return found


def received(front: Front, topic: str, count: int, **config: Any) -> list[bytes]:
    """What lies in partition 0 of ``topic``, when there are ``count`` messages or more."""
    with consuming(front, **config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return read(consumer, count)


@pytest.mark.parametrize("codec", CODEC_CASES)
def test_compression(front: Front, topic: str, codec: str) -> None:
    send(front, topic, SMALL[:100], compression_type=None if codec == "none" else codec)
    assert received(front, topic, 100) == list(SMALL[:100])
    assert codecs_in_log(front, topic) == {codec}


@pytest.mark.parametrize("acks", [0, pytest.param(1, marks=pytest.mark.exhaustive), "all"])
def test_a_thousand_small_messages(front: Front, topic: str, acks: int | str) -> None:
    send(front, topic, SMALL, acks=acks, enable_idempotence=False)
    assert received(front, topic, len(SMALL)) == list(SMALL)


@pytest.mark.parametrize("size", LARGE_BYTES)
def test_large_messages(front: Front, topic: str, size: int) -> None:
    spliced = front.proxy.metric(SPLICED)
    send(front, topic, [large(size)], max_request_size=LARGE_LIMIT)
    (value,) = received(front, topic, 1, max_partition_fetch_bytes=LARGE_LIMIT)
    assert digest(value) == digest(large(size))
    assert front.proxy.metric(SPLICED) - spliced > size


def test_idempotent_producer(front: Front, topic: str) -> None:
    send(front, topic, SMALL, enable_idempotence=True, batch_size=2048)
    assert received(front, topic, len(SMALL)) == list(SMALL)


def test_transactions(front: Front, topic: str) -> None:
    """One is aborted, one committed together with an offset of a group; who reads committed sees only the latter."""
    group, partition = unique("kafka-python-transactions"), TopicPartition(topic, 0)
    producer = KafkaProducer(bootstrap_servers=front.bootstrap_servers, transactional_id=unique("kafka-python"))
    with contextlib.closing(producer):
        producer.init_transactions()
        for value, commits in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.send(topic, value)
            producer.flush(DEADLINE_S)
            if commits:
                with consuming(front, group) as member:
                    offsets = {partition: OffsetAndMetadata(1, "", -1)}
                    producer.send_offsets_to_transaction(offsets, member.group_metadata())
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert received(front, topic, 1, isolation_level="read_committed") == [b"committed"]
    assert received(front, topic, 2, isolation_level="read_uncommitted") == [b"aborted", b"committed"]
    with consuming(front, group) as consumer:
        assert consumer.committed(partition) == 1


def test_classic_group_with_two_members(front: Front, admin: KafkaAdminClient) -> None:
    """The second member takes half of the partitions, and gives them back when it leaves."""
    topic, group = create(front, admin, "kafka-python-group", 4), unique("kafka-python-group")
    with consuming(front, group) as first:
        join(first, topic)
        eventually(lambda: polled(first) == 4, "the first member has all partitions", pause_s=0)
        with consuming(front, group) as second:
            join(second, topic)
            eventually(lambda: (polled(first), polled(second)) == (2, 2), "each member has two", pause_s=0)
            assert {each.partition for member in (first, second) for each in member.assignment()} == {0, 1, 2, 3}
        eventually(lambda: polled(first) == 4, "the first member has all partitions again", pause_s=0)
        send(front, topic, SMALL[:100])
        assert sorted(read(first, 100)) == sorted(SMALL[:100])
        first.commit()
        assert sum(first.committed(each) or 0 for each in first.assignment()) == 100


def join(consumer: KafkaConsumer, topic: str) -> None:
    """Subscribe, and learn of the topic before the first poll.

    When a member of kafka-python 3.0.12 learns of it only after it has joined, it joins once more, and forgets that
    assignment if the poll ends before it arrives (``join_group_async`` asks ``need_rejoin`` again): so without a proxy.
    """
    consumer.subscribe([topic])
    assert consumer.partitions_for_topic(topic) == {0, 1, 2, 3}


def polled(consumer: KafkaConsumer) -> int:
    """Let a member do its part in a rebalance, and return how many partitions it has."""
    assert consumer.poll(POLL_MS) == {}
    return len(consumer.assignment())


def test_has_no_groups_of_kip_848() -> None:
    with pytest.raises((KafkaConfigurationError, AssertionError), match="group_protocol"):
        KafkaConsumer(group_protocol="consumer")


def test_has_no_share_consumer() -> None:
    assert [name for name in dir(kafka) if "share" in name.lower()] == []


def test_has_no_admin_of_client_quotas() -> None:
    assert [name for name in dir(KafkaAdminClient) if "quota" in name] == []


def test_admin(front: Front, admin: KafkaAdminClient) -> None:
    topic = create(front, admin, "kafka-python-admin", 2)
    cluster = admin.describe_cluster()
    assert {(broker["host"], broker["port"]) for broker in cluster["brokers"]} == front.addresses
    admin.create_partitions({topic: 3})
    front.wait_for_topic(topic, 3)
    (described,) = admin.describe_topics([topic])
    assert (described["name"], len(described["partitions"])) == (topic, 3)

    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})])

    def retention_ms() -> str:
        return str(admin.describe_configs([resource])["topic"][topic]["retention.ms"]["value"])

    eventually(lambda: retention_ms() == "3600000", "the config is changed")

    send(front, topic, SMALL[:10])
    latest = admin.list_partition_offsets({TopicPartition(topic, number): OffsetSpec.LATEST for number in range(3)})
    assert sum(each.offset for each in latest.values()) == 10

    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), "the topic is gone")


def test_admin_of_groups(front: Front, admin: KafkaAdminClient, topic: str) -> None:
    group, partition = unique("kafka-python-admin"), TopicPartition(topic, 0)
    assert admin.alter_group_offsets(group, {partition: OffsetAndMetadata(7, "", -1)}) == {partition: NoError}
    assert group in {each["group_id"] for each in admin.list_groups()}
    assert admin.list_group_offsets({group: [partition]})[group][partition].offset == 7
    assert group in str(admin.describe_groups([group]))
    admin.delete_groups([group])
    assert group not in {each["group_id"] for each in admin.list_groups()}
