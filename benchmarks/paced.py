"""The accuracy and fairness of paced enforcement, of enforcement as in Kafka, and of a real broker's quotas.

    .venv/bin/python -m benchmarks.paced [--seconds 60] [--connections 1,20,200] [--quick]

Starts a real broker, the proxy, and raw clients that ignore throttle times (`benchmarks.paced_clients`). In each run
three groups of connections run concurrently, each with its own client id and the same limit: through the proxy with
``enforcement = "paced"`` and ``"kafka"``, and directly to the broker with its own client quota.

*ratio*, paced: the charge from the first request to the last reply within the time, without the burst, divided by
limit x time. The other two repeatedly let a window's bytes through at once, so their ratio is the mean over all spans
of that time that begin within two of Kafka's windows, after the first. *Jain* is the fairness index over the
connections. *longest* is the longest time that a reply took, which a client's time-out has to exceed.
"""

from __future__ import annotations

import struct
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
import trio

from benchmarks.paced_clients import (
    CREATE_TOPICS_VERSION,
    FETCHED_BATCH_BYTES,
    CreateTopics,
    Fetch,
    Group,
    Produce,
    create_topic_body,
    created_error,
    jain,
    run_groups,
)
from benchmarks.paced_request_time import CLIENT_ID as TIME_CLIENT_ID
from benchmarks.paced_request_time import METRIC
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.paced_clients import Acks, Work

LIMIT: Final = 2.0 * 2**20
REQUEST_BYTES: Final = 64 * 2**10
SMALL_REQUEST_BYTES: Final = 1024
FETCH_KIB: Final = (64, 1024)
OTHER_CONNECTIONS: Final = 20
"""Number of connections in runs other than Produce."""
BURST_S: Final = 1.0
PERCENT: Final = 2.0
MUTATIONS: Final = 5.0
MUTATING_CLIENT_ID: Final = "paced-mutations"
WINDOW_S: Final = 11.0
"""`quota.window.num` samples of one second, Kafka's defaults."""
WAYS: Final = ("paced", "kafka", "broker")
BROKER_CONFIG: Final[dict[str, str | int | bool]] = {
    # Gigabytes are produced, and most of them deleted soon.
    "log.retention.bytes": 64 << 20,
    "log.segment.bytes": 64 << 20,
    "log.retention.check.interval.ms": 2000,
    "log.segment.delete.delay.ms": 1000,
}
HEADER: Final = (
    f"{'what':20} {'way':8} {'connections':>11} {'limit/s':>9} {'s':>6} {'ratio':>7} {'Jain':>6} {'longest':>8}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The durations of the measurements."""

    paced_s: float
    settle_s: float
    """Time at the beginning that is excluded from the rate of the groups that are not paced."""
    cycle_s: float

    @property
    def total_s(self) -> float:
        """Duration of a run with all three groups."""
        return self.settle_s + self.cycle_s + self.paced_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Three groups of connections that send the same requests concurrently."""

    what: str
    kind: str
    """Part of the client ids, which differ between runs, so that no run begins with the debt of another."""
    key: str
    connections: int
    fetch_bytes: int = 0
    """Size of a Fetch; 0 for Produce."""

    def client_id(self, way: str) -> str:
        return f"{way}-{self.kind}"

    def work(self, way: str, read_topic: str) -> Work:
        if self.fetch_bytes:
            # After the records that `make_topic` has written.
            return Fetch(read_topic, self.fetch_bytes, offset=1)
        return Produce(way, REQUEST_BYTES, self.client_id(way))


def all_runs(connections: Sequence[int]) -> list[Run]:
    """Return a Produce run for each number of connections, and Fetch runs in two sizes."""
    runs = [
        Run(what="Produce, 64 KiB", kind=f"produce-{count}", key="producer_byte_rate", connections=count)
        for count in connections
    ]
    for kib in FETCH_KIB:
        run = Run(
            what=f"Fetch, {kib} KiB",
            kind=f"fetch-{kib}",
            key="consumer_byte_rate",
            connections=OTHER_CONNECTIONS,
            fetch_bytes=kib * 1024,
        )
        runs.append(run)
    return runs


def config(runs: Sequence[Run]) -> str:
    """Return the proxy's configuration."""
    return "".join(
        (
            '[plugins]\nload = ["benchmarks.paced_request_time:PLUGIN"]\n',
            *(_table(run.client_id(way), run.key, LIMIT, way) for run in runs for way in ("paced", "kafka")),
            _table(TIME_CLIENT_ID, "request_percentage", PERCENT, "paced"),
            _table(MUTATING_CLIENT_ID, "controller_mutation_rate", MUTATIONS, "paced"),
        )
    )


def _table(client_id: str, key: str, limit: float, way: str) -> str:
    burst = f'burst = "{BURST_S:g}s"\n' if way == "paced" else ""
    return f'[[quotas]]\nentity = {{ client-id = "{client_id}" }}\n{key} = {limit}\nenforcement = "{way}"\n{burst}'


def set_broker_quota(cluster: KafkaCluster, client_id: str, key: str, limit: float) -> None:
    """Set the broker's own quota of a client id (AlterClientQuotas v0)."""
    entity = struct.pack(">i", 1) + messages.string("client-id") + messages.string(client_id)
    ops = struct.pack(">i", 1) + messages.string(key) + struct.pack(">db", limit, 0)
    with RawClient(cluster.brokers[0].port) as admin:
        reply = admin.call(
            ApiKey.ALTER_CLIENT_QUOTAS.value, 0, struct.pack(">i", 1) + entity + ops + struct.pack(">b", 0)
        )
    (error_code,) = struct.unpack_from(">h", reply, 8)
    assert error_code == 0, f"AlterClientQuotas was answered with error {error_code}"


def make_topic(admin: RawClient, name: str) -> None:
    """Create a topic with one partition, and wait until its leader accepts records."""
    error_code = created_error(admin.call(ApiKey.CREATE_TOPICS.value, CREATE_TOPICS_VERSION, create_topic_body(name)))
    assert error_code == 0, f"CreateTopics was answered with error {error_code}"
    batch = messages.batch(b"")
    wait_until(lambda: write(admin, name, batch) == 0, f"{name} has a leader")


def write(client: RawClient, topic: str, batch: bytes) -> int:
    """Produce a batch, and return the error code."""
    reply = client.call(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, batch))
    return messages.read_produce_reply(reply).error_code


def paced_ratio(acks: Acks, limit: float, duration_s: float) -> tuple[float, float]:
    """Return the charge within the time, without the burst, divided by limit x time; and the time in seconds."""
    charged, until_s = acks.since_first_sent(duration_s)
    return (charged - BURST_S * limit) / (limit * until_s), until_s


class Bench:
    """The broker, the proxy, and a topic for each kind of request."""

    def __init__(self, cluster: KafkaCluster, proxy: ProxyProcess, timing: Timing) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._timing = timing
        self._read_topic = f"read-{uuid.uuid4().hex[:8]}"
        self._ports = {"paced": proxy.broker_port(0), "kafka": proxy.broker_port(0), "broker": cluster.brokers[0].port}

    def prepare(self, runs: Sequence[Run]) -> None:
        """Create topics, set the broker's quotas, and write the records to fetch."""
        with RawClient(self._cluster.brokers[0].port) as admin:
            for name in (self._read_topic, *WAYS, TIME_CLIENT_ID):
                make_topic(admin, name)
        for run in runs:
            set_broker_quota(self._cluster, run.client_id("broker"), run.key, LIMIT)
        batch = messages.batch(bytes(FETCHED_BATCH_BYTES - 70))
        assert len(batch) == FETCHED_BATCH_BYTES
        with RawClient(self._cluster.brokers[0].port) as client:
            for _ in range(2 * max(FETCH_KIB) * 1024 // FETCHED_BATCH_BYTES):
                assert write(client, self._read_topic, batch) == 0

    def three_ways(self, run: Run) -> None:
        """Measure ``run``, and print a line for each group."""
        timing = self._timing
        groups = {
            way: self._group(way, run.client_id(way), run.work(way, self._read_topic), run.connections) for way in WAYS
        }
        trio.run(run_groups, list(groups.values()), timing.total_s)
        for way, group in groups.items():
            if way == "paced":
                ratio, seconds = paced_ratio(group.acks, LIMIT, timing.paced_s)
                self._print_result(run.what, way, group, LIMIT, seconds, ratio, timing.paced_s)
            else:
                rate = group.acks.mean_rate(timing.settle_s, timing.paced_s, timing.cycle_s)
                self._print_result(run.what, way, group, LIMIT, timing.paced_s, rate / LIMIT, timing.total_s)

    def request_time_and_mutations(self) -> None:
        """Measure request time and mutations concurrently, both paced: they do not affect each other's quota."""
        produce = Produce(TIME_CLIENT_ID, SMALL_REQUEST_BYTES, TIME_CLIENT_ID)
        time = self._group("paced", TIME_CLIENT_ID, produce, OTHER_CONNECTIONS)
        mutations = self._group("paced", MUTATING_CLIENT_ID, CreateTopics(), OTHER_CONNECTIONS)
        duration_s = self._timing.paced_s
        charged, seconds = trio.run(self._metered, [time, mutations], duration_s)
        ratio = (charged - BURST_S * PERCENT) / (PERCENT * seconds)
        self._print_result("request time, 1 KiB", "paced", time, PERCENT, seconds, ratio, duration_s)
        ratio, seconds = paced_ratio(mutations.acks, MUTATIONS, duration_s)
        self._print_result("CreateTopics", "paced", mutations, MUTATIONS, seconds, ratio, duration_s)

    async def _metered(self, groups: Sequence[Group], duration_s: float) -> tuple[float, float]:
        """Run ``groups``; return the request time that the proxy has charged, and the duration in seconds."""
        name = f"headrace_{METRIC}_total"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_groups, groups, duration_s + 5)
            await trio.sleep(duration_s)
            charged = await trio.to_thread.run_sync(self._proxy.metric, name)
            now_s = trio.current_time()
            nursery.cancel_scope.cancel()
        return charged, now_s - groups[0].acks.first_sent_s

    def _print_result(
        self, what: str, way: str, group: Group, limit: float, seconds: float, ratio: float, until_s: float
    ) -> None:
        """Print a line of the table."""
        shares = group.acks.shares(group.connections, 0 if way == "paced" else WINDOW_S, until_s)
        print_line(
            f"{what:20} {way:8} {group.connections:11} {limit:9.7g} {seconds:6.1f} {ratio:7.4f}"
            f" {jain(shares):6.3f} {group.acks.longest_s:6.2f} s"
        )

    def _group(self, way: str, client_id: str, work: Work, connections: int) -> Group:
        return Group(client_id=client_id, port=self._ports[way], connections=connections, work=work)


def print_line(line: str) -> None:
    """Print a line without buffering."""
    print(line)
    sys.stdout.flush()


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long each rate is measured.")
@click.option(
    "--connections", default="1,20,200", show_default=True, help="Numbers of producer connections, one run for each."
)
@click.option("--quick", is_flag=True, help="Ten seconds for each run; too short for Kafka's window of eleven.")
@click.option("--only", default="", help="Only runs whose name contains this text.")
def main(seconds: float, connections: str, quick: bool, only: str) -> None:
    """Measure the accuracy of paced quotas, of quotas as in Kafka, and of a real broker's quotas."""
    timing = Timing(paced_s=seconds, settle_s=WINDOW_S + 1, cycle_s=2 * WINDOW_S)
    if quick:
        timing = Timing(paced_s=10, settle_s=1, cycle_s=1)
    runs = [run for run in all_runs([int(each) for each in connections.split(",")]) if only in run.what.lower()]
    print_line(HEADER)
    measure(runs, timing, time_and_mutations=only in "time and mutations")


def measure(runs: Sequence[Run], timing: Timing, *, time_and_mutations: bool) -> None:
    """Measure all runs on a new broker. Raises ClickException if the proxy logged errors."""
    with (
        KafkaCluster(config=BROKER_CONFIG) as cluster,
        ProxyProcess(cluster.bootstrap_servers, config=config(runs)) as proxy,
    ):
        bench = Bench(cluster, proxy, timing)
        bench.prepare(runs)
        for run in runs:
            bench.three_ways(run)
        if time_and_mutations:
            bench.request_time_and_mutations()
        if "Traceback" in proxy.log:
            raise click.ClickException(proxy.log[-4000:])


if __name__ == "__main__":
    main()
