"""The paths to the broker: direct, through other proxies, and through Headrace with several configurations.

A `BrokerPath` can be started more than once; each start returns a `Front`. `workloads` measures it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.bench.cores import ProcessMeter, ThreadMeter, thread_meters
from benchmarks.bench.errors import PathUnavailableError
from benchmarks.bench.interpreters import THIS, Interpreter
from benchmarks.bench.tls import TlsFiles, TlsSides, client_context, java_properties
from testbed.kafka.probe import ask
from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.cores import Cores
    from testbed.kafka.certificates import ClientTls

DIRECT, HAPROXY, HAPROXY_SPLICE, KROXYLICIOUS = "direct", "haproxy", "haproxy-splice", "kroxylicious"
HEADRACE, HEADRACE_QUOTAS, HEADRACE_TRACING = "headrace", "headrace-quotas", "headrace-tracing"
HEADRACE_AUTHORIZATION = "headrace-authorization"
HEADRACE_NATIVE, HEADRACE_NATIVE_2_THREADS = "headrace-native", "headrace-native-2-threads"
HEADRACE_NATIVE_OBSERVED = "headrace-native-observed"
HAPROXY_TLS, HAPROXY_TLS_CLIENTS, HAPROXY_TLS_BROKERS = "haproxy-tls", "haproxy-tls-clients", "haproxy-tls-brokers"
HEADRACE_TLS, HEADRACE_TLS_CLIENTS, HEADRACE_TLS_BROKERS = (
    "headrace-tls",
    "headrace-tls-clients",
    "headrace-tls-brokers",
)
HEADRACE_NATIVE_TLS = "headrace-native-tls"

NATIVE_PATHS: Final = frozenset(
    {HEADRACE_NATIVE, HEADRACE_NATIVE_2_THREADS, HEADRACE_NATIVE_OBSERVED, HEADRACE_NATIVE_TLS}
)
TLS_SIDES: Final = {
    HAPROXY_TLS: TlsSides.BOTH,
    HAPROXY_TLS_CLIENTS: TlsSides.CLIENTS,
    HAPROXY_TLS_BROKERS: TlsSides.BROKERS,
    HEADRACE_TLS: TlsSides.BOTH,
    HEADRACE_TLS_CLIENTS: TlsSides.CLIENTS,
    HEADRACE_TLS_BROKERS: TlsSides.BROKERS,
    HEADRACE_NATIVE_TLS: TlsSides.BOTH,
}
"""The paths with TLS. Those of Headrace have all four quotas, as `HEADRACE_QUOTAS`."""
HAPROXY_OF: Final = {
    path: next(peer for peer in (HAPROXY_TLS, HAPROXY_TLS_CLIENTS, HAPROXY_TLS_BROKERS) if TLS_SIDES[peer] is sides)
    for path, sides in TLS_SIDES.items()
}
"""The HAProxy that a path with TLS is compared with: the one with TLS on the same sides."""

SERVING_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.05

QUOTAS: Final = """
[[quotas]]
entity = { user = "<default>" }
producer_byte_rate = "100GiB"
consumer_byte_rate = "100GiB"
request_percentage = 1000000.0
controller_mutation_rate = 1000000.0
producer_ids_rate = 1000000.0
"""
"""All four kinds of quotas, too high to be reached."""
AUTHORIZATION: Final = """
[plugins.options.authorization]
enabled = true

[[plugins.options.authorization.rules]]
principal = "User:*"
operations = ["All"]
resource_type = "topic"
name = "*"

[[plugins.options.authorization.rules]]
principal = "User:*"
operations = ["All"]
resource_type = "group"
name = "*"

[[plugins.options.authorization.rules]]
principal = "User:*"
operations = ["All"]
resource_type = "cluster"
"""
"""Rules that allow everything, so that each request is read and nothing is denied."""
AUTHORIZATION_WORKLOADS: Final = frozenset({"produce", "fetch", "small"})
TWO_THREADS_WORKLOADS: Final = frozenset({"produce", "fetch", "small", "busy"})
"""The workloads in the comparison with one thread; the others would add time, but no information."""
NATIVE: Final = 'data_plane = "native"\n'
PYTHON: Final = 'data_plane = "python"\n'
NATIVE_THREADS: Final = "headrace-data-"
"""The names of the native data plane's threads begin so."""
TLS_WORKLOADS: Final = frozenset({"produce", "fetch", "small", "handshake", "resume"})
"""The workloads of the paths with TLS; handshakes only if they have it with clients."""
USAGE: Final = """
[plugins.options.usage_records]
folder = "{folder}"
"""
TRACING: Final = """
[plugins.options.tracing]
enabled = true
sample_ratio = 0.01
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A running path: the bootstrap address, the broker's address for clients, and the processes to measure."""

    path: str
    bootstrap: tuple[str, int]
    node: tuple[str, int]
    meter: ProcessMeter | None
    """None for the direct path."""
    threads: Sequence[ThreadMeter] = ()
    """The threads of the native data plane, if there are several; `meter` includes them."""
    workloads: frozenset[str] | None = None
    """The names of the supported workloads; None for all."""
    tls: ClientTls | None = None
    """What clients need for TLS; None if they use none."""

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The properties that Kafka's tools need beside the address."""
        return java_properties(self.tls)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap address for Kafka's tools: "host:port"."""
        host, port = self.bootstrap
        return f"{host}:{port}"


class BrokerPath(Protocol):
    """A path to the broker."""

    @property
    def name(self) -> str:
        """The name on the command line."""

    @property
    def is_jvm(self) -> bool:
        """Whether it has to be warmed up until its code is compiled."""

    @property
    def relay_address(self) -> tuple[str, int] | None:
        """The address that the broker advertises to clients of a relay that cannot rewrite addresses; else None."""

    @property
    def sides(self) -> TlsSides:
        """The sides on which it uses TLS."""

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Start the path until `stack` is closed. The first start of a relay uses its `relay_address`.

        Raises PathUnavailableError if it is not available on this machine.
        """


def serving(
    path: str,
    bootstrap: tuple[str, int],
    meter: ProcessMeter | None,
    broker: BenchBroker,
    tls: ClientTls | None = None,
) -> Front:
    """Wait until the broker answers through this path, with `tls` by TLS, and check that clients stay on it.

    Raises PathUnavailableError if it does not answer, or if its Metadata has the broker's own address.
    """
    deadline = time.monotonic() + SERVING_TIMEOUT_S
    context = client_context(tls) if tls is not None else None
    while (answer := ask(*bootstrap, tls=context)) is None or not answer.brokers:
        if time.monotonic() > deadline:
            raise PathUnavailableError(f"{path} does not answer at {bootstrap[0]}:{bootstrap[1]}")
        time.sleep(POLL_S)
    node = next(iter(answer.brokers.values()))
    if meter is not None and node[1] == broker.port:
        raise PathUnavailableError(f"{path} sends its clients to the broker itself, port {node[1]}")
    return Front(path=path, bootstrap=bootstrap, node=node, meter=meter, tls=tls)


MANY_FROM_ONE_HOST: Final = {
    "HEADRACE_LIMITS__PER_IP_EXEMPT": "127.0.0.1",
    "HEADRACE_LIMITS__MAX_CONNECTION_RATE": "0",
}


class Direct:
    """No proxy."""

    name, is_jvm, relay_address, sides = DIRECT, False, None, TlsSides.NONE

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Return the broker's own address; starts nothing."""
        del stack
        host, port = broker.bootstrap_servers.split(":")
        return serving(self.name, (host, int(port)), None, broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headrace:
    """Headrace with a configuration and an environment (see `ProxyProcess`)."""

    name: str
    cores: Cores
    python: Interpreter = THIS
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    workloads: frozenset[str] | None = None
    """See `Front`."""
    otlp_endpoint: Callable[[contextlib.ExitStack], str] | None = None
    """Starts a receiver of traces and returns its URL."""
    records_usage: bool = False
    """Whether it writes usage records, to a temporary folder."""
    sides: TlsSides = TlsSides.NONE
    tls: TlsFiles | None = None
    """The certificates, if it uses TLS."""
    is_jvm: bool = False
    relay_address: tuple[str, int] | None = None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Start a process on the proxy's core."""
        environment = {**MANY_FROM_ONE_HOST, **self.environment}
        if self.otlp_endpoint is not None:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = self.otlp_endpoint(stack)
        config = self.config
        if self.records_usage:
            config += USAGE.format(folder=stack.enter_context(TemporaryDirectory(prefix="headrace-")))
        proxy = stack.enter_context(
            ProxyProcess(
                broker.tls_bootstrap_servers if TlsSides.BROKERS in self.sides else broker.bootstrap_servers,
                config=config,
                node_ids="0",
                environment=environment,
                command_prefix=self.cores.proxy_prefix(),
                python=self.python.command,
            )
        )
        client = self.tls.client if self.tls is not None and TlsSides.CLIENTS in self.sides else None
        front = serving(self.name, ("127.0.0.1", proxy.port), ProcessMeter(proxy.pid), broker, client)
        threads = thread_meters(proxy.pid, NATIVE_THREADS)
        return replace(front, threads=threads if len(threads) > 1 else (), workloads=self.workloads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A running proxy at `address` that the user has started.

    `fixed_port` is the port of the broker's listener for it. `relays`: it is a TCP relay.
    """

    name: str
    address: tuple[str, int]
    pid: int
    relays: bool
    fixed_port: int
    is_jvm: bool = True
    """True, so that it is warmed up, since it may be a JVM."""
    sides: TlsSides = TlsSides.NONE

    @property
    def relay_address(self) -> tuple[str, int] | None:
        """Its own address if it is a relay."""
        return self.address if self.relays else None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Return the running proxy, at every call the same one."""
        del stack
        return serving(self.name, self.address, ProcessMeter(self.pid), broker)


def headrace_path(
    name: str,
    cores: Cores,
    otlp_endpoint: Callable[[contextlib.ExitStack], str],
    tls: TlsFiles,
    python: Interpreter = THIS,
) -> Headrace:
    """Return the path of that name."""
    plain = Headrace(name=name, cores=cores, python=python, config=PYTHON, environment=python.environment())
    quotas = replace(plain, config=PYTHON + QUOTAS)
    if name == HEADRACE_QUOTAS:
        return quotas
    if name in TLS_SIDES:
        sides = TLS_SIDES[name]
        tls_config = tls.headrace_config(sides) + QUOTAS
        with_tls = replace(quotas, config=PYTHON + tls_config, sides=sides, tls=tls, workloads=TLS_WORKLOADS)
        if name == HEADRACE_NATIVE_TLS:
            return replace(with_tls, config=NATIVE + tls_config)
        return with_tls
    if name == HEADRACE_NATIVE:
        return replace(quotas, config=NATIVE + QUOTAS)
    if name == HEADRACE_NATIVE_2_THREADS:
        config = NATIVE + "data_plane_threads = 2\n" + QUOTAS
        return replace(quotas, config=config, workloads=TWO_THREADS_WORKLOADS)
    if name == HEADRACE_NATIVE_OBSERVED:
        return replace(quotas, config=NATIVE + QUOTAS + TRACING, otlp_endpoint=otlp_endpoint, records_usage=True)
    if name == HEADRACE_AUTHORIZATION:
        return replace(quotas, config=PYTHON + QUOTAS + AUTHORIZATION, workloads=AUTHORIZATION_WORKLOADS)
    if name == HEADRACE_TRACING:
        return replace(quotas, config=PYTHON + QUOTAS + TRACING, otlp_endpoint=otlp_endpoint)
    return plain
