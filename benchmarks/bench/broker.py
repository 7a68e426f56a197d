"""The broker of a run: one node, with a listener for each relay that cannot rewrite addresses, and one with TLS.

A TCP relay forwards a broker's Metadata unchanged, so clients would then bypass it. So the broker has a listener for
each relay, with the relay's own address as its advertised address. The listeners' ports are known only when the broker
runs, so it is started twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import CONTROLLER_LISTENER, Listener
from testbed.kafka.tools import Tool, run_tool
from testbed.processes.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from benchmarks.bench.tls import TlsFiles
    from testbed.kafka.broker import Broker

HEAP_MB: Final = 1024
"""Kafka's own default."""
JVM_OPTIONS: Final = ("-XX:+UseSerialGC",)
"""Both compilers, and one collector thread, since the broker has one core."""
CONFIG: Final[dict[str, str | int | bool]] = {
    # Gigabytes are produced, and most of them deleted soon. Topics that are read override this with `KEEPING`.
    "log.retention.bytes": 256 << 20,
    "log.segment.bytes": 128 << 20,
    "log.retention.check.interval.ms": 5000,
}
KEEPING: Final = "retention.bytes=-1"
TLS_LISTENER: Final = "TLS"
"""The listener with TLS that advertises itself."""


class BenchBroker:
    """A running broker. A context manager; its exit removes all data.

    `relays` maps a path's name to the (host, port) that the listener behind it advertises. `fixed_ports` maps the names
    of relays or further listeners to the ports that the broker listens on. With `tls`, it also has `TLS_LISTENER`, and
    the listeners of `tls_relays` use TLS, too.
    """

    def __init__(
        self,
        relays: Mapping[str, tuple[str, int]],
        fixed_ports: Mapping[str, int],
        *,
        tls: TlsFiles | None = None,
        tls_relays: Collection[str] = (),
    ) -> None:
        self._names = {name: f"PATH{number}" for number, name in enumerate([*relays, *fixed_ports])}
        self._relays = {self._names[name]: address for name, address in relays.items()}
        self._fixed_ports = {self._names[name]: port for name, port in fixed_ports.items()}
        self._ports: dict[str, int] = {}
        with_tls = {self._names[name] for name in tls_relays}
        listeners = [
            tls.listener(name) if tls is not None and name in with_tls else Listener(name=name)
            for name in dict.fromkeys(self._names.values())
        ]
        if tls is not None:
            listeners.append(tls.listener(TLS_LISTENER))
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
        """The address of the main listener, which advertises itself."""
        return self._cluster.bootstrap_servers

    @property
    def port(self) -> int:
        """The port of the main listener."""
        return self._cluster.brokers[0].port

    @property
    def tls_bootstrap_servers(self) -> str:
        """The address of the listener with TLS."""
        return self._cluster.addresses(TLS_LISTENER)

    def behind(self, path: str) -> int:
        """Return the port to which the relay of that name has to forward."""
        return self._ports[self._names[path]]

    def create_topic(self, name: str, *config: str) -> None:
        """Create a topic with one partition, so that each batch is a separate request."""
        arguments = ["--bootstrap-server", self.bootstrap_servers, "--create", "--topic", name, "--partitions", "1"]
        for each in config:
            arguments += ["--config", each]
        run_tool(Tool.TOPICS, arguments)

    def _addresses(self, broker: Broker) -> dict[str, str]:
        advertised = {name: (broker.host, port) for name, port in self._ports.items()} | self._relays
        advertised.pop(CONTROLLER_LISTENER, None)
        return {
            "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in self._ports.items()),
            "advertised.listeners": ",".join(f"{name}://{host}:{port}" for name, (host, port) in advertised.items()),
        }
