"""What relaying costs: the same work straight to a real broker and through the proxy, interleaved, in one run.

    .venv/bin/python -m benchmarks.relay [--rounds 3]

Prints medians: the client's throughput through the proxy as a ratio of the direct way, the proxy's CPU seconds per GB
and
per 1,000 requests, and what an idle connection adds to its resident memory. Figures of different runs, or of different
machines, do not compare; the ratios of one run do.
"""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from testbed.cluster import KafkaCluster
from testbed.proxy_process import ProxyProcess
from testbed.tools import Tool, run_tool

if TYPE_CHECKING:
    from collections.abc import Callable

QUOTAS = """
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = "100GiB"
consumer_byte_rate = "100GiB"
"""
LARGE_RECORDS, SMALL_RECORDS = 200_000, 20_000
IDLE_CONNECTIONS = 1000
API_VERSIONS = bytes.fromhex("0000000a0012000000000001ffff")


@dataclass
class Figures:
    """Of one kind of work, a figure a round."""

    direct: list[float] = field(default_factory=list)
    proxied: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    gigabytes: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        """The medians in words."""
        middle = statistics.median
        cpu_s = middle(self.cpu_s)
        return (
            f"{name:24} {middle(self.proxied) / middle(self.direct):5.2f} x direct"
            f"  {cpu_s / middle(self.gigabytes):6.2f} CPU s/GB"
            f"  {1000 * cpu_s / middle(self.requests):6.3f} CPU s/1,000 requests"
        )


def produce(servers: str, records: int, size: int, *settings: str) -> float:
    """MB a second."""
    properties = [f"bootstrap.servers={servers}", *settings]
    arguments = ["--topic", "bench", "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    printed = run_tool(Tool.PRODUCER_PERF_TEST, [*arguments, "--command-property", *properties], timeout_s=300).stdout
    return float(re.findall(r"\(([0-9.]+) MB/sec\)", printed)[-1])


def consume(servers: str) -> float:
    """MB a second."""
    arguments = ["--bootstrap-server", servers, "--topic", "bench", "--num-records", str(LARGE_RECORDS)]
    printed = run_tool(Tool.CONSUMER_PERF_TEST, arguments, timeout_s=300).stdout
    return float(printed.strip().splitlines()[-1].split(",")[3])


WORK: dict[str, Callable[[str], float]] = {
    "produce, 64 KiB batches": lambda servers: produce(servers, LARGE_RECORDS, 1000, "batch.size=65536", "linger.ms=5"),
    "fetch, large": consume,
    "produce, one record each": lambda servers: produce(servers, SMALL_RECORDS, 100, "batch.size=1", "linger.ms=0"),
}


def measure(work: Callable[[str], float], figures: Figures, cluster: KafkaCluster, proxy: ProxyProcess) -> None:
    """One round, direct and proxied."""
    figures.direct.append(work(cluster.bootstrap_servers))
    before = proxy.cpu_s, proxy.metric("headrace_requests_total"), proxy.metric("headrace_bytes_total")
    figures.proxied.append(work(proxy.bootstrap_servers))
    figures.cpu_s.append(proxy.cpu_s - before[0])
    figures.requests.append(proxy.metric("headrace_requests_total") - before[1])
    figures.gigabytes.append((proxy.metric("headrace_bytes_total") - before[2]) / 2e9)  # each byte is read and written


def idle_bytes(proxy: ProxyProcess) -> float:
    """Resident bytes that an idle connection adds."""
    before = proxy.resident_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            client.sendall(API_VERSIONS)
            client.recv(65536)
        return (proxy.resident_bytes - before) / IDLE_CONNECTIONS


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often each work is done each way.")
def main(rounds: int) -> None:
    """Measure the cost of the relays, with byte-rate quotas on and not hit."""
    with KafkaCluster() as cluster, ProxyProcess(cluster.bootstrap_servers, config=QUOTAS) as proxy:
        create = ["--create", "--topic", "bench", "--partitions", "3"]
        run_tool(Tool.TOPICS, ["--bootstrap-server", cluster.bootstrap_servers, *create])
        figures = {name: Figures() for name in WORK}
        for _ in range(rounds):
            for name, work in WORK.items():
                measure(work, figures[name], cluster, proxy)
        for name, each in figures.items():
            print(each.line(name))
        print(f"an idle connection adds {idle_bytes(proxy) / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
