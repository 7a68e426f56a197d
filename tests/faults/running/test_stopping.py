"""SIGTERM: no new work, the work in hand is finished within `drain_timeout`, and the exit status is 0."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY
from tests.faults.holding_broker import HoldingBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker


EXIT_TIMEOUT_S = 15.0
LONGER_THAN_ANY_TEST = '[shutdown]\ndrain_timeout = "10m"\n'
MUTED = '[[quotas]]\nentity = { client-id = "muted" }\nproducer_byte_rate = 100\n'


@pytest.fixture(scope="module")
def broker() -> Iterator[HoldingBroker]:
    holding = HoldingBroker()
    with holding.fake:
        yield holding


@contextlib.contextmanager
def proxy_of(bootstrap_servers: str, config: str = LONGER_THAN_ANY_TEST) -> Iterator[ProxyProcess]:
    with ProxyProcess(bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


@contextlib.contextmanager
def held_request(proxy: ProxyProcess, broker: HoldingBroker, count: int = 1) -> Iterator[RawClient]:
    """A client whose `count` requests the broker has read, and answers when it is allowed to."""
    before = broker.read
    with RawClient(proxy.port, client_id="held") as client:
        for _ in range(count):
            client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        wait_until(lambda: broker.read == before + count, "the broker has read the requests")
        yield client


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:  # the listener was closed during the TCP handshake: ask once more
        return True
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_in_flight_is_answered_and_nothing_else_begins(broker: HoldingBroker, number: signal.Signals) -> None:
    with (
        proxy_of(broker.fake.address) as proxy,
        RawClient(proxy.port) as idle,
        held_request(proxy, broker, count=3) as client,
    ):
        idle.call(messages.API_VERSIONS, 0)
        proxy.signal(number)
        assert idle.rest() == b""
        wait_until(lambda: not is_listening(proxy.port), "the bootstrap port is closed")
        assert not is_listening(proxy.broker_port(0))
        status, body = proxy.get("/readyz")
        assert (status, "draining" in body) == (503, True)
        assert proxy.get("/livez")[0] == 200
        client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())  # too late: it is not read
        broker.allow(3)
        for correlation_id in range(1, 4):
            assert client.reply() == (correlation_id, HEARTBEAT_REPLY)
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


def test_a_long_poll_is_answered(kafka: FirstBroker, topic: str) -> None:
    with proxy_of(kafka.bootstrap_servers) as proxy, RawClient(proxy.port) as client:
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body(topic, max_wait_ms=60_000))
        wait_until(lambda: series(proxy, "headrace_requests_in_flight") == 1, "the fetch is in flight")
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(proxy.port), "the bootstrap port is closed")
        with RawClient(int(kafka.bootstrap_servers.rsplit(":", 1)[1])) as producer:
            body = messages.produce_body(topic, messages.batch(b"awaited"))
            producer.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        correlation_id, reply = client.reply()
        assert correlation_id == 1
        assert messages.read_fetch_reply(reply) == (0, 0)
        assert b"awaited" in reply
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


def test_a_request_that_is_half_sent_is_finished(kafka: FirstBroker, topic: str) -> None:
    body = messages.produce_body(topic, messages.batch(bytes(300_000)))
    data = messages.request(messages.PRODUCE, messages.PRODUCE_VERSION, 1, body)
    with proxy_of(kafka.bootstrap_servers) as proxy, RawClient(proxy.port) as client:
        client.send(data[:150_000])
        wait_until(lambda: series(proxy, "headrace_requests_in_flight") == 1, "the head of the request was read")
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(proxy.port), "the bootstrap port is closed")
        client.send(data[150_000:])
        assert messages.read_produce_reply(client.reply()[1]).error_code == 0
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


def test_a_reply_that_is_larger_than_all_buffers_is_handed_over_whole(kafka: FirstBroker, topic: str) -> None:
    batch = messages.batch(bytes(900_000))
    with RawClient(int(kafka.bootstrap_servers.rsplit(":", 1)[1])) as producer:
        for _ in range(40):
            producer.call(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, batch))
    with proxy_of(kafka.bootstrap_servers) as proxy, RawClient(proxy.port) as client:
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body(topic))
        (size,) = struct.unpack(">i", client.receive(4))
        assert size > 40 * len(batch)
        proxy.signal(signal.SIGTERM)
        wait_until(lambda: not is_listening(proxy.port), "the bootstrap port is closed")
        reply = client.receive(size)
        assert messages.read_fetch_reply(reply[4:]) == (0, 0)
        assert reply.count(batch[16:100]) == 40
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


@pytest.mark.exhaustive
def test_a_muted_client_does_not_hold_up_the_stop(kafka: FirstBroker, topic: str) -> None:
    body = messages.produce_body(topic, messages.batch(bytes(100_000)))
    with (
        proxy_of(kafka.bootstrap_servers, LONGER_THAN_ANY_TEST + MUTED) as proxy,
        RawClient(proxy.port, client_id="muted") as client,
    ):
        reply = client.call(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        assert messages.read_produce_reply(reply).throttle_ms > 60_000
        client.request(messages.PRODUCE, messages.PRODUCE_VERSION, body)
        proxy.signal(signal.SIGTERM)
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


@pytest.mark.parametrize("drain_timeout_s", [0, 1])
def test_drain_timeout_is_the_longest_it_takes(broker: HoldingBroker, drain_timeout_s: int) -> None:
    config = f'[shutdown]\ndrain_timeout = "{drain_timeout_s}s"\n'
    with proxy_of(broker.fake.address, config) as proxy, held_request(proxy, broker) as client:
        began_s = time.monotonic()
        proxy.signal(signal.SIGTERM)
        assert client.rest() == b""
        assert time.monotonic() - began_s >= drain_timeout_s
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


def test_a_client_that_does_not_take_its_reply_is_cut_after_drain_timeout(kafka: FirstBroker, topic: str) -> None:
    batch = messages.batch(bytes(900_000))
    with RawClient(int(kafka.bootstrap_servers.rsplit(":", 1)[1])) as producer:
        for _ in range(40):
            producer.call(messages.PRODUCE, messages.PRODUCE_VERSION, messages.produce_body(topic, batch))
    config = '[shutdown]\ndrain_timeout = "1s"\n'
    with proxy_of(kafka.bootstrap_servers, config) as proxy, RawClient(proxy.port) as client:
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body(topic))
        client.receive(4)
        proxy.signal(signal.SIGTERM)
        assert proxy.wait(EXIT_TIMEOUT_S) == 0


def test_the_second_signal_ends_at_once(broker: HoldingBroker) -> None:
    with proxy_of(broker.fake.address) as proxy, held_request(proxy, broker) as client:
        proxy.signal(signal.SIGTERM)
        proxy.wait_for_log('"draining"')
        proxy.signal(signal.SIGTERM)
        assert client.rest() == b""
        assert proxy.wait(EXIT_TIMEOUT_S) == 0
