"""Reading the topic of quotas up to its end, and appending to it: the blocking side, with librdkafka.

Called by `replica` in a thread, one call at a time. Readers and writers have a client of librdkafka each, which
connects again by itself.

**One alteration is one record batch.** A broker appends, replicates and truncates whole batches, and the offset that it
returns as the end of the log is that of the high watermark, which is always between two batches. So a reader
that stops at such an end sees each alteration of an entity completely or not at all, without transactions, whose
readers would wait for the time-out of a transaction after each kill of a writer. librdkafka sends what was produced
before `flush` as one batch, if it fits into one: nothing is sent before, since ``linger.ms`` is longer than that takes.
A batch that is sent again after an error has the same records (``enable.idempotence``), and is stored once.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.proxy.quotas.store import StoreError, StoreTimeoutError
from headrace.proxy.quotas.topic.clients import ClientErrors, client_settings, reason_of
from headrace.proxy.quotas.topic.records import HEADER, LogRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

    from headrace.proxy.quotas.topic.clients import TopicSettings
    from headrace.proxy.quotas.topic.creation import TopicAdmin
    from headrace.proxy.quotas.topic.records import NewRecord

MAX_BATCH_BYTES: Final = 900_000
"""Size of the largest batch before compression: below the 1,000,000 bytes of librdkafka's ``message.max.bytes`` and of
the topic's ``max.message.bytes``, by the header of the batch and of the request."""
MAX_BATCH_RECORDS: Final = 5_000
"""Half of librdkafka's default of ``batch.num.messages``."""
PIECE: Final = 128
"""Records that are taken at once. Decoding them takes about 1 ms, for which the event loop may have to wait."""
RETRY_S: Final = 0.05
"""Pause after an error that is worth trying again: a leader election takes some tenths of a second."""
LONGEST_POLL_S: Final = 0.5
LONGEST_QUESTION_S: Final = 1.0
"""Seconds until the leader is asked again; it answers within milliseconds, if it is the leader and serves."""
NEW_TOPIC_S: Final = 3.0
"""How long a topic may be unknown: brokers learn of a new topic one after the other, and of all when they start."""


class LogReplacedError(Exception):
    """The log does not continue where it was read last: the topic was created again, or the log was truncated."""


class UnknownTopicError(StoreError):
    """The topic does not exist."""


class TopicReader:
    """A consumer at a position in the log, at first before the first record.

    Another consumer asks for the end: a broker answers the requests of a connection one after the other, and the first
    consumer's connection has a Fetch that waits for new records.

    ``admin`` knows whether the topic was deleted and created again, also if the new log is longer already.

    Every method may raise `StoreError`, and `StoreTimeoutError` when ``deadline_s`` of the monotonic clock has passed.
    """

    def __init__(self, settings: TopicSettings, admin: TopicAdmin) -> None:
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        self._settings = settings
        self._admin = admin
        self._errors = ClientErrors()
        self._pending: deque[Message] = deque()
        """Records that were fetched and are beyond the end up to which the caller has read: a `PIECE` at most."""
        self.position = 0
        """The offset of the next record."""
        self._is_reading = False
        """Whether the consumer fetches from the position on."""
        self._partition: TopicPartition = TopicPartition(settings.topic, 0)
        try:
            self._consumer: Consumer = Consumer(self._consumer_settings())
            self._asking: Consumer = Consumer(self._consumer_settings())
        except KafkaException as error:
            raise StoreError(reason_of(error, settings)) from None

    def go_to(self, offset: int) -> None:
        """Let `read` begin with the record at ``offset``, or the first one after it."""
        self.position, self._is_reading = offset, False

    def end(self, deadline_s: float) -> int:
        """Ask the leader for the offset after the last record. Records acknowledged before the call have lower ones.

        Raises `LogReplacedError` if the end is before the position, or if the topic was created again.
        """
        from confluent_kafka import KafkaException

        unknown_until_s = time.monotonic() + NEW_TOPIC_S
        while True:
            try:
                _, end = self._asking.get_watermark_offsets(
                    self._partition, timeout=max(0.01, min(LONGEST_QUESTION_S, deadline_s - time.monotonic()))
                )
            except KafkaException as error:
                if _is_unknown(error.args[0]):
                    self._admin.require_check()
                if not (_is_unknown(error.args[0]) and time.monotonic() < unknown_until_s):
                    self._check(error.args[0])
                self._pause(deadline_s)
                self._learn_leader(deadline_s)
                continue
            if end < self.position or self._admin.is_replaced(deadline_s):
                raise LogReplacedError
            return int(end)

    def require_check(self) -> None:
        """Let the next call of `end` ask whether the topic is still the same."""
        self._admin.require_check()

    def read(self, end: int, deadline_s: float) -> Iterator[list[LogRecord]]:
        """Yield the records from the position to ``end`` in pieces. Raises `LogReplacedError` if they do not exist."""
        if not self._is_reading:
            self._begin()
        while self.position < end:
            if not self._pending:
                self._pending.extend(self._poll(deadline_s))
            piece: list[LogRecord] = []
            while self._pending and self.position < end:
                if not self._take(end, piece):
                    break
            if piece:
                yield piece

    def _begin(self) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        self._pending.clear()
        offset = self.position or OFFSET_BEGINNING  # also if the first records were deleted
        self._consumer.assign([TopicPartition(self._settings.topic, 0, offset)])
        self._is_reading = True

    def _learn_leader(self, deadline_s: float) -> None:
        """Ask any broker for the leader: librdkafka would go on to ask one that is gone."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self._asking.list_topics(
                self._settings.topic, timeout=max(0.01, min(LONGEST_QUESTION_S, deadline_s - time.monotonic()))
            )

    def close(self) -> None:
        """Close the consumers."""
        self._consumer.close()
        self._asking.close()

    def _take(self, end: int, piece: list[LogRecord]) -> bool:
        """Take the next message, unless it is beyond ``end``."""
        message = self._pending[0]
        error = message.error()
        if error is None:
            offset = _offset(message)
            if offset >= end:
                self.position = end  # compaction has removed the records before it
                return False
            piece.append(_log_record(message))
            self.position = offset + 1
        elif _is_end(error):
            self.position = max(self.position, _offset(message))
        elif _is_replaced(error):
            raise LogReplacedError
        elif _is_unknown(error):
            self._errors.note(error)  # to a broker that has just started; `end` finds out
            self._admin.require_check()
        else:
            self._check(error)
        self._pending.popleft()
        return True

    def _poll(self, deadline_s: float) -> list[Message]:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise self._too_late()
        first = self._consumer.poll(min(left_s, LONGEST_POLL_S))
        if first is None:
            return []
        return [first, *self._consumer.consume(PIECE - 1, timeout=0)]  # which would wait until there are so many

    def _pause(self, deadline_s: float) -> None:
        if time.monotonic() + RETRY_S >= deadline_s:
            raise self._too_late()
        time.sleep(RETRY_S)

    def _too_late(self) -> StoreTimeoutError:
        return StoreTimeoutError(self._settings.about(f"no answer of the cluster in time{self._errors.suffix()}"))

    def _check(self, error: KafkaError) -> None:
        """Raise `StoreError` for a permanent error; note any other error for the message of a time-out."""
        from confluent_kafka import KafkaError

        if _is_unknown(error):
            raise UnknownTopicError(self._settings.about("it does not exist"))
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise StoreError(self._settings.about(f"it may not be read: {error.str()}"))
        if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is used
            self._errors.note(error)

    def _consumer_settings(self) -> dict[str, Any]:
        return client_settings(self._settings, self._errors) | {
            "group.id": "headrace-quotas",  # required by librdkafka, but no group is joined and no offset committed
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 500,
            "fetch.error.backoff.ms": 50,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": 5,  # its default of a second is what limits a replay
        }


class TopicWriter:
    """The producer. One with a fatal error, in librdkafka's sense, is replaced."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._errors = ClientErrors()
        self._producer: Producer | None = None
        self._knows_leader = False

    def append(self, records: Sequence[NewRecord], deadline_s: float) -> None:
        """Append ``records`` as one batch, and return when all replicas in sync have it.

        They must fit: `MAX_BATCH_BYTES`, `MAX_BATCH_RECORDS`. After `StoreTimeoutError` they may or may not be stored,
        after another `StoreError` they are not.
        """
        from confluent_kafka import KafkaException

        producer = self._ready(deadline_s)
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failed.append(error)

        try:
            for each in records:
                headers: list[tuple[str, str | bytes | None]] = [(HEADER, each.header)]
                producer.produce(
                    self._settings.topic, each.value, each.key, partition=0, headers=headers, on_delivery=delivered
                )
        except (KafkaException, BufferError) as error:
            self._discard(producer)
            raise StoreTimeoutError(self._settings.about(f"the change was not sent: {error}")) from None
        if producer.flush(max(0.01, deadline_s - time.monotonic())):
            self._discard(producer)
            raise StoreTimeoutError(self._settings.about(f"the change was not acknowledged{self._errors.suffix()}"))
        if self._errors.fatal:
            self._discard(producer)
        if failed:
            raise self._failure(failed)

    def close(self) -> None:
        """Close the producer. Nothing is waiting in it."""
        self._producer = None

    def connect(self) -> None:
        """Create the producer, which connects in the background. Otherwise the first change takes a second longer."""
        from confluent_kafka import KafkaException, Producer

        self._errors = ClientErrors()
        try:
            self._producer = Producer(self._producer_settings())
        except KafkaException as error:
            raise StoreError(reason_of(error, self._settings)) from None
        self._knows_leader = False

    def _ready(self, deadline_s: float) -> Producer:
        """Return the producer once it knows the leader. Without it, records would be queued one by one."""
        from confluent_kafka import KafkaException

        if self._producer is None:
            self.connect()
        producer = self._producer
        if producer is None:
            raise AssertionError("a producer was created")
        if not self._knows_leader:
            try:
                producer.list_topics(self._settings.topic, timeout=max(0.01, deadline_s - time.monotonic()))
            except KafkaException as error:
                text = f"no change was made: {error.args[0].str()}{self._errors.suffix()}"
                raise StoreTimeoutError(self._settings.about(text)) from None
            self._knows_leader = True
        return producer

    def _discard(self, producer: Producer) -> None:
        """Drop a producer, and what is still waiting in it; the next change has a new one."""
        producer.purge()
        producer.flush(RETRY_S)
        self._producer = None

    def _failure(self, failed: Sequence[KafkaError]) -> StoreError:
        from confluent_kafka import KafkaError

        refusals = (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.INVALID_RECORD,
            KafkaError.POLICY_VIOLATION,
        )
        if all(error.code() in refusals for error in failed):
            return StoreError(self._settings.about(f"the cluster has refused the change: {failed[0].str()}"))
        text = f"the change was not acknowledged: {failed[0].str()}{self._errors.suffix()}"
        return StoreTimeoutError(self._settings.about(text))

    def _producer_settings(self) -> dict[str, Any]:
        return client_settings(self._settings, self._errors) | {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5_000,
            "message.timeout.ms": 10_000,
            "retry.backoff.ms": 50,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "message.max.bytes": 1_000_000,
        }


def _offset(message: Message) -> int:
    offset = message.offset()
    if offset is None:
        raise AssertionError("librdkafka gives every message that it has read an offset")
    return offset


def _log_record(message: Message) -> LogRecord:
    header: str | bytes | None = next((value for name, value in _headers(message) if name == HEADER), None)
    if isinstance(header, str):
        header = header.encode()
    return LogRecord(_offset(message), message.timestamp()[1], _bytes(message.key()), _bytes(message.value()), header)


def _headers(message: Message) -> Sequence[tuple[str, str | bytes | None]]:
    headers = message.headers() or []
    return list(headers.items()) if isinstance(headers, dict) else headers


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _is_unknown(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    own = KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION  # noqa: SLF001 -- librdkafka's begin with underscores
    return error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, *own)


def _is_end(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)  # noqa: SLF001 -- as above


def _is_replaced(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 -- as above
