"""Attempts, back-off, deadlines, the controller and throttling, on a fake clock."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
import trio

from headrace.proxy.kafka_client.errors import ApiTimeoutError, BrokerError, SettingsError
from headrace.proxy.kafka_client.settings import ClientSettings, parse_addresses
from headrace.proxy.kafka_client.topics import NewTopic
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Address
from tests.proxy.kafka_client.fake_cluster import BOOTSTRAP, ONE, TWO, Act, Answer, Asked, open_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

CREATE, DELETE, DESCRIBE = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_CLIENT_QUOTAS
NOT_CONTROLLER, TIMED_OUT = 41, 7
TOPIC = [NewTopic(name="a", num_partitions=1, replication_factor=1)]


def created(asked: Asked, error_code: int = 0) -> dict[str, Any]:
    return {"topics": [{"name": name, "error_code": error_code} for name in asked.names]}


def described(throttle_time_ms: int = 0, error_code: int = 0) -> dict[str, Any]:
    return {"throttle_time_ms": throttle_time_ms, "error_code": error_code, "entries": []}


def in_turn(*answers: Callable[[Asked], Answer] | Answer) -> Callable[[Asked], Answer]:
    """Answer the first request with the first of these, and so on; all later ones with the last."""
    rest = [*answers]

    def answer(asked: Asked) -> Answer:
        each = rest.pop(0) if len(rest) > 1 else rest[0]
        return each(asked) if callable(each) else each

    return answer


async def test_topics_go_to_the_controller_and_quotas_to_any_broker(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: created, DESCRIBE: lambda _: described()}) as (cluster, admin):
        await admin.describe_client_quotas()
        assert cluster.connections == [BOOTSTRAP], "one connection is enough for quotas"
        cluster.controller_id = 2
        await admin.create_topics(TOPIC)
        assert cluster.connections == [BOOTSTRAP, TWO]
        assert {each.client_id for each in cluster.asked} == {"headrace-admin"}
        await admin.create_topics(TOPIC)
        assert len(cluster.requests(ApiKey.METADATA)) == 1
        await trio.sleep(301)
        await admin.create_topics(TOPIC)
        assert len(cluster.requests(ApiKey.METADATA)) == 2, "after metadata.max.age.ms"


async def test_another_controller_is_found(autojump_clock: MockClock) -> None:
    def answer(asked: Asked) -> Answer:
        cluster.controller_id = 2
        return created(asked, NOT_CONTROLLER if asked.address == ONE else 0)

    async with open_cluster({CREATE: answer}) as (cluster, admin):
        await admin.create_topics(TOPIC)
    first, second = cluster.requests(CREATE)
    assert (first.address, second.address) == (ONE, TWO)
    assert 0.08 <= second.at - first.at <= 0.12


async def test_the_backoff_doubles_up_to_its_maximum(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: lambda asked: created(asked, NOT_CONTROLLER)}) as (cluster, admin):
        with pytest.raises(ApiTimeoutError, match=r"and \d+ attempts; the last error: NOT_CONTROLLER") as raised:
            await admin.create_topics(TOPIC)
        assert trio.current_time() - cluster.began == pytest.approx(60)
    assert isinstance(raised.value.__cause__, BrokerError)
    times = [each.at for each in cluster.requests(CREATE)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, *[1.0] * 100], strict=False):
        assert expected * 0.79 <= pause <= expected * 1.21
    assert len(pauses) > 40


async def test_a_cluster_without_a_controller_is_asked_until_it_has_one(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: created}) as (cluster, admin), trio.open_nursery() as nursery:
        cluster.controller_id = -1
        nursery.start_soon(admin.create_topics, TOPIC)
        await trio.sleep(5)
        assert not cluster.requests(CREATE)
        cluster.controller_id = 1
        await trio.sleep(2)
        assert len(cluster.requests(CREATE)) == 1


@pytest.mark.parametrize("act", [Act.CLOSE, Act.SAY_NOTHING])
async def test_a_lost_request_is_sent_again(act: Act, autojump_clock: MockClock) -> None:
    async with open_cluster({DESCRIBE: in_turn(act, described())}) as (cluster, admin):
        await admin.describe_client_quotas()
    first, second = cluster.requests(DESCRIBE)
    waited_s = 30 if act is Act.SAY_NOTHING else 0
    assert waited_s + 0.08 <= second.at - first.at <= waited_s + 0.12, "after request.timeout.ms"
    assert len(cluster.connections) == 2, "a connection in the middle of a reply is not used again"


async def test_a_cluster_that_cannot_be_reached(autojump_clock: MockClock) -> None:
    async with open_cluster({}, default_api_timeout_ms=5000) as (cluster, admin):
        cluster.unreachable = {BOOTSTRAP}
        with pytest.raises(ApiTimeoutError, match="cannot connect to bootstrap:9092: refused"):
            await admin.describe_client_quotas()
        assert trio.current_time() - cluster.began == pytest.approx(5)
    assert 5 <= len(cluster.connections) <= 12


async def test_connecting_has_a_deadline(autojump_clock: MockClock) -> None:
    async with open_cluster({ApiKey.API_VERSIONS: lambda _: Act.SAY_NOTHING}, request_timeout_ms=1000) as (_, admin):
        with pytest.raises(ApiTimeoutError, match="bootstrap:9092 did not answer ApiVersions within 1000 ms"):
            await admin.describe_client_quotas(timeout_ms=3000)


async def test_a_broker_that_failed_is_the_last_choice(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: created, DESCRIBE: lambda _: described()}) as (cluster, admin):
        await admin.create_topics(TOPIC)  # now the brokers are known
        cluster.answers = {DESCRIBE: lambda asked: described() if asked.address == TWO else Act.CLOSE}
        await admin.describe_client_quotas()
        assert {each.address for each in cluster.requests(DESCRIBE)} - {TWO}
        asked = len(cluster.asked)
        await admin.describe_client_quotas()
    assert [each.address for each in cluster.asked[asked:]] == [TWO]


async def test_bootstrap_servers_are_asked_again_when_all_brokers_have_failed(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: created, DESCRIBE: lambda _: described()}) as (cluster, admin):
        await admin.create_topics(TOPIC)
        await trio.sleep(301)  # the connections are idle for too long, and the cluster has moved
        cluster.unreachable = {ONE, TWO}
        await admin.describe_client_quotas()
        assert [each.address for each in cluster.requests(DESCRIBE)] == [BOOTSTRAP]


async def test_a_bootstrap_server_that_is_a_broker_has_one_connection(autojump_clock: MockClock) -> None:
    """So its throttling is that of the broker."""
    brokers = [{"node_id": 1, "host": BOOTSTRAP.host, "port": BOOTSTRAP.port}]
    metadata = {"brokers": brokers, "controller_id": 1, "throttle_time_ms": 3000}
    async with open_cluster({CREATE: created, ApiKey.METADATA: lambda _: metadata}) as (cluster, admin):
        await admin.create_topics(TOPIC)
        assert cluster.connections == [BOOTSTRAP]
        assert [each.at for each in cluster.requests(CREATE)] == [3.0]


async def test_throttling_is_honoured_by_later_calls(autojump_clock: MockClock) -> None:
    """KIP-219: by calls to the same broker; another broker does not throttle."""
    answers = {CREATE: created, DELETE: lambda asked: {"responses": [{"name": "a"}], "throttle_time_ms": 2000}}
    async with open_cluster({**answers, DESCRIBE: in_turn(described(4000), described())}) as (cluster, admin):
        await admin.delete_topics(["a"])
        await admin.create_topics(TOPIC)
        assert cluster.requests(CREATE)[0].at == 2.0
        await admin.describe_client_quotas()
        await admin.describe_client_quotas()
    first, second = cluster.requests(DESCRIBE)
    assert first.address != second.address
    assert second.at == 2.0


async def test_throttling_outlives_a_connection(autojump_clock: MockClock) -> None:
    async with open_cluster({CREATE: lambda asked: {**created(asked), "throttle_time_ms": 900_000}}) as (
        cluster,
        admin,
    ):
        await admin.create_topics(TOPIC)
        await admin.create_topics(TOPIC, timeout_ms=1_000_000)
    assert [each.at for each in cluster.requests(CREATE)] == [0.0, 900.0]


async def test_throttling_of_versions_that_are_muted_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Before CreateTopics v3 the broker sends its reply after the throttle time (KIP-219)."""
    answers = {CREATE: lambda asked: {**created(asked), "throttle_time_ms": 5000}}
    async with open_cluster(answers, versions={CREATE: (0, 2)}) as (cluster, admin):
        await admin.create_topics(TOPIC)
        await admin.create_topics(TOPIC)
    assert [each.at for each in cluster.requests(CREATE)] == [0.0, 0.0]


async def test_errors_of_a_reply_are_not_retried(autojump_clock: MockClock) -> None:
    """As in Java, even those that are retriable: REQUEST_TIMED_OUT of a store."""
    async with open_cluster({DESCRIBE: lambda _: described(error_code=TIMED_OUT)}) as (cluster, admin):
        with pytest.raises(BrokerError, match="REQUEST_TIMED_OUT: The request timed out") as raised:
            await admin.describe_client_quotas()
    assert (raised.value.retriable, len(cluster.requests(DESCRIBE))) == (True, 1)


async def test_an_idle_connection_is_replaced(autojump_clock: MockClock) -> None:
    async with open_cluster({DESCRIBE: lambda _: described()}) as (cluster, admin):
        for pause_s in (299, 301, 0):
            await admin.describe_client_quotas()
            await trio.sleep(pause_s)
        assert len(cluster.connections) == 2


async def test_a_cancelled_call_leaves_a_usable_client(autojump_clock: MockClock) -> None:
    async with open_cluster({DESCRIBE: in_turn(Act.SAY_NOTHING, described())}) as (cluster, admin):
        with trio.move_on_after(1) as scope:
            await admin.describe_client_quotas()
        assert scope.cancelled_caught
        assert await admin.describe_client_quotas() == {}
    assert len(cluster.connections) == 2


async def test_tasks_share_a_connection(autojump_clock: MockClock) -> None:
    async with open_cluster({DESCRIBE: lambda _: described()}) as (cluster, admin), trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(admin.describe_client_quotas)
    assert (len(cluster.connections), len(cluster.requests(DESCRIBE))) == (1, 20)


def test_addresses() -> None:
    assert parse_addresses(" one:1, [::1]:9092,two:65535,") == (
        Address(host="one", port=1),
        Address(host="::1", port=9092),
        Address(host="two", port=65535),
    )
    assert str(parse_addresses("[::1]:9092")[0]) == "[::1]:9092"
    for wrong in ("", ",", "one", "one:", "one:0", "one:65536", "one:x", "http://one:1", "::1:9092"):
        with pytest.raises(SettingsError, match=r"bootstrap\.servers"):
            parse_addresses(wrong)


def test_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="request_timeout_ms = -1: must be 0 or more"):
        ClientSettings(bootstrap_servers=(ONE,), request_timeout_ms=-1)
    with pytest.raises(SettingsError, match="no address"):
        ClientSettings(bootstrap_servers=())
