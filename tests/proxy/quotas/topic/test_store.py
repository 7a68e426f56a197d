"""The store in a topic: what every store does, on a log in memory and on a real broker; what only a broker shows."""

from __future__ import annotations

import dataclasses
import math
import struct
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import hypothesis
import pytest
import structlog
import trio
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from hypothesis import given

from headrace.proxy.quotas.follower import INTERVAL_S
from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic import replica as topic_replica
from headrace.proxy.quotas.topic.clients import TopicSettings
from headrace.proxy.quotas.topic.creation import topic_config
from headrace.proxy.quotas.topic.records import record_key
from headrace.proxy.quotas.topic.replica import KafkaLog
from headrace.proxy.quotas.topic.store import NEVER_READ, TopicStore
from headrace.proxy.wire.mutations import NO_ID
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import QuotaEntity
from tests.clients.wire_connection import WireConnection
from tests.faults.waiting import wait_until
from tests.proxy.quotas.store_contract import (
    ALICE,
    AUTHOR,
    Place,
    StoreContract,
    alteration,
    compare_with_a_dictionary,
    opened,
    since,
    steps,
)
from tests.proxy.quotas.topic.log_in_memory import MemoryLog, MemoryTopic

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from headrace.proxy.quotas.store import Alteration, QuotaStore
    from testbed.kafka.cluster import KafkaCluster
    from tests.shared_cluster import FirstBroker

DAY_MS = 86_400_000
METADATA_VERSION = 12


def settings(cluster: KafkaCluster | FirstBroker | str, topic: str | None = None, **other: str) -> TopicSettings:
    """Return the settings of a new topic, or of this one."""
    servers = cluster if isinstance(cluster, str) else cluster.bootstrap_servers
    name = f"quotas-{uuid4().hex}" if topic is None else topic
    return TopicSettings(topic=name, properties={"bootstrap.servers": servers, **other}, history_ms=DAY_MS)


def on(found: TopicSettings, *, waits: bool = True, timeout_s: float = 20.0) -> TopicStore:
    return TopicStore(KafkaLog(found), waits=waits, timeout_s=timeout_s)


class TestTopicStoreInMemory(StoreContract):
    """The contract, on a log in memory."""

    @pytest.fixture
    def new_place(self) -> Callable[[], Place]:
        def place() -> Place:
            topic = MemoryTopic()
            return lambda: TopicStore(MemoryLog(topic))

        return place


class TestTopicStore:
    """What of the contract depends on Kafka, on a topic of a real broker."""

    test_names_are_opaque = StoreContract.test_names_are_opaque
    test_numbers_come_back_exactly = StoreContract.test_numbers_come_back_exactly
    test_what_one_object_changes_the_others_learn = StoreContract.test_what_one_object_changes_the_others_learn
    test_concurrent_writers_lose_no_change = StoreContract.test_concurrent_writers_lose_no_change
    test_a_closed_store_refuses = StoreContract.test_a_closed_store_refuses

    @pytest.fixture
    def new_place(self, kafka3: KafkaCluster) -> Callable[[], Place]:
        return lambda: partial(on, settings(kafka3))

    def test_it_behaves_as_a_dictionary(self, new_place: Callable[[], Place]) -> None:
        """With a sixth of the profile's examples, since each has a topic of its own. The log in memory has all."""

        @hypothesis.settings(max_examples=hypothesis.settings.default.max_examples // 6)
        @given(steps=steps)
        def check(steps: Sequence[str | Sequence[Alteration]]) -> None:
            trio.run(compare_with_a_dictionary, new_place(), steps)

        check()


@pytest.mark.exhaustive
class TestTopicStoreCompletely(TestTopicStore, StoreContract):
    """The whole contract, on a topic of a real broker."""


def admin(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


def create(cluster: KafkaCluster, topic: str, *, partitions: int = 1, replicas: int = 1, **config: str) -> None:
    properties = {name.replace("_", "."): value for name, value in config.items()}
    new = NewTopic(topic, partitions, replicas, config=properties)
    client = admin(cluster)  # which must be referred to until it has answered
    client.create_topics([new])[topic].result(60)
    wait_until_known(cluster, topic)


def delete(cluster: KafkaCluster, topic: str) -> None:
    """Delete a topic, and wait until no broker knows it: one that lags behind goes on to serve it."""
    client = admin(cluster)
    client.delete_topics([topic])[topic].result(60)
    wait_until(lambda: topic_ids(cluster, topic) == {NO_ID}, f"{topic} is gone", 60)


def wait_until_known(cluster: KafkaCluster, topic: str) -> None:
    """Wait until all brokers know a topic, since any of them may be asked."""
    wait_until(lambda: NO_ID not in topic_ids(cluster, topic), f"all brokers know {topic}", 60)


def topic_ids(cluster: KafkaCluster, topic: str) -> set[bytes]:
    """Return the ids that the brokers have for a topic; `NO_ID` of one that does not know it."""
    request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    found = set()
    for broker in cluster.brokers:
        with WireConnection((broker.host, broker.port)) as connection:
            found.add(connection.ask(ApiKey.METADATA, METADATA_VERSION, request)["topics"][0]["topic_id"])
    return found


def config_of(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    wait_until_known(cluster, topic)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    client = admin(cluster)
    found = client.describe_configs([resource])[resource].result(60)
    return {name: str(entry.value) for name, entry in found.items()}


async def test_a_new_topic_has_the_right_settings(kafka3: KafkaCluster) -> None:
    for replicas, insync in ((None, "2"), (1, "1")):
        wanted = dataclasses.replace(settings(kafka3), replication_factor=replicas)
        async with opened(partial(on, wanted)):
            found = config_of(kafka3, wanted.topic)
            client = admin(kafka3)
            (described,) = client.describe_topics(TopicCollection([wanted.topic])).values()
            assert [len(each.replicas) for each in described.result(60).partitions] == [replicas or 3]
        expected = topic_config(replicas or 3, DAY_MS)
        assert {name: found[name] for name in expected} == expected
        assert (found["cleanup.policy"], found["min.insync.replicas"]) == ("compact", insync)
        assert found["min.compaction.lag.ms"] == str(DAY_MS)


@pytest.mark.parametrize(
    ("partitions", "config", "message"),
    [
        (2, {"cleanup_policy": "compact"}, r"has 2 partitions and must have 1.*set another topic"),
        (1, {}, r"cleanup\.policy = delete and must be compact"),
        (1, {"cleanup_policy": "compact,delete"}, r"cleanup\.policy = compact,delete and must be compact"),
    ],
)
async def test_a_topic_that_cannot_keep_quotas_is_refused(
    kafka3: KafkaCluster, partitions: int, config: dict[str, str], message: str
) -> None:
    found = settings(kafka3)
    create(kafka3, found.topic, partitions=partitions, **config)
    for waits in (True, False):
        store = on(found, waits=waits)
        with trio.fail_after(30), pytest.raises(StoreError, match=rf"{found.topic}.*{message}"):
            await store.open()
        await store.close()


async def test_weak_settings_of_a_topic_are_logged(kafka3: KafkaCluster) -> None:
    found = settings(kafka3)
    create(kafka3, found.topic, replicas=3, cleanup_policy="compact", min_insync_replicas="1")
    with structlog.testing.capture_logs() as lines:
        async with opened(partial(on, found)):
            pass
    low = {line["setting"] for line in lines if line["event"] == "a setting of the topic of quotas is low"}
    assert low == {"min.insync.replicas", "min.compaction.lag.ms", "delete.retention.ms"}


def batches_of(cluster: KafkaCluster, topic: str) -> list[range]:
    """Return the offsets of the record batches of a topic, from the files of one of its brokers.

    A batch begins with its base offset (INT64) and its length (INT32); its last offset delta (INT32) is at byte 23.
    """
    for broker in cluster.brokers:
        segments = sorted(broker.log_directory.rglob(f"{topic}-0/*.log"))
        if segments:
            data = b"".join(each.read_bytes() for each in segments)
            break
    found: list[range] = []
    while data[12:]:
        base, length = struct.unpack_from(">qi", data)
        if length <= 0:
            break
        (last,) = struct.unpack_from(">i", data, 23)
        found.append(range(base, base + last + 1))
        data = data[12 + length :]
    return found


async def test_an_alteration_is_one_record_batch(kafka3: KafkaCluster) -> None:
    """What readers and crashes leave whole. One call has a single entity, others are large or come at once."""
    found = settings(kafka3)
    async with opened(partial(on, found)) as store:
        first = await store.alter([alteration(ALICE, a=1.0, b=2.0, c=3.0)], AUTHOR)
        many = [
            alteration(QuotaEntity(user=f"u{number}"), **{f"{key}" * 100: 1.0 for key in "abcdefg"})
            for number in range(1_500)
        ]
        all_changes = [first, await store.alter(many, AUTHOR)]

        async def alter(number: int) -> None:
            all_changes.append(await store.alter([alteration(ALICE, a=number + 2.0, **{f"d{number}": 1.0})], AUTHOR))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(alter, number)
    batches = batches_of(kafka3, found.topic)
    batch_of = {offset: each for each in batches for offset in each}
    for changes in all_changes:
        by_entity: dict[QuotaEntity, set[range]] = {}
        for change in changes:
            by_entity.setdefault(change.entity, set()).add(batch_of[change.sequence - 1])
        assert {len(each) for each in by_entity.values()} == {1}
    assert len(batches) < 50


async def test_two_proxies_converge_with_their_next_questions(kafka3: KafkaCluster) -> None:
    """With followers that ask four times a second, as proxies do, and changes at both.

    The first question after a change was acknowledged finds it. How long its answer takes is up to the machine.
    """
    assert INTERVAL_S <= 0.25
    place = partial(on, settings(kafka3))
    async with opened(place) as one, opened(place) as two:
        seen: dict[str, float] = {}
        """When the question before the one that found a change was asked."""
        all_seen = trio.Event()

        async def follow(store: QuotaStore, name: str, position: int) -> None:
            before_s = -math.inf
            while True:
                await trio.sleep(INTERVAL_S)
                asked_s = trio.current_time()
                for change in await since(store, position):
                    position = change.sequence
                    seen[f"{name} {change.entity.user} {change.new}"] = before_s
                before_s = asked_s
                if len(seen) == 20:
                    all_seen.set()

        acknowledged: dict[str, float] = {}
        async with trio.open_nursery() as nursery:
            for name, store in (("one", one), ("two", two)):
                nursery.start_soon(follow, store, name, (await store.snapshot()).sequence)
            for turn in range(1, 6):
                for name, store in (("one", one), ("two", two)):
                    await store.alter([alteration(QuotaEntity(user=name), request_percentage=turn)], AUTHOR)
                    acknowledged[f"{name} {turn:.1f}"] = trio.current_time()
            with trio.fail_after(30):
                await all_seen.wait()
            nursery.cancel_scope.cancel()
        late_s = {key: before_s - acknowledged[key.partition(" ")[2]] for key, before_s in seen.items()}
        assert max(late_s.values()) <= 0.0, "a question after the change was answered without it"
        assert await one.snapshot() == await two.snapshot()


async def test_what_others_write_to_the_topic_harms_nobody(kafka3: KafkaCluster) -> None:
    found = settings(kafka3)
    async with opened(partial(on, found)) as store:
        await store.alter([alteration(ALICE, a=1.0, b=1.0), alteration(QuotaEntity(user="bob"), a=1.0)], AUTHOR)
        position = (await store.snapshot()).sequence
        producer = Producer({"bootstrap.servers": kafka3.bootstrap_servers})
        key = record_key(ALICE, "a")
        hostile = ((b"", b"1"), (b"\xff", b"1"), (b"[" * 100_000, b"1"), (key, b"NaN"), (key, b"2" * 999))
        for hostile_key, value in hostile:
            producer.produce(found.topic, value, hostile_key, headers=[("change", b"[" * 50_000)])
        producer.produce(found.topic, b"7", record_key(ALICE, "b"))
        assert producer.flush(60) == 0
        with structlog.testing.capture_logs() as lines:
            changes = await since(store, position)
        assert [(each.key, each.old, each.new) for each in changes] == [("a", 1.0, None), ("b", 1.0, 7.0)]
        assert [line["event"] for line in lines] == [
            "a record of the topic of quotas is ignored",
            "a record of the topic of quotas removes the quota, since its value is invalid",
        ]
        assert changes[0].author.principal == "unknown"


async def test_a_change_that_the_cluster_refuses_changes_nothing(kafka3: KafkaCluster, rng: random.Random) -> None:
    found = settings(kafka3)
    create(kafka3, found.topic, cleanup_policy="compact", max_message_bytes="2000")
    long = QuotaEntity(user=rng.randbytes(5_000).hex())  # which cannot be compressed to less
    async with opened(partial(on, found)) as store:
        await store.alter([alteration(ALICE, a=1.0)], AUTHOR)
        before = await store.snapshot()
        with pytest.raises(StoreError, match="the cluster has refused the change") as refused:
            await store.alter([alteration(ALICE, a=2.0), alteration(long, a=1.0)], AUTHOR)
        assert type(refused.value) is StoreError, "it is certain that nothing was changed"
        assert await store.snapshot() == before
        assert len(await store.alter([alteration(ALICE, a=2.0)], AUTHOR)) == 1


async def test_serving_without_the_cluster() -> None:
    store = on(settings("127.0.0.1:1"), waits=False, timeout_s=0.2)
    with trio.fail_after(30):
        snapshot = await store.open()
        assert (snapshot.sequence, snapshot.quotas) == (NEVER_READ, {})
        for call in (
            partial(store.changes_since, NEVER_READ),
            partial(store.alter, [alteration(ALICE, a=1.0)], AUTHOR),
        ):
            with pytest.raises(StoreTimeoutError, match=r"cannot be reached|no answer"):
                await call()
        await store.close()


async def test_the_event_loop_has_turns_while_a_topic_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also at start: the admin server answers meanwhile."""
    topic = MemoryTopic()
    writer = TopicStore(MemoryLog(topic))
    await writer.open()
    await writer.alter([alteration(ALICE, a=1.0, b=2.0)], AUTHOR)
    await writer.close()
    paused: list[float] = []
    monkeypatch.setattr(topic_replica.time, "sleep", paused.append)
    reader = TopicStore(MemoryLog(topic))
    await reader.open()
    assert paused
    await reader.close()
