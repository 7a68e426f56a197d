"""The other proxies that the benchmark starts itself: HAProxy in TCP mode, and Kroxylicious."""

from __future__ import annotations

import resource
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Final

from benchmarks.bench.cores import ProcessMeter
from benchmarks.bench.errors import BenchError, PathUnavailableError
from benchmarks.bench.kroxylicious_launcher import READY_LINE
from benchmarks.bench.paths import KROXYLICIOUS, TLS_WORKLOADS, Front, serving
from benchmarks.bench.programs import Program
from benchmarks.bench.tls import CIPHER, TlsFiles, TlsSides
from testbed.errors import ArtifactsUnavailableError, JavaNotFoundError
from testbed.kafka.artifacts import resolve
from testbed.kafka.java import find_java
from testbed.processes.ports import HOST, reserve_ports
from testbed.processes.supervised import make_directory

if TYPE_CHECKING:
    import contextlib

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.cores import Cores

HAPROXY_PLACES: Final = "/usr/sbin:/usr/local/sbin"
"""Searched after the PATH, which has no sbin for many users."""
SPARE_DESCRIPTORS: Final = 500
"""Descriptors that HAProxy requires beside two for each connection."""
PIPES: Final = 100
"""Pipes for splicing, of two spare descriptors each. HAProxy's default is one for every four connections."""
HAPROXY_TLS_OPTIONS: Final = f"ssl-min-ver TLSv1.3 ciphersuites {CIPHER}"
KROXYLICIOUS_JARS: Final = ("io.kroxylicious:kroxylicious-runtime:0.12.0", "org.slf4j:slf4j-simple:2.0.17")
KROXYLICIOUS_START_S: Final = 60.0


class Haproxy:
    """HAProxy with one thread as a TCP relay; with `splice`, it moves bytes inside the kernel.

    With `tls`, it terminates TLS from clients and initiates it to the broker, or one of both, as `sides` has it.
    """

    is_jvm = False

    def __init__(
        self,
        name: str,
        cores: Cores,
        *,
        splice: bool = False,
        tls: TlsFiles | None = None,
        sides: TlsSides = TlsSides.NONE,
    ) -> None:
        """Raise PathUnavailableError if HAProxy is not installed."""
        program = shutil.which("haproxy") or shutil.which("haproxy", path=HAPROXY_PLACES)
        if program is None:
            raise PathUnavailableError("haproxy is not installed (on Debian: apt-get install haproxy)")
        self.name = name
        self._cores = cores
        self._program = program
        self._splice = splice
        self._tls = tls
        self.sides = sides
        self._first = reserve_ports()
        self._started = False

    @property
    def relay_address(self) -> tuple[str, int]:
        """The address of the first process that is started; reserved until this process ends."""
        return HOST, self._first.first

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Start a process. Kafka clients cannot use a second one: the broker advertises the first one's address."""
        port = stack.enter_context(reserve_ports()).first if self._started else self._first.first
        self._started = True
        directory = make_directory("headrace-haproxy-")
        stack.callback(directory.remove)
        file = directory.path / "haproxy.cfg"
        config = haproxy_config(port, broker.behind(self.name), splice=self._splice, tls=self._tls, sides=self.sides)
        file.write_text(config, encoding="ascii")
        program = Program(self.name, [*self._cores.proxy_prefix(), self._program, "-db", "-f", str(file)])
        stack.callback(program.close)
        try:
            client = self._tls.client if self._tls is not None and TlsSides.CLIENTS in self.sides else None
            front = serving(self.name, (HOST, port), ProcessMeter(program.pid), broker, client)
            return replace(front, workloads=TLS_WORKLOADS if self.sides else None)
        except BenchError as error:
            raise PathUnavailableError(f"{error}; its output: {program.output[-1000:]}") from error


def haproxy_config(
    port: int,
    broker_port: int,
    *,
    splice: bool,
    tls: TlsFiles | None = None,
    sides: TlsSides = TlsSides.NONE,
) -> str:
    """Return a configuration like Debian's, in TCP mode, with connections limited by the descriptor limit.

    With TLS, it verifies the broker's certificate, and its sessions are resumed, which is the default.
    """
    clients = brokers = ""
    if tls is not None and TlsSides.CLIENTS in sides:
        clients = f" ssl crt {tls.certificate.keystore_file} {HAPROXY_TLS_OPTIONS}"
    if tls is not None and TlsSides.BROKERS in sides:
        brokers = f" ssl verify required ca-file {tls.authority.ca_file} {HAPROXY_TLS_OPTIONS}"
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"""\
global
    maxconn {(descriptors - SPARE_DESCRIPTORS) // 2}
    maxpipes {PIPES}
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
{"    option splice-auto" if splice else ""}
listen kafka
    bind {HOST}:{port}{clients}
    server broker {HOST}:{broker_port}{brokers}
"""


class Kroxylicious:
    """Kroxylicious without filters, in a JVM with its default options for one core."""

    name, is_jvm, relay_address, sides = KROXYLICIOUS, True, None, TlsSides.NONE

    def __init__(self, cores: Cores) -> None:
        """Raise PathUnavailableError if its jars, a JVM or JPype are not available. Downloads 30 MB once."""
        self._cores = cores
        try:
            import_module("jpype")  # the launcher requires it
            self._jars = [str(jar) for jar in resolve(*KROXYLICIOUS_JARS)]
            self._library = str(find_java().jvm_library)
        except (ImportError, ArtifactsUnavailableError, JavaNotFoundError) as error:
            raise PathUnavailableError(str(error)) from error

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Start a process."""
        port = stack.enter_context(reserve_ports(2)).first
        directory = make_directory("headrace-kroxylicious-")
        stack.callback(directory.remove)
        file = directory.path / "config.yaml"
        file.write_text(kroxylicious_config(port, broker.bootstrap_servers), encoding="ascii")
        launcher = (sys.executable, "-m", "benchmarks.bench.kroxylicious_launcher")
        command = [*self._cores.proxy_prefix(), *launcher, str(file), self._library, *self._jars]
        program = Program(self.name, command)
        stack.callback(program.close)
        program.wait_for_output(READY_LINE, KROXYLICIOUS_START_S)
        return serving(self.name, (HOST, port), ProcessMeter(program.pid), broker)


def kroxylicious_config(port: int, bootstrap_servers: str) -> str:
    """Return a configuration with the bootstrap listener at `port`, and broker 0 at the next port."""
    return f"""\
virtualClusters:
  - name: bench
    targetCluster:
      bootstrapServers: {bootstrap_servers}
    gateways:
      - name: default
        portIdentifiesNode:
          bootstrapAddress: {HOST}:{port}
          advertisedBrokerAddressPattern: {HOST}
          nodeStartPort: {port + 1}
          nodeIdRanges: [{{name: all, start: 0, end: 0}}]
"""
