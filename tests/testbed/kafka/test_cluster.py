"""Clusters: what starts, what serves, and what goes wrong."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException

from testbed.errors import ClusterError, UnknownVersionError
from testbed.kafka import cluster as cluster_module
from testbed.kafka.cluster import KafkaCluster, plan_roles
from testbed.kafka.probe import ask
from testbed.kafka.properties import Listener, plain_jaas, scram_jaas
from testbed.kafka.storage import SCRAM_MECHANISMS
from testbed.processes.ports import HOST, reserve_ports
from testbed.processes.supervised import SupervisedDirectory, make_directory
from tests.testbed.callers import is_running, wait_until, wait_until_nothing_is_left
from tests.testbed.kafka.clients import TIMEOUT_S, admin, consume, create_topic, produce, round_trip, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testbed.kafka.broker import Broker
    from testbed.processes.ports import PortBlock


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaCluster]:
    """Three brokers for tests that kill and move them; each leaves all three running."""
    with KafkaCluster(brokers=3) as cluster:
        yield cluster


def controller_of(cluster: KafkaCluster) -> Broker:
    """The active controller; brokers name any one of them, but its log has the right one."""
    answers = [ask(broker.host, broker.port) for broker in cluster.brokers if broker.running]
    leaders = [broker for broker in cluster.brokers if "Becoming the active controller" in broker.log_tail(10_000)]
    assert all(answers)
    return leaders[-1]


@pytest.mark.parametrize("name", ["kafka39", "kafka3"])
def test_the_shared_clusters_serve(name: str, request: pytest.FixtureRequest) -> None:
    cluster = request.getfixturevalue(name)
    replicas = len(cluster.brokers)
    round_trip(cluster.bootstrap_servers, create_topic(cluster.bootstrap_servers, partitions=3, replicas=replicas))
    answer = ask(cluster.brokers[0].host, cluster.brokers[0].port)
    assert answer is not None
    assert answer.brokers == {broker.node_id: (HOST, broker.port) for broker in cluster.brokers}


def test_groups_of_kip_848_are_there(kafka: KafkaCluster) -> None:
    # On 3.9.1 too (see test_tools.py), but librdkafka speaks the final version of the protocol only.
    topic = create_topic(kafka.bootstrap_servers)
    produce(kafka.bootstrap_servers, topic)
    assert consume(kafka.bootstrap_servers, topic, group_protocol="consumer") == list(range(10))


def test_topics_are_not_made_by_asking_for_them(kafka: KafkaCluster) -> None:
    topics = admin(kafka.bootstrap_servers).list_topics("no-such-topic", timeout=TIMEOUT_S).topics
    assert topics["no-such-topic"].error is not None


def test_nothing_is_left_after_the_block() -> None:
    with KafkaCluster() as cluster:
        broker = cluster.brokers[0]
        pid, directory, port = broker.pid, broker.log_path.parent, broker.port
        assert is_running(pid)
        assert (broker.log_directory / "__cluster_metadata-0").is_dir()
        assert "INFO" in broker.log_tail()
        assert (broker.node_id, broker.host, broker.address) == (0, HOST, f"{HOST}:{port}")
        assert cluster.bootstrap_servers == broker.address
    wait_until_nothing_is_left([pid], directory)
    assert ask(HOST, port) is None
    cluster.close()  # of no consequence
    cluster.start()
    try:
        assert cluster.brokers[0].pid != pid
    finally:
        cluster.close()


def test_brokers_start_from_the_class_data_archive(kafka: KafkaCluster) -> None:
    mapped = Path(f"/proc/{kafka.brokers[0].pid}/maps").read_text()
    assert "/class-data/4.3.1-" in mapped


def test_the_rest_serves_when_the_active_controller_is_killed(own: KafkaCluster) -> None:
    topic = create_topic(own.bootstrap_servers, partitions=3, replicas=3)
    victim = controller_of(own)
    pid, port = victim.pid, victim.port
    victim.kill()
    assert not is_running(pid)
    assert not victim.running
    assert victim.address not in own.bootstrap_servers
    round_trip(own.bootstrap_servers, topic)
    create_topic(own.bootstrap_servers, replicas=2)
    own.wait_until_gone(victim.node_id)
    victim.restart()
    assert victim.port == port
    assert victim.pid != pid
    produce(victim.address, topic)


def test_a_broker_moves(own: KafkaCluster) -> None:
    moved = own.broker(1)
    ports = moved.ports
    moved.restart(new_ports=True)
    assert moved.port != ports["PLAINTEXT"]
    assert moved.ports["CONTROLLER"] == ports["CONTROLLER"]
    for broker in own.brokers:
        answer = ask(broker.host, broker.port)
        assert answer is not None
        assert answer.brokers[1] == (HOST, moved.port)


def test_a_restart_keeps_data_and_takes_new_settings(own: KafkaCluster) -> None:
    broker = own.broker(2)
    topic = create_topic(own.bootstrap_servers, partitions=3, replicas=1)
    produce(own.bootstrap_servers, topic, 30)
    broker.restart(config={"num.partitions": 6})
    assert consume(own.bootstrap_servers, topic, 30) == list(range(30))
    assert settings_of(own.bootstrap_servers, 2)["num.partitions"] == "6"


def test_a_broker_joins_later() -> None:
    with KafkaCluster() as cluster:
        joined = cluster.add_broker(config={"broker.rack": "elsewhere"})
        assert (joined.node_id, joined.roles) == (1, ("broker",))
        assert settings_of(cluster.bootstrap_servers, 1)["broker.rack"] == "elsewhere"
        produce(cluster.bootstrap_servers, create_topic(cluster.bootstrap_servers, replicas=2))
        with pytest.raises(ClusterError, match=r"node id 1 is taken; the cluster has \[0, 1\]"):
            cluster.add_broker(1)
        joined.stop()
        joined.stop()  # of no consequence
        cluster.wait_until_gone(1)


def test_a_paused_broker_keeps_connections_open_and_sends_nothing(own: KafkaCluster) -> None:
    broker = own.broker(2)
    broker.pause()
    try:
        assert ask(broker.host, broker.port, timeout_s=0.2) is None
        with socket.create_connection((broker.host, broker.port), TIMEOUT_S):
            pass
    finally:
        broker.resume()
    own.wait_ready()


def test_of_two_brokers_one_may_die() -> None:
    with KafkaCluster(brokers=2) as cluster:
        cluster.broker(0).kill()
        cluster.wait_until_gone(0)  # until then new partitions may be given to it
        round_trip(cluster.bootstrap_servers, create_topic(cluster.bootstrap_servers))


def test_settings_listeners_and_users() -> None:
    sasl = Listener(
        name="SASL",
        protocol="SASL_PLAINTEXT",
        sasl={"PLAIN": plain_jaas({"alice": "alice-secret"}), **dict.fromkeys(SCRAM_MECHANISMS, scram_jaas())},
        properties={"connections.max.reauth.ms": 5000},
    )
    with KafkaCluster(
        node_ids=(7,),
        config={"num.partitions": 3, "auto.create.topics.enable": True},
        broker_configs={7: {"num.partitions": 5, "broker.rack": "räck\\7"}, 8: {"num.partitions": 8}},
        features={"transaction.version": 1},
        listeners=[sasl],
        scram_users={"bob": "bob-secret"},
        jmx=True,
    ) as cluster:
        settings = settings_of(cluster.bootstrap_servers, 7)
        assert settings["num.partitions"] == "5"
        assert settings["auto.create.topics.enable"] == "true"
        assert settings["broker.rack"] == "räck\\7"
        assert settings["listener.name.sasl.connections.max.reauth.ms"] == "5000"
        assert brokers_seen(cluster, "PLAIN", "alice", "alice-secret") == [7]
        for mechanism in SCRAM_MECHANISMS:
            assert brokers_seen(cluster, mechanism, "bob", "bob-secret") == [7]
        with pytest.raises(KafkaException):
            brokers_seen(cluster, "PLAIN", "alice", "wrong", timeout_s=1.0)
        with socket.create_connection((HOST, cluster.brokers[0].ports["JMX"]), TIMEOUT_S):
            pass
        with pytest.raises(ClusterError, match=r"no broker 1; the cluster has \[7\]"):
            cluster.broker(1)


def brokers_seen(
    cluster: KafkaCluster, mechanism: str, user: str, password: str, timeout_s: float = TIMEOUT_S
) -> list[int]:
    client = admin(
        cluster.addresses("SASL"),
        **{
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        },
    )
    return list(client.list_topics(timeout=timeout_s).brokers)


def test_a_broker_that_cannot_start_is_reported_with_its_log() -> None:
    with (
        pytest.raises(
            ClusterError, match=r"(?s)0 at 127\.0\.0\.1:\d+> ended by itself with status 1\n.*num\.io\.threads"
        ),
        KafkaCluster(config={"num.io.threads": -3}),
    ):
        pytest.fail("started")


def test_a_start_has_a_deadline_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    directories = []

    def remember(prefix: str) -> SupervisedDirectory:
        directories.append(make_directory(prefix))
        return directories[-1]

    monkeypatch.setattr(cluster_module, "make_directory", remember)
    cluster = KafkaCluster(start_timeout_s=0.0)
    with pytest.raises(ClusterError, match=r"does not know all of \[0\] in 0\.0 s: it does not answer"):
        cluster.start()
    assert not directories[0].path.exists()
    assert cluster.brokers == []


def test_a_taken_port_is_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        blocks: list[PortBlock] = []

        def reserve(size: int) -> PortBlock:
            blocks.append(reserve_ports(size))
            if len(blocks) == 1:  # somebody is faster than the broker
                taken.bind((HOST, blocks[0].first))
                taken.listen()
            return blocks[-1]

        monkeypatch.setattr(cluster_module, "reserve_ports", reserve)
        with KafkaCluster() as cluster:
            assert len(blocks) == 2
            assert cluster.brokers[0].port == blocks[1].first


def test_a_broker_that_dies_by_itself_is_noticed(own: KafkaCluster) -> None:
    broker = own.broker(0)
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: broker.exit_status() is not None, "the broker's end")
    with pytest.raises(ClusterError, match="ended by itself with status -9"):
        own.wait_ready()
    broker.kill()
    broker.restart()
    assert broker.exit_status() is None


def test_invalid_arguments_are_reported_before_anything_starts() -> None:
    with pytest.raises(UnknownVersionError, match=r"no Kafka broker '1\.0'"):
        KafkaCluster(version="1.0").start()
    with pytest.raises(ClusterError, match=r"node ids \(1, 1\): expected at least one node id, and none of them twice"):
        KafkaCluster(node_ids=(1, 1))
    with pytest.raises(ClusterError, match="has not been started"):
        KafkaCluster().add_broker()


def test_an_unknown_feature_is_reported_with_kafkas_message() -> None:
    with pytest.raises(ClusterError, match=r"cannot format storage for Kafka 4\.3\.1: .*no\.such\.feature"):
        KafkaCluster(features={"no.such.feature": 1}).start()


@pytest.mark.parametrize(
    ("node_ids", "controllers"),
    [((0,), [0]), ((0, 1), [3000]), ((0, 1, 2), [0, 1, 2]), ((5, 6, 7, 8), [5, 6, 7]), ((1, 4000), [4001])],
)
def test_the_quorum_survives_any_one_broker(node_ids: tuple[int, ...], controllers: list[int]) -> None:
    roles = plan_roles(node_ids)
    assert [node_id for node_id, node_roles in roles.items() if "controller" in node_roles] == controllers
    assert [node_id for node_id, node_roles in roles.items() if "broker" in node_roles] == list(node_ids)
