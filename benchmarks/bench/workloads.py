"""The workloads that run on each path, and what they measure.

A workload knows an address and a process, but not which proxy it is. All workloads block, on the clients' core.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.bench import raw
from benchmarks.bench.errors import BenchError
from benchmarks.bench.figures import (
    AMOUNT,
    CONNECTION_BYTES,
    CONNECTIONS,
    CPU_S,
    P50_MS,
    P99_MS,
    P999_MS,
    RATE,
    RESIDENT_BYTES,
    THREAD_SHARE,
    percentile,
)
from benchmarks.bench.handshakes import handshakes_per_second
from testbed.kafka.tools import Tool, run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.bench.broker import BenchBroker
    from benchmarks.bench.paths import BrokerPath, Front

PRODUCE, FETCH, SMALL, LATENCY = "produce", "fetch", "small", "latency"
IDLE, BUSY, CONNECT = "idle", "busy", "connect"
HANDSHAKE, RESUME = "handshake", "resume"

TOOL_TIMEOUT_S: Final = 600.0
RECORD_BYTES: Final = 1000
SMALL_RECORD_BYTES: Final = 100
LATENCY_RATE: Final = 1000.0
CONNECT_AT_A_TIME: Final = 16
SETTLE_S: Final = 1.0
"""Wait after the idle connections were opened, until temporary memory is freed."""
TOPIC, READ_TOPIC = "bench-written", "bench-read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of the workloads in one run."""

    produce_records: int
    read_records: int
    small_requests: int
    latency_requests: int
    idle_connections: int
    busy_connections: int
    busy_requests: int
    connects: int
    handshakes: int


FULL: Final = Sizes(
    produce_records=600_000,
    read_records=950_000,
    small_requests=60_000,
    latency_requests=15_000,
    idle_connections=8000,
    busy_connections=1000,
    busy_requests=40_000,
    connects=4000,
    handshakes=3000,
)


def scaled(scale: float) -> Sizes:
    """Return the sizes times `scale`, with a minimum for each."""

    def size(full: int, least: int) -> int:
        return max(min(least, full), round(full * scale))

    return Sizes(
        produce_records=size(FULL.produce_records, 10_000),
        read_records=size(FULL.read_records, 10_000),
        small_requests=size(FULL.small_requests, 1000),
        latency_requests=size(FULL.latency_requests, 1000),
        idle_connections=size(FULL.idle_connections, 200),
        busy_connections=size(FULL.busy_connections, 50),
        busy_requests=size(FULL.busy_requests, 1000),
        connects=size(FULL.connects, 200),
        handshakes=size(FULL.handshakes, 200),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The broker and the sizes, for all workloads."""

    broker: BenchBroker
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload. `run` runs it once on a front, whose path it may start again, and returns the measured values."""

    name: str
    title: str
    rate_unit: str
    unit: str
    """The unit of AMOUNT."""
    run: Callable[[Scene, BrokerPath, Front], dict[str, float]]


def prepare(scene: Scene, *, reads: bool) -> None:
    """Create the topics; if the records are to be fetched, write them."""
    scene.broker.create_topic(TOPIC)
    if reads:
        scene.broker.create_topic(READ_TOPIC, "retention.bytes=-1")
        _produce(scene.broker.bootstrap_servers, READ_TOPIC, scene.sizes.read_records, {})


def _produce(servers: str, topic: str, records: int, properties: Mapping[str, str]) -> float:
    """Produce large batches, and return the MB per second."""
    settings = [*as_settings(properties), "batch.size=65536", "linger.ms=5"]
    return producer_rate(servers, topic, records, RECORD_BYTES, *settings)[1]


def as_settings(properties: Mapping[str, str]) -> list[str]:
    """Return the properties as arguments of Kafka's tools."""
    return [f"{name}={value}" for name, value in properties.items()]


def producer_rate(servers: str, topic: str, records: int, size: int, *settings: str) -> tuple[float, float]:
    """Run Kafka's ProducerPerformance, and return its records and MB (10**6 bytes) per second."""
    properties = [f"bootstrap.servers={servers}", *settings]
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    command = [*arguments, "--command-property", *properties]
    per_second = read_producer(run_tool(Tool.PRODUCER_PERF_TEST, command, timeout_s=TOOL_TIMEOUT_S).stdout, records)
    return per_second, per_second * size / 1e6


def read_producer(printed: str, records: int) -> float:
    """Return the records per second in ProducerPerformance's last line. Raises BenchError if some were not written."""
    found = re.findall(r"^(\d+) records sent, ([0-9.]+) records/sec", printed, re.MULTILINE)
    if not found or int(found[-1][0]) != records:
        raise BenchError(f"the producer did not write {records} records: {printed[-500:]}")
    return float(found[-1][1])


def consumer_rate(servers: str, topic: str, records: int, *settings: str) -> tuple[float, float]:
    """Run Kafka's ConsumerPerformance; return MB (10**6 bytes) per second, without joining the group, and total MB."""
    arguments = ["--bootstrap-server", servers, "--topic", topic, "--num-records", str(records)]
    for setting in settings:
        arguments += ["--command-property", setting]
    return read_consumer(run_tool(Tool.CONSUMER_PERF_TEST, arguments, timeout_s=TOOL_TIMEOUT_S).stdout, records)


def read_consumer(printed: str, records: int) -> tuple[float, float]:
    """Of ConsumerPerformance's table: MB a second while it fetched, and MB in all.

    Raises BenchError when records are missing.
    """
    lines = [line.split(", ") for line in printed.strip().splitlines()]
    header = next((line for line in lines if "fetch.MB.sec" in line), None)
    if header is None or len(lines[-1]) != len(header):
        raise BenchError(f"the consumer printed no table: {printed[-500:]}")
    row = dict(zip(header, lines[-1], strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise BenchError(f"the consumer got {row['data.consumed.in.nMsg']} of {records} records")
    to_decimal = 2**20 / 1e6  # its MB are MiB
    return float(row["fetch.MB.sec"]) * to_decimal, float(row["data.consumed.in.MB"]) * to_decimal


class Meter:
    """A context manager that measures the CPU time and memory of a front's processes."""

    __slots__ = ("_before_s", "_front", "_threads_before_s", "values")

    def __init__(self, front: Front) -> None:
        self._front = front
        self.values: dict[str, float] = {}

    def __enter__(self) -> dict[str, float]:
        self._before_s = self._front.meter.cpu_s if self._front.meter else 0.0
        self._threads_before_s = [thread.cpu_s for thread in self._front.threads]
        return self.values

    def __exit__(self, *_: object) -> None:
        if self._front.meter:
            self.values[CPU_S] = self._front.meter.cpu_s - self._before_s
            self.values[RESIDENT_BYTES] = self._front.meter.resident_bytes
        if self._front.threads:
            before = zip(self._front.threads, self._threads_before_s, strict=True)
            each_s = [thread.cpu_s - before_s for thread, before_s in before]
            self.values[THREAD_SHARE] = min(each_s) / sum(each_s)


def produce(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    records = scene.sizes.produce_records
    with Meter(front) as values:
        values[RATE] = _produce(front.bootstrap_servers, TOPIC, records, front.client_properties)
    return {**values, AMOUNT: records * RECORD_BYTES / 1e9}


def fetch(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    with Meter(front) as values:
        settings = as_settings(front.client_properties)
        values[RATE], megabytes = consumer_rate(
            front.bootstrap_servers, READ_TOPIC, scene.sizes.read_records, *settings
        )
    return {**values, AMOUNT: megabytes / 1e3}


def small(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    requests = scene.sizes.small_requests
    with Meter(front) as values:
        one_each = (*as_settings(front.client_properties), "batch.size=1", "linger.ms=0")
        values[RATE], _ = producer_rate(front.bootstrap_servers, TOPIC, requests, SMALL_RECORD_BYTES, *one_each)
    return {**values, AMOUNT: requests / 1e3}


def latency(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    requests = scene.sizes.latency_requests
    with Meter(front) as values:
        took_s = raw.latencies_s(front.node, raw.small_produce(TOPIC), LATENCY_RATE, requests)
    percentiles = {P50_MS: 50.0, P99_MS: 99.0, P999_MS: 99.9}
    found = {figure: percentile(took_s, percent) * 1e3 for figure, percent in percentiles.items()}
    return {**values, **found, AMOUNT: requests / 1e3}


def idle(scene: Scene, path: BrokerPath, front: Front) -> dict[str, float]:
    """Measure a new process if the path can start one: free memory of earlier workloads would hide the growth."""
    if front.meter is None:
        return {}
    count = scene.sizes.idle_connections
    with contextlib.ExitStack() as stack:
        fresh = path.start(scene.broker, stack)
        assert fresh.meter is not None
        with raw.open_connections(fresh.bootstrap, 1):
            before = fresh.meter.resident_bytes
        with raw.open_connections(fresh.bootstrap, count):
            time.sleep(SETTLE_S)
            resident = fresh.meter.resident_bytes
    return {CONNECTIONS: count, RESIDENT_BYTES: resident, CONNECTION_BYTES: (resident - before) / count}


def busy(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    requests = scene.sizes.busy_requests
    with raw.open_connections(front.node, scene.sizes.busy_connections) as connections, Meter(front) as values:
        begin_s = time.perf_counter()
        raw.ask_in_turns(connections, raw.small_produce(TOPIC), requests)
        values[RATE] = requests / (time.perf_counter() - begin_s)
    return {**values, AMOUNT: requests / 1e3}


def connect(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    connects = scene.sizes.connects
    with Meter(front) as values:
        begin_s = time.perf_counter()
        raw.connect_in_turns(front.bootstrap, connects, CONNECT_AT_A_TIME)
        values[RATE] = connects / (time.perf_counter() - begin_s)
    return {**values, AMOUNT: connects / 1e3}


def handshake(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    return _handshakes(scene, front, resumed=False)


def resume(scene: Scene, _path: BrokerPath, front: Front) -> dict[str, float]:
    return _handshakes(scene, front, resumed=True)


def _handshakes(scene: Scene, front: Front, *, resumed: bool) -> dict[str, float]:
    if front.tls is None:
        return {}
    count = scene.sizes.handshakes
    with Meter(front) as values:
        values[RATE] = handshakes_per_second(front.bootstrap[1], front.tls, count, resumed=resumed)
    return {**values, AMOUNT: count / 1e3}


WORKLOADS: Final = (
    Workload(name=PRODUCE, title="Large batches in", rate_unit="MB/s", unit="GB", run=produce),
    Workload(name=FETCH, title="Large batches out", rate_unit="MB/s", unit="GB", run=fetch),
    Workload(name=SMALL, title="One record per request", rate_unit="requests/s", unit="1,000 requests", run=small),
    Workload(name=LATENCY, title="1,000 requests per second", rate_unit="", unit="1,000 requests", run=latency),
    Workload(name=IDLE, title="Idle connections", rate_unit="", unit="", run=idle),
    Workload(name=BUSY, title="Busy connections", rate_unit="requests/s", unit="1,000 requests", run=busy),
    Workload(
        name=CONNECT, title="Connections opened", rate_unit="connections/s", unit="1,000 connections", run=connect
    ),
    Workload(name=HANDSHAKE, title="TLS handshakes", rate_unit="handshakes/s", unit="1,000 handshakes", run=handshake),
    Workload(name=RESUME, title="TLS sessions resumed", rate_unit="handshakes/s", unit="1,000 handshakes", run=resume),
)
