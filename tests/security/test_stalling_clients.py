"""Attacks on the memory and the event loop of a real proxy, in front of a real broker.

What a client announces, sends in pieces or fills with empty rows must not cost the others.
"""

from __future__ import annotations

import contextlib
import struct
import time
from typing import TYPE_CHECKING, Final

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually, unique
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import FakeBroker
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.security.test_unaccepted_clients import CREATE_TOPICS, SASL_AUTHENTICATE
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

MIB: Final = 2**20
LIMITS: Final = """
[limits]
max_held_bytes = "32MiB"
max_connection_rate = 0
max_connection_rate_per_ip = 0
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = 1e9
controller_mutation_rate = 1e6
request_percentage = 10000
[[quotas]]
entity = { user = "<default>" }
producer_ids_rate = 1e6
"""
LONGEST_STALL_S: Final = 1.0
"""On a busy machine; before there were bounds, the attacks here stalled the loop for 1.5 to 5.6 s."""


@pytest.fixture(scope="module")
def open_proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """A proxy in front of a listener that serves every client."""
    with ProxyProcess(kafka.bootstrap_servers, config=LIMITS, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


@pytest.fixture(scope="module")
def sasl_proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """A proxy in front of a listener that requires a login."""
    with ProxyProcess(kafka.addresses(LISTENER), config=LIMITS, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


def announced(api_key: int, version: int, size: int) -> bytes:
    """The head of a request of ``size`` bytes that will not come."""
    return struct.pack(">ihhi", size, api_key, version, 1) + messages.string("attacker")


@pytest.mark.parametrize("api_key", [messages.API_VERSIONS, messages.SASL_HANDSHAKE, SASL_AUTHENTICATE])
def test_a_long_handshake_is_refused_by_its_head(sasl_proxy: ProxyProcess, api_key: int) -> None:
    with RawClient(sasl_proxy.port) as client:
        client.send(announced(api_key, 1, 63 * MIB))
        assert client.rest() == b""
    sasl_proxy.wait_for_log("is longer than limits.max_handshake_bytes = 524288")


def test_unfinished_logins_are_bounded_in_memory_and_freed(sasl_proxy: ProxyProcess) -> None:
    """400 connections collect half a MiB each, again and again."""
    frame = announced(messages.SASL_HANDSHAKE, 1, 500_000) + bytes(499_000)
    start_bytes = sasl_proxy.resident_bytes
    peaks = []
    for _ in range(3):
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                client = stack.enter_context(RawClient(sasl_proxy.port, distinct=False))
                with contextlib.suppress(ConnectionError):
                    client.send(frame)
            peaks.append(sasl_proxy.resident_bytes - start_bytes)
        eventually(lambda: sasl_proxy.metric("headrace_connections") == 0, "all connections are closed")
    assert max(peaks) < 80 * MIB, peaks
    assert sasl_proxy.resident_bytes - start_bytes < 48 * MIB
    sasl_proxy.wait_for_log("limits.max_held_bytes = 33554432")


def test_a_slow_head_and_a_slow_login_are_cut_off(kafka: FirstBroker) -> None:
    config = '[limits]\nrequest_timeout = "1s"\n'
    with (
        ProxyProcess(kafka.addresses(LISTENER), config=config, arguments=JSON_LOG) as proxy,
        RawClient(proxy.port) as head,
        RawClient(proxy.port) as body,
    ):
        head.send(announced(messages.METADATA, 1, 100)[:9])
        body.send(announced(messages.SASL_HANDSHAKE, 1, 400_000) + bytes(1000))
        assert head.rest() == body.rest() == b""
        proxy.wait_for_log("limits.request_timeout = 1 s")


def longest_wait_s(proxy: ProxyProcess, attack: list[bytes]) -> float:
    """Send ``attack``, each piece over a connection of its own, and return the longest time that another client's
    request took meanwhile, in seconds."""
    longest_s = 0.0
    with contextlib.ExitStack() as stack, RawClient(proxy.port, client_id="honest") as honest:
        for data in attack:
            attacker = stack.enter_context(RawClient(proxy.port, client_id=unique("attacker")))
            with contextlib.suppress(ConnectionError):
                attacker.send(data)
            for _ in range(20):
                began_s = time.monotonic()
                honest.call(messages.API_VERSIONS, 0)
                longest_s = max(longest_s, time.monotonic() - began_s)
    return longest_s


def create_topics(rows: int) -> bytes:
    """A CreateTopics v4 with ``rows`` of 16 bytes, the shortest that there are."""
    body = struct.pack(">i", rows) + (struct.pack(">h", 0) + struct.pack(">ihii", 1, 1, 0, 0)) * rows
    return messages.request(CREATE_TOPICS, 4, 1, body + struct.pack(">iB", 30_000, 1))


def produce(topics: int) -> bytes:
    """A Produce v7 with ``topics`` that have neither a name nor partitions."""
    body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", topics) + struct.pack(">hi", 0, 0) * topics
    return messages.request(messages.PRODUCE, 7, 1, body)


@pytest.mark.parametrize(
    ("frame", "setting"),
    [
        (create_topics(500_000), "limits.max_whole_request_bytes = 1048576"),
        (create_topics(65_000), "limits.max_request_rows = 10000"),
        (produce(350_000), "limits.max_request_rows = 10000"),
    ],
    ids=["8 MiB of topics", "1 MiB of topics", "2 MiB of topics without partitions"],
)
def test_a_request_of_many_rows_does_not_stall_others(open_proxy: ProxyProcess, frame: bytes, setting: str) -> None:
    assert longest_wait_s(open_proxy, [frame] * 3) < LONGEST_STALL_S
    eventually(lambda: setting in open_proxy.log, "the setting is named")


def test_as_many_topics_as_allowed_do_not_stall_others() -> None:
    """A real broker is busy with them for many seconds, and does not answer others meanwhile."""
    with (
        FakeBroker({"raw": lambda conversation, _: conversation.wait_for_end()}) as broker,
        ProxyProcess(broker.address, config=LIMITS, arguments=JSON_LOG) as proxy,
    ):
        assert longest_wait_s(proxy, [create_topics(9_900)] * 3) < LONGEST_STALL_S


def test_nobody_notices_small_requests_without_an_end(open_proxy: ProxyProcess) -> None:
    """Produce requests without acks are never in flight, so only their bytes bound them."""
    frame = messages.request(messages.PRODUCE, 7, 1, struct.pack(">hhii", -1, 0, 30_000, 0))
    with Bystander(open_proxy.port) as bystander, bystander.watching():
        assert longest_wait_s(open_proxy, [frame * 20_000] * 3) < LONGEST_STALL_S
