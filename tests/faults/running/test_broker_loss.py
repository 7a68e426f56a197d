"""Brokers that die, move, join, or have no port at the proxy: nothing acknowledged is lost, and clients go on."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from testbed.kafka.cluster import KafkaCluster
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, events, wait_for_events
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.steady_clients import QUICK, SteadyGroup, SteadyProducer, read_all
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.broker import Broker

PARTITIONS = 3
TIMEOUT_S = 60.0
OUT_OF_RANGE = "a broker's id is outside the range"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """Tests leave every broker running."""
    with KafkaCluster(brokers=3, config={"min.insync.replicas": 2}) as three:
        yield three


@pytest.fixture(scope="module")
def proxy(cluster: KafkaCluster) -> Iterator[ProxyProcess]:
    with ProxyProcess(cluster.bootstrap_servers, arguments=JSON_LOG) as process:
        yield process
        assert "Traceback" not in process.log


def create_topic(cluster: KafkaCluster, replicas: list[list[int]], **config: str) -> str:
    """A topic whose partitions have these replicas, the first of each its leader."""
    name = f"faults-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, **QUICK})
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=config)
    client.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    return name


def replicated_topic(cluster: KafkaCluster) -> str:
    return create_topic(cluster, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])


def assert_served(proxy: ProxyProcess, bystander: Bystander) -> None:
    """Over a connection that was there before, and over a new one to the bootstrap port."""
    bystander.wait_for_answers()
    with RawClient(proxy.port) as client:
        assert client.call(messages.API_VERSIONS, 0)[:2] == b"\0\0"


@contextlib.contextmanager
def killed(cluster: KafkaCluster, broker: Broker) -> Iterator[None]:
    """A block during which the broker is dead (kill -9); after it, it has come back and is in sync."""
    broker.kill()
    try:
        yield
    finally:
        broker.restart()
        cluster.wait_ready()


def wait_until_all_acknowledge(producer: SteadyProducer) -> None:
    """Wait until every partition has acknowledged something that was written from now on."""
    since_s = time.monotonic()
    wait_until(lambda: producer.acknowledged_everywhere_since(since_s), "all partitions acknowledge", TIMEOUT_S)


def assert_nothing_is_lost_when_brokers_die(proxy: ProxyProcess, cluster: KafkaCluster, node_ids: list[int]) -> None:
    topic = replicated_topic(cluster)
    servers = proxy.bootstrap_servers
    with SteadyGroup(servers, topic) as group:
        with SteadyProducer(servers, topic, PARTITIONS) as producer:
            wait_until_all_acknowledge(producer)
            for node_id in node_ids:
                survivor = proxy.broker_port((node_id + 1) % 3)
                with Bystander(survivor) as bystander, killed(cluster, cluster.broker(node_id)):
                    wait_until_all_acknowledge(producer)
                    assert_served(proxy, bystander)
            wait_until_all_acknowledge(producer)
        written = set(producer.acknowledged)
        wait_until(lambda: written <= group.read.keys(), "the group has read all that was acknowledged", TIMEOUT_S)
    assert producer.failed == []
    found = read_all(servers, topic, PARTITIONS)
    assert found.keys() == written
    assert set(found.values()) == {1}, "idempotence: nothing stands in the log twice"


@pytest.mark.exhaustive
def test_a_killed_broker_loses_nothing_that_was_acknowledged(proxy: ProxyProcess, cluster: KafkaCluster) -> None:
    assert_nothing_is_lost_when_brokers_die(proxy, cluster, [1])


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_storm_of_kills_loses_nothing_that_was_acknowledged(proxy: ProxyProcess, cluster: KafkaCluster) -> None:
    assert_nothing_is_lost_when_brokers_die(proxy, cluster, [0, 1, 2] * 2)


def leads(port: int, topic: str) -> bool:
    """Whether the broker behind a port leads the topic's only partition: it takes a record then."""
    body = messages.produce_body(topic, messages.batch(b"here"), acks=1)
    try:
        with RawClient(port) as client:
            reply = client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
    except (ConnectionEndedError, OSError):
        return False
    return messages.read_produce_reply(reply).error_code == 0


@pytest.mark.exhaustive
def test_a_broker_that_moves_is_followed(proxy: ProxyProcess, cluster: KafkaCluster) -> None:
    """It comes back at another port; at the proxy it stays where it was."""
    broker = cluster.broker(2)
    only_there = create_topic(cluster, [[broker.node_id]], **{"min.insync.replicas": "1"})
    topic = replicated_topic(cluster)
    port = proxy.broker_port(broker.node_id)
    wait_until(lambda: leads(port, only_there), "the broker is reached")
    with (
        Bystander(proxy.broker_port(0)) as bystander,
        SteadyProducer(proxy.bootstrap_servers, topic, PARTITIONS) as producer,
    ):
        old_address = broker.address
        broker.restart(new_ports=True)
        assert broker.address != old_address
        wait_until(lambda: leads(port, only_there), "the broker is reached where it is now", TIMEOUT_S)
        wait_until_all_acknowledge(producer)
        assert_served(proxy, bystander)
    assert producer.failed == []
    found = read_all(proxy.bootstrap_servers, topic, PARTITIONS)
    assert found.keys() == set(producer.acknowledged)
    assert set(found.values()) == {1}
    changes = [event for event in events(proxy) if event["event"] == "brokers changed"]
    assert changes[-1]["brokers"][str(broker.node_id)] == broker.address


@pytest.mark.exhaustive
def test_a_broker_that_joins_is_reached_at_its_port(proxy: ProxyProcess, cluster: KafkaCluster) -> None:
    with Bystander(proxy.broker_port(0)) as bystander, bystander.watching():
        broker = cluster.add_broker()
        topic = create_topic(cluster, [[broker.node_id]], **{"min.insync.replicas": "1"})
        with SteadyProducer(proxy.bootstrap_servers, topic, 1) as producer:
            wait_until_all_acknowledge(producer)
        assert leads(proxy.broker_port(broker.node_id), topic)
    assert producer.failed == []

    def logged() -> dict[str, str]:
        found: dict[str, str] = wait_for_events(proxy, "brokers changed")[-1]["brokers"]
        return found

    wait_until(lambda: logged().get(str(broker.node_id)) == broker.address, "the change is logged")


@pytest.mark.exhaustive
def test_a_broker_without_a_port_is_an_error_that_names_the_setting(cluster: KafkaCluster) -> None:
    with ProxyProcess(cluster.bootstrap_servers, node_ids="0-1", arguments=JSON_LOG) as proxy:
        topic = create_topic(cluster, [[0, 1], [1, 0]])
        with SteadyProducer(proxy.bootstrap_servers, topic, 2) as producer:
            wait_until_all_acknowledge(producer)
            client = AdminClient({"bootstrap.servers": proxy.bootstrap_servers, **QUICK})
            for _ in range(3):
                shown = client.list_topics(timeout=TIMEOUT_S).brokers
                assert {node_id: broker.port for node_id, broker in shown.items()} == {
                    node_id: proxy.broker_port(node_id) for node_id in (0, 1)
                }
        assert producer.failed == []
        absent = sorted(broker.node_id for broker in cluster.brokers if broker.node_id > 1)
        wait_until(lambda: proxy.log.count(OUT_OF_RANGE) >= len(absent), "the errors are logged")
        errors = [event for event in events(proxy) if event["level"] == "error"]
        assert sorted(event["node_id"] for event in errors) == absent, "one error for each, however often it is seen"
        assert all(event["event"].startswith(OUT_OF_RANGE) and event["node_ids"] == "0-1" for event in errors)
        assert series(proxy, "headrace_brokers_out_of_range") == len(absent)
        assert "Traceback" not in proxy.log
