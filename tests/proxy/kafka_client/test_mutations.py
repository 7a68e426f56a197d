"""What THROTTLING_QUOTA_EXCEEDED does to a call, to the millisecond (KIP-599), on a fake clock.

`test_quota_violations` has the same with the real proxy, and with Java's client beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.errors import (
    ApiTimeoutError,
    BadReplyError,
    BrokerError,
    SettingsError,
    ThrottlingQuotaExceeded,
    UnsupportedVersionError,
)
from headrace.proxy.kafka_client.topics import NewPartitions, NewTopic
from headrace.quota_callbacks.api_keys import ApiKey
from tests.proxy.kafka_client.fake_cluster import ONE, Asked, open_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

EXCEEDED, EXISTS = 89, 36
CREATE = ApiKey.CREATE_TOPICS


def topics(*names: str) -> list[NewTopic]:
    return [NewTopic(name=name, num_partitions=1, replication_factor=1) for name in names]


def replies(*script: tuple[int, dict[str, int]]) -> Callable[[Asked], dict[str, Any]]:
    """Replies by topic, one for each request: the throttle time, and the error codes of topics that fail."""
    rest = [*script]

    def answer(asked: Asked) -> dict[str, Any]:
        throttle_ms, codes = rest.pop(0)
        rows = [{"name": name, "error_code": codes.get(name, 0)} for name in asked.names]
        key = {ApiKey.CREATE_TOPICS: "topics", ApiKey.DELETE_TOPICS: "responses"}.get(asked.api_key, "results")
        return {key: rows, **({"throttle_time_ms": throttle_ms} if throttle_ms else {})}

    return answer


async def test_only_refused_topics_are_sent_again_after_the_throttle_time(autojump_clock: MockClock) -> None:
    script = replies((1500, {"b": EXCEEDED, "c": EXCEEDED, "d": EXISTS}), (700, {"c": EXCEEDED}), (0, {}))
    async with open_cluster({CREATE: script}) as (cluster, admin):
        results = await admin.create_topics(topics("a", "b", "c", "d"), raise_errors=False)
    sent = cluster.requests(CREATE)
    assert [(each.at, each.names) for each in sent] == [(0.0, ["a", "b", "c", "d"]), (1.5, ["b", "c"]), (2.2, ["c"])]
    assert {each.address for each in sent} == {ONE}, "the controller"
    assert [*results] == ["a", "b", "c", "d"]
    assert [*results.values] == ["a", "b", "c"]
    assert {name: str(error) for name, error in results.errors.items()} == {
        "d": "TOPIC_ALREADY_EXISTS: Topic with this name already exists."
    }
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        results["d"]


async def test_the_time_that_the_broker_gets_shrinks_with_the_deadline(autojump_clock: MockClock) -> None:
    script = replies((39_000, {"a": EXCEEDED}), (0, {}))
    async with open_cluster({CREATE: script}) as (cluster, admin):
        await admin.create_topics(topics("a"))
    assert [each.message["timeout_ms"] for each in cluster.requests(CREATE)] == [30_000, 21_000]


async def test_at_the_deadline_the_remaining_throttle_time_is_the_result(autojump_clock: MockClock) -> None:
    script = replies((90_000, {"b": EXCEEDED}))
    async with open_cluster({CREATE: script}) as (cluster, admin):
        results = await admin.create_topics(topics("a", "b"), raise_errors=False)
        assert trio.current_time() - cluster.began == pytest.approx(60), "Java waits for the deadline, too"
    error = results.errors["b"]
    assert isinstance(error, ThrottlingQuotaExceeded)
    assert error.throttle_time_ms == 30_000
    assert str(error).startswith("THROTTLING_QUOTA_EXCEEDED: The throttling quota has been exceeded.")
    assert [*results.values] == ["a"]
    assert len(cluster.requests(CREATE)) == 1


async def test_the_deadline_of_a_call_can_be_given(autojump_clock: MockClock) -> None:
    script = replies((5000, {"a": EXCEEDED}))
    async with open_cluster({CREATE: script}) as (cluster, admin):
        with pytest.raises(ThrottlingQuotaExceeded) as raised:
            await admin.create_topics(topics("a"), timeout_ms=2000)
        assert trio.current_time() - cluster.began == pytest.approx(2)
    assert raised.value.throttle_time_ms == 3000
    assert raised.value.retriable


async def test_without_retries_it_is_raised_at_once(autojump_clock: MockClock) -> None:
    script = replies((90_000, {"a": EXCEEDED, "b": EXCEEDED}))
    async with open_cluster({CREATE: script}) as (cluster, admin):
        with pytest.raises(ThrottlingQuotaExceeded) as raised:
            await admin.create_topics(topics("a", "b"), retry_on_quota_violation=False)
        assert trio.current_time() == cluster.began
    assert raised.value.throttle_time_ms == 90_000
    assert raised.value.__notes__[0] == "for a; 2 of 2 failed"
    assert raised.value.__notes__[1].startswith("for b: THROTTLING_QUOTA_EXCEEDED")


async def test_deletions_and_growth_are_sent_again_too(autojump_clock: MockClock) -> None:
    answers = {
        ApiKey.DELETE_TOPICS: replies((300, {"b": EXCEEDED}), (0, {})),
        ApiKey.CREATE_PARTITIONS: replies((400, {"d": EXCEEDED}), (0, {})),
    }
    async with open_cluster(answers) as (cluster, admin):
        await admin.delete_topics(["a", "b"])
        await admin.create_partitions({"c": 3, "d": NewPartitions(total_count=2, assignments=[[1, 2]])})
    assert [(each.at, each.names) for each in cluster.requests(ApiKey.DELETE_TOPICS)] == [(0, ["a", "b"]), (0.3, ["b"])]
    grown = cluster.requests(ApiKey.CREATE_PARTITIONS)
    assert [(each.at, each.names) for each in grown] == [(0.3, ["c", "d"]), (0.7, ["d"])]
    assert grown[1].message["topics"][0]["assignments"] == [{"broker_ids": [1, 2]}]


async def test_a_broker_that_refuses_without_a_throttle_time_is_not_asked_in_a_loop(autojump_clock: MockClock) -> None:
    script = replies(*[(0, {"a": EXCEEDED})] * 100)
    async with open_cluster({CREATE: script}) as (cluster, admin):
        with pytest.raises(ThrottlingQuotaExceeded):
            await admin.create_topics(topics("a"), timeout_ms=1000)
    assert 8 <= len(cluster.requests(CREATE)) <= 13, "every 80 to 120 ms"


async def test_a_topic_without_a_result_has_an_error(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: lambda _: {"topics": [{"name": "unheard-of"}]}}) as (_, admin):
        with pytest.raises(BadReplyError, match="no result for the topic 'a'"):
            await admin.create_topics(topics("a"))


async def test_topics_that_were_never_refused_time_out(autojump_clock: MockClock) -> None:
    """The broker still throttles the client, so the second call sends nothing."""
    async with open_cluster({CREATE: replies((1000, {"b": EXCEEDED}))}) as (cluster, admin):
        results = await admin.create_topics(topics("a", "b"), timeout_ms=500, raise_errors=False)
        assert isinstance(results.errors["b"], ThrottlingQuotaExceeded)
        with pytest.raises(
            ApiTimeoutError, match="CreateTopics timed out after 300 ms and 1 attempt; no broker has replied"
        ):
            await admin.create_topics(topics("c"), timeout_ms=300)
    assert len(cluster.requests(CREATE)) == 1


async def test_names_and_counts_are_checked_before_anything_is_sent(autojump_clock: MockClock) -> None:
    async with open_cluster({}) as (cluster, admin):
        with pytest.raises(SettingsError, match="'a' is named twice"):
            await admin.create_topics(topics("a", "a"))
        with pytest.raises(SettingsError, match="'a' is named twice"):
            await admin.delete_topics(["a", "a"])
        with pytest.raises(SettingsError, match="leave out both of its counts"):
            await admin.create_topics([NewTopic(name="a", num_partitions=1, assignments={0: [1]})])
        assert len(await admin.create_topics([])) == 0
    assert cluster.connections == []


async def test_a_number_that_does_not_fit_is_an_error(autojump_clock: MockClock) -> None:
    async with open_cluster({}) as (_, admin):
        with pytest.raises(SettingsError, match="num_partitions"):
            await admin.create_topics([NewTopic(name="a", num_partitions=1 << 31, replication_factor=1)])


@pytest.mark.parametrize(("version", "has_validation"), [(0, False), (1, True), (3, True)])
async def test_old_brokers(version: int, has_validation: bool, autojump_clock: MockClock) -> None:
    """What versions that no broker of the tests is limited to can express."""
    script = replies((0, {}), (0, {}))
    async with open_cluster({CREATE: script}, versions={CREATE: (0, version)}) as (cluster, admin):
        await admin.create_topics(topics("a"))
        if has_validation:
            await admin.create_topics(topics("a"), validate_only=True)
        else:
            with pytest.raises(UnsupportedVersionError, match="cannot validate without creating"):
                await admin.create_topics(topics("a"), validate_only=True)
        with pytest.raises(UnsupportedVersionError, match=r"CreateTopics v\d \(brokers have them since Kafka 2.4"):
            await admin.create_topics([NewTopic(name="b")])
    assert {each.version for each in cluster.requests(CREATE)} == {version}


async def test_names_are_sent_to_every_version_of_delete_topics(autojump_clock: MockClock) -> None:
    for version in range(7):
        answers = {ApiKey.DELETE_TOPICS: replies((0, {}))}
        async with open_cluster(answers, versions={ApiKey.DELETE_TOPICS: (0, version)}) as (cluster, admin):
            assert len(await admin.delete_topics(["a"])) == 1
            assert cluster.requests(ApiKey.DELETE_TOPICS)[0].version == version
