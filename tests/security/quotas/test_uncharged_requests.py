"""Requests that clients could once send without being charged, on a real proxy in front of a real broker."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually, unique
from tests.clients.quotas.quota_client import THROTTLING_QUOTA_EXCEEDED, QuotaClient, quota_front
from tests.faults import messages
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.security.planes import NATIVE, native_connections, warm_up
from tests.security.quotas.test_unaccepted_clients import produce
from tests.security.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

QUOTAS: Final = """
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = 100000
request_percentage = 100.0
"""
REFUSED_TOPICS: Final = 1000
MOST_REFUSED_REQUESTS: Final = 200
"""Far more requests than use up 55 ms of thread time, although only one in seven is measured."""
WRITE_TXN_MARKERS: Final = ApiKey.WRITE_TXN_MARKERS
MUTATIONS: Final = """
[[quotas]]
entity = { client-id = "<default>" }
request_percentage = 0.5
controller_mutation_rate = 0.001
"""
"""In a window of eleven seconds, 55 ms of thread time are allowed. The first mutation uses up the burst; no other
is admitted for minutes."""
NO_MARKERS: Final = b"\0\1\0"
"""The tagged fields of the header, an empty list, and the tagged fields of the body."""


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=QUOTAS) as process:
        yield process


def measured(proxy: ProxyProcess, series: str, client_id: str) -> float:
    """The value of a metric of ``client_id``; 0 if it has none."""
    page = proxy.get("/metrics")[1]
    found = re.search(rf'^headrace_{series}{{client_id="{client_id}",.*}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_requests_between_brokers(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, client_id=unique("broker")) as client:
        for _ in range(20):
            client.request(WRITE_TXN_MARKERS, 1, NO_MARKERS)
            client.reply()
        assert measured(proxy, "quota_request_time", client.client_id) > 0


@pytest.mark.parametrize("api_key", [messages.SASL_HANDSHAKE, messages.API_VERSIONS])
def test_handshakes_where_no_log_in_can_follow(proxy: ProxyProcess, api_key: int) -> None:
    body = messages.string("PLAIN") if api_key == messages.SASL_HANDSHAKE else b""
    with RawClient(proxy.port, client_id=unique("shaking")) as client:
        for _ in range(20):
            client.call(api_key, 0, body)
        assert measured(proxy, "quota_request_time", client.client_id) > 0


@pytest.fixture(scope="module")
def planes_proxy(kafka: FirstBroker, plane: str) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=QUOTAS, arguments=("--data-plane", plane)) as process:
        yield process


def test_produces_that_are_broken_off(planes_proxy: ProxyProcess, plane: str, kafka: FirstBroker) -> None:
    """Each is within the credit of a window, so that the native data plane begins to forward both."""
    proxy, client_id, topic = planes_proxy, unique("breaking"), create_topic(kafka, "broken")
    frame = produce(topic, client_id, 900_000, 1)
    with RawClient(proxy.port, client_id=client_id) as one, RawClient(proxy.port, client_id=client_id) as other:
        warm_up(proxy, plane, one, other)
        for client in (one, other):
            client.send(frame[:-1])
        if plane == NATIVE:
            wait_until(lambda: proxy.metric("headrace_bytes_total") > 3 * len(frame), "most of it was forwarded")
            assert native_connections(proxy) == 2
        assert measured(proxy, "quota_byte_rate", client_id) == 0, "nothing is charged before its end"
    eventually(lambda: measured(proxy, "quota_byte_rate", client_id) > 170_000 * 10 / 11, "both were charged")
    with RawClient(proxy.port, client_id=client_id) as client:
        client.send(frame)
        client.sock.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.reply()
    assert measured(proxy, "quota_byte_rate", client_id) <= 2 * len(frame) / 10


def test_refused_mutations_cost_thread_time(kafka: FirstBroker) -> None:
    """The broker sees nothing of them; the proxy reads, decodes and answers each. A refusal mutes its connection."""
    client_id, names = unique("refused"), [unique("refused") for _ in range(REFUSED_TOPICS)]
    with quota_front(kafka, MUTATIONS) as front:
        with QuotaClient(front, client_id) as client:
            assert client.creates(7, (names[0], 1)).errors == {names[0]: 0}
        before = measured(front.proxy, "quota_request_time", client_id)
        for _ in range(MOST_REFUSED_REQUESTS):
            with QuotaClient(front, client_id) as client:
                errors = client.creates(7, *((name, 1) for name in names)).errors
                assert set(errors.values()) == {THROTTLING_QUOTA_EXCEEDED}
            decisions = json.loads(front.proxy.get(f"/decisions?client_id={client_id}")[1])["decisions"]
            throttled = {each["quota"] for each in decisions if each["kind"] in ("throttled", "held")}
            if "request_percentage" in throttled:
                break
        assert "request_percentage" in throttled
        assert measured(front.proxy, "quota_request_time", client_id) > 2 * before
