"""Four clients behind one interface, each of which notes the kinds of errors that it reports.

A kind is a name without the particulars: of an exception, of an error code of Kafka, of a line of the client's log.
Called from threads of a test's own, one for each client and side; nothing here waits without a deadline.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.fronts import DEADLINE_S, unique
from tests.clients.java_clients import JavaClients, done

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.clients.binding_front import Side

POLL_S: Final = 0.05
HEARTBEAT_MS: Final = 200
"""Heartbeat interval, the time within which a member is notified of a rebalance."""
FETCH_BYTES: Final = 20_000
"""Maximum fetch size of a partition, so that a member does not read all records before the other has joined."""
BATCH_BYTES: Final = 65_536
"""Few enough batches that a producer on a busy machine is faster than its quota."""
NEWEST: Final = "4.4.0"


class ProducerUnderTest(Protocol):
    """An idempotent producer; the transactional calls are for one that has a transactional id."""

    def send(self, topic: str, values: Sequence[bytes]) -> None:
        """Produce to partition 0, and wait until every record has arrived."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        """Add the offset of a group for partition 0 to the transaction."""

    def end(self, *, commits: bool) -> None:
        """Commit or abort."""


class MemberUnderTest(Protocol):
    """A member of a group, which commits what it has returned when it loses a partition."""

    def poll(self) -> list[bytes]:
        """Wait for values for `POLL_S` at most, and take part in a rebalance."""

    def assigned(self) -> int:
        """How many partitions it has."""

    def close(self) -> None:
        """Leave the group."""


class AdminUnderTest(Protocol):
    """The administrator of topics."""

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic; tried again while a quota refuses it."""

    def delete(self, topic: str) -> None:
        """Delete a topic; retried while a quota refuses it."""

    def topics(self) -> set[str]:
        """The names of all topics."""


class ClientUnderTest(Protocol):
    """A client on one side, and the errors it has reported."""

    side: Side
    errors: set[str]

    def producer(self, transactional_id: str | None = None) -> AbstractContextManager[ProducerUnderTest]:
        """An idempotent producer."""

    def member(self, topic: str, group: str) -> MemberUnderTest:
        """A member that begins at the start."""

    def admin(self) -> AbstractContextManager[AdminUnderTest]:
        """An administrator."""

    def close(self) -> None:
        """End what all of its producers, members and administrators need."""


class KindsOfLines(logging.Handler):
    """Notes which kinds of warnings a client logs."""

    def __init__(self, errors: set[str], level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        self._errors.add(f"logged {record.getMessage().split(' ')[0]}")


# --- librdkafka ---


class Librdkafka:
    """confluent-kafka. Its errors come by callback, by delivery report, by exception and by its log."""

    def __init__(self, side: Side, group_protocol: str = "classic") -> None:
        self.side = side
        self.errors: set[str] = set()
        self._protocol = group_protocol
        logger = logging.getLogger(unique("binding-librdkafka"))
        logger.propagate = False
        logger.setLevel(logging.WARNING)
        logger.addHandler(KindsOfLines(self.errors))
        self._config = {
            "bootstrap.servers": side.bootstrap_servers,
            "client.id": side.client_id,
            "error_cb": lambda error: self.errors.add(error.name()),
            "logger": logger,
        }

    @contextlib.contextmanager
    def producer(self, transactional_id: str | None = None) -> Iterator[ProducerUnderTest]:
        config = {**self._config, "enable.idempotence": True, "batch.size": BATCH_BYTES, "linger.ms": 20}
        if transactional_id is not None:
            config["transactional.id"] = transactional_id
        with Producer(config) as producer:
            if transactional_id is not None:
                producer.init_transactions(DEADLINE_S)
            yield _LibrdkafkaProducer(producer, self._config)

    def member(self, topic: str, group: str) -> MemberUnderTest:
        return _LibrdkafkaMember({**self._config, "group.protocol": self._protocol}, topic, group)

    @contextlib.contextmanager
    def admin(self) -> Iterator[AdminUnderTest]:
        yield _LibrdkafkaAdmin(AdminClient(self._config))

    def close(self) -> None:
        """Do nothing: there are no further resources."""


class _LibrdkafkaProducer:
    def __init__(self, producer: Producer, config: dict[str, Any]) -> None:
        self._producer = producer
        self._config = config

    def send(self, topic: str, values: Sequence[bytes]) -> None:
        reports: list[Any] = []
        for value in values:
            self._producer.produce(topic, value, partition=0, on_delivery=lambda error, _: reports.append(error))
        assert self._producer.flush(DEADLINE_S) == 0
        for error in reports:
            if error is not None:
                raise KafkaException(error)
        assert len(reports) == len(values)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        consumer = Consumer({**self._config, "group.id": group})
        try:
            metadata = consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction([TopicPartition(topic, 0, offset)], metadata, DEADLINE_S)
        finally:
            consumer.close()

    def end(self, *, commits: bool) -> None:
        if commits:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)


class _LibrdkafkaMember:
    def __init__(self, config: dict[str, Any], topic: str, group: str) -> None:
        settings = {
            **config,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": FETCH_BYTES,
        }
        if config["group.protocol"] == "classic":
            settings["heartbeat.interval.ms"] = HEARTBEAT_MS
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])

    def poll(self) -> list[bytes]:
        message = self._consumer.poll(POLL_S)
        if message is None:
            return []
        if message.error() is not None:
            raise KafkaException(message.error())
        return [message.value() or b""]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class _LibrdkafkaAdmin:
    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def create(self, topic: str, partitions: int) -> None:
        self._admin.create_topics([NewTopic(topic, partitions)])[topic].result(DEADLINE_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(DEADLINE_S)

    def topics(self) -> set[str]:
        self._admin.poll(0)
        return set(self._admin.list_topics(timeout=DEADLINE_S).topics)


# --- Java ---


class Java:
    """kafka-clients. Its errors are exceptions, and records that were sent again, which its metrics count."""

    def __init__(self, side: Side, group_protocol: str = "classic") -> None:
        self.side = side
        self.errors: set[str] = set()
        self._protocol = group_protocol
        self._clients = JavaClients(NEWEST, side.bootstrap_servers)
        self._id = side.client_id

    @contextlib.contextmanager
    def producer(self, transactional_id: str | None = None) -> Iterator[ProducerUnderTest]:
        config = {"client_id": self._id, "batch_size": BATCH_BYTES, "linger_ms": 20, "enable_idempotence": True}
        if transactional_id is not None:
            config["transactional_id"] = transactional_id
        with self._clients.producer(**config) as producer:
            if transactional_id is not None:
                producer.initTransactions()
            yield _JavaProducer(self._clients, producer, self._id)
            for metric in ("record-error-total", "record-retry-total"):
                if self._metric(producer, metric):
                    self.errors.add(metric)

    def member(self, topic: str, group: str) -> MemberUnderTest:
        config = {"client_id": self._id, "group_id": group, "group_protocol": self._protocol}
        if self._protocol == "classic":
            config["heartbeat_interval_ms"] = str(HEARTBEAT_MS)
        return _JavaMember(self._clients, topic, config)

    @contextlib.contextmanager
    def admin(self) -> Iterator[AdminUnderTest]:
        with self._clients.admin(client_id=self._id) as admin:
            yield _JavaAdmin(self._clients, admin)

    def close(self) -> None:
        """Do nothing: there are no further resources."""

    @staticmethod
    def _metric(client: Any, name: str) -> float:
        return sum(
            float(each.getValue().metricValue())
            for each in client.metrics().entrySet()
            if (str(each.getKey().name()), str(each.getKey().group())) == (name, "producer-metrics")
        )


class _JavaProducer:
    def __init__(self, clients: JavaClients, producer: Any, client_id: str) -> None:
        self._clients = clients
        self._producer = producer
        self._id = client_id

    def send(self, topic: str, values: Sequence[bytes]) -> None:
        self._clients.send(self._producer, topic, values)

    def begin(self) -> None:
        self._producer.beginTransaction()

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        with self._clients.consumer(group_id=group, client_id=self._id) as member:
            self._producer.sendOffsetsToTransaction(self._clients.offsets(topic, offset), member.groupMetadata())

    def end(self, *, commits: bool) -> None:
        if commits:
            self._producer.commitTransaction()
        else:
            self._producer.abortTransaction()


class _JavaMember:
    def __init__(self, clients: JavaClients, topic: str, config: dict[str, Any]) -> None:
        self._clients = clients
        self._stack = contextlib.ExitStack()
        self._consumer = self._stack.enter_context(clients.consumer(max_partition_fetch_bytes=FETCH_BYTES, **config))
        self._consumer.subscribe([topic])

    def poll(self) -> list[bytes]:
        return [bytes(record.value()) for record in self._consumer.poll(self._clients.seconds(POLL_S))]

    def assigned(self) -> int:
        count: int = self._consumer.assignment().size()
        return count

    def close(self) -> None:
        self._stack.close()


class _JavaAdmin:
    """Retries by itself what a quota refuses."""

    def __init__(self, clients: JavaClients, admin: Any) -> None:
        self._clients = clients
        self._admin = admin

    def create(self, topic: str, partitions: int) -> None:
        self._clients.create_topic(self._admin, topic, partitions, {})

    def delete(self, topic: str) -> None:
        done(self._admin.deleteTopics([topic]).all())

    def topics(self) -> set[str]:
        return {str(name) for name in done(self._admin.listTopics().names())}
