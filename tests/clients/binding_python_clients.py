"""The two clients that are written in Python, behind the interface of `binding_clients`."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client under test runs on it
import contextlib
import threading
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.errors import for_code

from tests.clients.binding_clients import BATCH_BYTES, FETCH_BYTES, HEARTBEAT_MS, POLL_S
from tests.clients.fronts import DEADLINE_S, eventually

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import KafkaAdminClient
    from kafka.errors import NodeNotReadyError, ThrottlingQuotaExceededError
    from kafka.structs import OffsetAndMetadata

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from tests.clients.binding_clients import AdminUnderTest, MemberUnderTest, ProducerUnderTest
    from tests.clients.binding_front import Side

T = TypeVar("T")


# --- kafka-python ---


class KafkaPython:
    """Its errors are exceptions; what a quota refuses, the application has to try again."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.errors: set[str] = set()
        self._config = {"bootstrap_servers": side.bootstrap_servers, "client_id": side.client_id}

    @contextlib.contextmanager
    def producer(self, transactional_id: str | None = None) -> Iterator[ProducerUnderTest]:
        config = {**self._config, "enable_idempotence": True, "batch_size": BATCH_BYTES, "linger_ms": 20}
        with contextlib.closing(KafkaProducer(**config, transactional_id=transactional_id)) as producer:
            _await_throttles(producer._sender._client)
            if transactional_id is not None:
                producer.init_transactions()
            yield _KafkaPythonProducer(producer, self._config)

    def member(self, topic: str, group: str) -> MemberUnderTest:
        return _KafkaPythonMember(self._config, topic, group)

    @contextlib.contextmanager
    def admin(self) -> Iterator[AdminUnderTest]:
        with contextlib.closing(KafkaAdminClient(**self._config)) as admin:
            yield _KafkaPythonAdmin(admin, self.errors)

    def close(self) -> None:
        """Nothing is left to end."""


def _await_throttles(client: Any) -> None:
    """Have a producer wait for the end of a throttle before it sends a transactional request.

    kafka-python 3.0.12 waits for the next event instead, and loses the request if the broker's throttle is not over by
    then (``Sender._maybe_send_pending_request`` neither sends nor retries it), so that a commit or abort never ends:
    so without a proxy, where it was seen first.
    """
    is_ready = client.await_ready

    def await_ready(node_id: int | str, timeout_ms: int = 30_000) -> bool:
        while client.throttle_delay(node_id) > 0:
            client.poll(timeout_ms=POLL_S * 1000)
        return bool(is_ready(node_id, timeout_ms))

    client.await_ready = await_ready


class _KafkaPythonProducer:
    def __init__(self, producer: KafkaProducer, config: dict[str, Any]) -> None:
        self._producer = producer
        self._config = config

    def send(self, topic: str, values: Sequence[bytes]) -> None:
        futures = [self._producer.send(topic, value, partition=0) for value in values]
        self._producer.flush(DEADLINE_S)
        for future in futures:
            future.get(DEADLINE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        with contextlib.closing(KafkaConsumer(**self._config, group_id=group)) as member:
            self._producer.send_offsets_to_transaction(offsets, member.group_metadata())

    def end(self, *, commits: bool) -> None:
        if commits:
            self._producer.commit_transaction()
        else:
            self._producer.abort_transaction()


class _KafkaPythonMember:
    def __init__(self, config: dict[str, Any], topic: str, group: str) -> None:
        self._consumer = KafkaConsumer(
            **config,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_partition_fetch_bytes=FETCH_BYTES,
        )
        self._consumer.subscribe([topic])
        # A member that learns of the topic only after it has joined can lose its assignment (docs/clients.md).
        eventually(lambda: self._consumer.partitions_for_topic(topic), f"kafka-python knows {topic}")

    def poll(self) -> list[bytes]:
        found = self._consumer.poll(POLL_S * 1000)
        return [message.value for messages in found.values() for message in messages]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._consumer.close()


class _KafkaPythonAdmin:
    def __init__(self, admin: KafkaAdminClient, errors: set[str]) -> None:
        self._admin = admin
        self._errors = errors

    def create(self, topic: str, partitions: int) -> None:
        wanted = {topic: {"num_partitions": partitions, "replication_factor": 1}}
        self._until_admitted(lambda: self._admin.create_topics(wanted))

    def delete(self, topic: str) -> None:
        self._until_admitted(lambda: self._admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self._until_admitted(self._admin.list_topics))

    def _until_admitted(self, ask: Callable[[], T]) -> T:
        """Ask again while the quota refuses it, or while the client itself holds back because it is throttled.

        Which of the two an application sees depends on the moment: the client may hold back until the quota admits it.
        """

        def admitted() -> tuple[T] | None:
            try:
                return (ask(),)
            except (ThrottlingQuotaExceededError, NodeNotReadyError):
                self._errors.add("throttled")
                return None

        return eventually(admitted, "the quota admits it", pause_s=POLL_S)[0]


# --- aiokafka ---


class Aiokafka:
    """Its errors are exceptions. It has a loop of its own in a thread, on which all of its clients run."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.errors: set[str] = set()
        self._config = {"bootstrap_servers": side.bootstrap_servers, "client_id": side.client_id}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, DEADLINE_S), self._loop).result()

    @contextlib.contextmanager
    def producer(self, transactional_id: str | None = None) -> Iterator[ProducerUnderTest]:
        config = {**self._config, "max_batch_size": BATCH_BYTES, "linger_ms": 20, "enable_idempotence": True}

        async def make() -> AIOKafkaProducer:
            producer = AIOKafkaProducer(**config, transactional_id=transactional_id)
            await producer.start()
            return producer

        producer = self.wait_for(make())
        try:
            yield _AiokafkaProducer(self, producer)
        finally:
            self.wait_for(producer.stop())

    def member(self, topic: str, group: str) -> MemberUnderTest:
        async def make() -> AIOKafkaConsumer:
            consumer = AIOKafkaConsumer(
                topic,
                **self._config,
                group_id=group,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=HEARTBEAT_MS,
                max_partition_fetch_bytes=FETCH_BYTES,
            )
            await consumer.start()
            return consumer

        return _AiokafkaMember(self, self.wait_for(make()))

    @contextlib.contextmanager
    def admin(self) -> Iterator[AdminUnderTest]:
        async def make() -> AIOKafkaAdminClient:
            admin = AIOKafkaAdminClient(**self._config)
            await admin.start()
            return admin

        admin = self.wait_for(make())
        try:
            yield _AiokafkaAdmin(self, admin)
        finally:
            self.wait_for(admin.close())


class _AiokafkaProducer:
    def __init__(self, client: Aiokafka, producer: AIOKafkaProducer) -> None:
        self._client = client
        self._producer = producer

    def send(self, topic: str, values: Sequence[bytes]) -> None:
        async def work() -> None:
            arrivals = [await self._producer.send(topic, value, partition=0) for value in values]
            await self._producer.flush()
            await asyncio.gather(*arrivals)

        self._client.wait_for(work())

    def begin(self) -> None:
        self._client.wait_for(self._producer.begin_transaction())

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        self._client.wait_for(self._producer.send_offsets_to_transaction({AioPartition(topic, 0): offset}, group))

    def end(self, *, commits: bool) -> None:
        self._client.wait_for(self._producer.commit_transaction() if commits else self._producer.abort_transaction())


class _AiokafkaMember:
    def __init__(self, client: Aiokafka, consumer: AIOKafkaConsumer) -> None:
        self._client = client
        self._consumer = consumer

    def poll(self) -> list[bytes]:
        found = self._client.wait_for(self._consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [message.value for messages in found.values() for message in messages]

    def assigned(self) -> int:
        return len(self._consumer.assignment())

    def close(self) -> None:
        self._client.wait_for(self._consumer.stop())


class _AiokafkaAdmin:
    def __init__(self, client: Aiokafka, admin: AIOKafkaAdminClient) -> None:
        self._client = client
        self._admin = admin

    def create(self, topic: str, partitions: int) -> None:
        reply = self._client.wait_for(self._admin.create_topics([AioTopic(topic, partitions, 1)]))
        self._raise(error[1] for error in reply.topic_errors)

    def delete(self, topic: str) -> None:
        reply = self._client.wait_for(self._admin.delete_topics([topic]))
        self._raise(error[1] for error in reply.topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._client.wait_for(self._admin.list_topics()))

    @staticmethod
    def _raise(codes: Iterator[int]) -> None:
        for code in codes:
            if code:
                raise for_code(code)
