"""Producers and consumers that work as fast as quotas allow.

Java's obey throttle_time_ms and wait; librdkafka's do not, and have to be muted. Each runs in a thread of this process,
Java's in the JVM that is part of it, and bytes are counted where they arrive.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from typing import Any, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from testbed.kafka.jvm import KafkaClasses, kafka_classes, start_jvm

BATCH_BYTES: Final = 8192
RECORD_BYTES: Final = BATCH_BYTES - 70
"""One record in a batch of its own is then `BATCH_BYTES` long, so that a fetch of a multiple ends with a whole batch:
what a broker sends of a batch beyond the limit of a fetch is charged, and of no use to the consumer."""
POLL_MS: Final = 50
STOP_TIMEOUT_S: Final = 60.0
VERSION: Final = "4.3.1"


def java() -> KafkaClasses:
    """Kafka's classes, ready to be used in this thread: Kafka loads classes by name through the thread's loader."""
    classes = kafka_classes(VERSION)
    loader = classes.cls("org.apache.kafka.common.TopicPartition").class_.getClassLoader()
    start_jvm().java.lang.Thread.currentThread().setContextClassLoader(loader)
    return classes


def java_properties(settings: dict[str, str]) -> Any:
    properties = start_jvm().java.util.Properties()
    for name, value in settings.items():
        properties.put(name, value)
    return properties


class ThrottledClient(ABC):
    """Connects at once, waits for `go`, and then works until the `with` block ends."""

    consumes = False

    def __init__(self, servers: str, client_id: str, topic: str, unit_bytes: int, go: threading.Event) -> None:
        self.servers = servers
        self.client_id = client_id
        self.topic = topic
        self.unit_bytes = unit_bytes
        """The most that one request carries for the only partition: one throttle follows from it."""
        self.bytes_consumed = 0
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self._go = go
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=client_id)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    @abstractmethod
    def work(self) -> None:
        """Connect, call `wait_for_go`, and go on until `stopped`."""

    def wait_for_go(self) -> None:
        self.ready.set()
        while not self._go.wait(1) and not self.stopped:
            pass

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error
            self.ready.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.client_id} did not end"
        if self.error is not None:
            raise self.error


class JavaProducer(ThrottledClient):
    def work(self) -> None:
        classes = java()
        serializer = classes.cls("org.apache.kafka.common.serialization.ByteArraySerializer")
        settings = {
            "bootstrap.servers": self.servers,
            "client.id": self.client_id,
            "batch.size": str(self.unit_bytes),
            "linger.ms": "50",
            "buffer.memory": str(16 * self.unit_bytes),
        }
        producer = classes.cls("org.apache.kafka.clients.producer.KafkaProducer")(
            java_properties(settings), serializer(), serializer()
        )
        record = classes.cls("org.apache.kafka.clients.producer.ProducerRecord")
        jpype = start_jvm()
        value = jpype.JArray(jpype.JByte)(bytes(RECORD_BYTES))
        producer.partitionsFor(self.topic)
        self.wait_for_go()
        while not self.stopped:
            producer.send(record(self.topic, value))  # waits while the buffer is full
        producer.close(jpype.java.time.Duration.ZERO)


class JavaConsumer(ThrottledClient):
    consumes = True

    def work(self) -> None:
        classes = java()
        deserializer = classes.cls("org.apache.kafka.common.serialization.ByteArrayDeserializer")
        settings = {
            "bootstrap.servers": self.servers,
            "client.id": self.client_id,
            "max.partition.fetch.bytes": str(self.unit_bytes),
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
        }
        consumer = classes.cls("org.apache.kafka.clients.consumer.KafkaConsumer")(
            java_properties(settings), deserializer(), deserializer()
        )
        jpype = start_jvm()
        partition = classes.cls("org.apache.kafka.common.TopicPartition")(self.topic, 0)
        consumer.assign(jpype.java.util.List.of(partition))
        consumer.partitionsFor(self.topic)
        self.wait_for_go()
        wait = jpype.java.time.Duration.ofMillis(POLL_MS)
        while not self.stopped:
            self.bytes_consumed += consumer.poll(wait).count() * RECORD_BYTES
        consumer.close()


class RdProducer(ThrottledClient):
    def work(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "client.id": self.client_id,
                "batch.size": self.unit_bytes,
                "linger.ms": 50,
                "queue.buffering.max.kbytes": 16 * self.unit_bytes // 1024,
                "log_level": 0,
            }
        )
        producer.list_topics(self.topic, timeout=10)
        value = bytes(RECORD_BYTES)
        self.wait_for_go()
        while not self.stopped:
            try:
                producer.produce(self.topic, value)
            except BufferError:  # full
                producer.poll(POLL_MS / 1000)
        producer.purge()
        producer.flush(5)


class RdConsumer(ThrottledClient):
    consumes = True

    def work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "client.id": self.client_id,
                "group.id": self.client_id,
                "fetch.message.max.bytes": self.unit_bytes,
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        with contextlib.closing(consumer):
            consumer.list_topics(self.topic, timeout=10)
            self.wait_for_go()
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            while not self.stopped:
                for message in consumer.consume(1000, timeout=POLL_MS / 1000):
                    if message.error() is None:
                        self.bytes_consumed += RECORD_BYTES


CLIENTS: Final[dict[str, type[ThrottledClient]]] = {
    "java-producer": JavaProducer,
    "java-consumer": JavaConsumer,
    "librdkafka-producer": RdProducer,
    "librdkafka-consumer": RdConsumer,
}


def set_broker_quotas(servers: str, quotas: dict[str, tuple[str, float]]) -> None:
    """Set quotas at the broker itself, by client id: {"client": ("producer_byte_rate", 1000.0)}."""
    classes, util = java(), start_jvm().java.util
    prefix = "org.apache.kafka.common.quota"
    entity, alteration = classes.cls(f"{prefix}.ClientQuotaEntity"), classes.cls(f"{prefix}.ClientQuotaAlteration")
    operation = classes.cls(f"{prefix}.ClientQuotaAlteration$Op")
    alterations = util.ArrayList()
    for client_id, (key, limit) in quotas.items():
        operations = util.ArrayList([operation(key, start_jvm().java.lang.Double(limit))])
        alterations.add(alteration(entity(util.Map.of("client-id", client_id)), operations))
    admin = classes.cls("org.apache.kafka.clients.admin.Admin").create(java_properties({"bootstrap.servers": servers}))
    try:
        admin.alterClientQuotas(alterations).all().get(30, start_jvm().java.util.concurrent.TimeUnit.SECONDS)
    finally:
        admin.close()
