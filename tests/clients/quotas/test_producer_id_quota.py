"""``producer_ids_rate`` (KIP-936) in front of a real broker: idempotent and transactional producers of real clients."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer

from tests.clients.fronts import DEADLINE_S, Front, eventually, unique
from tests.clients.java_clients import JavaClients
from tests.clients.quotas.quota_client import Answer, Behind, has_throttle_time, is_muted_for, quota_front
from tests.clients.quotas.quota_java import longest_throttle_ms
from tests.clients.quotas.quota_producers import (
    RawProducer,
    java_login,
    librdkafka_login,
)
from tests.faults.waiting import wait_until
from tests.security.planes import NEEDS_ENGINE, REQUESTS, native_connections
from tests.shared_cluster import HIDDEN, LISTENER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

NEWEST: Final = "4.4.0"
IDS: Final = 2
WINDOW_S: Final = 3600
ID_MS: Final = WINDOW_S // IDS * 1000
"""What an id too many has to wait: until the next one is free."""
SHORTENED_MS: Final = 500

QUOTAS: Final = f"""
[[quotas]]
entity = {{ user = "<default>" }}
producer_ids_rate = {IDS}
[[quotas]]
entity = {{ user = "shortened" }}
producer_ids_rate = 1
longest_throttle = "{SHORTENED_MS}ms"
[[quotas]]
entity = {{ user = "unheard" }}
producer_ids_rate = 1
longest_throttle = "{SHORTENED_MS}ms"
"""

_ids = itertools.count(1_000_000)


@pytest.fixture(scope="module")
def secured(kafka: FirstBroker) -> Iterator[Front]:
    """Each user has a bucket of its own."""
    with quota_front(kafka, QUOTAS, LISTENER) as front:
        yield front


@pytest.fixture(scope="module")
def open_to_all(kafka: FirstBroker) -> Iterator[Front]:
    """Clients do not log in."""
    with quota_front(kafka, QUOTAS) as front:
        yield front


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    """It has a partition for each id that one request brings."""
    name = unique("producer-ids")
    Behind(kafka).makes((name, 4))
    return name


def check_one_too_many(java: JavaClients, topic: str, login: dict[str, Any]) -> None:
    """Two producers are within the quota, a third is served and throttled, and the first two go on."""
    begun_s = time.monotonic()
    with (
        java.producer(**login) as first,
        java.producer(**login) as second,
        java.producer(**login) as third,
    ):
        for producer in (first, second, third):
            java.send(producer, topic, [b"value"])
        answer = Answer(sent_s=begun_s, received_s=time.monotonic(), message={})
        assert (longest_throttle_ms(first), longest_throttle_ms(second)) == (0, 0)
        assert has_throttle_time(ID_MS, answer, answer, longest_throttle_ms(third))
        for producer in (first, second):
            java.send(producer, topic, [b"goes on"] * 3)
            assert longest_throttle_ms(producer) == 0


def test_java(secured: Front, topic: str) -> None:
    java = JavaClients(NEWEST, secured.bootstrap_servers)
    check_one_too_many(java, topic, java_login("java"))
    with java.producer(**java_login("bystander")) as producer:
        java.send(producer, topic, [b"of another user"])
        assert longest_throttle_ms(producer) == 0


def test_java_without_a_login(open_to_all: Front, topic: str) -> None:
    """Those who do not log in are one user: ANONYMOUS."""
    check_one_too_many(JavaClients(NEWEST, open_to_all.bootstrap_servers), topic, {})
    line = open_to_all.proxy.wait_for_log("request throttled")
    assert "user=ANONYMOUS" in line
    assert "quota=producer_ids_rate" in line


def test_producers_without_ids_are_not_counted(secured: Front, topic: str) -> None:
    java = JavaClients(NEWEST, secured.bootstrap_servers)
    for acks in ("0", "1", "all"):
        for _ in range(IDS):
            with java.producer(enable_idempotence=False, acks=acks, **java_login("both")) as producer:
                java.send(producer, topic, [b"value"])
                assert longest_throttle_ms(producer) == 0


def test_transactions(secured: Front, topic: str) -> None:
    """A transactional producer keeps its id however many transactions it has; one too many commits, too, but later."""
    java, login = JavaClients(NEWEST, secured.bootstrap_servers), java_login("shortened")
    throttles = []
    for _ in range(2):
        with java.producer(transactional_id=unique("producer-ids"), **login) as producer:
            producer.initTransactions()
            for _ in range(3):
                producer.beginTransaction()
                java.send(producer, topic, [b"value"])
                producer.commitTransaction()
            throttles.append(longest_throttle_ms(producer))
    assert throttles[0] == 0
    assert throttles[1] <= SHORTENED_MS  # none, if the broker took longer for its reply
    secured.proxy.wait_for_log("entity='user=shortened'")


def test_librdkafka(secured: Front, topic: str) -> None:
    """It receives the throttle time and ignores it: the mute holds it back."""
    events: list[list[int]] = [[], [], []]
    producers = []
    for received in events:
        config = {
            "bootstrap.servers": secured.bootstrap_servers,
            "enable.idempotence": True,
            "throttle_cb": lambda event, received=received: received.append(round(event.throttle_time * 1000)),
            **librdkafka_login("librdkafka"),
        }
        producers.append(Producer(config))
    begun_s = time.monotonic()
    for producer in producers:
        assert delivered(producer, topic) == [None]
    answer = Answer(sent_s=begun_s, received_s=time.monotonic(), message={})
    third = producers.pop()
    eventually(lambda: third.poll(0.05) or events[2], "the third one receives its throttle time", pause_s=0)
    assert has_throttle_time(ID_MS, answer, answer, events[2][0])
    for producer in producers:
        assert delivered(producer, topic) == [None]
    assert events[:2] == [[], []]


def delivered(producer: Producer, topic: str) -> list[Any]:
    """What became of a message: ``[None]`` if all is well."""
    errors: list[Any] = []
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    return errors


def test_an_id_counts_once(secured: Front, topic: str) -> None:
    one, two, three = (next(_ids) for _ in range(3))
    with RawProducer(secured, topic, "raw") as client, RawProducer(secured, topic, "raw") as other:
        for sequence in range(3):
            assert client.produces(one, sequence=sequence).throttle_ms == 0
        assert client.produces(-1, -1, -1).throttle_ms == 0
        assert other.produces(one, sequence=3).throttle_ms == 0
        assert other.produces(two).throttle_ms == 0
        answer = client.produces(three)
        first_charge = Answer(sent_s=client.began_s, received_s=answer.received_s, message={})
        assert has_throttle_time(ID_MS, first_charge, answer)
        for sequence in (1, 2):  # ids that were seen go on, over a connection that is not muted
            assert other.produces(two, sequence=sequence).throttle_ms == 0


def test_several_ids_in_one_request(secured: Front, topic: str) -> None:
    with RawProducer(secured, topic, "many") as client:
        answer = client.produces(*(next(_ids) for _ in range(IDS + 2)))
        assert has_throttle_time(2 * ID_MS, answer, answer)


@pytest.mark.parametrize(
    ("user", "before"),
    [(HIDDEN[0], 0), pytest.param(HIDDEN[1], REQUESTS, marks=NEEDS_ENGINE)],
    ids=["python", "native"],
)
def test_ids_behind_thousands_of_partitions_without_records_are_counted(
    secured: Front, topic: str, user: str, before: int
) -> None:
    """A plugin gets 4,096 batches of a request at most."""
    with RawProducer(secured, topic, user) as client:
        for sequence in range(before):
            client.produces(-1, sequence=sequence)
        if before:
            wait_until(lambda: native_connections(secured.proxy) > 0, "the connection is relayed natively")
        answer = client.produces(*(next(_ids) for _ in range(IDS + 2)), nothing_to=4096)
        assert answer.throttle_ms > ID_MS


def test_without_acks_only_the_mute_shows_the_throttle(secured: Front, topic: str) -> None:
    with RawProducer(secured, topic, "unheard") as client:
        client.produces_unheard(next(_ids))
        sent_s = time.monotonic()
        client.produces_unheard(next(_ids))
        sent = Answer(sent_s=sent_s, received_s=sent_s, message={})
        assert is_muted_for(SHORTENED_MS, sent, client.is_read_again())
