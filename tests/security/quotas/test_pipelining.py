"""Clients that send many requests without waiting for the replies, on a real proxy in front of a real broker.

Each data plane relays the attacks that it processes by itself (`tests.security.planes`).
"""

from __future__ import annotations

import contextlib
import json
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, eventually, unique
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.conftest import leads
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until_steady
from tests.security.floods.test_stalling_clients import MIB
from tests.security.planes import FIRST_NATIVE, NATIVE, native_connections, native_returns, warm_up
from tests.security.quotas.test_unaccepted_clients import CREATE_TOPICS, create_topics, produce
from tests.security.quotas.test_uncharged_requests import measured
from tests.shared_cluster import new_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

LIMIT: Final = 100_000
MAX_HELD_BYTES: Final = 32 * MIB
CONFIG: Final = f"""
[limits]
max_held_bytes = {MAX_HELD_BYTES}
[[quotas]]
entity = {{ client-id = "fetches" }}
consumer_byte_rate = {LIMIT}
[[quotas]]
entity = {{ client-id = "fetches-paced" }}
consumer_byte_rate = {LIMIT}
enforcement = "paced"
[[quotas]]
entity = {{ client-id = "produces" }}
producer_byte_rate = {LIMIT}
[[quotas]]
entity = {{ client-id = "mutates" }}
controller_mutation_rate = 1.0
[[quotas]]
entity = {{ client-id = "asks" }}
request_percentage = 0.1
[[quotas]]
entity = {{ client-id = "rests" }}
request_percentage = 0.1
[[quotas]]
entity = {{ client-id = "leaves" }}
request_percentage = 100.0
[[quotas]]
entity = {{ client-id = "abandons" }}
request_percentage = 100.0
[[quotas]]
entity = {{ client-id = "too-new" }}
request_percentage = 100.0
[[quotas]]
entity = {{ user = "<default>" }}
producer_ids_rate = 1e6
"""
WINDOW_S: Final = 10
FOREVER_MS: Final = 2**31 - 1
HEARTBEATS: Final = 'headrace_requests_total{api="Heartbeat"}'
PRODUCES: Final = 'headrace_requests_total{api="Produce"}'
HEARTBEAT_MS: Final = 0.012
"""Thread time of a Heartbeat by the cost model (`headrace.quota_callbacks.builtin.request_costs`)."""
PRODUCE_MS: Final = 0.068
CREDIT_MS: Final = 10.0
"""Thread time that 0.1 % of a thread allows in a window of ten seconds."""


@pytest.fixture(scope="module")
def topic(kafka: FirstBroker) -> str:
    """A topic with more bytes than a window allows."""
    name = unique("pipelining")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([new_topic(name)])[name].result(DEADLINE_S)
    eventually(lambda: leads(admin, name), "the broker leads the topic")
    with RawClient(int(kafka.bootstrap_servers.rpartition(":")[2])) as client:
        for number in range(2):
            client.send(produce(name, "filler", 900_000, number))
            client.reply()
    return name


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker, plane: str) -> Iterator[ProxyProcess]:
    arguments = (*JSON_LOG, "--data-plane", plane)
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=arguments) as process:
        yield process
        assert_no_traceback(process)


def fetch(topic: str, client_id: str, **fields: int) -> bytes:
    body = messages.fetch_body(topic, **fields)
    return messages.request(messages.FETCH, messages.FETCH_VERSION, 1, body, client_id)


def endless(topic: str, client_id: str = "waits") -> bytes:
    """A Fetch that the broker does not answer, so that what follows it stays in flight."""
    return fetch(topic, client_id, offset=2, min_bytes=2**30, max_wait_ms=FOREVER_MS)


def heartbeat(client_id: str) -> bytes:
    body = messages.heartbeat_body()
    return messages.request(messages.HEARTBEAT, messages.HEARTBEAT_VERSION, 2, body, client_id)


def replies(client: RawClient, seconds: float) -> int:
    """The number of replies that arrive within ``seconds``."""
    end_s, count = time.monotonic() + seconds, 0
    with contextlib.suppress(TimeoutError):
        while (left_s := end_s - time.monotonic()) > 0:
            client.sock.settimeout(left_s)
            client.reply()
            count += 1
    return count


def test_fetches_at_once_do_not_pass_before_the_first_is_charged(proxy: ProxyProcess, plane: str, topic: str) -> None:
    returned = native_returns(proxy, "credit")
    with RawClient(proxy.port, client_id="fetches") as client:
        warm_up(proxy, plane, client)
        assert received_at_once(client, topic) <= LIMIT * WINDOW_S * 2.5
    if plane == NATIVE:
        assert native_returns(proxy, "credit") > returned, "a reply was beyond the credit"


@pytest.mark.parametrize("plane", ["python"], indirect=True, scope="module")
def test_paced_fetches_at_once_do_not_pass_before_the_first_is_charged(proxy: ProxyProcess, topic: str) -> None:
    """A paced quota has no credit, so Python relays its clients in any case."""
    with RawClient(proxy.port, client_id="fetches-paced") as client:
        assert received_at_once(client, topic) <= LIMIT * WINDOW_S * 2.5


def received_at_once(client: RawClient, topic: str) -> int:
    """The number of bytes that arrive within a second of a hundred Fetch requests."""
    before = client.bytes_received
    client.send(fetch(topic, client.client_id, max_wait_ms=100) * 100)
    client.reply()
    replies(client, 1.0)
    return client.bytes_received - before


def test_produces_at_once_are_held_to_the_limit(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """The credit of a window is used up by ten of them; the next one returns the connection, and is throttled."""
    returned = native_returns(proxy, "credit")
    with RawClient(proxy.port, client_id="produces", timeout_s=2.0) as client:
        warm_up(proxy, plane, client)
        began_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            client.send(produce(topic, "produces", LIMIT, 1) * 40)
        served = replies(client, 1.0)
        assert 0 < served <= WINDOW_S + time.monotonic() - began_s + 2
    if plane == NATIVE:
        assert native_returns(proxy, "credit") > returned


@pytest.mark.parametrize("plane", FIRST_NATIVE, indirect=True, scope="module")
def test_mutations_behind_other_requests_are_held_to_the_limit(proxy: ProxyProcess, plane: str) -> None:
    """The native data plane has read them with the requests before them, and leaves them to Python."""
    burst, partitions = WINDOW_S + 1, 4
    mutations = [
        messages.request(CREATE_TOPICS, 4, 1000 + number, create_topics(unique("behind"), partitions), "mutates")
        for number in range(8)
    ]
    returned = native_returns(proxy, "request")
    with RawClient(proxy.port, client_id="mutates", timeout_s=1.0) as client:
        warm_up(proxy, plane, client)
        began_s, created = time.monotonic(), 0
        client.send(heartbeat("mutates") * 50 + b"".join(mutations))
        with contextlib.suppress(TimeoutError):
            while True:
                number, _ = client.reply()
                created += partitions if number >= 1000 else 0
        assert 0 < created <= burst + partitions + time.monotonic() - began_s
    if plane == NATIVE:
        assert native_returns(proxy, "request") > returned


def test_thread_time_of_requests_at_once_is_throttled_one_by_one(proxy: ProxyProcess, plane: str) -> None:
    """Once the client is throttled, each reply mutes it before the next request is read, as at a broker."""
    with RawClient(proxy.port, client_id="asks") as client:
        warm_up(proxy, plane, client)
        client.send(heartbeat("asks") * 3000)

        def is_throttled() -> bool:
            for _ in range(25):
                client.reply()
            return bool(json.loads(proxy.get("/decisions?client_id=asks")[1])["decisions"])

        eventually(is_throttled, "the client is throttled", pause_s=0)
        replies(client, 1.0)
        began_s = time.monotonic()
        served = replies(client, 2.0)  # not the metric, which has what was relayed natively somewhat later
        assert 0 < served <= time.monotonic() - began_s + 3


def test_requests_at_once_after_a_rest_do_not_exceed_the_limit(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """A client that was silent for a window is not throttled, and has the credit of a window.

    Nothing is charged before the endless request is answered.
    """
    with RawClient(proxy.port, client_id="rests") as client:
        warm_up(proxy, plane, client)
        before = series(proxy, HEARTBEATS)
        client.send(endless(topic, "rests") + heartbeat("rests") * 2000)
        replies(client, 1.5)
        assert 0 < series(proxy, HEARTBEATS) - before <= CREDIT_MS / HEARTBEAT_MS


def test_requests_whose_client_does_not_wait_are_charged(proxy: ProxyProcess, topic: str) -> None:
    frame = produce(topic, "leaves", 10, 1)
    for _ in range(100):
        with RawClient(proxy.port, client_id="leaves", distinct=False) as client:
            client.send(frame)
            client.reset()
    eventually(lambda: measured(proxy, "quota_request_time", "leaves") > 0.03, "they are charged")


def test_api_versions_of_an_unknown_version_are_charged(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, client_id="too-new") as client:
        client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
        before = measured(proxy, "quota_request_time", "too-new")
        frame = messages.request(messages.API_VERSIONS, 99, 2, b"\0", "too-new")
        client.send(frame * 500)
        for _ in range(500):
            client.reply()
        assert measured(proxy, "quota_request_time", "too-new") > before + 500 * 0.002 / 10 / 10 / 2


def test_requests_in_flight_of_clients_that_leave_are_charged(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """They have no reply, with which thread time is charged."""
    count, each, name = 10, 200, "abandons"
    frame, before = produce(topic, name, 10, 1), series(proxy, PRODUCES)
    cost_percent = count * each * PRODUCE_MS / 1000 / (WINDOW_S + 1) * 100
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port, client_id=name)) for _ in range(count)]
        warm_up(proxy, plane, *clients)
        for client in clients:
            client.send(endless(topic, name) + frame * each)
        # Requests that clients of earlier tests have left behind are forwarded late, and counted, too.
        eventually(lambda: series(proxy, PRODUCES) >= before + count * each, "all are forwarded")
        assert measured(proxy, "quota_request_time", name) < cost_percent / 3, "only the warm-up is charged yet"
        for client in clients:
            client.reset()
    eventually(lambda: measured(proxy, "quota_request_time", name) > cost_percent * 0.9, "they are charged")


def test_closed_clients_with_a_full_queue_leave(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """Their requests wait for ``upstream.reply_timeout``, an hour, and would keep others from connecting."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port, client_id="waits")) for _ in range(10)]
        warm_up(proxy, plane, *clients)
        for client in clients:
            client.send(endless(topic) + heartbeat("waits") * 1000)
    eventually(lambda: proxy.metric("headrace_connections") == 0, "all connections are closed")


def test_requests_in_flight_are_bounded_in_memory(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """A Produce of 32 KB with many partitions takes 700 KB while it is in flight in Python. The native data plane keeps
    nothing of it, and leaves one with more than 4,096 partitions to Python."""
    count = 4_000
    rows = b"".join(struct.pack(">ii", 70_000 + each, 0) for each in range(count))
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + messages.string(topic) + struct.pack(">i", count) + rows
    frame = messages.request(messages.PRODUCE, 7, 2, body, "waits")
    start_bytes = proxy.resident_bytes
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port, client_id="waits")) for _ in range(5)]
        warm_up(proxy, plane, *clients)
        for client in clients:
            stack.callback(client.reset)  # its end would stay behind what was sent and is not read
            client.sock.settimeout(0.5)
            with contextlib.suppress(OSError):
                client.send(endless(topic))
                for _ in range(100):
                    client.send(frame)
        assert proxy.resident_bytes - start_bytes < 4 * MAX_HELD_BYTES
        if plane == NATIVE:
            assert native_connections(proxy) == len(clients)
            assert proxy.metric("headrace_held_bytes") <= MAX_HELD_BYTES
        else:
            proxy.wait_for_log("limits.max_held_bytes")


@pytest.mark.parametrize("plane", FIRST_NATIVE, indirect=True, scope="module")
def test_replies_that_are_not_read_are_bounded_in_memory(proxy: ProxyProcess, plane: str, topic: str) -> None:
    """A hundred replies of 1.8 MB for each client, which wait at the broker."""
    start_bytes = proxy.resident_bytes
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(proxy.port, client_id="waits")) for _ in range(5)]
        warm_up(proxy, plane, *clients)
        for client in clients:
            client.send(fetch(topic, "waits") * 100)
        eventually(lambda: proxy.metric("headrace_requests_in_flight") > len(clients), "all are forwarded")
        wait_until_steady(partial(proxy.metric, "headrace_bytes_total"), "bytes", steady_s=0.3, timeout_s=DEADLINE_S)
        with Bystander(proxy.port) as bystander:
            bystander.wait_for_answers(20)
        assert proxy.resident_bytes - start_bytes < MAX_HELD_BYTES
        assert proxy.metric("headrace_held_bytes") <= MAX_HELD_BYTES
        if plane == NATIVE:
            assert native_connections(proxy) >= len(clients)
        stack.pop_all().close()
    eventually(lambda: native_connections(proxy) == 0, "they have left")
