"""``controller_mutation_rate`` (KIP-599) in front of real brokers: every version by itself, and what is charged.

Real clients are in `test_mutation_quota_clients`, topics that Metadata creates in `test_mutation_quota_metadata`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from tests.clients.quotas.quota_client import (
    QUOTA_MESSAGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_TOPIC_OR_PARTITION,
    Behind,
    QuotaClient,
    has_throttle_time,
    is_muted_for,
    quota_front,
)
from tests.clients.quotas.quota_mutations import (
    DEFAULT_PARTITIONS,
    QUICK,
    QUICK_BURST,
    QUICK_MS,
    SLOW_BURST,
    SLOW_MS,
    check_mute,
    is_left_with,
    names,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.cluster import KafkaCluster
    from tests.clients.fronts import Front

INVALID_TOPIC: Final = 17
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
UNKNOWN_TOPIC_ID: Final = 100

OLD_CREATES: Final = [("quick43", version) for version in (2, 3, 4, 5)] + [("quick39", 0), ("quick39", 1)]
OLD_DELETES: Final = [("quick43", version) for version in (1, 2, 3, 4)] + [("quick39", 0)]
OLD_ADDS: Final = [("quick43", version) for version in (0, 1, 2)]
"""Kafka 4 has no CreateTopics below 2 and no DeleteTopics 0 (KIP-896)."""


@pytest.fixture(scope="module")
def quick39(kafka39: KafkaCluster) -> Iterator[Front]:
    with quota_front(kafka39, QUICK) as front:
        yield front


@pytest.fixture
def quick(request: pytest.FixtureRequest) -> Front:
    """One of the two by its name."""
    found: Front = request.getfixturevalue(request.param)
    return found


# --- each version ---


@pytest.mark.parametrize(("quick", "version"), OLD_CREATES, indirect=["quick"])
def test_an_old_create_is_done_and_muted(quick: Front, version: int) -> None:
    first, second = names(2)
    with QuotaClient(quick) as client:
        answer = client.creates(version, (first, QUICK_BURST + 3), (second, 1))
        assert answer.errors == {first: 0, second: 0}
        assert ("throttle_time_ms" in answer.message) == (version >= 2)
        check_mute(client, answer, 4)
    for topic, count in ((first, QUICK_BURST + 3), (second, 1)):
        Behind(quick.cluster).will_have(topic, count)


@pytest.mark.parametrize(
    ("quick", "version"), [("quick43", 6), ("quick43", 7), ("quick39", 6), ("quick39", 7)], indirect=["quick"]
)
def test_a_new_create_is_refused_beyond_the_quota(quick: Front, version: int) -> None:
    first, second = names(2)
    behind = Behind(quick.cluster)
    with QuotaClient(quick) as client:
        answer = client.creates(version, (first, QUICK_BURST + 4), (second, 1))
        assert answer.errors == {first: 0, second: THROTTLING_QUOTA_EXCEEDED}
        assert [row["error_message"] for row in answer.rows] == [None, QUOTA_MESSAGE]
        check_mute(client, answer, 4)
        behind.has_caught_up()
        assert (behind.partitions(first), behind.partitions(second)) == (QUICK_BURST + 4, 0)
        assert client.creates(version, (second, 1)).errors == {second: 0}


@pytest.mark.parametrize(("quick", "version"), OLD_DELETES, indirect=["quick"])
def test_an_old_delete_is_done_and_muted(quick: Front, version: int) -> None:
    first, second = names(2)
    behind = Behind(quick.cluster)
    behind.makes((first, QUICK_BURST + 3), (second, 1))
    with QuotaClient(quick) as client:
        answer = client.deletes(version, first, second)
        assert answer.errors == {first: 0, second: 0}
        assert ("throttle_time_ms" in answer.message) == (version >= 1)
        check_mute(client, answer, 4)
    behind.will_have(first, 0)
    behind.will_have(second, 0)


@pytest.mark.parametrize(
    ("quick", "version", "by_id"),
    [("quick43", 5, False), ("quick43", 6, False), ("quick43", 6, True), ("quick39", 5, False), ("quick39", 6, True)],
    indirect=["quick"],
)
def test_a_new_delete_is_refused_beyond_the_quota(quick: Front, version: int, by_id: bool) -> None:
    first, second = names(2)
    behind = Behind(quick.cluster)
    behind.makes((first, QUICK_BURST + 4), (second, 1))
    ids = {behind.topic_id(topic): topic for topic in (first, second)}
    with QuotaClient(quick) as client:
        answer = client.deletes(version, *(ids if by_id else ids.values()))
        assert [row["error_code"] for row in answer.rows] == [0, THROTTLING_QUOTA_EXCEEDED]
        assert [row["error_message"] for row in answer.rows] == [None, QUOTA_MESSAGE]
        if by_id:
            assert [row["topic_id"] for row in answer.rows] == list(ids)
        else:
            assert [row["name"] for row in answer.rows] == [first, second]
        check_mute(client, answer, 4)
        behind.will_have(first, 0)
        assert behind.partitions(second) == 1
        again = client.deletes(version, *(list(ids)[1:] if by_id else [second]))
        assert [row["error_code"] for row in again.rows] == [0]


@pytest.mark.parametrize(("quick", "version"), OLD_ADDS, indirect=["quick"])
def test_old_additions_are_made_and_muted(quick: Front, version: int) -> None:
    first, second = names(2)
    behind = Behind(quick.cluster)
    behind.makes((first, 2), (second, 1))
    with QuotaClient(quick) as client:
        answer = client.adds(version, (first, QUICK_BURST + 5), (second, 2))
        assert answer.errors == {first: 0, second: 0}
        check_mute(client, answer, 4)
    behind.will_have(first, QUICK_BURST + 5)
    behind.will_have(second, 2)


@pytest.mark.parametrize("quick", ["quick43", "quick39"], indirect=True)
def test_new_additions_are_refused_beyond_the_quota(quick: Front) -> None:
    first, second = names(2)
    behind = Behind(quick.cluster)
    behind.makes((first, 2), (second, 1))
    with QuotaClient(quick) as client:
        answer = client.adds(3, (first, QUICK_BURST + 6), (second, 2))
        assert answer.errors == {first: 0, second: THROTTLING_QUOTA_EXCEEDED}
        assert [row["error_message"] for row in answer.rows] == [None, QUOTA_MESSAGE]
        check_mute(client, answer, 4)
        behind.will_have(first, QUICK_BURST + 6)
        assert behind.partitions(second) == 1
        assert client.adds(3, (second, 2)).errors == {second: 0}


def test_what_is_sent_behind_an_old_create_waits(quick43: Front) -> None:
    """Even in one piece with it; another connection of the client is not muted, as with Kafka."""
    [topic] = names(1)
    with QuotaClient(quick43) as client, QuotaClient(quick43, client.client_id) as other:
        answer = client.creates(5, (topic, QUICK_BURST + 10))
        assert has_throttle_time(10 * QUICK_MS, answer, answer)
        client.sends(ApiKey.API_VERSIONS, 0)
        elsewhere = other.is_read_again()
        late = client.is_read_again()
        assert is_muted_for(10 * QUICK_MS, answer, late)
        assert elsewhere.received_s < late.received_s


# --- what it costs ---


def test_the_brokers_default_number_of_partitions(slow: Front, behind: Behind) -> None:
    topics = names(3)
    with QuotaClient(slow) as client:
        answer = client.creates(7, *((topic, -1) for topic in topics))
        assert list(answer.errors.values()) == [0, 0, THROTTLING_QUOTA_EXCEEDED]
        assert has_throttle_time((2 * DEFAULT_PARTITIONS - SLOW_BURST) * SLOW_MS, answer, answer)
    behind.will_have(topics[0], DEFAULT_PARTITIONS)


def test_the_brokers_default_by_an_old_version(slow: Front, behind: Behind) -> None:
    topics = names(2)
    with QuotaClient(slow) as client:
        answer = client.creates(4, *((topic, -1) for topic in topics))
        assert list(answer.errors.values()) == [0, 0]
        assert has_throttle_time((2 * DEFAULT_PARTITIONS - SLOW_BURST) * SLOW_MS, answer, answer)
    behind.will_have(topics[1], DEFAULT_PARTITIONS)


def test_assigned_partitions_are_counted(slow: Front, behind: Behind) -> None:
    [topic] = names(1)
    node_id = slow.cluster.brokers[0].node_id
    assignments = [{"partition_index": number, "broker_ids": [node_id]} for number in range(4)]
    row = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    with QuotaClient(slow) as client:
        answer = client.asks(ApiKey.CREATE_TOPICS, 7, {"topics": [row], "timeout_ms": 30_000})
        assert answer.errors == {topic: 0}
        behind.will_have(topic, 4)
        assert is_left_with(client, SLOW_BURST - 4)


def test_what_the_broker_refuses_costs_nothing(slow: Front, behind: Behind) -> None:
    there, few, unknown = names(3)
    behind.makes((there, 1), (few, 3))
    with QuotaClient(slow) as client:
        assert client.creates(7, (there, 100)).errors == {there: TOPIC_ALREADY_EXISTS}
        assert client.creates(7, ("no topic", 100)).errors == {"no topic": INVALID_TOPIC}
        assert client.creates(5, (there, 100)).throttle_ms == 0
        wide = {"name": unknown, "num_partitions": 100, "replication_factor": 3}
        answer = client.asks(ApiKey.CREATE_TOPICS, 7, {"topics": [wide], "timeout_ms": 30_000})
        assert answer.errors == {unknown: INVALID_REPLICATION_FACTOR}
        assert client.deletes(5, unknown).errors == {unknown: UNKNOWN_TOPIC_OR_PARTITION}
        assert client.deletes(6, b"\1" * 16).rows[0]["error_code"] == UNKNOWN_TOPIC_ID
        assert client.adds(3, (unknown, 100)).errors == {unknown: UNKNOWN_TOPIC_OR_PARTITION}
        assert client.adds(3, (few, 2)).errors == {few: INVALID_PARTITIONS}
        assert is_left_with(client, SLOW_BURST)


def test_validation_costs_nothing(slow: Front, behind: Behind) -> None:
    new, there = names(2)
    behind.makes((there, 1))
    with QuotaClient(slow) as client:
        assert client.creates(7, (new, 100), validate_only=True).errors == {new: 0}
        answer = client.creates(5, (new, 100), validate_only=True)
        assert (answer.errors, answer.throttle_ms) == ({new: 0}, 0)
        assert client.adds(3, (there, 100), validate_only=True).errors == {there: 0}
        assert is_left_with(client, SLOW_BURST)
    assert (behind.partitions(new), behind.partitions(there)) == (0, 1)


def test_all_kinds_of_mutations_draw_on_one_bucket(slow: Front, behind: Behind) -> None:
    deleted, by_id, extended = names(3)
    behind.makes((deleted, 2), (by_id, 1), (extended, 7))
    with QuotaClient(slow) as client:
        assert client.deletes(5, deleted).errors == {deleted: 0}
        assert client.deletes(6, behind.topic_id(by_id)).rows[0]["error_code"] == 0
        assert client.adds(3, (extended, 8)).errors == {extended: 0}
        assert is_left_with(client, SLOW_BURST - 4)


@pytest.mark.parametrize("version", [5, 6])
def test_a_topic_that_its_broker_does_not_know_yet(version: int, slow: Front, behind: Behind) -> None:
    """Brokers learn of topics behind the controller, the later the more there is to learn; who changes or deletes a
    topic at once is charged all the same."""
    extended, deleted, busy = names(3)
    wanted = {"name": busy, "num_partitions": 150, "replication_factor": 1}
    with QuotaClient(slow) as client:
        behind.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [wanted], "timeout_ms": 30_000})
        assert client.creates(7, (extended, 1)).errors == {extended: 0}
        assert client.adds(3, (extended, 2)).errors == {extended: 0}
        assert client.creates(7, (deleted, 1)).errors == {deleted: 0}
        assert client.deletes(version, deleted).errors == {deleted: 0}
        assert is_left_with(client, SLOW_BURST - 4)
    behind.will_have(extended, 2)
    behind.will_have(deleted, 0)
