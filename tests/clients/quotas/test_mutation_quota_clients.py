"""``controller_mutation_rate`` (KIP-599) with real clients: old ones are muted, new ones get error 89."""

from __future__ import annotations

import contextlib
import re
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from testbed.kafka.tools import Tool, run_tool
from tests.clients.fronts import DEADLINE_S, TOOL_DEADLINE_S, Front, unique
from tests.clients.java_clients import JavaClients, done
from tests.clients.quotas.quota_client import (
    QUOTA_MESSAGE,
    REFUSED,
    THROTTLING_QUOTA_EXCEEDED,
    Answer,
    Behind,
    QuotaClient,
    has_throttle_time,
    is_muted_for,
    quota_front,
)
from tests.clients.quotas.quota_java import java_admin, refused_for_ms
from tests.clients.quotas.quota_mutations import (
    QUICK_BURST,
    QUICK_MS,
    SLOW_BURST,
    SLOW_MS,
    names,
)

with warnings.catch_warnings():
    # kafka-python 3.0.12 reads its schemas, as it is imported, by a function that Python 3.11 deprecates.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka.admin import KafkaAdminClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testbed.kafka.cluster import KafkaCluster

NEWEST: Final = "4.4.0"

THE_KIPS: Final = """
[controller.quota.window]
num = 100
[[quotas]]
entity = { client-id = "<default>" }
controller_mutation_rate = 5
"""
"""KIP-599's example: Q=5, S=100, W=1."""
THE_KIPS_MS: Final = 12_000


@pytest.fixture
def quick(quick43: Front) -> Front:
    return quick43


@pytest.fixture(scope="module")
def the_kips(creating: KafkaCluster) -> Iterator[Front]:
    with quota_front(creating, THE_KIPS) as front:
        yield front


def timed(ask: Callable[[], Any]) -> tuple[Any, Answer]:
    """The result of ``ask``, and the times at which it began and ended."""
    sent_s = time.monotonic()
    found = ask()
    return found, Answer(sent_s=sent_s, received_s=time.monotonic(), message={})


# --- Java's AdminClient ---


def test_java_gets_all_its_topics(quick: Front, behind: Behind) -> None:
    """One request for nine topics, of twice the burst in all, with the AdminClient as it is by default."""
    java, topics = JavaClients(NEWEST, quick.bootstrap_servers), names(9)
    refused = quick.proxy.metric(REFUSED)
    with java_admin(java) as admin:
        begun_s = time.monotonic()
        for future in admin.creates(*((topic, 4) for topic in topics)).values():
            done(future)
        passed_s = time.monotonic() - begun_s
    assert quick.proxy.metric(REFUSED) >= refused + 1
    for topic in topics:
        behind.will_have(topic, 4)
    assert passed_s * 1000 >= (9 * 4 - 4 - QUICK_BURST) * QUICK_MS  # when the last topic was admitted


def test_java_gets_all_its_deletions_and_partitions(quick: Front, behind: Behind) -> None:
    java = JavaClients(NEWEST, quick.bootstrap_servers)
    deleted, extended = names(4), names(4)
    behind.makes(*((topic, 7) for topic in deleted), *((topic, 1) for topic in extended))
    refused = quick.proxy.metric(REFUSED)
    with java_admin(java) as admin:
        for future in admin.deletes(*deleted).values():
            done(future)
        for future in admin.adds(*((topic, 8) for topic in extended)).values():
            done(future)
    assert quick.proxy.metric(REFUSED) >= refused + 2
    for topic in deleted:
        behind.will_have(topic, 0)
    for topic in extended:
        behind.will_have(topic, 8)


def test_java_without_retries_gets_the_quota_error_for_creations(slow: Front, behind: Behind) -> None:
    first, second, third = names(3)
    with java_admin(JavaClients(NEWEST, slow.bootstrap_servers)) as admin:

        def create() -> int:
            futures = admin.creates((first, SLOW_BURST + 2), (second, 1), retry=False)
            done(futures.get(first))
            return refused_for_ms(futures.get(second))

        throttle_ms, when = timed(create)
        assert has_throttle_time(2 * SLOW_MS, when, when, throttle_ms)
    behind.has_caught_up()
    assert [behind.partitions(topic) for topic in (first, second, third)] == [SLOW_BURST + 2, 0, 0]


def test_java_without_retries_gets_the_quota_error_for_deletions(slow: Front, behind: Behind) -> None:
    topics = names(4)
    behind.makes(*((topic, SLOW_BURST + 3) for topic in topics))
    first, second, *by_id = topics
    with java_admin(JavaClients(NEWEST, slow.bootstrap_servers)) as admin:

        def delete() -> int:
            futures = admin.deletes(first, second, retry=False)
            done(futures.get(first))
            return refused_for_ms(futures.get(second))

        throttle_ms, when = timed(delete)
        assert has_throttle_time(3 * SLOW_MS, when, when, throttle_ms)
    with java_admin(JavaClients(NEWEST, slow.bootstrap_servers)) as admin:
        ids = [behind.topic_id(topic) for topic in by_id]

        def delete_by_id() -> int:
            futures = admin.deletes_by_id(*ids, retry=False)
            done(futures[ids[0]])
            return refused_for_ms(futures[ids[1]])

        throttle_ms, when = timed(delete_by_id)
        assert has_throttle_time(3 * SLOW_MS, when, when, throttle_ms)
    for deleted in (first, by_id[0]):
        behind.will_have(deleted, 0)
    assert (behind.partitions(second), behind.partitions(by_id[1])) == (SLOW_BURST + 3, SLOW_BURST + 3)


def test_java_without_retries_gets_the_quota_error_for_additions(slow: Front, behind: Behind) -> None:
    first, second = names(2)
    behind.makes((first, 2), (second, 2))
    with java_admin(JavaClients(NEWEST, slow.bootstrap_servers)) as admin:

        def add() -> int:
            futures = admin.adds((first, SLOW_BURST + 3), (second, 3), retry=False)
            done(futures.get(first))
            return refused_for_ms(futures.get(second))

        throttle_ms, when = timed(add)
        assert has_throttle_time(SLOW_MS, when, when, throttle_ms)
    behind.will_have(first, SLOW_BURST + 3)
    assert behind.partitions(second) == 2


# --- tools and other clients ---


@pytest.mark.parametrize("version", ["4.3.1", pytest.param("3.9.1", marks=pytest.mark.exhaustive)])
def test_the_tool_fails_fast(version: str, slow: Front, behind: Behind) -> None:
    """TopicCommand does not retry, as KIP-599 wants it."""
    [topic] = names(1)
    with QuotaClient(slow, "adminclient-1") as same_client_id:  # minutes of debt: a JVM may take its time to start
        same_client_id.creates(7, (unique("mutation-quota"), SLOW_BURST + 20))
    asked, refused = slow.requests("CreateTopics"), slow.proxy.metric(REFUSED)
    arguments = ("--bootstrap-server", slow.bootstrap_servers, "--create", "--topic", topic, "--partitions", "1")
    ended = run_tool(Tool.TOPICS, arguments, version=version, timeout_s=TOOL_DEADLINE_S, check=False)
    assert ended.returncode == 1
    assert QUOTA_MESSAGE in ended.stdout  # of the ThrottlingQuotaExceededException, whose name goes to its log
    assert (slow.requests("CreateTopics") - asked, slow.proxy.metric(REFUSED) - refused) == (1, 1)
    behind.has_caught_up()
    assert behind.partitions(topic) == 0


def test_librdkafka_is_an_old_client(quick: Front, behind: Behind) -> None:
    """It creates topics with version 4: all are made, and only a mute holds it."""
    topics, client_id = names(3), unique("librdkafka")
    admin = AdminClient({"bootstrap.servers": quick.bootstrap_servers, "client.id": client_id})
    refused = quick.proxy.metric(REFUSED)

    def create() -> None:
        wanted = [NewTopic(topic, num_partitions=10, replication_factor=1) for topic in topics]
        for future in admin.create_topics(wanted, operation_timeout=DEADLINE_S).values():
            future.result(DEADLINE_S)

    _, created = timed(create)
    _, listed = timed(lambda: admin.list_topics(topics[0], timeout=DEADLINE_S))
    assert is_muted_for((30 - QUICK_BURST) * QUICK_MS, created, listed)
    assert quick.proxy.metric(REFUSED) == refused
    for topic in topics:
        behind.will_have(topic, 10)


@contextlib.contextmanager
def kafka_python(front: Front, api_version: tuple[int, ...] | None) -> Iterator[KafkaAdminClient]:
    """kafka-python, made to speak as with brokers of that version: CreateTopics 5 before 2.7, and 7 with these."""
    config: dict[str, Any] = {"bootstrap_servers": front.bootstrap_servers, "client_id": unique("kafka-python")}
    with contextlib.closing(KafkaAdminClient(**config, api_version=api_version)) as admin:
        yield admin


def throttle_logged_ms(caplog: pytest.LogCaptureFixture) -> int:
    """The throttle time that kafka-python logs: it has it nowhere else."""
    [throttle_ms] = re.findall(r"CreateTopicsResponse throttled by broker \((\d+) ms\)", caplog.text)
    return int(throttle_ms)


@pytest.mark.parametrize(
    ("api_version", "codes", "owed"),
    [((2, 4), [0, 0], SLOW_BURST + 2), (None, [0, THROTTLING_QUOTA_EXCEEDED], 1)],
    ids=["old", "new"],
)
def test_kafka_python_of_before_and_after_the_kip(
    api_version: tuple[int, ...] | None, codes: list[int], owed: int, slow: Front, caplog: pytest.LogCaptureFixture
) -> None:
    topics = {topic: {"num_partitions": SLOW_BURST + 1, "replication_factor": 1} for topic in names(2)}
    with kafka_python(slow, api_version) as admin:
        reply, when = timed(lambda: admin.create_topics(topics, raise_errors=False))
    assert [each["error_code"] for each in reply["topics"]] == codes
    assert has_throttle_time(owed * SLOW_MS, when, when, throttle_logged_ms(caplog))


# --- KIP-599's own example: 7 topics of 80 partitions at 5 a second over 100 s leave -60 tokens, which take 12 s ---


def test_the_example_of_the_kip_by_an_old_client(the_kips: Front, caplog: pytest.LogCaptureFixture) -> None:
    topics = {topic: {"num_partitions": 80, "replication_factor": 1} for topic in names(7)}
    with kafka_python(the_kips, (2, 4)) as admin:
        reply, when = timed(lambda: admin.create_topics(topics))
    assert [each["error_code"] for each in reply["topics"]] == [0] * 7
    assert has_throttle_time(THE_KIPS_MS, when, when, throttle_logged_ms(caplog))


@pytest.mark.exhaustive  # like the next one: its second request has to come within 12 s
def test_the_example_of_the_kip_by_java(the_kips: Front) -> None:
    [late] = names(1)
    with java_admin(JavaClients(NEWEST, the_kips.bootstrap_servers)) as admin:

        def create() -> None:
            for future in admin.creates(*((topic, 80) for topic in names(7)), retry=False).values():
                done(future)

        _, accepted = timed(create)
        throttle_ms, refused = timed(lambda: refused_for_ms(admin.creates((late, 1), retry=False).get(late)))
        assert has_throttle_time(THE_KIPS_MS, accepted, refused, throttle_ms)


@pytest.mark.exhaustive
def test_the_example_of_the_kip_by_the_first_new_version(the_kips: Front) -> None:
    """Java's clients have gone on to version 7: this is 6."""
    [late] = names(1)
    with QuotaClient(the_kips) as client:
        accepted = client.creates(6, *((topic, 80) for topic in names(7)))
        assert set(accepted.errors.values()) == {0}
        assert accepted.throttle_ms == 0
        refused = client.creates(6, (late, 1))
        assert refused.errors == {late: THROTTLING_QUOTA_EXCEEDED}
        assert has_throttle_time(THE_KIPS_MS, accepted, refused)
