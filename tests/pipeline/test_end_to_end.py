"""From a real proxy and broker to the lake: equal to the counts of clients and brokers, to the byte."""

from __future__ import annotations

import csv
import io
import json
import signal
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as sf

from headrace.pipeline.analysis.quota_files import read_quotas
from headrace.pipeline.analysis.what_if.answers import what_if
from headrace.pipeline.analysis.what_if.quotas import fixed_quotas
from headrace.pipeline.ingestion.ingest import Ingest
from headrace.pipeline.ingestion.instances import instances
from headrace.pipeline.ingestion.sources import FileSource, KafkaSource
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.tools import Tool, run_tool
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.conftest import TIMEOUT_S, leads
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.shared_cluster import FirstBroker

PRODUCE, FETCH = ApiKey.PRODUCE.value, ApiKey.FETCH.value
FETCH_VERSION = 11
CLIENT = "counted"
BATCHES = [messages.batch(bytes(size)) for size in (10, 1000, 40_000, 100_000)]


@dataclass
class Counted:
    """The requests of a client by API, and the bytes it sent and received without the four bytes of each length."""

    requests: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)

    def call(self, client: RawClient, api_key: int, version: int, body: bytes) -> bytes:
        sent, received = client.bytes_sent, client.bytes_received
        reply = client.call(api_key, version, body)
        self.requests[api_key] += 1
        self.sent[api_key] += client.bytes_sent - sent - 4
        self.received[api_key] += client.bytes_received - received - 4
        return reply

    def work(self, port: int, topic: str, rounds: int = 3) -> None:
        """Produce and fetch."""
        with RawClient(port, client_id=CLIENT) as client:
            for each in range(rounds):
                for batch in BATCHES:
                    body = messages.produce_body(topic, batch)
                    reply = self.call(client, PRODUCE, messages.PRODUCE_VERSION, body)
                    assert messages.read_produce_reply(reply).error_code == 0
                self.call(client, FETCH, FETCH_VERSION, messages.fetch_body(topic, offset=each, max_wait_ms=10))

    def totals(self) -> dict[int, tuple[int, int, int]]:
        return {key: (self.requests[key], self.sent[key], self.received[key]) for key in self.requests}


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    """A cluster of its own for the test that kills its broker."""
    with KafkaCluster() as made:
        yield made


def make_topic(cluster: KafkaCluster | FirstBroker, name: str = "") -> str:
    name = name or f"usage-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    client.create_topics([new_topic(name)])[name].result(TIMEOUT_S)
    wait_until(lambda: leads(client, name), "the broker leads the topic that it has just made")
    return name


def to_files(folder: Path, *more: str) -> str:
    return "\n".join(
        [*more, "[plugins.options.usage_records]", f'folder = "{folder}"', 'name = "proxy-a"', "rotate_s = 1"]
    )


def totals(lake: Lake, client_id: str = CLIENT) -> dict[int, tuple[int, int, int]]:
    """Return, by API, requests, bytes in and bytes out."""
    rows = lake.read("usage", schemas.USAGE).where(sf.col("client_id") == client_id).groupBy("api_key").sum()
    return {
        row["api_key"]: (row["sum(requests)"], row["sum(request_bytes)"], row["sum(response_bytes)"])
        for row in rows.collect()
    }


def broker_counts(cluster: FirstBroker, request: str) -> tuple[int, int]:
    """Return the number of requests of this kind, and their bytes, since the broker's start, from its metrics."""
    address = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{cluster.brokers[0].ports['JMX']}/jmxrmi"
    name = f"kafka.network:type=RequestMetrics,name=RequestBytes,request={request}"
    asked = ["--jmx-url", address, "--object-name", name, "--attributes", "Count,Mean", "--one-time"]
    header, row = csv.reader(io.StringIO(run_tool(Tool.JMX, asked).stdout))
    values = {
        title.rpartition(":")[2]: float(value) for title, value in zip(header, row, strict=True) if title != "time"
    }
    return round(values["Count"]), round(values["Count"] * values["Mean"])


def test_totals_are_the_clients_and_the_brokers_over_restarts(
    kafka: FirstBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic, counted, folder = make_topic(kafka), Counted(), tmp_path / "usage"
    lake = Lake(spark, str(tmp_path / "lake"))
    before = {name: broker_counts(kafka, name) for name in ("Produce", "FetchConsumer")}
    for _ in range(2):
        with ProxyProcess(kafka.bootstrap_servers, config=to_files(folder)) as proxy:
            counted.work(proxy.broker_port(0), topic)
            assert proxy.stop() == 0
        Ingest(lake, None, lambda _: None).run(FileSource(folder=str(folder)))
    assert totals(lake) == counted.totals()
    for name, api_key in (("Produce", PRODUCE), ("FetchConsumer", FETCH)):
        requests, size = (after - first for after, first in zip(broker_counts(kafka, name), before[name], strict=True))
        header = 8 + 2 + len(CLIENT)  # ``RequestMetrics`` counts bodies
        assert (requests, size + header * requests) == counted.totals()[api_key][:2]
    found = instances(lake.read("usage", schemas.USAGE), lake.read("marks", schemas.MARKS)).collect()
    assert [(row.missing, row.lost, row.ended) for row in found] == [(0, 0, True)] * 2


def test_a_killed_proxy_loses_its_last_second_at_most_and_it_shows(
    kafka: FirstBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic, folder = make_topic(kafka), tmp_path / "usage"
    lake = Lake(spark, str(tmp_path / "lake"))
    kept, last = Counted(), Counted()
    with ProxyProcess(kafka.bootstrap_servers, config=to_files(folder)) as proxy:
        kept.work(proxy.broker_port(0), topic)
        wait_until(lambda: requests_in(folder) == sum(kept.requests.values()), "the first second is written")
        last.work(proxy.broker_port(0), topic, rounds=1)
        proxy.signal(signal.SIGKILL)
        proxy.wait(TIMEOUT_S)
    with ProxyProcess(kafka.bootstrap_servers, config=to_files(folder)) as proxy:
        kept.work(proxy.broker_port(0), topic, rounds=1)
        assert proxy.stop() == 0
    assert not list(folder.glob(".*.part"))
    Ingest(lake, None, lambda _: None).run(FileSource(folder=str(folder)))
    missing = kept.requests[PRODUCE] + last.requests[PRODUCE] - totals(lake)[PRODUCE][0]
    assert 0 <= missing <= last.requests[PRODUCE]
    found = instances(lake.read("usage", schemas.USAGE), lake.read("marks", schemas.MARKS)).orderBy(
        "first_second", "instance"
    )
    assert [row.ended for row in found.collect()] == [False, True]


def requests_in(folder: Path) -> int:
    """Return the requests of this test's client in all files, finished or not."""
    lines = [line for path in folder.glob("*usage-*") for line in path.read_bytes().splitlines()]
    return sum(each["requests"] for each in map(json.loads, lines) if each.get("client_id") == CLIENT)


@pytest.mark.exhaustive
def test_to_a_topic_and_through_the_death_of_the_broker(
    cluster: KafkaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    topic, records = make_topic(cluster), make_topic(cluster)
    config = (
        f'[plugins.options.usage_records]\ntopic = "{records}"\nbootstrap_servers = "{cluster.bootstrap_servers}"\n'
        'client = { "socket.timeout.ms" = 3000 }\n'
    )
    counted, lake = Counted(), Lake(spark, str(tmp_path / "lake"))
    source = KafkaSource(topic=records, bootstrap_servers=cluster.bootstrap_servers, client={})
    with ProxyProcess(cluster.bootstrap_servers, config=config) as proxy:
        counted.work(proxy.broker_port(0), topic)
        wait_until(lambda: proxy.metric("headrace_usage_records_total") > 0, "records are written")
        Ingest(lake, None, lambda _: None).run(source)
        cluster.brokers[0].kill()
        cluster.brokers[0].restart()
        cluster.wait_ready()
        client = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        wait_until(lambda: leads(client, topic), "the broker leads again")
        counted.work(proxy.broker_port(0), topic)
        assert proxy.stop() == 0
    Ingest(lake, None, lambda _: None).run(source)
    found = instances(lake.read("usage", schemas.USAGE), lake.read("marks", schemas.MARKS)).collect()
    assert [(row.missing, row.lost, row.ended) for row in found] == [(0, 0, True)]
    assert totals(lake) == counted.totals()


QUOTAS = """
[[quotas]]
entity = { client-id = "greedy" }
producer_byte_rate = 100000

[[quotas]]
entity = { client-id = "modest" }
producer_byte_rate = 100000
"""


def test_what_if_throttles_the_users_that_the_proxy_throttled(
    kafka: FirstBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic, folder = make_topic(kafka), tmp_path / "usage"
    lake = Lake(spark, str(tmp_path / "lake"))
    with ProxyProcess(kafka.bootstrap_servers, config=to_files(folder, QUOTAS)) as proxy:
        port = proxy.broker_port(0)
        with (
            RawClient(port, client_id="greedy", timeout_s=60.0) as greedy,
            RawClient(port, client_id="modest") as modest,
        ):
            for _ in range(14):
                body = messages.produce_body(topic, BATCHES[3])
                greedy.call(PRODUCE, messages.PRODUCE_VERSION, body)
                body = messages.produce_body(topic, BATCHES[1])
                modest.call(PRODUCE, messages.PRODUCE_VERSION, body)
        assert proxy.stop() == 0
    Ingest(lake, None, lambda _: None).run(FileSource(folder=str(folder)))
    usage = lake.read("usage", schemas.USAGE)
    really = usage.where(sf.size("throttled") > 0).select("client_id").distinct().collect()
    assert [row.client_id for row in really] == ["greedy"]
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(QUOTAS)
    answer = what_if(usage, fixed_quotas(*read_quotas(str(quotas))))
    would = answer.groupBy("client_id").agg(sf.sum("throttled").alias("throttled")).collect()
    assert {row.client_id for row in would if row.throttled} == {"greedy"}
    assert {row.client_id for row in would} == {"greedy", "modest"}
