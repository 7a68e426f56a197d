"""Calibrate with a real broker: the proxy records usage and Kafka's JmxTool samples LocalTimeMs.

In intervals that were not used for the fit, the fitted line must be closer to the broker's times than the shipped one.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING, Final

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from headrace.pipeline.cli import pipeline
from headrace.pipeline.lake import schemas
from headrace.pipeline.lake.tables import Lake
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.builtin.cost_files import load_costs
from testbed.kafka.cluster import KafkaCluster
from testbed.kafka.tools import Tool, start_tool
from testbed.proxy_process import ProxyProcess
from tests.clients.wire_connection import WireConnection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from testbed.kafka.tools import RunningTool

pytestmark = pytest.mark.exhaustive
"""It measures for a minute and a half; `test_calibrate` tests the same steps with constructed numbers."""

TOPIC: Final = "calibrated"
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
SIZES: Final = (1_000, 16_000, 64_000, 250_000, 500_000, 900_000)
"""Size of a Produce before compression; brokers accept batches of up to 1 MiB by default."""
WARM_UP_S: Final = 6.0
"""By then the JVM's C1 compiler has compiled most of the code."""
MEASURED_S: Final = 90.0
"""45 intervals, of which a third is held out. On a busy machine, brokers and proxies count differently in half of them,
and 12 are needed for a fit."""
PHASE_S: Final = 3.0
"""Each phase has requests of one size, so that intervals differ."""
INTERVAL_S: Final = 2
TIMEOUT_S: Final = 30.0
PRODUCE: Final = ApiKey.PRODUCE.value


def jmx_tool(cluster: KafkaCluster) -> RunningTool:
    name = "kafka.network:type=RequestMetrics,name=LocalTimeMs,request={}"
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{cluster.brokers[0].ports['JMX']}/jmxrmi"
    arguments = ["--jmx-url", url, "--reporting-interval", "1000", "--attributes", "Count,Mean"]
    for request in ("Produce", "FetchConsumer", "Metadata"):
        arguments += ["--object-name", name.format(request)]
    return start_tool(Tool.JMX, arguments)


class Work:
    """Sends requests of many kinds through the proxy, one after the other."""

    def __init__(self, proxy: ProxyProcess) -> None:
        self._connection = WireConnection(("127.0.0.1", proxy.broker_port(0)))
        topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1}
        self._connection.ask(ApiKey.CREATE_TOPICS, 7, {"timeout_ms": 30_000, "topics": [topic]})
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "linger.ms": 50}
        settings |= {"batch.size": 1_000_000, "message.max.bytes": 1_000_000}
        self._producers = [
            Producer(settings | {"compression.type": codec, "client.id": f"producer-{codec}"}) for codec in CODECS
        ]
        self._dice = random.Random(11)  # noqa: S311
        self._sizes = itertools.cycle(SIZES)
        # Half of each compresses.
        self._records = [self._dice.randbytes(500) + bytes(500) for _ in range(max(SIZES) // 1000)]

    def run(self, seconds: float) -> None:
        """Run phases of one size each, with all codecs alternating."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            size = next(self._sizes)
            phase_end_s = min(end_s, time.monotonic() + PHASE_S)
            for producer in itertools.cycle(self._producers):
                for record in self._records[: size // 1000]:
                    producer.produce(TOPIC, record, partition=0)
                assert producer.flush(TIMEOUT_S) == 0
                self._connection.ask(ApiKey.METADATA, 9, {"topics": [{"name": TOPIC}]})
                self._fetch()
                if time.monotonic() > phase_end_s:
                    break

    def _fetch(self) -> None:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100_000}
        topic = {"topic": TOPIC, "partitions": [partition]}
        self._connection.ask(ApiKey.FETCH, 11, {"max_bytes": 100_000, "min_bytes": 1, "topics": [topic]})

    def close(self) -> None:
        for producer in self._producers:
            producer.flush(TIMEOUT_S)
        self._producers.clear()
        self._connection.__exit__()


def run(*arguments: str) -> str:
    result = CliRunner().invoke(pipeline, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaCluster, Path]]:
    """Return a folder with usage and truth.csv, and the id of their cluster."""
    folder = tmp_path_factory.mktemp("recorded")
    options = f'[plugins.options.usage_records]\nfolder = "{folder}/usage"\n'
    with KafkaCluster(jmx=True) as cluster:
        with ProxyProcess(cluster.bootstrap_servers, config=options, node_ids="0") as proxy:
            work = Work(proxy)
            work.run(WARM_UP_S)
            with jmx_tool(cluster) as tool:
                tool.wait_for_output('"time"', TIMEOUT_S)
                work.run(MEASURED_S)
                (folder / "truth.csv").write_text(tool.output(), encoding="utf-8")
            work.close()
            assert proxy.stop() == 0
        yield cluster, folder


@pytest.fixture(scope="module")
def fitted(spark: SparkSession, recorded: tuple[KafkaCluster, Path]) -> dict[int, Row]:
    _, folder = recorded
    run("ingest", "--lake", f"{folder}/lake", "--from-files", f"{folder}/usage")
    given = ("--truth", f"{folder}/truth.csv", "--output", f"{folder}/costs.toml")
    given += ("--least-samples", "12", "--held-out", "0.33")
    output = run("calibrate", "--lake", f"{folder}/lake", *given, "--interval", str(INTERVAL_S))
    print(output)  # noqa: T201 -- the measurement, for runs with -s
    rows = Lake(spark, f"{folder}/lake").read("costs", schemas.COSTS).collect()
    return {row.api_key: row for row in rows}


@pytest.mark.timeout(600)
def test_held_out_intervals_are_met_better_than_by_the_shipped_costs(fitted: dict[int, Row]) -> None:
    produce = fitted[PRODUCE]
    assert produce.accepted, produce.reason
    assert produce.error_ms < produce.default_error_ms
    assert produce.samples >= 12
    assert produce.per_kib_ms > 0


def test_times_below_the_resolution_are_not_fitted(fitted: dict[int, Row]) -> None:
    """A small Metadata takes a twentieth of the broker's step."""
    assert fitted[ApiKey.METADATA].base_ms is None
    assert fitted[ApiKey.METADATA].reason.startswith("not fitted: brokers count 0")
    assert not fitted[ApiKey.METADATA].accepted


def test_the_proxy_takes_the_file(fitted: dict[int, Row], recorded: tuple[KafkaCluster, Path]) -> None:
    cluster, folder = recorded
    costs = f"{folder}/costs.toml"
    assert load_costs(costs)[PRODUCE].per_kib_ms == pytest.approx(fitted[PRODUCE].per_kib_ms, rel=1e-5)
    options = f'[plugins.options.request_percentage]\ncosts_file = "{costs}"\n'
    with ProxyProcess(cluster.bootstrap_servers, config=options, node_ids="0") as proxy:
        assert proxy.stop() == 0
