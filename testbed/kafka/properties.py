"""The server.properties of the nodes of a test cluster.

Pure: takes values and returns text. Called by the cluster. The broker's `config` overrides the cluster's `config`,
which overrides the testbed's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from testbed.kafka.certificates import Authority, Certificate

PropertyValue = str | int | float | bool
Properties = Mapping[str, PropertyValue]
Role = Literal["broker", "controller"]
SecurityProtocol = Literal["PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL"]
ClientCertificates = Literal["none", "requested", "required"]

# The listener that every broker has, for clients and for replication.
MAIN_LISTENER = "PLAINTEXT"
CONTROLLER_LISTENER = "CONTROLLER"

# Maximum replication factor of internal topics; no test requires more.
MAX_REPLICAS = 3
# Partitions of each internal topic: creating the files of Kafka's 50 takes a second, and one would hide bugs.
INTERNAL_PARTITIONS = 4
# A member of a KIP-848 or share group gets its assignment with its second heartbeat, by default after 5 s.
HEARTBEAT_MS = 500


def _heartbeats(group_type: str) -> Properties:
    return {
        f"group.{group_type}.heartbeat.interval.ms": HEARTBEAT_MS,
        f"group.{group_type}.min.heartbeat.interval.ms": HEARTBEAT_MS,
    }


DEFAULTS: Properties = {
    "auto.create.topics.enable": False,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": INTERNAL_PARTITIONS,
    "transaction.state.log.num.partitions": INTERNAL_PARTITIONS,
    # A killed broker is fenced within seconds; the time-out is still eight heartbeats, for machines under load.
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 4000,
    # By default, the controller writes a record every half second, which every node fetches, reads and applies.
    "metadata.max.idle.interval.ms": 5000,
    # A broker that is not registered by then ends. This is longer than the testbed waits for a broker.
    "initial.broker.registration.timeout.ms": 300_000,
    # Controllers that start together may have a split vote; the default waits a second before the next election.
    "controller.quorum.election.backoff.max.ms": 200,
    # Threads and buffers for several brokers on few cores; the cleaner's default buffer is 128 MiB.
    "num.io.threads": 4,
    "background.threads": 4,
    "num.recovery.threads.per.data.dir": 1,
    "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    # The files of deleted topics are removed soon.
    "log.segment.delete.delay.ms": 1000,
}
# Properties by major version. Kafka 4 enables all its group protocols by default.
VERSION_DEFAULTS: Mapping[str, Properties] = {
    "3": {"group.coordinator.rebalance.protocols": "classic,consumer", **_heartbeats("consumer")},
    "4": {
        "share.coordinator.state.topic.num.partitions": INTERNAL_PARTITIONS,
        **_heartbeats("consumer"),
        **_heartbeats("share"),
        **_heartbeats("streams"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """An additional listener of every broker.

    `sasl` maps each mechanism ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"...) to its JAAS text, see `plain_jaas` and
    `scram_jaas`. SSL and SASL_SSL need a `certificate`; `client_certificates` is Kafka's ssl.client.auth, and
    `client_authority` the authority whose client certificates are accepted. `properties` are set for this listener
    alone: {"connections.max.reauth.ms": 5000} becomes listener.name.<name>.connections.max.reauth.ms.
    """

    name: str
    protocol: SecurityProtocol = "PLAINTEXT"
    sasl: Mapping[str, str] = field(default_factory=dict)
    certificate: Certificate | None = None
    client_certificates: ClientCertificates = "none"
    client_authority: Authority | None = None
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One process: its id, its roles, and the port of each of its listeners by name."""

    node_id: int
    roles: tuple[Role, ...]
    ports: Mapping[str, int]
    config: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The settings that all nodes of a cluster share; `voters` maps the controllers' node ids to their ports."""

    version: str
    brokers: int
    voters: Mapping[int, int]
    listeners: tuple[Listener, ...] = ()
    config: Properties = field(default_factory=dict)


def plain_jaas(users: Mapping[str, str]) -> str:
    """Return the JAAS text of a PLAIN listener whose users are `users`, names to passwords."""
    accounts = "".join(f' user_{name}="{password}"' for name, password in users.items())
    return f"org.apache.kafka.common.security.plain.PlainLoginModule required{accounts};"


def scram_jaas() -> str:
    """Return the JAAS text of a SCRAM listener; its users are in the cluster's metadata (`scram_users`)."""
    return "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def server_properties(topology: Topology, node: Node, log_directory: Path) -> dict[str, PropertyValue]:
    """Return the properties of `node`, whose data is in `log_directory`."""
    return {
        **DEFAULTS,
        **VERSION_DEFAULTS[topology.version.partition(".")[0]],
        **_replication(topology),
        **_network(topology, node),
        "process.roles": ",".join(node.roles),
        "node.id": node.node_id,
        "log.dirs": str(log_directory),
        **topology.config,
        **node.config,
    }


def render(properties: Properties) -> str:
    """Return the text of a Java properties file. Values may hold any characters."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(value: PropertyValue) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    # Java reads such files as ISO-8859-1 with escapes; Kafka does the same.
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(escapes.get(letter) or (letter if letter.isascii() else _utf16_escapes(letter)) for letter in text)


def _utf16_escapes(letter: str) -> str:
    data = letter.encode("utf-16-be")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def _replication(topology: Topology) -> dict[str, PropertyValue]:
    replicas = min(topology.brokers, MAX_REPLICAS)
    in_sync = min(replicas, 2)
    settings: dict[str, PropertyValue] = {
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
    if topology.version.startswith("4."):
        settings |= {
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
        }
    return settings


def _network(topology: Topology, node: Node) -> dict[str, PropertyValue]:
    protocols = {MAIN_LISTENER: "PLAINTEXT", CONTROLLER_LISTENER: "PLAINTEXT"}
    protocols |= {listener.name: listener.protocol for listener in topology.listeners}
    addresses = {name: f"{name}://{HOST}:{port}" for name, port in node.ports.items()}
    settings: dict[str, PropertyValue] = {
        "listeners": ",".join(addresses.values()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "controller.listener.names": CONTROLLER_LISTENER,
        "controller.quorum.voters": ",".join(f"{voter}@{HOST}:{port}" for voter, port in topology.voters.items()),
    }
    if "broker" in node.roles:
        addresses.pop(CONTROLLER_LISTENER, None)
        settings["advertised.listeners"] = ",".join(addresses.values())
        settings["inter.broker.listener.name"] = MAIN_LISTENER
        for listener in topology.listeners:
            settings |= _listener_settings(listener)
    return settings


def _listener_settings(listener: Listener) -> dict[str, PropertyValue]:
    prefix = f"listener.name.{listener.name.lower()}"
    settings: dict[str, PropertyValue] = {
        f"{prefix}.{key}": value for key, value in {**_tls_settings(listener), **listener.properties}.items()
    }
    if listener.sasl:
        settings[f"{prefix}.sasl.enabled.mechanisms"] = ",".join(listener.sasl)
    for mechanism, jaas in listener.sasl.items():
        settings[f"{prefix}.{mechanism.lower()}.sasl.jaas.config"] = jaas
    return settings


def _tls_settings(listener: Listener) -> dict[str, PropertyValue]:
    """Return the settings of an SSL or SASL_SSL listener, without the prefix of the listener."""
    settings: dict[str, PropertyValue] = {}
    if listener.certificate is not None:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(listener.certificate.keystore_file),
            "ssl.client.auth": listener.client_certificates,
        }
    if listener.client_authority is not None:
        settings |= {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(listener.client_authority.ca_file),
        }
    return settings
