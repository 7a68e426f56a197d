"""A Kafka topic: one message a record, with the instance as its key, so that its records keep their order.

Written by librdkafka's idempotent producer (the extra ``headrace[usage]``), past the proxy or through another one. What
the cluster does not take in time is counted and told in the stream. All in the writer's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import KafkaError, Message

FLUSH_S: Final = 2.0
"""How long `KafkaSink.close` waits for what the cluster has not acknowledged yet."""


class KafkaSink:
    """The producer."""

    recovered = 0

    def __init__(self, topic: str, bootstrap_servers: str, instance: str, client: Mapping[str, str]) -> None:
        """Connects in the background. Raises ValueError for settings that librdkafka does not take."""
        try:
            from confluent_kafka import KafkaException, Producer
        except ImportError as error:
            raise ValueError(
                "plugins.options.usage_records.topic needs the package confluent-kafka: install headrace[usage]"
            ) from error
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "headrace-usage",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 100,
            "log_level": 0,
            **client,
        }
        try:
            self._producer = Producer(settings)
        except KafkaException as error:
            raise ValueError(f"plugins.options.usage_records.client: {error.args[0].str()}") from error
        self._topic = topic
        self._key = instance.encode()
        self._failed = 0
        self._why = ""

    def write(self, lines: list[bytes], first: int, now_s: float) -> None:  # noqa: ARG002 -- files name their first
        """Hand them over; what has no room, as when the cluster is out of reach, is told by `tick`."""
        for line in lines:
            try:
                self._producer.produce(self._topic, line, self._key, on_delivery=self._delivered)
            except BufferError:
                self._failed += 1
                self._why = "the cluster does not keep up"
        self._producer.poll(0)

    def tick(self, now_s: float) -> list[tuple[str, int]]:  # noqa: ARG002 -- files grow old
        """What the cluster did not take since the last time: why, and how many records."""
        self._producer.poll(0)
        failed, self._failed = self._failed, 0
        return [(self._why, failed)] if failed else []

    def close(self) -> None:
        """Wait for what is on its way. Raises OSError for what did not arrive."""
        left = self._producer.flush(FLUSH_S) + self._failed
        if left:
            raise OSError(f"{left} records were not acknowledged within {FLUSH_S:g} s")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._failed += 1
            self._why = error.str()
