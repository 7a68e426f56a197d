"""A Kafka cluster on this machine, in KRaft mode, on free loopback ports.

Called by tests, the demo and the benchmarks; knows nothing of proxies. All calls block, with deadlines in seconds: a
trio program makes them in a thread.

    with KafkaCluster(brokers=3) as cluster:
        connect_to(cluster.bootstrap_servers)
        cluster.brokers[1].kill()

The cluster survives the loss of any single broker: a single broker is its own controller; of three or more brokers, the
first three are controllers; two brokers have a separate controller, since a quorum of two voters cannot lose one.

The brokers end and their data are removed at the end of the `with` block, or when this process ends in any way
(`testbed.processes.supervisor`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from testbed.errors import ClusterError
from testbed.kafka.artifacts import DEFAULT_BROKER_VERSION
from testbed.kafka.broker import Broker, ClusterSettings, port_names
from testbed.kafka.class_data import class_data_archive
from testbed.kafka.launch import STARTING_OPTIONS
from testbed.kafka.probe import Answer, ask
from testbed.kafka.properties import CONTROLLER_LISTENER, MAIN_LISTENER, Listener, Node, Properties, Role, Topology
from testbed.kafka.storage import bootstrap_checkpoint, kafka_uuid
from testbed.processes.ports import PortBlock, reserve_ports
from testbed.processes.supervised import SupervisedDirectory, make_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Three brokers take three seconds here; a machine with other test runs on it may take many times that.
START_TIMEOUT_S = 180.0
POLL_S = 0.02
# A broker that serves answers in milliseconds. Short, since another program may listen at the port and never answer.
ASK_TIMEOUT_S = 1.0
# Another program may bind a port after it was found free and before the broker binds it.
START_ATTEMPTS = 3
# Enough for tests; Kafka's own scripts give 1 GiB.
DEFAULT_HEAP_MB = 384
# The node id of a separate controller, as in Kafka's own documentation.
CONTROLLER_ID = 3000
MAX_CONTROLLERS = 3


class KafkaCluster:
    """One or more brokers of one Kafka version. A context manager; or call `start` and `close`.

    * `node_ids`: the brokers' ids; the default is 0 to `brokers` - 1
    * `config`: entries of server.properties for every node, which override the testbed's
    * `broker_configs`: entries for single brokers, by node id, which override `config`
    * `listeners`: listeners beside the main one, for instance with SASL
    * `scram_users`: users of SCRAM-SHA-256 and SCRAM-SHA-512 that exist from the start, names to passwords
    * `features`: feature levels that differ from the version's default, {"transaction.version": 1}
    * `heap_mb`, `jvm_options`: each broker's heap in MiB and options; `testbed.kafka.launch.THROUGHPUT_OPTIONS` suits
      long measurements
    * `jmx`: whether each broker has a JMX port (`broker.ports["JMX"]`)
    * `log_level`: the level of the brokers' logs

    Raises subclasses of `TestbedError`; a ClusterError ends with the last lines of the broker's log.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        version: str = DEFAULT_BROKER_VERSION,
        node_ids: Sequence[int] | None = None,
        config: Properties | None = None,
        broker_configs: Mapping[int, Properties] | None = None,
        listeners: Sequence[Listener] = (),
        scram_users: Mapping[str, str] | None = None,
        features: Mapping[str, int] | None = None,
        heap_mb: int = DEFAULT_HEAP_MB,
        jvm_options: Sequence[str] = STARTING_OPTIONS,
        jmx: bool = False,
        log_level: str = "info",
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.version = version
        self.cluster_id = kafka_uuid()
        self.brokers: list[Broker] = []
        self._node_ids = tuple(range(brokers) if node_ids is None else node_ids)
        if not self._node_ids or len(set(self._node_ids)) != len(self._node_ids):
            raise ClusterError(f"node ids {self._node_ids}: expected at least one node id, and none of them twice")
        self._config = dict(config or {})
        self._broker_configs = dict(broker_configs or {})
        self._listeners = tuple(listeners)
        self._scram_users = dict(scram_users or {})
        self._features = dict(features or {})
        self._heap_mb = heap_mb
        self._jvm_options = tuple(jvm_options)
        self._jmx = jmx
        self._log_level = log_level
        self._start_timeout_s = start_timeout_s
        self._controllers: list[Broker] = []
        self._directory: SupervisedDirectory | None = None
        self._settings: ClusterSettings | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the main listeners of all running brokers, for clients: "host:port,host:port"."""
        return self.addresses()

    def addresses(self, listener: str = MAIN_LISTENER) -> str:
        """Return the addresses of one listener of all running brokers: "host:port,host:port"."""
        return ",".join(f"{broker.host}:{broker.ports[listener]}" for broker in self.brokers if broker.running)

    def broker(self, node_id: int) -> Broker:
        """Return the broker of that node id. Raises ClusterError when there is none."""
        for broker in self.brokers:
            if broker.node_id == node_id:
                return broker
        raise ClusterError(f"no broker {node_id}; the cluster has {[broker.node_id for broker in self.brokers]}")

    def start(self) -> None:
        """Start all nodes in parallel, and return when every broker serves and knows every other.

        The first start of a version on a machine downloads Kafka and prepares it. Raises subclasses of TestbedError.
        """
        try:
            for attempt in range(1, START_ATTEMPTS + 1):
                self._launch_all()
                try:
                    self.wait_ready(self._start_timeout_s)
                except ClusterError:
                    nodes = [*self.brokers, *self._controllers]
                    if attempt == START_ATTEMPTS or not any(node.failed_on_a_taken_port() for node in nodes):
                        raise
                    self.close()
                else:
                    return
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all nodes and remove all data. May be called again; a later `start` begins without data."""
        if self._directory is not None:
            self._directory.remove()
            self._directory = None
        for node in [*self.brokers, *self._controllers]:
            node.release()
        self.brokers = []
        self._controllers = []
        self._settings = None

    def add_broker(self, node_id: int | None = None, config: Properties | None = None) -> Broker:
        """Start another broker, which is not a controller, and return it when it serves and all brokers know it.

        The default of its id is one above the highest. Raises ClusterError.
        """
        if self._settings is None:
            raise ClusterError("the cluster has not been started")
        taken = {broker.node_id for broker in [*self.brokers, *self._controllers]}
        chosen = 1 + max(broker.node_id for broker in self.brokers) if node_id is None else node_id
        if chosen in taken:
            raise ClusterError(f"node id {chosen} is taken; the cluster has {sorted(taken)}")
        block, ports = self._reserve(("broker",))
        node = Node(node_id=chosen, roles=("broker",), ports=ports, config=dict(config or {}))
        broker = Broker(self._settings, node, block, self.wait_ready)
        self.brokers.append(broker)
        broker.launch()
        self.wait_ready()
        return broker

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every running broker serves, with all running brokers and their addresses in its metadata.

        Raises ClusterError after `timeout_s` seconds, or as soon as a node ends by itself.
        """
        wanted = {broker.node_id: (broker.host, broker.port) for broker in self.brokers if broker.running}

        def knows_all(answer: Answer) -> bool:
            return answer.controller_id >= 0 and wanted.items() <= answer.brokers.items()

        self._wait_until(knows_all, f"know all of {sorted(wanted)}", timeout_s)

    def wait_until_gone(self, node_id: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until `node_id` is in no running broker's metadata any more: about five seconds after a kill.

        Raises ClusterError after `timeout_s` seconds.
        """
        self._wait_until(lambda answer: node_id not in answer.brokers, f"know that {node_id} is gone", timeout_s)

    def _wait_until(self, condition: Callable[[Answer], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        waiting = [broker for broker in self.brokers if broker.running]
        while waiting:
            for node in [*self.brokers, *self._controllers]:
                if (status := node.exit_status()) is not None:
                    raise ClusterError(f"{node} ended by itself with status {status}\n{node.log_tail()}")
            broker = waiting[-1]
            answer = ask(broker.host, broker.port, timeout_s=ASK_TIMEOUT_S)
            if answer is not None and condition(answer):
                waiting.pop()
                continue
            if time.monotonic() >= deadline:
                state = "does not answer" if answer is None else f"only knows {dict(answer.brokers)}"
                raise ClusterError(f"{broker} does not {what} in {timeout_s} s: it {state}\n{broker.log_tail()}")
            time.sleep(POLL_S)

    def _launch_all(self) -> None:
        class_data = class_data_archive(self.version) if self._jvm_options == STARTING_OPTIONS else None
        checkpoint = bootstrap_checkpoint(self.version, features=self._features, scram_users=self._scram_users)
        roles = plan_roles(self._node_ids)
        places = {node_id: self._reserve(node_roles) for node_id, node_roles in roles.items()}
        self._directory = make_directory("headrace-kafka-")
        self._settings = ClusterSettings(
            topology=Topology(
                version=self.version,
                brokers=len(self._node_ids),
                voters={
                    node_id: ports[CONTROLLER_LISTENER]
                    for node_id, (_, ports) in places.items()
                    if CONTROLLER_LISTENER in ports
                },
                listeners=self._listeners,
                config=self._config,
            ),
            cluster_id=self.cluster_id,
            directory=self._directory,
            checkpoint=checkpoint,
            class_data=class_data,
            heap_mb=self._heap_mb,
            jvm_options=self._jvm_options,
            log_level=self._log_level,
        )
        for node_id, (block, ports) in places.items():
            config = self._broker_configs.get(node_id, {})
            node = Node(node_id=node_id, roles=roles[node_id], ports=ports, config=config)
            nodes = self.brokers if "broker" in node.roles else self._controllers
            nodes.append(Broker(self._settings, node, block, self.wait_ready))
        for launched in [*self.brokers, *self._controllers]:
            launched.launch()

    def _reserve(self, roles: Sequence[Role]) -> tuple[PortBlock, dict[str, int]]:
        names = port_names(roles, self._listeners, jmx=self._jmx)
        block = reserve_ports(len(names))
        return block, dict(zip(names, block.ports, strict=True))


def plan_roles(node_ids: Sequence[int]) -> dict[int, tuple[Role, ...]]:
    """Return the roles of each node of a cluster with these brokers, including the separate controller of two."""
    if len(node_ids) == 2:
        controller = max(CONTROLLER_ID, max(node_ids) + 1)
        return {**dict.fromkeys(node_ids, ("broker",)), controller: ("controller",)}
    controllers = node_ids[:MAX_CONTROLLERS] if len(node_ids) > 2 else node_ids
    return {node_id: ("broker", "controller") if node_id in controllers else ("broker",) for node_id in node_ids}
