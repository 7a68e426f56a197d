"""A producer and a consumer group that go on through whatever happens, and know what was acknowledged and what came."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 60.0
PAUSE_S = 0.001
# Clients that meet a dead broker should try the next at once.
QUICK = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0}


class SteadyProducer:
    """Writes numbers to all partitions of a topic, each once (idempotence, acks=all), until the `with` block ends.

    `settings` are further ones of the client.
    """

    def __init__(self, servers: str, topic: str, partitions: int, settings: Mapping[str, Any] | None = None) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[tuple[int, str]] = []
        self.latest_s = [0.0] * partitions
        """When each partition acknowledged last, by the monotonic clock."""
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "retry.backoff.ms": 50,
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
                "topic.metadata.refresh.interval.ms": 1000,
                **QUICK,
                **(settings or {}),
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady producer")

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(PAUSE_S):
            with contextlib.suppress(BufferError):  # full: the acknowledgements below make room
                self._producer.produce(
                    self._topic,
                    str(number).encode(),
                    partition=number % self._partitions,
                    on_delivery=self._delivered(number),
                )
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT_S) == 0

    def _delivered(self, number: int) -> Any:
        def note(error: KafkaError | None, _message: object) -> None:
            if error is None:
                self.acknowledged.append(number)
                self.latest_s[number % self._partitions] = time.monotonic()
            else:
                self.failed.append((number, str(error)))

        return note

    def acknowledged_everywhere_since(self, since_s: float) -> bool:
        """Whether every partition has acknowledged something after `since_s`."""
        return min(self.latest_s) > since_s

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S + 10)
        assert not self._thread.is_alive(), "the producer did not end"


class SteadyGroup:
    """One member of a consumer group that reads a topic from its beginning until the `with` block ends."""

    def __init__(self, servers: str, topic: str, settings: Mapping[str, Any] | None = None) -> None:
        self.read: collections.Counter[int] = collections.Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": f"steady-{uuid.uuid4().hex[:8]}",
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 45_000,  # a member that is expelled reads again what it has not committed
                "topic.metadata.refresh.interval.ms": 1000,
                **QUICK,
                **(settings or {}),
            }
        )
        self._consumer.subscribe([topic])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady group")

    def _run(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(1000, timeout=0.1):
                if message.error() is None:
                    self.read[int(message.value() or b"")] += 1
        self._consumer.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the consumer did not end"


def read_all(servers: str, topic: str, partitions: int) -> collections.Counter[int]:
    """How often each number stands in the topic."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": True, "check.crcs": True, **QUICK}
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        found: collections.Counter[int] = collections.Counter()
        ended: set[int | None] = set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the ends of {ended} only were reached in {TIMEOUT_S:g} s"
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found[int(message.value() or b"")] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
        return found
