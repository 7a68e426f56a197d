"""The ways to the broker: directly, through peers, through Headrace in several settings.

A `Way` can be started, more than once; what runs then is a `Front`. What it costs is `works`' business.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from benchmarks.bench.cores import ProcessMeter
from benchmarks.bench.errors import WayUnavailableError
from benchmarks.bench.interpreters import THIS, Interpreter
from testbed.compiled import compiled_copy
from testbed.errors import TestbedError
from testbed.kafka.probe import ask
from testbed.proxy_process import ProxyProcess

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.cores import Cores

DIRECT, HAPROXY, HAPROXY_SPLICE, KROXYLICIOUS = "direct", "haproxy", "haproxy-splice", "kroxylicious"
HEADRACE, HEADRACE_QUOTAS, HEADRACE_TRACING = "headrace", "headrace-quotas", "headrace-tracing"
HEADRACE_COMPILED, HEADRACE_2_WORKERS = "headrace-compiled", "headrace-2-workers"

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
"""All four kinds, so high that none is ever hit."""
TWO_WORKERS: Final = "workers = 2\n"
TWO_WORKERS_WORKS: Final = frozenset({"produce", "fetch", "small", "busy"})
"""What is compared with one worker; the others would tell nothing more and take their time."""
TRACING: Final = """
[plugins.options.tracing]
enabled = true
sample_ratio = 0.01
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """A way that runs: where clients bootstrap, where they find the broker, and whose CPU it takes."""

    way: str
    bootstrap: tuple[str, int]
    node: tuple[str, int]
    meter: ProcessMeter | None
    """None for the direct way."""
    workers: Sequence[ProcessMeter] = ()
    """Each by itself, where there are several; the meter counts them, too."""
    works: frozenset[str] | None = None
    """The names of those that it is good for; None for all."""

    @property
    def bootstrap_servers(self) -> str:
        """As Kafka's tools take it."""
        host, port = self.bootstrap
        return f"{host}:{port}"


class Way(Protocol):
    """One way."""

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def is_jvm(self) -> bool:
        """Whether it has to be warmed up until its code is compiled."""

    @property
    def relay_address(self) -> tuple[str, int] | None:
        """For relays that cannot rewrite addresses: what the broker is to tell those who come through it."""

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Start it, for as long as `stack` lives. The first to be started has the relay's address.

        Raises WayUnavailableError when it cannot be had here.
        """


def serving(way: str, bootstrap: tuple[str, int], meter: ProcessMeter | None, broker: BenchBroker) -> Front:
    """Wait until the broker can be reached this way, and see to it that clients stay on it.

    Raises WayUnavailableError when it does not answer, or when it shows clients the broker's own address.
    """
    deadline = time.monotonic() + SERVING_TIMEOUT_S
    while (answer := ask(*bootstrap)) is None or not answer.brokers:
        if time.monotonic() > deadline:
            raise WayUnavailableError(f"{way} does not answer at {bootstrap[0]}:{bootstrap[1]}")
        time.sleep(POLL_S)
    node = next(iter(answer.brokers.values()))
    if meter is not None and node[1] == broker.port:
        raise WayUnavailableError(f"{way} sends its clients to the broker itself, port {node[1]}")
    return Front(way=way, bootstrap=bootstrap, node=node, meter=meter)


class Direct:
    """No proxy."""

    name, is_jvm, relay_address = DIRECT, False, None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """Nothing is started."""
        del stack
        host, port = broker.bootstrap_servers.split(":")
        return serving(self.name, (host, int(port)), None, broker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headrace:
    """Headrace with a configuration and an environment, which are those of `ProxyProcess`."""

    name: str
    cores: Cores
    python: Interpreter = THIS
    config: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    works: frozenset[str] | None = None
    """As in `Front`."""
    otlp_endpoint: Callable[[contextlib.ExitStack], str] | None = None
    """Starts a receiver of traces."""
    is_jvm: bool = False
    relay_address: tuple[str, int] | None = None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """One process, or a supervisor and its workers, on the proxy's core."""
        environment = dict(self.environment)
        if self.otlp_endpoint is not None:
            environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = self.otlp_endpoint(stack)
        proxy = stack.enter_context(
            ProxyProcess(
                broker.bootstrap_servers,
                config=self.config,
                node_ids="0",
                environment=environment,
                command_prefix=self.cores.proxy_prefix(),
                python=self.python.command,
            )
        )
        front = serving(self.name, ("127.0.0.1", proxy.port), ProcessMeter(proxy.pid), broker)
        workers = [ProcessMeter(pid) for pid in proxy.worker_pids]
        return replace(front, workers=workers, works=self.works)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A proxy that somebody else has started, at `address`; it is pinned by who parsed it.

    `fixed_port` is where the broker listens for it. `relays`: it hands on bytes as they are.
    """

    name: str
    address: tuple[str, int]
    pid: int
    relays: bool
    fixed_port: int
    is_jvm: bool = True
    """Nothing is known of it, so it is warmed up."""

    @property
    def relay_address(self) -> tuple[str, int] | None:
        """Its own."""
        return self.address if self.relays else None

    def start(self, broker: BenchBroker, stack: contextlib.ExitStack) -> Front:
        """It runs already, and there is no second one."""
        del stack
        return serving(self.name, self.address, ProcessMeter(self.pid), broker)


def headrace_way(
    name: str,
    cores: Cores,
    otlp_endpoint: Callable[[contextlib.ExitStack], str],
    told: Callable[[str], None],
    python: Interpreter = THIS,
) -> Headrace:
    """The way of that name; ``told`` is told that something is built for it. Raises WayUnavailableError where that
    cannot be."""
    plain = Headrace(name=name, cores=cores, python=python, environment=python.environment())
    quotas = replace(plain, config=QUOTAS)
    if name == HEADRACE_QUOTAS:
        return quotas
    if name == HEADRACE_COMPILED:
        return replace(quotas, environment=_compiled(told, python))
    if name == HEADRACE_2_WORKERS:
        return replace(quotas, config=TWO_WORKERS + QUOTAS, works=TWO_WORKERS_WORKS)
    if name == HEADRACE_TRACING:
        return replace(quotas, config=QUOTAS + TRACING, otlp_endpoint=otlp_endpoint)
    return plain


def _compiled(told: Callable[[str], None], python: Interpreter) -> dict[str, str]:
    try:
        return python.environment(str(compiled_copy(told)))
    except TestbedError as error:
        raise WayUnavailableError(str(error)) from error
