"""What each kind of client reports when it does what bob may not: the class of the exception, or the error's name.

Each function does the same: it produces, consumes, consumes in a group that is denied, creates a topic and describes
one.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the client under test runs on it
import contextlib
from typing import TYPE_CHECKING, Any, Final

import aiokafka
import aiokafka.admin
import aiokafka.errors
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.fronts import eventually
from tests.clients.java_clients import JavaClients, done
from tests.clients.users.sasl_clients import (
    JAVA_VERSION,
    KafkaAdminClient,
    KafkaPythonError,
    java_admin,
    java_settings,
    librdkafka_settings,
)
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

USER: Final = "bob"
TOPIC, GROUP = "nothing", "other"
"""What bob has no permission for."""
READABLE, OWN_GROUP = "read", "group-1"
NEW: Final = "old-1"
WAIT_S: Final = 40.0

Reported = dict[str, str]


# --- librdkafka ---


def librdkafka(server: str) -> Reported:
    """Return the names of the errors."""
    settings = librdkafka_settings(server, "PLAIN", USER, SECRETS[USER])
    admin = AdminClient(settings)
    (created,) = admin.create_topics([NewTopic(NEW, 1, 1)]).values()
    try:
        created.result(WAIT_S)
        creation = "none"
    except KafkaException as error:
        creation = _name(error.args[0])
    return {
        "produce": _produced(settings),
        "consume": _consumed(settings, TOPIC, OWN_GROUP),
        "group": _consumed(settings, READABLE, GROUP),
        "create": creation,
        "describe": _name(admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].error),
    }


def _name(error: KafkaError | None) -> str:
    return "none" if error is None else str(error.name())


def _produced(settings: dict[str, Any]) -> str:
    errors: list[KafkaError | None] = []
    producer = Producer(settings)
    producer.produce(TOPIC, b"value", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(WAIT_S) == 0
    return _name(errors[0])


def _consumed(settings: dict[str, Any], topic: str, group: str) -> str:
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = eventually(lambda: consumer.poll(0.2), f"an error for {topic}", pause_s=0)
        return _name(message.error())
    finally:
        consumer.close()


# --- Java ---


def java(server: str) -> Reported:
    """Return the names of the exceptions' classes."""
    clients = JavaClients(JAVA_VERSION, server)
    settings = java_settings("PLAIN", USER, SECRETS[USER])
    with java_admin(clients, settings) as admin, clients.producer(**settings) as producer:
        return {
            "produce": _java_name(lambda: clients.send(producer, TOPIC, [b"value"])),
            "consume": _java_name(lambda: _java_read(clients, settings, TOPIC, OWN_GROUP)),
            "group": _java_name(lambda: _java_read(clients, settings, READABLE, GROUP)),
            "create": _java_name(lambda: clients.create_topic(admin, NEW, 1, {})),
            "describe": _java_name(lambda: done(admin.describeTopics([TOPIC]).allTopicNames())),
        }


def _java_read(clients: JavaClients, settings: dict[str, str], topic: str, group: str) -> None:
    with clients.consumer(group_id=group, **settings) as consumer:
        consumer.subscribe([topic])
        clients.read(consumer, 1)


def _java_name(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001 -- of any class of Java
        cause = error.getCause() if hasattr(error, "getCause") and error.getCause() is not None else error
        return type(cause).__name__.rpartition(".")[2]
    return "none"


# --- kafka-python ---


def kafka_python(server: str) -> Reported:
    """Return the names of the exceptions' classes. Its consumer only logs that a topic is denied."""
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import NewTopic as NewPythonTopic

    settings = {
        "bootstrap_servers": server,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": SECRETS[USER],
    }

    def read(topic: str, group: str) -> None:
        with contextlib.closing(KafkaConsumer(topic, group_id=group, auto_offset_reset="earliest", **settings)) as made:
            eventually(lambda: made.poll(200), f"an error for {topic}", pause_s=0)

    def name(call: Callable[[], object]) -> str:
        try:
            call()
        except KafkaPythonError as error:
            return type(error).__name__
        return "none"

    with (
        contextlib.closing(KafkaAdminClient(**settings)) as admin,
        contextlib.closing(KafkaProducer(**settings)) as producer,
    ):
        return {
            "produce": name(lambda: producer.send(TOPIC, b"value").get(WAIT_S)),
            "group": name(lambda: read(READABLE, GROUP)),
            "create": name(lambda: admin.create_topics([NewPythonTopic(NEW, 1, 1)])),
            "describe": str([row.get("error_code") for row in admin.describe_topics([TOPIC])]),
        }


# --- aiokafka ---


def aio(server: str) -> Reported:
    """Return the names of the exceptions' classes."""
    return asyncio.run(_aio(server))


async def _aio(server: str) -> Reported:
    settings: dict[str, Any] = {
        "bootstrap_servers": server,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": SECRETS[USER],
    }

    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(TOPIC, b"value")

    async def read(topic: str, group: str) -> None:
        made = aiokafka.AIOKafkaConsumer(topic, group_id=group, auto_offset_reset="earliest", **settings)
        try:  # ``async with`` would not close it if it cannot be started
            await made.start()
            await made.getone()
        finally:
            await made.stop()

    async def name(call: Awaitable[object]) -> str:
        try:
            await asyncio.wait_for(call, WAIT_S)
        except aiokafka.errors.KafkaError as error:
            return type(error).__name__
        return "none"

    admin = aiokafka.admin.AIOKafkaAdminClient(**settings)
    await admin.start()
    try:
        creation = await admin.create_topics([aiokafka.admin.NewTopic(NEW, 1, 1)])
        described = await admin.describe_topics([TOPIC])
    finally:
        await admin.close()
    return {
        "produce": await name(produce()),
        "consume": await name(read(TOPIC, OWN_GROUP)),
        "group": await name(read(READABLE, GROUP)),
        "create": str([error[1] for error in creation.topic_errors]),
        "describe": str([row["error_code"] for row in described]),
    }


CLIENTS: Final[dict[str, Callable[[str], Reported]]] = {
    "librdkafka": librdkafka,
    "java": java,
    "kafka-python": kafka_python,
    "aiokafka": aio,
}
