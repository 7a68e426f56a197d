"""Java's clients inside this process: kafka-clients of one version, called through JPype.

Each version's classes have a class loader of their own (`testbed.kafka.jvm`), which Kafka looks for in the calling
thread.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from testbed.kafka.jvm import Jars, KafkaClasses, java_bytes, kafka_classes, start_jvm
from tests.clients.fronts import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLIENTS = "org.apache.kafka.clients"
COMMON = "org.apache.kafka.common"
POLL_MS = 50


class JavaClients:
    """The clients of one version, connected to one bootstrap server.

    `jars="broker"` takes them from the brokers' libraries, which include what reads signed tokens.
    """

    def __init__(self, version: str, bootstrap_servers: str, jars: Jars = "clients") -> None:
        self._java = start_jvm().java
        self._classes: KafkaClasses = kafka_classes(version, jars)
        self._bootstrap_servers = bootstrap_servers
        loader = self.cls(f"{CLIENTS}.admin.Admin").class_.getClassLoader()
        self._java.lang.Thread.currentThread().setContextClassLoader(loader)

    def cls(self, name: str) -> Any:
        """A class by its whole name."""
        return self._classes.cls(name)

    def seconds(self, count: float) -> Any:
        """A java.time.Duration."""
        return self._java.time.Duration.ofMillis(int(count * 1000))

    def partition(self, topic: str, number: int = 0) -> Any:
        return self.cls(f"{COMMON}.TopicPartition")(topic, number)

    @contextlib.contextmanager
    def admin(self, **config: Any) -> Iterator[Any]:
        client = self.cls(f"{CLIENTS}.admin.Admin").create(self._config(config))
        with _closing(client, self.seconds(DEADLINE_S)):
            yield client

    @contextlib.contextmanager
    def producer(self, **config: Any) -> Iterator[Any]:
        serializer = self.cls(f"{COMMON}.serialization.ByteArraySerializer")
        client = self.cls(f"{CLIENTS}.producer.KafkaProducer")(self._config(config), serializer(), serializer())
        with _closing(client, self.seconds(DEADLINE_S)):
            yield client

    @contextlib.contextmanager
    def consumer(self, **config: Any) -> Iterator[Any]:
        """A consumer that begins at the start."""
        deserializer = self.cls(f"{COMMON}.serialization.ByteArrayDeserializer")
        settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 100, **config}
        client = self.cls(f"{CLIENTS}.consumer.KafkaConsumer")(self._config(settings), deserializer(), deserializer())
        with _closing(client, self.seconds(DEADLINE_S)):
            yield client

    def create_topic(self, admin: Any, topic: str, partitions: int, configs: dict[str, str]) -> None:
        optional = self._java.util.Optional
        count = optional.of(self._java.lang.Integer(partitions))
        wanted = self.cls(f"{CLIENTS}.admin.NewTopic")(topic, count, optional.empty())
        done(admin.createTopics([wanted.configs(self._map(configs))]).all())

    def topic_resource(self, topic: str) -> Any:
        resource = self.cls(f"{COMMON}.config.ConfigResource")
        return resource(self.cls(f"{COMMON}.config.ConfigResource$Type").TOPIC, topic)

    def offsets(self, topic: str, offset: int) -> Any:
        """A map of partition 0 to that offset."""
        return self._map({self.partition(topic): self.cls(f"{CLIENTS}.consumer.OffsetAndMetadata")(offset)})

    def send(self, producer: Any, topic: str, values: Sequence[bytes]) -> None:
        """Produce to partition 0, and wait until every record has arrived."""
        record = self.cls(f"{CLIENTS}.producer.ProducerRecord")
        number = self._java.lang.Integer(0)
        futures = [producer.send(record(topic, number, None, java_bytes(value))) for value in values]
        producer.flush()
        for future in futures:
            done(future)

    def read(self, consumer: Any, count: int) -> list[bytes]:
        """The values of the next ``count`` records."""
        found: list[bytes] = []

        def more() -> bool:
            found.extend(bytes(record.value()) for record in consumer.poll(self.seconds(POLL_MS / 1000)))
            return len(found) >= count

        eventually(more, f"{count} records", pause_s=0)
        return found

    def received(self, topic: str, count: int, **config: Any) -> list[bytes]:
        """What lies in partition 0 of ``topic``, when there are ``count`` records or more."""
        with self.consumer(**config) as consumer:
            consumer.assign([self.partition(topic)])
            return self.read(consumer, count)

    def polled(self, consumer: Any) -> int:
        """Let a member do its part in a rebalance, and return how many partitions it has."""
        assert consumer.poll(self.seconds(POLL_MS / 1000)).isEmpty()
        count: int = consumer.assignment().size()
        return count

    def _map(self, entries: dict[Any, Any]) -> Any:
        found = self._java.util.HashMap()
        for key, value in entries.items():
            found.put(key, value)
        return found

    def _config(self, settings: dict[str, Any]) -> Any:
        config = self._java.util.Properties()
        config.put("bootstrap.servers", self._bootstrap_servers)
        for key, value in settings.items():
            config.put(key.replace("_", "."), str(value).lower() if isinstance(value, bool) else str(value))
        return config


def done(future: Any) -> Any:
    """What a Java future comes to; raises what it failed with, and TimeoutException after the deadline."""
    return future.get(int(DEADLINE_S), start_jvm().java.util.concurrent.TimeUnit.SECONDS)


@contextlib.contextmanager
def _closing(client: Any, timeout: Any) -> Iterator[None]:
    try:
        yield
    finally:
        client.close(timeout)
