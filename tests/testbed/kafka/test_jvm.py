"""Kafka's classes of three versions in this process."""

from __future__ import annotations

import pytest

from testbed.errors import JvmError, UnknownVersionError
from testbed.kafka.jvm import KafkaClasses, kafka_classes

API_KEYS = "org.apache.kafka.common.protocol.ApiKeys"
VERSIONS = ("3.9.1", "4.3.1", "4.4.0")


def metadata_response(kafka: KafkaClasses) -> object:
    message = kafka.cls("org.apache.kafka.common.message.MetadataResponseData")()
    broker = kafka.cls("org.apache.kafka.common.message.MetadataResponseData$MetadataResponseBroker")()
    broker.setNodeId(7)
    broker.setHost("broker.example")
    broker.setPort(9092)
    message.brokers().add(broker)
    message.setClusterId("wörld")
    return message


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_written_by_one_version_is_read_by_every_other(version: str) -> None:
    data = kafka_classes(version).encode(metadata_response(kafka_classes(version)), 12)
    assert b"broker.example" in data
    for reader in VERSIONS:
        message = kafka_classes(reader).decode("MetadataResponseData", data, 12)
        assert message.clusterId() == "wörld"
        assert [(b.nodeId(), b.host(), b.port()) for b in message.brokers()] == [(7, "broker.example", 9092)]
        assert kafka_classes(reader).encode(message, 12) == data


def test_every_version_lists_its_own_apis() -> None:
    apis = {
        version: {key.id: key.toString() for key in kafka_classes(version).cls(API_KEYS).values()}
        for version in VERSIONS
    }
    for names in apis.values():
        assert (names[0], names[18]) == ("PRODUCE", "API_VERSIONS")
    assert "LEADER_AND_ISR" in apis["3.9.1"].values()
    assert "STREAMS_GROUP_HEARTBEAT" not in apis["3.9.1"].values()
    assert "STREAMS_GROUP_HEARTBEAT" in apis["4.3.1"].values()
    assert apis["4.3.1"].keys() <= apis["4.4.0"].keys()


def test_the_classes_of_two_versions_are_strangers() -> None:
    old, new = (kafka_classes(version).cls(API_KEYS) for version in ("3.9.1", "4.4.0"))
    assert not isinstance(old.PRODUCE, new)


def test_left_over_bytes_are_an_error() -> None:
    kafka = kafka_classes("4.4.0")
    data = kafka.encode(metadata_response(kafka), 12)
    with pytest.raises(JvmError, match="1 bytes are left behind a MetadataResponseData of version 12"):
        kafka.decode("MetadataResponseData", data + b"\0", 12)


def test_the_broker_classes_come_on_request() -> None:
    name = "org.apache.kafka.server.common.MetadataVersion"
    with pytest.raises(JvmError, match=f"Kafka 4.3.1 has no class {name}"):
        kafka_classes("4.3.1").cls(name)
    assert kafka_classes("4.3.1", jars="broker").cls(name).latestProduction().version() == "4.3-IV0"


def test_an_unknown_version_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownVersionError, match=r"no kafka-clients '1\.0\.0' in the testbed; it has 4\.4\.0, "):
        kafka_classes("1.0.0")
