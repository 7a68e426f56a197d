"""The broker of a run: one node, with a listener for each relay that cannot rewrite addresses.

A relay of bytes hands a broker's Metadata on as it is, and clients would leave it at once; so the broker has a listener
behind each such relay that tells the relay's own address. Which port that is, is known when the broker runs: it starts
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import CONTROLLER_LISTENER, Listener
from testbed.kafka.tools import Tool, run_tool
from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from testbed.kafka.broker import Broker

HEAP_MB: Final = 1024
"""Kafka's own default."""
JVM_OPTIONS: Final = ("-XX:+UseSerialGC",)
"""Both compilers, and on its one core one collector thread."""
CONFIG: Final[dict[str, str | int | bool]] = {
    # Gigabytes are produced; the disk keeps some. Topics that are read say that they keep theirs.
    "log.retention.bytes": 256 << 20,
    "log.segment.bytes": 128 << 20,
    "log.retention.check.interval.ms": 5000,
}
KEEPING: Final = "retention.bytes=-1"


class BenchBroker:
    """A running broker. A context manager, whose end takes all its data away.

    `relays` maps a way's name to the (host, port) that clients shall see there. `fixed_ports` maps names of further
    listeners, or of relays, to the port on which the broker shall listen for them.
    """

    def __init__(self, relays: Mapping[str, tuple[str, int]], fixed_ports: Mapping[str, int]) -> None:
        self._names = {name: f"WAY{number}" for number, name in enumerate([*relays, *fixed_ports])}
        self._relays = {self._names[name]: address for name, address in relays.items()}
        self._fixed_ports = {self._names[name]: port for name, port in fixed_ports.items()}
        self._ports: dict[str, int] = {}
        listeners = [Listener(name=name) for name in dict.fromkeys(self._names.values())]
        self._cluster = KafkaCluster(config=CONFIG, listeners=listeners, heap_mb=HEAP_MB, jvm_options=JVM_OPTIONS)

    def __enter__(self) -> Self:
        self._cluster.start()
        try:
            broker = self._cluster.brokers[0]
            self._ports = {**broker.ports, **self._fixed_ports}
            if self._names:
                broker.restart(config=self._addresses(broker))
        except BaseException:
            self._cluster.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    @property
    def bootstrap_servers(self) -> str:
        """The listener that tells its own address."""
        return self._cluster.bootstrap_servers

    @property
    def port(self) -> int:
        """That listener's port."""
        return self._cluster.brokers[0].port

    def behind(self, way: str) -> int:
        """The port that the relay of that name is to forward to."""
        return self._ports[self._names[way]]

    def create_topic(self, name: str, *config: str) -> None:
        """Make a topic of one partition, so that each batch is a request of its own."""
        arguments = ["--bootstrap-server", self.bootstrap_servers, "--create", "--topic", name, "--partitions", "1"]
        for each in config:
            arguments += ["--config", each]
        run_tool(Tool.TOPICS, arguments)

    def _addresses(self, broker: Broker) -> dict[str, str]:
        told = {name: (broker.host, port) for name, port in self._ports.items()} | self._relays
        told.pop(CONTROLLER_LISTENER, None)
        return {
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in self._ports.items()),
            "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in told.items()),
        }
