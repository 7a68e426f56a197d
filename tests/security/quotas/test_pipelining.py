"""Clients that send many requests without waiting for the replies, on a real proxy in front of a real broker."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import DEADLINE_S, eventually, unique
from tests.faults import messages
from tests.faults.conftest import leads
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.security.floods.test_stalling_clients import MIB
from tests.security.quotas.test_unaccepted_clients import produce
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
entity = {{ client-id = "asks" }}
request_percentage = 0.1
[[quotas]]
entity = {{ client-id = "rests" }}
request_percentage = 0.1
[[quotas]]
entity = {{ client-id = "leaves" }}
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
METADATA: Final = 'headrace_requests_total{api="Metadata"}'


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
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=JSON_LOG) as process:
        yield process
        assert_no_traceback(process)


def fetch(topic: str, client_id: str, **fields: int) -> bytes:
    body = messages.fetch_body(topic, **fields)
    return messages.request(messages.FETCH, messages.FETCH_VERSION, 1, body, client_id)


def endless(topic: str, client_id: str = "waits") -> bytes:
    """A Fetch that the broker does not answer, so that what follows it stays in flight."""
    return fetch(topic, client_id, offset=2, min_bytes=2**30, max_wait_ms=FOREVER_MS)


def replies(client: RawClient, seconds: float) -> int:
    """The number of replies that arrive within ``seconds``."""
    end_s, count = time.monotonic() + seconds, 0
    with contextlib.suppress(TimeoutError):
        while (left_s := end_s - time.monotonic()) > 0:
            client.sock.settimeout(left_s)
            client.reply()
            count += 1
    return count


@pytest.mark.parametrize("client_id", ["fetches", "fetches-paced"])
def test_fetches_at_once_do_not_pass_before_the_first_is_charged(
    proxy: ProxyProcess, topic: str, client_id: str
) -> None:
    with RawClient(proxy.port, client_id=client_id) as client:
        client.send(fetch(topic, client_id, max_wait_ms=100) * 100)
        client.reply()
        replies(client, 1.0)
        assert client.bytes_received <= LIMIT * WINDOW_S * 2.5


def test_thread_time_of_requests_at_once_is_throttled_one_by_one(proxy: ProxyProcess) -> None:
    """Once the client is throttled, each reply mutes it before the next request is read, as at a broker."""
    frame = messages.request(messages.METADATA, messages.METADATA_VERSION, 1, messages.ALL_TOPICS, "asks")
    with RawClient(proxy.port, client_id="asks") as client:
        client.send(frame * 3000)

        def is_throttled() -> bool:
            for _ in range(5):
                client.reply()
            return bool(json.loads(proxy.get("/decisions?client_id=asks")[1])["decisions"])

        eventually(is_throttled, "the client is throttled", pause_s=0)
        replies(client, 1.0)
        began_s, before = time.monotonic(), series(proxy, METADATA)
        replies(client, 3.0)
        assert series(proxy, METADATA) - before <= time.monotonic() - began_s + 3


def test_requests_at_once_after_a_rest_do_not_exceed_the_limit(kafka: FirstBroker, topic: str) -> None:
    """A client that was silent for a window is not throttled, and has the credit of a window: 10 ms of thread time, or
    less than 200 requests at the 0.052 ms of the cost model.

    Nothing is charged before the endless request is answered. For the native data plane, see
    `tests.proxy.data_plane.test_connections`.
    """
    frame = messages.request(messages.METADATA, messages.METADATA_VERSION, 1, messages.ALL_TOPICS, "rests")
    config = f'data_plane = "python"\n{CONFIG}'
    with (
        ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy,
        RawClient(proxy.port, client_id="rests") as client,
    ):
        client.send(endless(topic, "rests") + frame * 900)
        replies(client, 3.0)
        assert 0 < series(proxy, METADATA) < 200


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


def test_closed_clients_with_a_full_queue_leave(proxy: ProxyProcess, topic: str) -> None:
    """Their requests wait for ``upstream.reply_timeout``, an hour, and would keep others from connecting."""
    heartbeat = messages.request(messages.HEARTBEAT, messages.HEARTBEAT_VERSION, 2, messages.heartbeat_body(), "waits")
    for _ in range(10):
        with RawClient(proxy.port) as client:
            client.send(endless(topic) + heartbeat * 1000)
    eventually(lambda: proxy.metric("headrace_connections") == 0, "all connections are closed")


def test_requests_in_flight_are_bounded_in_memory(proxy: ProxyProcess, topic: str) -> None:
    """A Produce of 40 KB with many partitions takes 900 KB while it is in flight."""
    rows = b"".join(struct.pack(">ii", 70_000 + each, 0) for each in range(4_900))
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + messages.string(topic) + struct.pack(">i", 4_900) + rows
    frame = messages.request(messages.PRODUCE, 7, 2, body, "waits")
    start_bytes = proxy.resident_bytes
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(RawClient(proxy.port, timeout_s=1.0))
            stack.callback(client.reset)  # its end would stay behind what was sent and is not read
            with contextlib.suppress(OSError):
                client.send(endless(topic))
                for _ in range(80):
                    client.send(frame)
        assert proxy.resident_bytes - start_bytes < 4 * MAX_HELD_BYTES
    proxy.wait_for_log("limits.max_held_bytes")
