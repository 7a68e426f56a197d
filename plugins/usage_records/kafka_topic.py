"""The sink that writes to a Kafka topic: one message per record, with the instance as key, so that order is kept.

Uses librdkafka's idempotent producer (the extra ``headrace[usage]``), which connects to the brokers or to another
proxy. Delivery is asynchronous: a record has its number as soon as librdkafka accepts it. If the cluster then does not
acknowledge it in time, the number stays missing, and `tick` returns the record's content as lost. A producer with a
fatal error (in librdkafka's sense) is replaced by a new one. Called by the writer thread only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.usage_records.pending_losses import LossSummary
from headrace.quota_callbacks.options import Fault, OptionsError
from headrace.quota_callbacks.value_texts import HIDDEN, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError, KafkaException, Message, Producer

    from headrace.plugins.usage_records.writer_thread import LineContent

log = structlog.get_logger("headrace.usage_records")

FLUSH_S: Final = 2.0
"""How long `KafkaSink.close` waits for acknowledgements."""


class KafkaSink:
    """The owner of the producer. The number of unacknowledged records in memory is bounded by librdkafka's
    ``queue.buffering.max.messages``."""

    removed = 0

    def __init__(self, topic: str, bootstrap_servers: str, instance: str, client: Mapping[str, str]) -> None:
        """Create the producer, which connects in the background. Raises ValueError for invalid librdkafka settings."""
        from confluent_kafka import KafkaException

        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": "headrace-usage",
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 100,
            "log_level": 0,
            **client,
            "error_cb": self._erred,
        }
        self._topic = topic
        self._key = instance.encode()
        self._failed: list[tuple[str, LineContent]] = []
        self._loss_records = 0
        self._fatal: str | None = None
        try:
            self._producer = self._new_producer()
        except KafkaException as error:
            path = ("plugins", "options", "usage_records", "client")
            raise OptionsError([Fault(path=path, rule=_reason(error, client))]) from None

    @property
    def accepts_loss_records(self) -> bool:
        """Whether the last loss record is acknowledged; until then, further losses are summed up."""
        return self._loss_records == 0

    def write(self, lines: list[bytes], contents: Sequence[LineContent], first: int, now_s: float) -> int:  # noqa: ARG002 -- for files
        """Produce ``lines``; return the number of those that librdkafka accepts. Raises OSError if it accepts none, for
        instance with the cluster unreachable."""
        refused = [
            (why, each)
            for line, each in zip(lines, contents, strict=True)
            if (why := self._refusal(line, each)) is not None
        ]
        self._producer.poll(0)
        if refused and len(refused) == len(lines):
            raise OSError(refused[-1][0])
        self._failed += refused
        return len(lines) - len(refused)

    def tick(self, now_s: float) -> list[tuple[str, LineContent]]:  # noqa: ARG002 -- for files
        """Return the records that have failed since the last call; after a fatal error, create a new producer."""
        self._producer.poll(0)
        if self._fatal is not None:
            self._replace()
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Wait until the produced records are acknowledged. Raises OSError if some are not within `FLUSH_S`."""
        left = self._producer.flush(FLUSH_S) + len(self._failed)
        if left:
            raise OSError(f"{left} records were not acknowledged within {FLUSH_S:g} s")

    def _new_producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer(self._settings)

    def _replace(self) -> None:
        """Create a new producer; the records queued in the old one are lost and reported to `_delivered`."""
        log.warning("the producer of usage records had a fatal error and is replaced", reason=self._fatal)
        self._producer.purge(in_flight=False)  # those in flight may be in the topic
        self._producer.flush(FLUSH_S)
        self._producer, self._loss_records, self._fatal = self._new_producer(), 0, None

    def _refusal(self, line: bytes, content: LineContent) -> str | None:
        """Produce ``line``; return the reason if librdkafka does not accept it, else ``None``."""
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(self._topic, line, self._key, on_delivery=partial(self._delivered, content))
        except BufferError:
            return "the cluster does not keep up"
        except KafkaException as error:
            self._erred(error.args[0])
            return str(error.args[0].str())
        self._loss_records += isinstance(content, LossSummary)
        return None

    def _erred(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 -- librdkafka's own codes begin with an underscore
            self._fatal = error.str()

    def _delivered(self, content: LineContent, error: KafkaError | None, _message: Message) -> None:
        self._loss_records -= isinstance(content, LossSummary)
        if error is not None:
            self._failed.append((error.str(), content))


def _reason(error: KafkaException, client: Mapping[str, str]) -> str:
    """Return librdkafka's error message about the settings, with secrets and the values that it quotes replaced."""
    reason = str(error.args[0].str())
    for value in client.values():
        reason = reason.replace(f'"{value}"', f'"{HIDDEN}"')
    return without_secrets(reason, client)
