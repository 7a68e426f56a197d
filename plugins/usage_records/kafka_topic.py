"""A Kafka topic: one message a record, with the instance as its key, so that its records keep their order.

Written by librdkafka's idempotent producer (the extra ``headrace[usage]``), past the proxy or through another one. It
answers later: a record has its number when librdkafka takes it, and if the cluster then does not take it in time, the
number stays missing, and `tick` hands back what the record held. A producer that has failed for good (librdkafka's
fatal errors) is followed by a new one. All in the writer's thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from headrace.plugins.usage_records.pending_losses import LossMark
from headrace.quota_callbacks.options import HIDDEN, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import KafkaError, KafkaException, Message, Producer

    from headrace.plugins.usage_records.writer_thread import Held

log = structlog.get_logger("headrace.usage_records")

FLUSH_S: Final = 2.0
"""How long `KafkaSink.close` waits for what the cluster has not acknowledged yet."""


class KafkaSink:
    """The producer. What it keeps for a record until the cluster has answered is bounded by librdkafka's
    ``queue.buffering.max.messages``."""

    removed = 0

    def __init__(self, topic: str, bootstrap_servers: str, instance: str, client: Mapping[str, str]) -> None:
        """Connects in the background. Raises ValueError for settings that librdkafka does not take."""
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
        self._failed: list[tuple[str, Held]] = []
        self._marks = 0
        self._fatal: str | None = None
        try:
            self._producer = self._new_producer()
        except KafkaException as error:
            raise ValueError(f"plugins.options.usage_records.client: {_reason(error, client)}") from None

    @property
    def takes_marks(self) -> bool:
        """Whether the cluster has answered the last mark: what is lost until then is told in one."""
        return self._marks == 0

    def write(self, lines: list[bytes], held: Sequence[Held], first: int, now_s: float) -> None:  # noqa: ARG002 -- files name their first
        """Hand them over. Raises OSError where there is room for none, as when the cluster is out of reach."""
        refused = [
            (why, each)
            for line, each in zip(lines, held, strict=True)
            if (why := self._refusal(line, each)) is not None
        ]
        self._producer.poll(0)
        if refused and len(refused) == len(lines):
            raise OSError(refused[-1][0])
        self._failed += refused

    def tick(self, now_s: float) -> list[tuple[str, Held]]:  # noqa: ARG002 -- files grow old
        """What the cluster did not take since the last time; after a fatal error, go on with a new producer."""
        self._producer.poll(0)
        if self._fatal is not None:
            self._replace()
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Wait for what is on its way. Raises OSError for what did not arrive."""
        left = self._producer.flush(FLUSH_S) + len(self._failed)
        if left:
            raise OSError(f"{left} records were not acknowledged within {FLUSH_S:g} s")

    def _new_producer(self) -> Producer:
        from confluent_kafka import Producer

        return Producer(self._settings)

    def _replace(self) -> None:
        """Whatever waits in the old one is lost, and comes to `_delivered` as such."""
        log.warning("the producer of usage records failed for good and is made anew", reason=self._fatal)
        self._producer.purge()
        self._producer.flush(FLUSH_S)
        self._producer, self._marks, self._fatal = self._new_producer(), 0, None

    def _refusal(self, line: bytes, held: Held) -> str | None:
        """Why librdkafka does not take this line, if it does not."""
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(self._topic, line, self._key, on_delivery=partial(self._delivered, held))
        except BufferError:
            return "the cluster does not keep up"
        except KafkaException as error:
            self._erred(error.args[0])
            return str(error.args[0].str())
        self._marks += isinstance(held, LossMark)
        return None

    def _erred(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError

        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 -- librdkafka's own codes are spelled so
            self._fatal = error.str()

    def _delivered(self, held: Held, error: KafkaError | None, _message: Message) -> None:
        self._marks -= isinstance(held, LossMark)
        if error is not None:
            self._failed.append((error.str(), held))


def _reason(error: KafkaException, client: Mapping[str, str]) -> str:
    """Return what librdkafka says of the settings, without the secrets among them."""
    reason = str(error.args[0].str())
    for name, value in client.items():
        if is_secret(name) and value:
            reason = reason.replace(value, HIDDEN)
    return reason
