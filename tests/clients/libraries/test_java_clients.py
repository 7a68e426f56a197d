"""Java's clients inside this process, through the proxy: kafka-clients 4.4 in full, newer than the brokers.

Those of 4.3 and 3.9 are in Kafka's tools, see `test_java_tools`.
"""

from __future__ import annotations

import pytest

from testbed.kafka.artifacts import CLIENT_VERSIONS
from tests.clients.fronts import Front, eventually, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.libraries.payloads import (
    CODECS,
    LARGE_BYTES,
    LARGE_LIMIT,
    SMALL,
    SPLICED,
    codecs_in_log,
    digest,
    large,
)
from tests.clients.peers import ACCEPTED

NEWEST = "4.4.0"


@pytest.fixture
def java(front: Front) -> JavaClients:
    return JavaClients(NEWEST, front.bootstrap_servers)


def create(front: Front, java: JavaClients, partitions: int = 1) -> str:
    topic = unique("java")
    with java.admin() as admin:
        java.create_topic(admin, topic, partitions, {"max.message.bytes": str(LARGE_LIMIT)})
    front.wait_for_topic(topic, partitions)
    return topic


@pytest.mark.parametrize(
    "version", [CLIENT_VERSIONS[0], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in CLIENT_VERSIONS[1:])]
)
def test_compression(front: Front, version: str) -> None:
    java = JavaClients(version, front.bootstrap_servers)
    for codec in CODECS:
        topic = create(front, java)
        with java.producer(compression_type=codec, linger_ms=20) as producer:
            java.send(producer, topic, SMALL[:100])
        assert java.received(topic, 100) == list(SMALL[:100])
        assert codecs_in_log(front, topic) == {codec}


def test_a_thousand_small_messages(front: Front, java: JavaClients) -> None:
    for acks in ("0", "1", "all"):
        topic = create(front, java)
        with java.producer(acks=acks, enable_idempotence=False) as producer:
            java.send(producer, topic, SMALL)
        assert java.received(topic, len(SMALL)) == list(SMALL)


@pytest.mark.parametrize("size", LARGE_BYTES)
def test_large_messages(front: Front, java: JavaClients, size: int) -> None:
    topic = create(front, java)
    spliced = front.proxy.metric(SPLICED)
    with java.producer(max_request_size=LARGE_LIMIT) as producer:
        java.send(producer, topic, [large(size)])
    (value,) = java.received(topic, 1, max_partition_fetch_bytes=LARGE_LIMIT)
    assert digest(value) == digest(large(size))
    assert front.proxy.metric(SPLICED) - spliced > size


def test_idempotent_producer(front: Front, java: JavaClients) -> None:
    topic = create(front, java)
    with java.producer(enable_idempotence=True, batch_size=2048, linger_ms=20) as producer:
        java.send(producer, topic, SMALL)
    assert java.received(topic, len(SMALL)) == list(SMALL)


def test_transactions(front: Front, java: JavaClients) -> None:
    """One is aborted, one committed together with an offset of a group; who reads committed sees only the latter."""
    topic, group = create(front, java), unique("java-transactions")
    with java.producer(transactional_id=unique("java")) as producer:
        producer.initTransactions()
        producer.beginTransaction()
        java.send(producer, topic, [b"aborted"])
        producer.abortTransaction()
        producer.beginTransaction()
        java.send(producer, topic, [b"committed"])
        with java.consumer(group_id=group) as member:
            producer.sendOffsetsToTransaction(java.offsets(topic, 1), member.groupMetadata())
        producer.commitTransaction()
    assert java.received(topic, 1, isolation_level="read_committed") == [b"committed"]
    assert java.received(topic, 2, isolation_level="read_uncommitted") == [b"aborted", b"committed"]
    with java.admin() as admin:
        found = done(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        assert found.get(java.partition(topic)).offset() == 1


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_two_members(front: Front, java: JavaClients, protocol: str) -> None:
    """The second member takes half of the partitions, and gives them back when it leaves."""
    topic = create(front, java, 4)
    config = {"group_id": unique("java-group"), "group_protocol": protocol}
    if protocol == "classic":
        config["heartbeat_interval_ms"] = "200"  # how soon a member learns of a rebalance
    with java.consumer(**config) as first:
        first.subscribe([topic])
        eventually(lambda: java.polled(first) == 4, "the first member has all partitions", pause_s=0)
        with java.consumer(**config) as second:
            second.subscribe([topic])
            eventually(lambda: (java.polled(first), java.polled(second)) == (2, 2), "each has two", pause_s=0)
            shared = {each.partition() for member in (first, second) for each in member.assignment()}
            assert shared == {0, 1, 2, 3}
        eventually(lambda: java.polled(first) == 4, "the first member has all partitions again", pause_s=0)
        with java.producer(linger_ms=20) as producer:
            java.send(producer, topic, SMALL[:100])
        assert java.read(first, 100) == list(SMALL[:100])
        first.commitSync()
        committed = first.committed(first.assignment())
        assert committed.get(java.partition(topic)).offset() == 100


def test_admin(front: Front, java: JavaClients) -> None:
    with java.admin() as admin:
        nodes = done(admin.describeCluster().nodes())
        assert {(node.host(), node.port()) for node in nodes} == front.addresses
        topic = unique("java-admin")
        java.create_topic(admin, topic, 2, {"retention.ms": "3600000"})
        front.wait_for_topic(topic, 2)
        described = done(admin.describeTopics([topic]).allTopicNames()).get(topic)
        leaders = {(each.leader().host(), each.leader().port()) for each in described.partitions()}
        assert (described.partitions().size(), leaders <= front.addresses) == (2, True)
        resource = java.topic_resource(topic)
        config = done(admin.describeConfigs([resource]).all()).get(resource)
        assert config.get("retention.ms").value() == "3600000"
        done(admin.deleteTopics([topic]).all())
        eventually(lambda: topic not in done(admin.listTopics().names()), "the topic is gone")


def test_admin_of_groups(front: Front, java: JavaClients) -> None:
    topic, group = create(front, java), unique("java-admin")
    with java.admin() as admin:
        done(admin.alterConsumerGroupOffsets(group, java.offsets(topic, 7)).all())
        described = done(admin.describeConsumerGroups([group]).all()).get(group)
        assert (described.coordinator().host(), described.coordinator().port()) in front.addresses
        assert group in {each.groupId() for each in done(admin.listGroups().all())}
        done(admin.deleteConsumerGroups([group]).all())
        assert group not in {each.groupId() for each in done(admin.listGroups().all())}


def test_asks_for_newer_api_versions_than_brokers_know(front: Front, java: JavaClients) -> None:
    """The client begins with ApiVersions 5, and with 4 after the UNSUPPORTED_VERSION that it gets through the proxy."""
    assert java.cls("org.apache.kafka.common.protocol.ApiKeys").API_VERSIONS.latestVersion() == 5
    connections = front.proxy.metric(ACCEPTED)
    asked = front.requests("ApiVersions")
    with java.admin() as admin:
        assert done(admin.describeCluster().clusterId()) == front.cluster.cluster_id
    connections = front.proxy.metric(ACCEPTED) - connections
    assert connections > 0
    assert front.requests("ApiVersions") - asked == 2 * connections
