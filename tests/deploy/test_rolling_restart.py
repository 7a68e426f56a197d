"""Two proxies behind HAProxy, as in docs/deploying.md, are restarted one after the other while Java clients run."""

from __future__ import annotations

import collections
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from testbed.kafka.certificates import Authority, ClientTls
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.properties import Listener
from testbed.kafka.tools import RunningTool, Tool, start_tool
from testbed.processes.ports import PortBlock, reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.deploy.balancer import HAPROXY, ROOT, SAMPLE, Balancer, with_replaced
from tests.faults.steady_clients import read_all
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

CONFIG: Final = ROOT / "docs" / "deploy" / "headrace-tls.toml"
DOMAIN: Final = "kafka.example.com"
BALANCER: Final = "127.0.0.1"
PROXIES: Final = {"proxy-1": "127.0.0.2", "proxy-2": "127.0.0.3"}
BROKERS: Final = range(3)
PARTITIONS: Final = 6
TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2
"""Reading the output of a client takes milliseconds."""
RECORDS_A_SECOND: Final = 200
MORE_RECORDS: Final = 200
"""Records that have to be acknowledged after each restart."""


@pytest.fixture(scope="module")
def cluster(authority: Authority) -> Iterator[KafkaCluster]:
    listener = Listener(name="TLS", protocol="SSL", certificate=authority.broker_certificate())
    with KafkaCluster(brokers=len(BROKERS), listeners=[listener], config={"min.insync.replicas": 2}) as three:
        yield three


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The two proxies; each has the same two ports, of the admin server and of clients, on an address of its own."""

    cluster: KafkaCluster
    config: str
    ports: PortBlock

    def start(self, name: str) -> ProxyProcess:
        address = PROXIES[name]
        return ProxyProcess(
            self.cluster.addresses("TLS"),
            config=self.config,
            node_ids="0-2",
            has_token=True,
            arguments=[
                *("--admin", f"{address}:{self.ports.first}", "--listen", f"{address}:{self.ports.ports[-1]}"),
                *("--advertised-host", f"bootstrap.{DOMAIN}"),
            ],
        )


def proxy_config(authority: Authority, balancer_port: int) -> str:
    """The sample, with certificates of this test, and with the balancer's port."""
    own = authority.broker_certificate("proxy", hosts=[f"*.{DOMAIN}"])
    return with_replaced(
        CONFIG.read_text(encoding="utf-8"),
        {
            "/etc/headrace/tls/brokers-ca.pem": str(authority.ca_file),
            "/etc/headrace/tls/kafka.example.com.pem": str(own.certificate_file),
            "/etc/headrace/tls/kafka.example.com.key": str(own.key_file),
            '["192.0.2.10"]': f'["{BALANCER}"]\nadvertised_port = {balancer_port}',
        },
    )


def balancer_config(port: int, proxies: PortBlock) -> str:
    """The sample, with addresses of this machine."""
    return with_replaced(
        SAMPLE.read_text(encoding="ascii"),
        {
            "maxconn 20000": "maxconn 500",  # fewer descriptors, which this machine may not have
            "bind :9192": f"bind {BALANCER}:{port}",
            "port 9190": f"port {proxies.first}",
            "192.0.2.11:9192": f"{PROXIES['proxy-1']}:{proxies.ports[-1]}",
            "192.0.2.12:9192": f"{PROXIES['proxy-2']}:{proxies.ports[-1]}",
        },
    )


class JavaClient:
    """A client of Kafka's own system tests, which prints each thing that it does as a line of JSON."""

    def __init__(self, tool: RunningTool) -> None:
        self.tool = tool
        self._parsed = 0
        self._events: dict[str, list[dict[str, Any]]] = {}

    def events(self, name: str) -> list[dict[str, Any]]:
        """What was printed so far by this name."""
        lines = self.tool.output()[self._parsed :].rpartition("\n")[0]
        self._parsed += len(lines)
        for line in lines.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                self._events.setdefault(event["name"], []).append(event)
        return self._events.get(name, [])

    def values(self, name: str) -> list[int]:
        return [int(event["value"]) for event in self.events(name)]


@contextlib.contextmanager
def java_clients(port: int, topic: str, authority: Authority, folder: Path) -> Iterator[tuple[JavaClient, JavaClient]]:
    """An idempotent producer and a member of a group, for which all names of brokers lead to the balancer."""
    hosts = folder / "hosts"
    names = [f"bootstrap.{DOMAIN}", *(f"broker-{node_id}.{DOMAIN}" for node_id in BROKERS)]
    hosts.write_text("".join(f"{BALANCER} {name}\n" for name in names), encoding="ascii")
    security = {"security.protocol": "SSL", **ClientTls(authority=authority).java_properties()}
    # The tool sets no retries unless it is asked to.
    settings = {"enable.idempotence": "true", "retries": "2147483647", **security}
    for file, properties in (("producer", settings), ("consumer", security)):
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (folder / file).write_text(text, encoding="ascii")
    common = ["--bootstrap-server", f"bootstrap.{DOMAIN}:{port}", "--topic", topic, "--command-config"]
    options = [f"-Djdk.net.hosts.file={hosts}"]
    # Without keys, a partition would get thousands of these small records before the next one has its turn.
    rate = ["--throughput", str(RECORDS_A_SECOND), "--acks", "-1", "--repeating-keys", str(10 * PARTITIONS)]
    group = ["--group-id", f"group-of-{topic}", "--reset-policy", "earliest", "--verbose"]
    with (
        start_tool(
            Tool.VERIFIABLE_PRODUCER, [*common, str(folder / "producer"), *rate], jvm_options=options
        ) as producer,
        start_tool(
            Tool.VERIFIABLE_CONSUMER, [*common, str(folder / "consumer"), *group], jvm_options=options
        ) as consumer,
    ):
        yield JavaClient(producer), JavaClient(consumer)


def wait_for_more(producer: JavaClient, consumer: JavaClient) -> None:
    """Wait until records that are written from now on are acknowledged, in every partition, and read."""
    before = len(producer.events("producer_send_success"))

    def written() -> list[dict[str, Any]]:
        return producer.events("producer_send_success")[before:]

    def is_written_everywhere() -> bool:
        return len(written()) >= MORE_RECORDS and {event["partition"] for event in written()} == set(range(PARTITIONS))

    wait_until(is_written_everywhere, "records are written to all partitions", TIMEOUT_S, poll_s=POLL_S)
    latest = int(written()[-1]["value"])
    wait_until(lambda: latest in consumer.values("record_data"), "they are read", TIMEOUT_S, poll_s=POLL_S)


@contextlib.contextmanager
def outputs_at_failure(
    clients: Sequence[JavaClient], balancer: Balancer, proxies: Mapping[str, ProxyProcess]
) -> Iterator[None]:
    """A block at whose failure the ends of all outputs are printed."""
    try:
        yield
    except BaseException:
        texts = [*(each.tool.output() for each in clients), balancer.log, *(each.log for each in proxies.values())]
        print(*(text[-2000:] for text in texts), sep="\n---\n")  # noqa: T201 - pytest shows it
        raise


def restart_one_after_the_other(
    fleet: Fleet, proxies: dict[str, ProxyProcess], balancer: Balancer, clients: tuple[JavaClient, JavaClient]
) -> Iterator[ProxyProcess]:
    """Restart each proxy when the one before is ready, as docs/deploying.md has it; return the new ones."""
    for name, proxy in list(proxies.items()):
        assert proxy.metric("headrace_connections") > 0, f"{name} serves clients"
        assert proxy.stop() == 0
        assert "Traceback" not in proxy.log
        wait_for_more(*clients)
        proxies[name] = fleet.start(name)
        yield proxies[name]
        assert proxies[name].get("/readyz")[0] == 200
        balancer.wait_for(name, "UP")
    wait_for_more(*clients)


@pytest.mark.exhaustive
@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_a_rolling_restart_loses_no_record(cluster: KafkaCluster, authority: Authority, tmp_path: Path) -> None:
    topic = "rolling"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)])[topic].result(TIMEOUT_S)
    with contextlib.ExitStack() as stack:
        front, ports = (stack.enter_context(reserve_ports(size)) for size in (1, 2))
        fleet = Fleet(cluster=cluster, config=proxy_config(authority, front.first), ports=ports)
        proxies = {name: stack.enter_context(fleet.start(name)) for name in PROXIES}
        balancer_text = balancer_config(front.first, ports)
        balancer = stack.enter_context(Balancer(balancer_text, (BALANCER, front.first), tmp_path))
        clients = stack.enter_context(java_clients(front.first, topic, authority, tmp_path))
        producer, consumer = clients
        with outputs_at_failure(clients, balancer, proxies):
            wait_for_more(*clients)
            for proxy in restart_one_after_the_other(fleet, proxies, balancer, clients):
                stack.enter_context(proxy)
            producer.tool.stop()
            written = producer.values("producer_send_success")
            wait_until(lambda: set(written) <= set(consumer.values("record_data")), "all is read", poll_s=POLL_S)
            consumer.tool.stop()
        assert producer.events("producer_send_error") == []
        assert [event for event in consumer.events("offsets_committed") if not event["success"]] == []
        assert collections.Counter(consumer.values("record_data")) == collections.Counter(written)
    assert read_all(cluster.bootstrap_servers, topic, PARTITIONS) == collections.Counter(written)
