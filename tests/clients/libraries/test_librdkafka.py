"""confluent-kafka, and so librdkafka, through the proxy."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

POLL_S = 0.05
PARTITIONS = 40
ACKS = ("0", pytest.param("1", marks=pytest.mark.exhaustive), "all")


@pytest.fixture
def admin(front: Front) -> AdminClient:
    return AdminClient({"bootstrap.servers": front.bootstrap_servers})


@pytest.fixture
def topic(front: Front, admin: AdminClient) -> str:
    return create(front, admin, "librdkafka", 1)


def create(front: Front, admin: AdminClient, prefix: str, partitions: int) -> str:
    """A topic that takes large messages."""
    name = unique(prefix)
    wanted = NewTopic(name, num_partitions=partitions, config={"max.message.bytes": str(LARGE_LIMIT)})
    admin.create_topics([wanted], operation_timeout=DEADLINE_S)[name].result(DEADLINE_S)
    front.wait_for_topic(name, partitions)
    return name


@contextlib.contextmanager
def consuming(front: Front, group: str | None = None, **config: Any) -> Iterator[Consumer]:
    """A consumer that begins at the start and notices a rebalance at once."""
    settings = {
        "bootstrap.servers": front.bootstrap_servers,
        "group.id": group or unique("librdkafka"),
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        **{key.replace("_", "."): value for key, value in config.items()},
    }
    consumer = Consumer(settings)
    try:
        yield consumer
    finally:
        consumer.close()


def send(front: Front, topic: str, values: Sequence[bytes], **config: Any) -> None:
    """Produce, wait for every delivery report, and expect none to be an error."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    reports: list[tuple[KafkaError | None, Message]] = []
    with Producer({"bootstrap.servers": front.bootstrap_servers, "linger.ms": 20, **settings}) as producer:
        for value in values:
            producer.produce(topic, value, on_delivery=lambda error, message: reports.append((error, message)))
        assert producer.flush(DEADLINE_S) == 0
    assert len(reports) == len(values)
    assert [str(error) for error, _ in reports if error is not None] == []


def read(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next ``count`` messages."""
    found: list[bytes] = []

    def more() -> bool:
        message = consumer.poll(POLL_S)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            found.append(message.value() or b"")
        return len(found) >= count

    eventually(more, f"{count} messages; there are {len(found)}", pause_s=0)
    return found


def received(front: Front, topic: str, count: int, **config: Any) -> list[bytes]:
    """What lies in partition 0 of ``topic``, and that there are ``count`` of them."""
    with consuming(front, **config) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = read(consumer, count)
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    assert (low, high >= count) == (0, True)
    return values


@pytest.mark.parametrize("codec", CODEC_CASES)
def test_compression(front: Front, topic: str, codec: str) -> None:
    send(front, topic, SMALL[:100], compression_type=codec)
    assert received(front, topic, 100) == list(SMALL[:100])
    assert codecs_in_log(front, topic) == {codec}


@pytest.mark.parametrize("acks", ACKS)
def test_a_thousand_small_messages(front: Front, topic: str, acks: str) -> None:
    send(front, topic, SMALL, acks=acks)
    assert received(front, topic, len(SMALL)) == list(SMALL)


@pytest.mark.parametrize("size", LARGE_BYTES)
def test_large_messages(front: Front, topic: str, size: int) -> None:
    spliced = front.proxy.metric(SPLICED)
    send(front, topic, [large(size)], message_max_bytes=LARGE_LIMIT)
    (value,) = received(front, topic, 1, fetch_message_max_bytes=LARGE_LIMIT)
    assert digest(value) == digest(large(size))
    assert front.proxy.metric(SPLICED) - spliced > size


def test_many_partitions_in_one_fetch(front: Front, admin: AdminClient) -> None:
    """Replies of megabytes, in which heads of partitions lie between records of all sizes."""
    topic = create(front, admin, "librdkafka-many", PARTITIONS)
    values = [large(size) for size in range(1, 80_000, 399)]
    send(front, topic, values, partitioner="random")
    with consuming(front, fetch_max_bytes=50_000_000, fetch_min_bytes=1_000_000) as consumer:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found = read(consumer, len(values))
    assert sorted(map(digest, found)) == sorted(map(digest, values))


def test_idempotent_producer(front: Front, topic: str) -> None:
    send(front, topic, SMALL, enable_idempotence=True, batch_num_messages=50)
    assert received(front, topic, len(SMALL)) == list(SMALL)


def test_transactions(front: Front, topic: str) -> None:
    """One is aborted, one committed together with an offset of a group; who reads committed sees only the latter."""
    group = unique("librdkafka-transactions")
    settings = {"bootstrap.servers": front.bootstrap_servers, "transactional.id": unique("librdkafka")}
    with Producer(settings) as producer:
        producer.init_transactions(DEADLINE_S)
        for value, commits in ((b"aborted", False), (b"committed", True)):
            producer.begin_transaction()
            producer.produce(topic, value)
            assert producer.flush(DEADLINE_S) == 0
            if commits:
                with consuming(front, group) as member:
                    offsets = [TopicPartition(topic, 0, 1)]
                    producer.send_offsets_to_transaction(offsets, member.consumer_group_metadata(), DEADLINE_S)
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
    assert received(front, topic, 1, isolation_level="read_committed") == [b"committed"]
    assert received(front, topic, 2, isolation_level="read_uncommitted") == [b"aborted", b"committed"]
    with consuming(front, group) as consumer:
        (committed,) = consumer.committed([TopicPartition(topic, 0)], DEADLINE_S)
    assert committed.offset == 1


def test_classic_group_with_two_members(front: Front, admin: AdminClient) -> None:
    # The interval of heartbeats decides how soon a member learns of a rebalance.
    two_members(front, admin, group_protocol="classic", heartbeat_interval_ms=200)


def test_consumer_group_with_two_members(front43: Front) -> None:
    two_members(front43, AdminClient({"bootstrap.servers": front43.bootstrap_servers}), group_protocol="consumer")


def test_consumer_group_of_3_9_is_too_old_for_librdkafka(front39: Front) -> None:
    """It asks for version 1 of the heartbeat, where the early access of 3.9 has version 0."""
    log = ListHandler()
    logger = logging.getLogger(unique("librdkafka"))
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(log)
    with consuming(front39, group_protocol="consumer", debug="cgrp", logger=logger) as consumer:
        consumer.subscribe([unique("librdkafka")])

        def refused() -> bool:
            consumer.poll(POLL_S)
            return any("ConsumerGroupHeartbeatRequest not supported by broker" in line for line in log.lines)

        eventually(refused, "librdkafka reports what the broker lacks", pause_s=0)


class ListHandler(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def two_members(front: Front, admin: AdminClient, **config: Any) -> None:
    """The second member takes half of the partitions, and gives them back when it leaves."""
    topic, group = create(front, admin, "librdkafka-group", 4), unique("librdkafka-group")
    with consuming(front, group, **config) as first:
        first.subscribe([topic])
        eventually(lambda: polled(first) == 4, "the first member has all partitions", pause_s=0)
        with consuming(front, group, **config) as second:
            second.subscribe([topic])
            eventually(lambda: (polled(first), polled(second)) == (2, 2), "each member has two", pause_s=0)
            shared = {each.partition for member in (first, second) for each in member.assignment()}
            assert shared == {0, 1, 2, 3}
        eventually(lambda: polled(first) == 4, "the first member has all partitions again", pause_s=0)
        send(front, topic, SMALL[:100])
        assert sorted(read(first, 100)) == sorted(SMALL[:100])
        first.commit(asynchronous=False)
        committed = first.committed(first.assignment(), DEADLINE_S)
    assert sum(each.offset for each in committed if each.offset > 0) == 100


def polled(consumer: Consumer) -> int:
    """Let a member do its part in a rebalance, and return how many partitions it has."""
    message = consumer.poll(POLL_S)
    assert message is None
    return len(consumer.assignment())


def test_share_consumer(front43: Front) -> None:
    """Queues (KIP-932) are of 4.2 and newer. An offset that is released comes again, one that is accepted does not."""
    admin = AdminClient({"bootstrap.servers": front43.bootstrap_servers})
    topic, group = create(front43, admin, "librdkafka-share", 1), unique("librdkafka-share")
    from_start = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[from_start])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    wanted = SMALL[:10]
    send(front43, topic, wanted)
    settings = {
        "bootstrap.servers": front43.bootstrap_servers,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    found: list[bytes] = []
    with ShareConsumer(settings) as consumer:
        consumer.subscribe([topic])

        def more() -> bool:
            for message in consumer.poll(POLL_S):
                again = message.value() in found
                release = message.offset() == 3 and not again
                found.append(message.value() or b"")
                consumer.acknowledge(message, AcknowledgeType.RELEASE if release else AcknowledgeType.ACCEPT)
            results = consumer.commit_sync(DEADLINE_S)
            assert [error for error in results.values() if error is not None] == []
            return len(found) > len(wanted)

        eventually(more, "ten messages and one again", pause_s=0)
    assert sorted(found) == sorted([*wanted, wanted[3]])


def test_has_no_admin_of_client_quotas() -> None:
    assert [name for name in dir(AdminClient) if "quota" in name] == []


def test_admin(front: Front, admin: AdminClient) -> None:
    topic = create(front, admin, "librdkafka-admin", 2)
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert {(node.host, node.port) for node in cluster.nodes} == front.addresses
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    front.wait_for_topic(topic, 3)
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S)
    leaders = {(each.leader.host, each.leader.port) for each in described.partitions}
    assert (len(described.partitions), leaders <= front.addresses) == (3, True)

    resource = ConfigResource(ResourceType.TOPIC, topic)
    change = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(change)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def retention_ms() -> str:
        return str(admin.describe_configs([resource])[resource].result(DEADLINE_S)["retention.ms"].value)

    eventually(lambda: retention_ms() == "3600000", "the config is changed")

    send(front, topic, SMALL[:10], partitioner="consistent")
    latest = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(3)}
    ends = [future.result(DEADLINE_S).offset for future in admin.list_offsets(latest).values()]
    assert sum(ends) == 10

    admin.delete_topics([topic], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)
    eventually(lambda: topic not in admin.list_topics(timeout=DEADLINE_S).topics, "the topic is gone")


def test_admin_of_groups(front: Front, admin: AdminClient, topic: str) -> None:
    group = unique("librdkafka-admin")
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    altered = admin.alter_consumer_group_offsets([offsets])[group].result(DEADLINE_S)
    assert [each.error for each in altered.topic_partitions] == [None]
    listed = admin.list_consumer_groups().result(DEADLINE_S)
    assert group in {each.group_id for each in listed.valid}
    assert listed.errors == []
    described = admin.describe_consumer_groups([group])[group].result(DEADLINE_S)
    assert (described.coordinator.host, described.coordinator.port) in front.addresses
    wanted = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([wanted])[group].result(DEADLINE_S)
    assert [each.offset for each in found.topic_partitions] == [7]
    admin.delete_consumer_groups([group])[group].result(DEADLINE_S)
    assert group not in {each.group_id for each in admin.list_consumer_groups().result(DEADLINE_S).valid}
