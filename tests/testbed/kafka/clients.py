"""A Kafka client's view of a cluster, by librdkafka. Every call has a deadline."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 30.0
# Clients that meet a dead broker should try the next at once.
QUICK: Mapping[str, Any] = {"reconnect.backoff.max.ms": 200, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0}


def new_name(prefix: str = "topic") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def admin(servers: str, **settings: Any) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, **QUICK, **settings})


def create_topic(servers: str, *, partitions: int = 1, replicas: int = 1) -> str:
    name = new_name()
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas)
    client = admin(servers)  # must outlive its futures
    client.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    return name


def settings_of(servers: str, node_id: int) -> dict[str, str]:
    broker = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
    client = admin(servers)
    [future] = client.describe_configs([broker], request_timeout=TIMEOUT_S).values()
    return {name: entry.value for name, entry in future.result(TIMEOUT_S).items()}


def produce(servers: str, topic: str, count: int = 10) -> None:
    """Write `count` records that all in-sync replicas acknowledge."""
    failures: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "delivery.timeout.ms": int(TIMEOUT_S * 1000), **QUICK}
    )
    for number in range(count):
        producer.produce(topic, str(number).encode(), on_delivery=delivered)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


def consume(servers: str, topic: str, count: int = 10, *, group_protocol: str = "classic") -> list[int]:
    """Read `count` records from the beginning, as a new group."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": new_name("group"),
            "group.protocol": group_protocol,
            "auto.offset.reset": "earliest",
            **QUICK,
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe([topic])
        records: list[int] = []
        while len(records) < count:
            batch = consumer.consume(count - len(records), timeout=TIMEOUT_S)
            assert batch, f"{len(records)} of {count} records in {TIMEOUT_S} s"
            for record in batch:
                if record.error() is not None:
                    raise KafkaException(record.error())
                records.append(int(record.value() or b""))
        return sorted(records)


def round_trip(servers: str, topic: str) -> None:
    produce(servers, topic)
    assert set(consume(servers, topic)) == set(range(10))
