"""``request_percentage`` (KIP-124) in front of a real broker, alone and beside the mutation quota."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.fronts import DEADLINE_S, Front, unique
from tests.clients.java_clients import JavaClients
from tests.clients.quotas.quota_client import (
    ROUNDING_MS,
    THROTTLING_QUOTA_EXCEEDED,
    Behind,
    QuotaClient,
    has_throttle_time,
    is_muted_for,
    quota_front,
)
from tests.clients.quotas.quota_java import longest_throttle_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.clients.quotas.quota_client import Answer
    from tests.shared_cluster import FirstBroker

NEWEST: Final = "4.4.0"
LONGEST_MS: Final = 200
"""Maximum throttle time in tests that do not depend on it, so that they wait less."""
ONE_SAMPLE_MS: Final = 1000
PARTITION_MS: Final = 400
BURST: Final = 25
"""Of mutations: ten samples of a second at 2.5 a second."""

SHORTENED: Final = """
[controller.quota.window]
num = 10
[[quotas]]
entity = { client-id = "held" }
request_percentage = 0.0001
longest_throttle = "200ms"
[[quotas]]
entity = { client-id = "held-in-java" }
request_percentage = 0.0001
longest_throttle = "200ms"
[[quotas]]
entity = { client-id = "held-in-librdkafka" }
request_percentage = 0.0001
longest_throttle = "200ms"
[[quotas]]
entity = { client-id = "one-sample" }
request_percentage = 0.0001
[[quotas]]
entity = { client-id = "both" }
request_percentage = 0.0001
controller_mutation_rate = 2.5
[[quotas]]
entity = { client-id = "both-and-new" }
request_percentage = 0.0001
controller_mutation_rate = 2.5
[[quotas]]
entity = { client-id = "both-but-little" }
request_percentage = 0.0001
controller_mutation_rate = 2.5
[[quotas]]
entity = { client-id = "ample" }
request_percentage = 10000
"""
"""A ten-thousandth of a percent is 11 µs of thread time in a window: the first request is beyond it."""


@pytest.fixture(scope="module")
def limited(kafka: FirstBroker) -> Iterator[Front]:
    with quota_front(kafka, SHORTENED) as running:
        yield running


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    name = unique("request-quota")
    Behind(kafka).makes((name, 1))
    return name


def hammer(client: QuotaClient, topic: str, rounds: int) -> list[Answer]:
    """Metadata, ListOffsets and ApiVersions in turn, one behind the other's reply."""
    metadata = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    offsets = {
        "replica_id": -1,
        "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
    }
    answers = []
    for _ in range(rounds):
        answers.append(client.asks(ApiKey.METADATA, 12, metadata))
        answers.append(client.asks(ApiKey.LIST_OFFSETS, 7, offsets))
        answers.append(client.asks(ApiKey.API_VERSIONS, 3, {"client_software_name": "test"}))
    return answers


def test_who_hammers_is_slowed_down_and_nobody_else(limited: Front, topic: str) -> None:
    """Every reply comes at once with its throttle time; the next request is answered when that has passed."""
    with QuotaClient(limited, "held") as held, QuotaClient(limited, "ample") as ample, QuotaClient(limited) as free:
        answers = hammer(held, topic, 4)
        throttles_ms = [answer.throttle_ms for answer in answers]
        assert all(0 < throttle_ms <= LONGEST_MS for throttle_ms in throttles_ms)
        for answer, later in itertools.pairwise(answers):
            assert is_muted_for(answer.throttle_ms, answer, later)
        passed_ms = (answers[-1].received_s - answers[0].sent_s) * 1000
        assert passed_ms >= sum(throttles_ms[:-1]) - ROUNDING_MS * len(throttles_ms)
        for other in (ample, free):
            assert {answer.throttle_ms for answer in hammer(other, topic, 20)} == {0}
        assert hammer(held, topic, 1)[0].throttle_ms > 0


def test_another_connection_of_the_client_is_charged_to_the_same(limited: Front, topic: str) -> None:
    """The bucket is the client id's; the mute is the connection's, as with Kafka."""
    with QuotaClient(limited, "held") as first, QuotaClient(limited, "held") as second:
        assert hammer(first, topic, 1)[-1].throttle_ms > 0
        assert hammer(second, topic, 1)[0].throttle_ms > 0


def test_a_throttle_is_one_sample_at_most(limited: Front, topic: str) -> None:
    with QuotaClient(limited, "one-sample") as client:
        answers = hammer(client, topic, 1)
        for answer in answers:
            assert has_throttle_time(ONE_SAMPLE_MS, answer, answer)
        assert is_muted_for(answers[-1].throttle_ms, answers[-1], client.is_read_again())


@pytest.mark.exhaustive
def test_java_shows_the_throttle_in_its_own_metrics(limited: Front, topic: str) -> None:
    java = JavaClients(NEWEST, limited.bootstrap_servers)
    with java.producer(client_id="held-in-java") as producer:
        for number in range(3):
            java.send(producer, topic, [b"value %d" % number])
        assert 0 < longest_throttle_ms(producer) <= LONGEST_MS
    with java.consumer(client_id="held-in-java") as consumer:
        consumer.assign([java.partition(topic)])
        assert java.read(consumer, 3) == [b"value 0", b"value 1", b"value 2"]
        assert 0 < longest_throttle_ms(consumer, "fetch") <= LONGEST_MS
    with java.producer(client_id="ample") as producer:
        java.send(producer, topic, [b"value"] * 100)
        assert longest_throttle_ms(producer) == 0


def test_librdkafka_is_held_by_the_mute(limited: Front, topic: str) -> None:
    """It does not wait by itself: what it asks next is read when the time is up."""
    throttled = limited.proxy.metric("headrace_throttle_time_seconds_total")
    admin = AdminClient({"bootstrap.servers": limited.bootstrap_servers, "client.id": "held-in-librdkafka"})
    for _ in range(4):
        assert topic in admin.list_topics(timeout=DEADLINE_S).topics
    assert limited.proxy.metric("headrace_throttle_time_seconds_total") > throttled


def test_the_mutation_quota_wins_when_it_takes_longer(limited: Front) -> None:
    first, second = unique("request-quota"), unique("request-quota")
    owed = 25
    with QuotaClient(limited, "both") as client:
        answer = client.creates(5, (first, BURST + owed))
        assert answer.errors == {first: 0}
        assert has_throttle_time(owed * PARTITION_MS, answer, answer)
        assert answer.throttle_ms > ONE_SAMPLE_MS
    with QuotaClient(limited, "both-and-new") as client:
        answer = client.creates(7, (first + "-new", BURST + owed), (second, 1))
        assert list(answer.errors.values()) == [0, THROTTLING_QUOTA_EXCEEDED]
        assert has_throttle_time(owed * PARTITION_MS, answer, answer)
        assert answer.throttle_ms > ONE_SAMPLE_MS


def test_the_request_quota_wins_when_it_takes_longer(limited: Front) -> None:
    """One partition beyond the quota takes 400 ms, and one sample 1,000."""
    topic = unique("request-quota")
    with QuotaClient(limited, "both-but-little") as client:
        client.is_read_again()
        answer = client.creates(5, (topic, BURST + 1))
        assert answer.errors == {topic: 0}
        assert has_throttle_time(ONE_SAMPLE_MS, answer, answer)
        assert is_muted_for(answer.throttle_ms, answer, client.is_read_again())
