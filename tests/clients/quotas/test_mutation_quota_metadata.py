"""Topics that a Metadata request creates, which KIP-599 leaves out: held to ``controller_mutation_rate``, too."""

from __future__ import annotations

from typing import Any, Final

import pytest
from confluent_kafka import Producer

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.jvm import start_jvm
from tests.clients.fronts import DEADLINE_S, Front, eventually, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.quotas.quota_client import (
    REFUSED,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Behind,
    QuotaClient,
)
from tests.clients.quotas.quota_mutations import (
    DEFAULT_PARTITIONS,
    QUICK_BURST,
    SLOW_BURST,
    check_mute,
    is_left_with,
    names,
)

NEWEST: Final = "4.4.0"
HASTY_MS: Final = 1000
"""How long a producer waits for a topic that it does not get. On a busy machine it may not even ask meanwhile."""


@pytest.fixture
def quick(quick43: Front) -> Front:
    return quick43


def test_metadata_creates_within_the_quota_and_is_charged(slow: Front, behind: Behind) -> None:
    [topic] = names(1)
    with QuotaClient(slow) as client:
        answer = client.wants(9, topic)
        assert (answer.errors, answer.throttle_ms) == ({topic: UNKNOWN_TOPIC_OR_PARTITION}, 0)
        behind.will_have(topic, DEFAULT_PARTITIONS)
        assert client.wants(9, topic).errors == {topic: 0}
        assert is_left_with(client, SLOW_BURST - DEFAULT_PARTITIONS)


@pytest.mark.parametrize("version", [4, 9, 12, 13])
def test_metadata_beyond_the_quota_creates_nothing(version: int, slow: Front, behind: Behind) -> None:
    there, topic = names(2)
    with QuotaClient(slow) as client:
        client.creates(7, (there, SLOW_BURST + 1))
        behind.will_have(there, SLOW_BURST + 1)
        refused = slow.proxy.metric(REFUSED)
        answer = client.wants(version, topic, there)
        assert answer.errors == {topic: UNKNOWN_TOPIC_OR_PARTITION, there: 0}
        assert slow.proxy.metric(REFUSED) == refused + 1
        assert client.wants(version, topic).errors == {topic: UNKNOWN_TOPIC_OR_PARTITION}
    behind.has_caught_up()
    assert behind.partitions(topic) == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_metadata_without_a_flag_is_charged_and_muted(version: int, quick: Front, behind: Behind) -> None:
    topics = names(8)
    with QuotaClient(quick) as client:
        answer = client.wants(version, *topics)
        assert ("throttle_time_ms" in answer.message) == (version >= 3)
        check_mute(client, answer, 8 * DEFAULT_PARTITIONS - QUICK_BURST)
    for topic in topics:
        behind.will_have(topic, DEFAULT_PARTITIONS)


def test_a_topic_that_was_deleted_is_created_and_charged_again(slow: Front, behind: Behind) -> None:
    """Whether it was deleted through the proxy, by its name or its id, also by a client without a quota, or behind the
    proxy's back, where somebody had asked for it since."""
    by_name, by_id, without_quota, unseen = names(4)
    for topic in (by_name, by_id, without_quota, unseen):
        with QuotaClient(slow) as client:
            client.wants(9, topic)
            behind.will_have(topic, DEFAULT_PARTITIONS)
            if topic == by_name:
                with QuotaClient(slow) as another:
                    assert another.deletes(5, topic).errors == {topic: 0}
            elif topic == without_quota:
                with QuotaClient(slow, "") as another:
                    assert another.deletes(5, topic).errors == {topic: 0}
            elif topic == by_id:
                with QuotaClient(slow) as another:
                    assert another.deletes(6, behind.topic_id(topic)).errors == {topic: 0}
            else:
                assert client.wants(9, topic).errors == {topic: 0}
                behind.ask(ApiKey.DELETE_TOPICS, 5, {"topic_names": [topic], "timeout_ms": 30_000})
            behind.will_have(topic, 0)
            client.wants(9, topic)
            behind.will_have(topic, DEFAULT_PARTITIONS)
            refused = client.creates(7, (unique("mutation-quota"), 1))
            assert list(refused.errors.values()) == [THROTTLING_QUOTA_EXCEEDED]


def test_metadata_that_asks_for_no_creation_costs_nothing(slow: Front, behind: Behind) -> None:
    [topic] = names(1)
    with QuotaClient(slow) as client:
        request = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        assert client.asks(ApiKey.METADATA, 9, request).errors == {topic: UNKNOWN_TOPIC_OR_PARTITION}
        assert is_left_with(client, SLOW_BURST)
    assert behind.partitions(topic) == 0


@pytest.mark.exhaustive
def test_a_producer_to_a_new_topic(slow: Front, behind: Behind) -> None:
    """Java's and librdkafka's: within the quota the topic is made; and what was charged counts for the next one."""
    java = JavaClients(NEWEST, slow.bootstrap_servers)
    topic, late = names(2)
    client_id = unique("java-producer")
    with (
        java.producer(client_id=client_id) as producer,
        java.producer(client_id=client_id, max_block_ms=HASTY_MS) as hasty,
    ):
        java.send(producer, topic, [b"first"])
        assert behind.partitions(topic) == DEFAULT_PARTITIONS
        [other] = names(1)
        java.send(producer, other, [b"the second overdraws"])
        refused = slow.proxy.metric(REFUSED)
        record = java.cls("org.apache.kafka.clients.producer.ProducerRecord")
        value = start_jvm().JArray(start_jvm().JByte)(b"never")

        def is_refused() -> bool:
            with pytest.raises(start_jvm().java.util.concurrent.ExecutionException) as raised:
                done(hasty.send(record(late, value)))
            assert "TimeoutException" in str(raised.value)
            return slow.proxy.metric(REFUSED) > refused

        eventually(is_refused, "a producer gives up on a topic that the proxy does not let it create", pause_s=0)
        java.send(producer, topic, [b"goes on"])
    assert java.received(topic, 2, client_id=unique("java-consumer")) == [b"first", b"goes on"]
    behind.has_caught_up()
    assert behind.partitions(late) == 0


def test_librdkafka_to_a_new_topic(slow: Front, behind: Behind) -> None:
    [topic] = names(1)
    errors: list[Any] = []
    config = {"bootstrap.servers": slow.bootstrap_servers, "client.id": unique("librdkafka")}
    with Producer(config) as producer:
        producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
    assert errors == [None]
    assert behind.partitions(topic) == DEFAULT_PARTITIONS


@pytest.mark.parametrize("version", [3, 9, 12])
def test_a_produce_alone_creates_nothing_at_the_broker(version: int, behind: Behind) -> None:
    """It is Metadata that creates: so a Produce to a topic that is not there needs no quota."""
    [topic] = names(1)
    partition = {"index": 0, "records": b""}
    request = {"acks": -1, "timeout_ms": 1000, "topic_data": [{"name": topic, "partition_data": [partition]}]}
    reply = behind.ask(ApiKey.PRODUCE, version, request)
    row = reply["responses"][0]["partition_responses"][0]
    assert row["error_code"] == UNKNOWN_TOPIC_OR_PARTITION
    behind.has_caught_up()
    assert behind.partitions(topic) == 0
