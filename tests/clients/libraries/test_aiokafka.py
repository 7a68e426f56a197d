"""aiokafka through the proxy. It needs asyncio, which the rest of the project bans: each test has a loop of its own."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client under test runs on it
import contextlib
from typing import TYPE_CHECKING, Any

import aiokafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.clients.fronts import DEADLINE_S, Front, unique
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

POLL_MS = 50


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run one test's work in a loop, with a deadline for all of it."""

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await work

    asyncio.run(limited())


@contextlib.asynccontextmanager
async def administering(front: Front) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=front.bootstrap_servers)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create(front: Front, prefix: str = "aiokafka", partitions: int = 1) -> str:
    """A topic that takes large messages."""
    name = unique(prefix)
    replicas = len(front.cluster.brokers)
    wanted = NewTopic(name, partitions, replicas, topic_configs={"max.message.bytes": str(LARGE_LIMIT)})
    async with administering(front) as admin:
        reply = await admin.create_topics([wanted])
    assert [error[1] for error in reply.topic_errors] == [0]
    front.wait_for_topic(name, partitions)
    return name


@contextlib.asynccontextmanager
async def consuming(front: Front, group: str | None = None, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that begins at the start; with a group, one that notices a rebalance at once."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=front.bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=200,
        fetch_max_wait_ms=100,
        **config,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


@contextlib.asynccontextmanager
async def producing(front: Front, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(bootstrap_servers=front.bootstrap_servers, linger_ms=20, **config)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(front: Front, topic: str, values: Sequence[bytes], **config: Any) -> None:
    """Produce, and wait until every message has arrived."""
    async with producing(front, **config) as producer:
        arrivals = [await producer.send(topic, value) for value in values]
        await producer.flush()
        await asyncio.gather(*arrivals)


async def read(consumer: AIOKafkaConsumer, count: int) -> list[bytes]:
    """The values of the next ``count`` messages."""
    found: list[bytes] = []
    while len(found) < count:
        for messages in (await consumer.getmany(timeout_ms=POLL_MS)).values():
            found.extend(message.value for message in messages)
    return found


async def received(front: Front, topic: str, count: int, **config: Any) -> list[bytes]:
    """What lies in partition 0 of ``topic``, when there are ``count`` messages or more."""
    async with consuming(front, **config) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return await read(consumer, count)


@pytest.mark.parametrize("codec", CODEC_CASES)
def test_compression(front: Front, codec: str) -> None:
    async def work() -> None:
        topic = await create(front)
        await send(front, topic, SMALL[:100], compression_type=None if codec == "none" else codec)
        assert await received(front, topic, 100) == list(SMALL[:100])
        assert codecs_in_log(front, topic) == {codec}

    run(work())


@pytest.mark.parametrize("acks", [0, pytest.param(1, marks=pytest.mark.exhaustive), "all"])
def test_a_thousand_small_messages(front: Front, acks: int | str) -> None:
    async def work() -> None:
        topic = await create(front)
        await send(front, topic, SMALL, acks=acks)
        assert await received(front, topic, len(SMALL)) == list(SMALL)

    run(work())


@pytest.mark.parametrize("size", LARGE_BYTES)
def test_large_messages(front: Front, size: int) -> None:
    async def work() -> None:
        topic = await create(front)
        spliced = front.proxy.metric(SPLICED)
        await send(front, topic, [large(size)], max_request_size=LARGE_LIMIT)
        (value,) = await received(front, topic, 1, max_partition_fetch_bytes=LARGE_LIMIT)
        assert digest(value) == digest(large(size))
        assert front.proxy.metric(SPLICED) - spliced > size

    run(work())


def test_idempotent_producer(front: Front) -> None:
    async def work() -> None:
        topic = await create(front)
        await send(front, topic, SMALL, enable_idempotence=True, max_batch_size=2048)
        assert await received(front, topic, len(SMALL)) == list(SMALL)

    run(work())


def test_transactions(front: Front) -> None:
    """One is aborted, one committed together with an offset of a group; who reads committed sees only the latter."""

    async def work() -> None:
        topic, group = await create(front), unique("aiokafka-transactions")
        partition = TopicPartition(topic, 0)
        async with producing(front, transactional_id=unique("aiokafka")) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"aborted")
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"committed")
            await producer.send_offsets_to_transaction({partition: 1}, group)
            await producer.commit_transaction()
        assert await received(front, topic, 1, isolation_level="read_committed") == [b"committed"]
        both = await received(front, topic, 2, isolation_level="read_uncommitted")
        assert both == [b"aborted", b"committed"]
        async with consuming(front, group) as consumer:
            assert await consumer.committed(partition) == 1

    run(work())


def test_classic_group_with_two_members(front: Front) -> None:
    """The second member takes half of the partitions, and gives them back when it leaves."""

    async def work() -> None:
        topic, group = await create(front, "aiokafka-group", 4), unique("aiokafka-group")
        async with consuming(front, group) as first:
            first.subscribe([topic])
            await until(lambda: shares(4, first))
            async with consuming(front, group) as second:
                second.subscribe([topic])
                await until(lambda: shares(2, first, second))
                assert {each.partition for member in (first, second) for each in member.assignment()} == {0, 1, 2, 3}
            await until(lambda: shares(4, first))
            await send(front, topic, SMALL[:100])
            assert sorted(await read(first, 100)) == sorted(SMALL[:100])
            await first.commit()
            committed = [await first.committed(each) for each in first.assignment()]
        assert sum(offset or 0 for offset in committed) == 100

    run(work())


async def shares(count: int, *members: AIOKafkaConsumer) -> bool:
    """Let each member do its part in a rebalance, and return whether each has ``count`` partitions."""
    for member in members:
        assert await member.getmany(timeout_ms=POLL_MS) == {}
    return all(len(member.assignment()) == count for member in members)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again; `run` has the deadline."""
    while not await condition():
        pass


def test_has_no_groups_of_kip_848() -> None:
    async def work() -> None:
        with pytest.raises(TypeError, match="group_protocol"):
            AIOKafkaConsumer(group_protocol="consumer")

    run(work())


def test_has_no_share_consumer() -> None:
    assert [name for name in dir(aiokafka) if "share" in name.lower()] == []


def test_has_no_admin_of_client_quotas_nor_deletion_of_groups() -> None:
    names = dir(AIOKafkaAdminClient)
    assert [name for name in names if "quota" in name or ("delete" in name and "group" in name)] == []


def test_admin(front: Front) -> None:
    async def work() -> None:
        topic = await create(front, "aiokafka-admin", 2)
        async with administering(front) as admin:
            cluster = await admin.describe_cluster()
            assert {(each["host"], each["port"]) for each in cluster["brokers"]} == front.addresses
            await admin.create_partitions({topic: NewPartitions(3)})
            front.wait_for_topic(topic, 3)
            (described,) = await admin.describe_topics([topic])
            assert len(described["partitions"]) == 3

            change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "3600000"})
            (reply,) = await admin.alter_configs([change])
            assert [resource[0] for resource in reply.resources] == [0]
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)

            async def is_changed() -> bool:
                (described,) = await admin.describe_configs([resource])
                return "('retention.ms', '3600000'" in str(described.resources)

            await until(is_changed)
            await admin.delete_topics([topic])

            async def is_gone() -> bool:
                return topic not in await admin.list_topics()

            await until(is_gone)

    run(work())


def test_admin_of_groups(front: Front) -> None:
    async def work() -> None:
        topic, group = await create(front), unique("aiokafka-admin")
        partition = TopicPartition(topic, 0)
        async with consuming(front, group, enable_auto_commit=False) as member:
            member.assign([partition])
            await member.commit({partition: 7})
        async with administering(front) as admin:
            assert group in {name for name, *_ in await admin.list_consumer_groups()}
            offsets = await admin.list_consumer_group_offsets(group)
            assert offsets[partition].offset == 7
            (described,) = await admin.describe_consumer_groups([group])
            assert group in str(described)

    run(work())
