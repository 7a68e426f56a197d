"""`/livez`, `/readyz` and `/metrics`, after traffic whose every byte is known."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from testbed.preloaded_command import run_headrace
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker


MUTED = '[[quotas]]\nentity = { client-id = "muted" }\nproducer_byte_rate = 100\n'


@pytest.fixture
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=MUTED, arguments=JSON_LOG, has_token=True) as process:
        process.wait_for_log("brokers changed")
        yield process
        assert_no_traceback(process)


def requests(api: str) -> str:
    return f'headrace_requests_total{{api="{api}"}}'


def transferred(side: str, direction: str) -> str:
    return f'headrace_bytes_total{{direction="{direction}",side="{side}"}}'


def test_the_numbers_are_those_of_the_traffic(proxy: ProxyProcess, topic: str) -> None:
    with RawClient(proxy.port) as client, RawClient(proxy.port) as other:
        for _ in range(3):
            client.call(messages.API_VERSIONS, 0)
        other.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        body = messages.produce_body(topic, messages.batch(bytes(200_000)))
        client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body(topic, 1, max_wait_ms=60_000))
        wait_until(lambda: series(proxy, requests("Fetch")) == 1, "the fetch was read")

        assert series(proxy, "headrace_connections") == 2
        assert series(proxy, "headrace_connections_accepted_total") == 2
        assert series(proxy, "headrace_upstream_connections") == 2
        assert series(proxy, requests("ApiVersions")) == 3
        assert series(proxy, requests("Metadata")) == 1
        assert series(proxy, requests("Produce")) == 1
        assert series(proxy, "headrace_requests_in_flight") == 1
        assert series(proxy, "headrace_muted_connections") == 0
        sent, received = client.bytes_sent + other.bytes_sent, client.bytes_received + other.bytes_received
        assert series(proxy, transferred("client", "in")) == sent
        assert series(proxy, transferred("upstream", "out")) == sent
        assert series(proxy, transferred("client", "out")) == received
        assert series(proxy, transferred("upstream", "in")) > 0
        assert 0 < series(proxy, "headrace_spliced_bytes_total") < sent

        client.reset()
        wait_until(lambda: series(proxy, "headrace_connections") == 1, "the proxy has noticed that one left")
        assert series(proxy, 'headrace_errors_total{fault="client"}') == 1
        assert series(proxy, "headrace_requests_in_flight") == 0
        assert series(proxy, "headrace_upstream_connections") == 1
        assert series(proxy, transferred("client", "in")) == sent
        assert series(proxy, "headrace_connections_accepted_total") == 2


def test_who_is_muted_is_counted(proxy: ProxyProcess, topic: str) -> None:
    body = messages.produce_body(topic, messages.batch(bytes(100_000)))
    with RawClient(proxy.port, client_id="muted") as client:
        reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body))
        assert series(proxy, "headrace_muted_connections") == 1
        assert series(proxy, 'headrace_throttled_requests_total{quota="producer_byte_rate"}') == 1
        (decision,) = json.loads(proxy.get("/decisions")[1])["decisions"]
        assert 0 < reply.throttle_ms <= decision["throttle_ms"], "the reply has what is left of it"
        assert series(proxy, "headrace_throttle_time_seconds_total") == decision["throttle_ms"] / 1000
    wait_until(lambda: series(proxy, "headrace_muted_connections") == 0, "no client is muted")


def test_the_metrics_page_is_prometheus_text(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port) as client:
        client.call(messages.API_VERSIONS, 0)
        families = {family.name: family for family in text_string_to_metric_families(proxy.get("/metrics")[1])}
    ours = {name: family for name, family in families.items() if name.startswith("headrace_")}
    assert {"headrace_connections", "headrace_requests", "headrace_bytes", "headrace_errors"} <= ours.keys()
    assert all(family.documentation for family in ours.values())
    assert "process_resident_memory_bytes" in families


def test_ready_and_alive(proxy: ProxyProcess) -> None:
    assert proxy.get("/readyz") == (200, '{"status":"ok"}')
    assert proxy.get("/livez") == (200, '{"status":"ok"}')


NOT_UNDERSTOOD = (
    ("GET", "/nothing", "", 404),
    ("POST", "/livez", "", 405),
    ("PUT", "/enforcement", "", 400),
    ("PUT", "/enforcement", "off", 400),
    ("PUT", "/enforcement", '{"enabled": "no"}', 400),
    ("PUT", "/enforcement", "x" * 1_000_000, 413),
)


def test_what_the_admin_server_does_not_understand_changes_nothing(proxy: ProxyProcess) -> None:
    for method, path, body, status in NOT_UNDERSTOOD:
        connection = http.client.HTTPConnection(proxy.admin, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **proxy.authorization})
            assert connection.getresponse().status == status, (method, path, body[:20])
        finally:
            connection.close()
    assert series(proxy, "headrace_enforcement_enabled") == 1


def test_why_somebody_is_throttled(proxy: ProxyProcess, topic: str) -> None:
    """``headrace why``, beside the throttled client, and the page under it."""
    with RawClient(proxy.port, client_id="muted") as client:
        body = messages.produce_body(topic, messages.batch(bytes(20_000)))
        client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        lines = _why(proxy)
        assert re.fullmatch(r"client-id=muted, producer_byte_rate: 1\.9\d KiB/s of 100 B/s", lines[0])
        assert lines[1].startswith(f"  waiting now: user ANONYMOUS, client id muted at {client.name}, ")
        assert lines[2].startswith("  throttled once ")
        assert "Produce" in lines[2]
        assert _why(proxy, "--client-id", "other") == ["no request was throttled or refused"]
        page = json.loads("\n".join(_why(proxy, "--json", "--user", "ANONYMOUS", "--newest", "1")))
        assert [each["kind"] for each in page["decisions"]] == ["throttled"]


def test_why_is_refreshed_until_ctrl_c(proxy: ProxyProcess) -> None:
    """Without a terminal, the output consists of snapshots."""
    with subprocess.Popen(_why_command(proxy, "--watch"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        lines += process.stdout.readlines()  # a busy machine may be a second late with the signal
    assert {line[:4] for line in lines[::2]} == {"--- "}
    assert set(lines[1::2]) == {"no request was throttled or refused\n"}
    assert len(lines) % 2 == 0


def test_why_is_refreshed_on_a_terminal(proxy: ProxyProcess) -> None:
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(_why_command(proxy, "--watch"), stdout=theirs, stderr=theirs) as process:
            seen = b""
            while seen.count(b"\x1b[H\x1b[2J") < 2:
                seen += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
    finally:
        os.close(theirs)
        os.close(ours)
    assert seen.count(b"until Ctrl-C\r\nno request was throttled or refused\r\n") >= 1


def test_an_invalid_query_is_answered_with_an_error(proxy: ProxyProcess) -> None:
    for query in ("newest=0", "newest=many", "newest=1001", "name=x"):
        status, body = proxy.get(f"/decisions?{query}")
        assert (status, "newest" in json.loads(body)["error"]) == (400, True), query


def _why_command(proxy: ProxyProcess, *arguments: str) -> list[str | Path]:
    return [
        Path(sys.executable).parent / "headrace",
        "why",
        "--admin",
        proxy.admin,
        "--token-file",
        proxy.token_file,
        *arguments,
    ]


def _why(proxy: ProxyProcess, *arguments: str) -> list[str]:
    _, *command = _why_command(proxy, *arguments)
    result = run_headrace(*command)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()
