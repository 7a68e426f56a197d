"""THROTTLING_QUOTA_EXCEEDED by the real proxy, with Java's AdminClient beside the client (KIP-599).

`test_mutations` has the timing to the millisecond, on a fake clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.kafka_client.errors import ThrottlingQuotaExceeded
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses
from headrace.proxy.kafka_client.sync import SyncAdminClient
from headrace.proxy.kafka_client.topics import NewTopic
from tests.clients.fronts import Front, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.quotas.quota_client import QUOTA_MESSAGE, REFUSED, Behind, quota_front
from tests.clients.quotas.quota_java import java_admin, refused_for_ms
from tests.clients.quotas.quota_mutations import QUICK, QUICK_BURST, QUICK_MS, SLOW, SLOW_BURST, SLOW_MS, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

TOLERANCE_MS = 5000
"""How much later than on an idle machine a reply may arrive; a throttle time shrinks meanwhile."""


@pytest.fixture(scope="module")
def quick(kafka: FirstBroker) -> Iterator[Front]:
    with quota_front(kafka, QUICK) as front:
        yield front


@pytest.fixture(scope="module")
def slow(kafka: FirstBroker) -> Iterator[Front]:
    with quota_front(kafka, SLOW) as front:
        yield front


@pytest.fixture
def behind(kafka: FirstBroker) -> Behind:
    return Behind(kafka)


def client(front: Front) -> SyncAdminClient:
    """A client with a bucket of its own."""
    return SyncAdminClient(
        ClientSettings(bootstrap_servers=parse_addresses(front.bootstrap_servers), client_id=unique("headrace-admin"))
    )


def new(*topics: tuple[str, int]) -> list[NewTopic]:
    return [NewTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics]


@pytest.mark.exhaustive
def test_all_topics_are_created_in_the_time_that_the_quota_takes(quick: Front) -> None:
    refused = quick.proxy.metric(REFUSED)
    topics = names(9)
    with client(quick) as admin:
        began_s = time.monotonic()
        created = admin.create_topics(new(*((topic, 4) for topic in topics)))
        passed_ms = (time.monotonic() - began_s) * 1000
        assert [*created.values] == topics
        assert passed_ms >= (9 * 4 - 4 - QUICK_BURST) * QUICK_MS - QUICK_MS
        assert quick.proxy.metric(REFUSED) > refused
        admin.create_partitions(dict.fromkeys(topics, 5))
        admin.delete_topics(topics)


def test_without_retries_it_says_what_java_says(slow: Front, behind: Behind) -> None:
    first, second, javas_first, javas_second = names(4)
    with client(slow) as admin:
        results = admin.create_topics(
            new((first, SLOW_BURST + 2), (second, 1)), retry_on_quota_violation=False, raise_errors=False
        )
    with java_admin(JavaClients("4.4.0", slow.bootstrap_servers)) as admin_of_java:
        futures = admin_of_java.creates((javas_first, SLOW_BURST + 2), (javas_second, 1), retry=False)
        done(futures.get(javas_first))
        javas_ms = refused_for_ms(futures.get(javas_second))
    error = results.errors[second]
    assert isinstance(error, ThrottlingQuotaExceeded)
    assert error.message == QUOTA_MESSAGE
    for throttle_ms in (error.throttle_time_ms, javas_ms):
        assert 2 * SLOW_MS - TOLERANCE_MS <= throttle_ms <= 2 * SLOW_MS
    assert [*results.values] == [first]
    behind.will_have(first, SLOW_BURST + 2)
    assert behind.partitions(second) == 0


@pytest.mark.exhaustive
def test_at_the_deadline_it_says_what_java_says(slow: Front) -> None:
    """Both wait for the deadline of the call, and report the rest of the throttle time."""
    timeout_ms = 2000
    owed_ms = 2 * SLOW_MS - timeout_ms
    first, second, javas_first, javas_second = names(4)
    with client(slow) as admin:
        began_s = time.monotonic()
        results = admin.create_topics(
            new((first, SLOW_BURST + 2), (second, 1)), timeout_ms=timeout_ms, raise_errors=False
        )
        passed_ms = (time.monotonic() - began_s) * 1000
    error = results.errors[second]
    assert isinstance(error, ThrottlingQuotaExceeded)
    assert timeout_ms <= passed_ms <= timeout_ms + TOLERANCE_MS
    java = JavaClients("4.4.0", slow.bootstrap_servers)
    with java.admin(
        client_id=unique("java-admin"), default_api_timeout_ms=timeout_ms, request_timeout_ms=1000
    ) as admin_of_java:
        optional, count = java._java.util.Optional, java._java.lang.Integer
        topic = java.cls("org.apache.kafka.clients.admin.NewTopic")
        wanted = [
            topic(name, optional.of(count(partitions)), optional.empty())
            for name, partitions in ((javas_first, SLOW_BURST + 2), (javas_second, 1))
        ]
        javas_ms = refused_for_ms(admin_of_java.createTopics(wanted).values().get(javas_second))
    for throttle_ms in (error.throttle_time_ms, javas_ms):
        assert owed_ms - TOLERANCE_MS <= throttle_ms <= owed_ms + TOLERANCE_MS


def test_deletions_and_growth_are_refused_too(slow: Front, behind: Behind) -> None:
    one, two = names(2)
    behind.makes((one, SLOW_BURST + 2), (two, 2))
    with client(slow) as admin:
        admin.delete_topics([one])
        with pytest.raises(ThrottlingQuotaExceeded) as raised:
            admin.create_partitions({two: 3}, retry_on_quota_violation=False)
        assert raised.value.throttle_time_ms > SLOW_MS
    with client(slow) as admin:  # a new client: the old one waits for its throttle time
        admin.create_partitions({two: 2 + SLOW_BURST + 1})
        with pytest.raises(ThrottlingQuotaExceeded):
            admin.delete_topics([two], retry_on_quota_violation=False)
    behind.will_have(two, 2 + SLOW_BURST + 1)
