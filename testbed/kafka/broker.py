"""One node of a cluster: its process, ports and files, and the operations of a test on it.

Created by `testbed.kafka.cluster` only. Calls block, with deadlines in seconds, and must not be made from several
threads at once.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.errors import ClusterError, TestbedTimeoutError
from testbed.kafka.launch import java_command
from testbed.kafka.properties import (
    CONTROLLER_LISTENER,
    MAIN_LISTENER,
    Listener,
    Node,
    Properties,
    Role,
    Topology,
    render,
    server_properties,
)
from testbed.kafka.storage import format_directory
from testbed.processes.ports import HOST, PortBlock, reserve_ports
from testbed.processes.programs import java_environment, tail
from testbed.processes.supervised import SupervisedDirectory, SupervisedProgram, start_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BROKER_CLASS = "kafka.Kafka"
# A clean shutdown moves leaderships away and closes the logs: a third of a second here, seconds under load.
STOP_TIMEOUT_S = 30.0
# The pseudo listener for which a JMX port is reserved.
JMX = "JMX"
ADDRESS_IN_USE = "Address already in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The settings that all nodes of one cluster share."""

    topology: Topology
    cluster_id: str
    directory: SupervisedDirectory
    checkpoint: Path
    class_data: Path | None
    heap_mb: int
    jvm_options: tuple[str, ...]
    log_level: str


class Broker:
    """A node of the cluster, and the handle on its process.

    `host` and `port` are those of its main listener, "PLAINTEXT"; `ports` maps every listener's name to its port
    ("JMX", too, if it was requested).
    """

    __slots__ = ("_blocks", "_node", "_program", "_settings", "_wait_ready", "host", "roles")

    def __init__(self, settings: ClusterSettings, node: Node, block: PortBlock, wait_ready: Callable[[], None]) -> None:
        self._settings = settings
        self._node = node
        self._blocks = [block]
        self._wait_ready = wait_ready
        self._program: SupervisedProgram | None = None
        self.host = HOST
        self.roles: tuple[Role, ...] = node.roles

    @property
    def node_id(self) -> int:
        """The id the cluster knows it by."""
        return self._node.node_id

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, by name."""
        return dict(self._node.ports)

    @property
    def port(self) -> int:
        """The port of the main listener; for a node that is only a controller, of the controller listener."""
        return self._node.ports.get(MAIN_LISTENER, self._node.ports.get(CONTROLLER_LISTENER, -1))

    @property
    def address(self) -> str:
        """`host:port` of the main listener."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the JVM, or of the latest one. Raises ClusterError before the first start."""
        if self._program is None:
            raise ClusterError(f"{self} has not been started")
        return self._program.pid

    @property
    def running(self) -> bool:
        """Whether it was started and not killed or stopped since; its process may have ended by itself."""
        return self._program is not None

    @property
    def log_path(self) -> Path:
        """The file with the output of Kafka and the JVM, over all restarts."""
        return self._settings.directory.path / f"node-{self.node_id}.log"

    @property
    def log_directory(self) -> Path:
        """The directory of the partitions and the metadata log."""
        return self._settings.directory.path / f"node-{self.node_id}"

    def __repr__(self) -> str:
        return f"<{'+'.join(self.roles)} {self.node_id} at {self.address}>"

    def log_tail(self, lines: int = 40) -> str:
        """Return the last `lines` lines of its log."""
        return tail(self.log_path, lines)

    def exit_status(self) -> int | None:
        """Return the exit status of a node that ended by itself; None while it runs, and after `kill` or `stop`."""
        return self._program.poll() if self._program is not None else None

    def kill(self) -> None:
        """Send SIGKILL and wait for the end. Does nothing if the node is not running."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Shut the node down cleanly, with SIGTERM. Does nothing if it is not running.

        If it has not ended after `timeout_s` seconds, kills it and raises ClusterError. The last running controller of
        a quorum may end like this: it waits for the others until it is killed.
        """
        if self._program is None:
            return
        self._program.send_signal(signal.SIGTERM)
        try:
            self._program.wait(timeout_s)
        except TestbedTimeoutError as error:
            raise ClusterError(f"{self} did not stop in {timeout_s} s and was killed\n{self.log_tail()}") from error
        finally:
            self.kill()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP): connections stay open, and requests are not answered."""
        if self._program is not None:
            self._program.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a suspended process (SIGCONT)."""
        if self._program is not None:
            self._program.send_signal(signal.SIGCONT)

    def restart(self, *, new_ports: bool = False, config: Properties | None = None) -> None:
        """Start the node again with its data, after a clean shutdown if it is running, and wait until it serves.

        With `new_ports`, its ports for clients change, as for a broker that moved; its controller port stays, since it
        is in the quorum's configuration. `config` is added to the broker's configuration. Raises ClusterError.
        """
        self.stop()
        if new_ports:
            self._move()
        if config:
            self._node = replace(self._node, config={**self._node.config, **config})
        self.launch()
        self._wait_ready()

    def _move(self) -> None:
        block = reserve_ports(len(self._node.ports))
        self._blocks.append(block)
        moved = dict(zip(self._node.ports, block.ports, strict=True))
        if CONTROLLER_LISTENER in moved:
            moved[CONTROLLER_LISTENER] = self._node.ports[CONTROLLER_LISTENER]
        self._node = replace(self._node, ports=moved)

    def launch(self) -> None:
        """Start the process and return at once; `KafkaCluster.wait_ready` waits until it serves."""
        settings = self._settings
        if not self.log_directory.exists():
            format_directory(
                self.log_directory,
                cluster_id=settings.cluster_id,
                node_id=self.node_id,
                checkpoint=settings.checkpoint,
            )
        listening = replace(self._node, ports={name: port for name, port in self._node.ports.items() if name != JMX})
        properties = settings.directory.path / f"node-{self.node_id}.properties"
        properties.write_text(
            render(server_properties(settings.topology, listening, self.log_directory)), encoding="ascii"
        )
        with self.log_path.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            self._program = start_program(
                self._command(properties),
                environment=java_environment(),
                stdin=nothing.fileno(),
                stdout=log.fileno(),
                stderr=log.fileno(),
                directory=settings.directory,
            )

    def _command(self, properties: Path) -> list[str]:
        settings = self._settings
        jmx = _jmx_options(self._node.ports[JMX]) if JMX in self._node.ports else ()
        return java_command(
            settings.topology.version,
            BROKER_CLASS,
            [str(properties)],
            heap_mb=settings.heap_mb,
            options=(*settings.jvm_options, *jmx),
            log_level=settings.log_level,
            class_data=settings.class_data,
        )

    def failed_on_a_taken_port(self) -> bool:
        """Return whether it ended because another program uses one of its ports."""
        return self.exit_status() is not None and ADDRESS_IN_USE in self.log_tail(200)

    def release(self) -> None:
        """Drop the reference to the process, which the cluster has ended, and release the ports."""
        self._program = None
        for block in self._blocks:
            block.release()


def port_names(roles: Sequence[Role], listeners: Sequence[Listener], *, jmx: bool) -> list[str]:
    """Return the names under which a node has ports: its listeners, and "JMX"."""
    names = [MAIN_LISTENER, *(listener.name for listener in listeners)] if "broker" in roles else []
    return [*names, *([CONTROLLER_LISTENER] if "controller" in roles else []), *([JMX] if jmx else [])]


def _jmx_options(port: int) -> tuple[str, ...]:
    prefix = "-Dcom.sun.management.jmxremote"
    return (
        f"{prefix}.port={port}",
        f"{prefix}.rmi.port={port}",
        f"{prefix}.host={HOST}",
        f"{prefix}.authenticate=false",
        f"{prefix}.ssl=false",
        f"-Djava.rmi.server.hostname={HOST}",
    )
