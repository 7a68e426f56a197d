"""The content of server.properties, without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.kafka.properties import Listener, Node, Topology, plain_jaas, render, server_properties

SASL = Listener(name="EXT", protocol="SASL_PLAINTEXT", sasl={"PLAIN": plain_jaas({"a": "b"})}, properties={"x.y": True})
PORTS = {"PLAINTEXT": 1, "EXT": 2, "CONTROLLER": 3}


def topology(**changes: object) -> Topology:
    values = {"version": "4.3.1", "brokers": 1, "voters": {0: 3}, **changes}
    return Topology(**values)  # type: ignore[arg-type]


def test_a_broker_advertises_all_listeners_but_the_controllers() -> None:
    node = Node(node_id=0, roles=("broker", "controller"), ports=PORTS)
    settings = server_properties(topology(listeners=(SASL,)), node, Path("/data"))
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,EXT://127.0.0.1:2,CONTROLLER://127.0.0.1:3"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:1,EXT://127.0.0.1:2"
    assert settings["listener.security.protocol.map"] == "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,EXT:SASL_PLAINTEXT"
    assert settings["listener.name.ext.sasl.enabled.mechanisms"] == "PLAIN"
    assert settings["listener.name.ext.x.y"] is True
    assert str(settings["listener.name.ext.plain.sasl.jaas.config"]).endswith(' user_a="b";')


def test_a_controller_alone_has_no_listener_for_clients() -> None:
    node = Node(node_id=3000, roles=("controller",), ports={"CONTROLLER": 3})
    settings = server_properties(topology(listeners=(SASL,)), node, Path("/data"))
    assert settings["listeners"] == "CONTROLLER://127.0.0.1:3"
    assert "advertised.listeners" not in settings
    assert "inter.broker.listener.name" not in settings
    assert not [name for name in settings if name.startswith("listener.name.")]


def test_the_nearest_setting_wins() -> None:
    defaults = server_properties(topology(), Node(node_id=0, roles=("broker",), ports=PORTS), Path("/data"))
    config = {"group.initial.rebalance.delay.ms": 1, "num.io.threads": 1}
    node = Node(node_id=0, roles=("broker",), ports=PORTS, config={"num.io.threads": 2})
    settings = server_properties(topology(config=config), node, Path("/data"))
    assert defaults["group.initial.rebalance.delay.ms"] == 0
    assert (settings["group.initial.rebalance.delay.ms"], settings["num.io.threads"]) == (1, 2)


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_internal_topics_are_replicated_as_far_as_brokers_reach(brokers: int, replicas: int, in_sync: int) -> None:
    node = Node(node_id=0, roles=("broker",), ports=PORTS)
    settings = server_properties(topology(brokers=brokers), node, Path("/data"))
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert settings[f"{topic}.replication.factor"] == replicas
    assert settings["transaction.state.log.min.isr"] == in_sync


def test_share_settings_are_not_given_to_versions_without() -> None:
    node = Node(node_id=0, roles=("broker",), ports=PORTS)
    settings = server_properties(topology(version="3.9.1"), node, Path("/data"))
    assert not [name for name in settings if "share" in name]
    assert settings["group.coordinator.rebalance.protocols"] == "classic,consumer"


def test_values_are_written_as_java_reads_them() -> None:
    written = render({"a": True, "b": 1.5, "c": "x\\y\nz", "d": "ä€😀", "e": ""})
    assert written == "a=true\nb=1.5\nc=x\\\\y\\nz\nd=\\u00e4\\u20ac\\ud83d\\ude00\ne=\n"
