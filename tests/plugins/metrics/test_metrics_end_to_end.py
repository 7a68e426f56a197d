"""The real proxy in front of a real broker: what a throttled producer looks like on the page, to a real Prometheus, and
at an OTLP receiver."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.conftest import TIMEOUT_S, leads
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.otlp_receiver import OtlpReceiver
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker


CONFIG = """
[plugins.options.metrics]
max_series = {max_series}
idle_s = {idle_s}

[[quotas]]
entity = {{ client-id = "<default>" }}
producer_byte_rate = 1000
consumer_byte_rate = 1000000
"""
BATCH = messages.batch(bytes(100_000))
SMALL = messages.batch(bytes(1000))
PRODUCE = "producer_byte_rate"
LONG_MS = 60_000


@pytest.fixture
def topic(kafka: FirstBroker) -> Iterator[str]:
    """A topic of one partition at the shared broker, deleted afterwards."""
    name = f"metrics-{uuid.uuid4().hex[:8]}"
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    client.create_topics([new_topic(name)])[name].result(TIMEOUT_S)
    wait_until(lambda: leads(client, name), "the broker leads the topic that it has just made")
    yield name
    client.delete_topics([name])[name].result(TIMEOUT_S)


def config(*, max_series: int = 10_000, idle_s: int = 300) -> str:
    return CONFIG.format(max_series=max_series, idle_s=idle_s)


def produce(client: RawClient, topic: str, batch: bytes = BATCH) -> int:
    """Send one batch; the throttle time of the reply, in ms."""
    body = messages.produce_body(topic, batch)
    reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
    assert reply.error_code == 0
    return reply.throttle_ms


def samples(proxy: ProxyProcess, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
    status, page = proxy.get("/metrics")
    assert status == 200
    return [
        (sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == f"headrace_{name}" and labels.items() <= sample.labels.items()
    ]


def one(proxy: ProxyProcess, name: str, **labels: str) -> float:
    ((_, value),) = samples(proxy, name, **labels)
    return value


def decided_ms(proxy: ProxyProcess) -> int:
    """Return the throttle time of the only decision, in ms; the reply has what was left of it."""
    (decision,) = json.loads(proxy.get("/decisions")[1])["decisions"]
    return int(decision["throttle_ms"])


def test_a_throttled_producer_is_on_the_page(kafka: FirstBroker, topic: str) -> None:
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config()) as proxy,
        RawClient(proxy.port, client_id="greedy") as client,
    ):
        assert one(proxy, "quota_queue_size", quota=PRODUCE) == 0
        assert LONG_MS < produce(client, topic) <= decided_ms(proxy)
        entity = {"quota": PRODUCE, "client_id": "greedy"}
        assert 8000 < one(proxy, "quota_byte_rate", **entity) < 10_100
        assert one(proxy, "quota_throttle_time", **entity) == decided_ms(proxy)
        assert one(proxy, "quota_limit", **entity) == 1000
        assert one(proxy, "quota_queue_size", quota=PRODUCE) == 1
        assert one(proxy, "quota_queue_size", quota="consumer_byte_rate") == 0
        assert one(proxy, "quota_entities", quota=PRODUCE, state="own") == 1
        assert samples(proxy, "quota_throttle_time", quota="consumer_byte_rate") == []
        ((labels, _),) = samples(proxy, "quota_byte_rate", **entity)
        assert labels == entity | {"user": ""}
        assert samples(proxy, "lookups_total") == [({}, 0)]
        assert "Traceback" not in proxy.log


def test_beyond_the_cap(kafka: FirstBroker, topic: str) -> None:
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(max_series=6)) as proxy,
        contextlib.ExitStack() as clients,
    ):
        for number in range(5):
            client = clients.enter_context(RawClient(proxy.port, client_id=f"client-{number}"))
            assert produce(client, topic, SMALL) == 0
        rates = {labels["client_id"]: value for labels, value in samples(proxy, "quota_byte_rate", quota=PRODUCE)}
        assert len(rates) == 3
        assert rates["other"] == pytest.approx(3 * min(rates.values()), rel=0.5)
        assert one(proxy, "quota_entities", quota=PRODUCE, state="other") == 3


def test_idle_series_are_dropped(kafka: FirstBroker, topic: str) -> None:
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(max_series=6, idle_s=1)) as proxy,
        contextlib.ExitStack() as clients,
    ):
        for number in range(5):
            client = clients.enter_context(RawClient(proxy.port, client_id=f"client-{number}"))
            assert produce(client, topic, SMALL) == 0

        def idle() -> list[float]:
            return [value for _, value in samples(proxy, "quota_entities", quota=PRODUCE, state="idle")]

        wait_until(lambda: idle() == [5], "the series are idle")
        assert samples(proxy, "quota_byte_rate", quota=PRODUCE) == []


def test_the_receiver_gets_the_series(kafka: FirstBroker, topic: str) -> None:
    with OtlpReceiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "100"}
        with (
            ProxyProcess(kafka.bootstrap_servers, config=config(), environment=environment) as proxy,
            RawClient(proxy.port, client_id="greedy") as client,
        ):
            produce(client, topic)
            throttles = receiver.wait_for_points(lambda point: point.name == "headrace.quota.throttle_time")
            assert throttles[0].value == decided_ms(proxy)
            assert throttles[0].attributes == {"quota": PRODUCE, "user": "", "client_id": "greedy"}
            wait_until(lambda: one(proxy, "metrics_pushes_total", outcome="pushed") >= 1, "the push is counted")
            assert one(proxy, "metrics_pushes_total", outcome="failed") == 0
            client.close()
            assert proxy.stop() == 0
            assert "Traceback" not in proxy.log


def test_the_last_push_comes_before_the_end(kafka: FirstBroker, topic: str) -> None:
    with OtlpReceiver() as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        with ProxyProcess(kafka.bootstrap_servers, config=config(), environment=environment) as proxy:
            with RawClient(proxy.port, client_id="greedy") as client:
                produce(client, topic)
            assert receiver.exports == []
            assert proxy.stop() == 0
            assert "metrics were not pushed" not in proxy.log
        assert receiver.wait_for_points(lambda point: point.name == "headrace.quota.byte_rate")


# --- a real Prometheus ---


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def ask(port: int, query: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    except OSError:  # it is not up yet
        return []
    return result


def test_prometheus_scrapes_it(kafka: FirstBroker, topic: str, tmp_path: Path) -> None:
    program, a_minute = needs("prometheus"), "[quota.window]\nsize.seconds = 6\n"
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config(max_series=6) + a_minute) as proxy,
        RawClient(proxy.port, client_id="greedy") as client,
        RawClient(proxy.port, client_id="second") as second,
        RawClient(proxy.port, client_id="third") as third,
        reserve_ports(1) as block,
    ):
        jobs = [{"job_name": "headrace", "static_configs": [{"targets": [proxy.admin]}]}]
        settings = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
        (tmp_path / "prometheus.yml").write_text(json.dumps(settings), encoding="utf-8")
        arguments = [
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{block.first}",
        ]
        with (tmp_path / "log").open("wb") as output:
            running = subprocess.Popen([program, *arguments], stdout=output, stderr=output)
        try:
            up = 'up{job="headrace"} == 1'
            wait_until(lambda: len(ask(block.first, up)) == 1, "Prometheus has started", 60)
            for each in (client, second, third):
                produce(each, topic)  # not earlier: it is over its quota for some sixty seconds
            over = "headrace_quota_byte_rate / headrace_quota_limit > 1"
            wait_until(lambda: len(ask(block.first, over)) == 2, "who is over his quota, by a query", 60)
            others = 'headrace_quota_byte_rate{user="other"}'
            wait_until(lambda: len(ask(block.first, others)) == 1, "the third is another", 60)
        finally:
            running.terminate()
            running.wait(30)


def test_promtool_accepts_the_whole_page(kafka: FirstBroker, topic: str) -> None:
    promtool = needs("promtool")
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config()) as proxy,
        RawClient(proxy.port, client_id="greedy") as client,
    ):
        produce(client, topic)
        page = proxy.get("/metrics")[1]
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, timeout=60, check=False
    )
    ours = [line for line in (checked.stdout + checked.stderr).splitlines() if "headrace_" in line]
    assert (checked.returncode, ours) == (0, [])
