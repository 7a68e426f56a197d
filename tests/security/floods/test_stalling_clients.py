"""Attacks on the memory and the event loop of a real proxy, in front of a real broker.

What a client announces, sends in pieces or fills with empty rows must not cost the others.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually, unique
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import Asked, FakeBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, line_of
from tests.faults.raw_client import RawClient
from tests.security.loop_turns import assert_no_long_turn
from tests.security.planes import NATIVE, NEEDS_ENGINE, PLANES, native_connections, warm_up
from tests.security.quotas.test_unaccepted_clients import CREATE_TOPICS, SASL_AUTHENTICATE
from tests.security.topics import create_topic
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.secured import Security
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
FIND_COORDINATOR: Final = ApiKey.FIND_COORDINATOR
TOKEN_BYTES: Final = 500_000
SMALL_REQUESTS: Final = 20_000
CLIENT_FAULTS: Final = 'headrace_errors_total{fault="client"}'


@pytest.fixture(scope="module")
def open_proxy(security: Security, kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """A proxy in front of a listener that serves every client."""
    with security.proxy(kafka.bootstrap_servers, config=LIMITS, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


@pytest.fixture(scope="module")
def sasl_proxy(security: Security, kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """A proxy in front of a listener that requires a login."""
    with security.proxy(kafka.addresses(LISTENER), config=LIMITS, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


def announced(api_key: int, version: int, size: int) -> bytes:
    """The head of a request of ``size`` bytes that will not come."""
    return struct.pack(">ihhi", size, api_key, version, 1) + messages.string("attacker")


@pytest.mark.parametrize("api_key", [messages.API_VERSIONS, messages.SASL_HANDSHAKE, SASL_AUTHENTICATE])
def test_a_long_handshake_is_refused_by_its_head(sasl_proxy: ProxyProcess, api_key: int) -> None:
    with RawClient(sasl_proxy.port, timeout_s=10) as client:  # less than limits.request_timeout
        client.send(announced(api_key, 1, 63 * MIB))
        assert client.rest() == b""
    sasl_proxy.wait_for_log("is longer than limits.max_handshake_bytes = 524288")


def test_unfinished_logins_are_bounded_in_memory_and_freed(sasl_proxy: ProxyProcess) -> None:
    """400 connections collect half a MiB each, again and again."""
    frame = announced(messages.SASL_HANDSHAKE, 1, 500_000) + bytes(499_000)
    start_bytes = sasl_proxy.resident_bytes
    peaks = []
    for _ in range(3):
        ended = series(sasl_proxy, CLIENT_FAULTS)
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                client = stack.enter_context(RawClient(sasl_proxy.port, distinct=False))
                with contextlib.suppress(ConnectionError):
                    client.send(frame)
            sasl_proxy.wait_for_log("limits.max_held_bytes = 33554432")
            eventually(lambda before=ended: series(sasl_proxy, CLIENT_FAULTS) > before, "so much has been read again")
            peaks.append(sasl_proxy.resident_bytes - start_bytes)
        eventually(lambda: sasl_proxy.metric("headrace_connections") == 0, "all connections are closed")
    assert max(peaks) < 80 * MIB, peaks
    assert sasl_proxy.resident_bytes - start_bytes < 48 * MIB


def test_logins_that_the_broker_does_not_answer_are_bounded_in_memory(security: Security) -> None:
    """Tokens are kept until their answers, which the observers of logins are given with them."""
    handshake = messages.request(messages.SASL_HANDSHAKE, 1, 1, messages.string("PLAIN"), client_id="attacker")
    body = struct.pack(">i", TOKEN_BYTES) + bytes(TOKEN_BYTES)
    authenticate = messages.request(SASL_AUTHENTICATE, 0, 2, body, client_id="attacker")
    with (
        FakeBroker({"attacker": lambda conversation, _: conversation.wait_for_end()}) as broker,
        security.proxy(broker.address, config=LIMITS, arguments=JSON_LOG) as proxy,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(20):
            client = stack.enter_context(RawClient(proxy.port, client_id="attacker"))
            client.send(handshake + authenticate)
        eventually(lambda: proxy.metric("headrace_held_bytes") >= 20 * TOKEN_BYTES, "the tokens are counted")
        for _ in range(100):
            client = stack.enter_context(RawClient(proxy.port, client_id="attacker"))
            with contextlib.suppress(ConnectionError):
                client.send(handshake + authenticate)
        proxy.wait_for_log("limits.max_held_bytes = 33554432")
        eventually(lambda: proxy.metric("headrace_held_bytes") <= 32 * MIB, "connections are closed")
        stack.close()
        eventually(lambda: proxy.metric("headrace_held_bytes") == 0, "the memory of closed connections is not counted")


def test_a_slow_head_and_a_slow_login_are_cut_off(security: Security, kafka: FirstBroker) -> None:
    """Also one of which a byte comes now and then, which is no progress."""
    config = '[limits]\nrequest_timeout = "1s"\n'
    with (
        security.proxy(kafka.addresses(LISTENER), config=config, arguments=JSON_LOG) as proxy,
        RawClient(proxy.port) as head,
        RawClient(proxy.port) as body,
        RawClient(proxy.port, timeout_s=0.1) as dribbling,
    ):
        head.send(announced(messages.METADATA, 1, 100)[:9])
        body.send(announced(messages.SASL_HANDSHAKE, 1, 400_000) + bytes(1000))
        assert is_cut_off(dribbling, announced(messages.SASL_HANDSHAKE, 1, 400_000) + bytes(200))
        assert head.rest() == body.rest() == b""
        proxy.wait_for_log("limits.request_timeout = 1 s")


def is_cut_off(client: RawClient, data: bytes) -> bool:
    """Whether the proxy ends a connection that sends a byte of `data` whenever it has waited for its timeout."""
    for number in range(len(data)):
        with contextlib.suppress(TimeoutError):
            with contextlib.suppress(ConnectionError):
                client.send(data[number : number + 1])
            return client.rest() == b""
    return False


def is_closed_after(proxy: ProxyProcess, attack: bytes) -> bool:
    """Whether the proxy ends a connection that sends ``attack``."""
    with RawClient(proxy.port, client_id=unique("attacker")) as attacker:
        with contextlib.suppress(ConnectionError):
            attacker.send(attack)
        return attacker.rest() == b""


def create_topics(rows: int) -> bytes:
    """A CreateTopics v4 with ``rows`` of 16 bytes, the shortest that there are."""
    body = struct.pack(">i", rows) + (struct.pack(">h", 0) + struct.pack(">ihii", 1, 1, 0, 0)) * rows
    return messages.request(CREATE_TOPICS, 4, 1, body + struct.pack(">iB", 30_000, 1))


def produce(topics: int, client_id: str = "raw") -> bytes:
    """A Produce v7 with ``topics`` that have neither a name nor partitions."""
    body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", topics) + struct.pack(">hi", 0, 0) * topics
    return messages.request(messages.PRODUCE, 7, 1, body, client_id)


def find_coordinators(rows: int) -> bytes:
    """A FindCoordinator v4 with ``rows`` of the same group, which is forwarded unread, and answered with as many."""
    head = struct.pack(">hhi", FIND_COORDINATOR, 4, 1) + messages.string("attacker") + b"\0"
    count = bytes([(rows + 1) & 0x7F | 0x80, (rows + 1) >> 7 & 0x7F | 0x80, (rows + 1) >> 14])
    frame = head + b"\0" + count + b"\x02g" * rows + b"\0"
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize(
    ("frame", "setting"),
    [
        (create_topics(500_000), "limits.max_whole_request_bytes = 1048576"),
        (create_topics(65_000), "limits.max_request_rows = 10000"),
        (produce(350_000), "limits.max_request_rows = 10000"),
        (find_coordinators(10_100), "its reply has more than limits.max_request_rows = 10000"),
    ],
    ids=["8 MiB of topics", "1 MiB of topics", "2 MiB of topics without partitions", "10,100 coordinators"],
)
def test_a_request_of_many_rows_does_not_stall_others(open_proxy: ProxyProcess, frame: bytes, setting: str) -> None:
    def attack() -> None:
        assert all(is_closed_after(open_proxy, frame) for _ in range(3))

    assert_no_long_turn(open_proxy, attack)
    eventually(lambda: setting in open_proxy.log, "the setting is named")


def test_a_reply_of_many_record_errors_does_not_stall_others(open_proxy: ProxyProcess, kafka: FirstBroker) -> None:
    """The broker names the fault of each record: timestamps of the year 2286, of 13 and 14 digits in turn, so that the
    texts have two lengths. A million bytes of records have 3 MB of texts, and 5,000 errors are still answered."""
    topic = create_topic(kafka, "record-errors")
    many, few = (messages.batch(b"", count, timestamp_ms=10**13 - 1, deltas=(0, 1)) for count in (90_000, 5_000))
    too_many = messages.request(messages.PRODUCE, 8, 1, messages.produce_body(topic, many))

    def attack() -> None:
        assert all(is_closed_after(open_proxy, too_many) for _ in range(3))
        with RawClient(open_proxy.port) as client:
            reply = client.call(messages.PRODUCE, 8, messages.produce_body(topic, few))
        assert reply.count(b"Timestamp 10000000000000 of message with offset") == 2_500

    assert_no_long_turn(open_proxy, attack)
    eventually(lambda: "its reply has more than limits.max_request_rows = 10000" in open_proxy.log, "it is named")


@NEEDS_ENGINE
def test_many_rows_in_a_request_that_is_relayed_natively_do_not_stall_others(open_proxy: ProxyProcess) -> None:
    """A thread of the native data plane reads its batches while it forwards it, and finds that there are too many
    rows."""
    client_id = unique("attacker")
    frame = produce(350_000, client_id)

    def attack() -> None:
        with contextlib.ExitStack() as stack:
            attackers = [stack.enter_context(RawClient(open_proxy.port, client_id=client_id)) for _ in range(3)]
            warm_up(open_proxy, NATIVE, *attackers)
            for attacker in attackers:
                with contextlib.suppress(ConnectionError):
                    attacker.send(frame)
            assert all(attacker.rest() == b"" for attacker in attackers)
            assert native_connections(open_proxy) == 0

    assert_no_long_turn(open_proxy, attack)


@pytest.mark.parametrize("plane", PLANES, indirect=True, scope="module")
def test_the_setting_that_many_rows_exceed_is_named_on_each_plane(kafka: FirstBroker, plane: str) -> None:
    client_id, arguments = unique("attacker"), (*JSON_LOG, "--data-plane", plane)
    with (
        ProxyProcess(kafka.bootstrap_servers, config=LIMITS, arguments=arguments) as proxy,
        RawClient(proxy.port, client_id=client_id) as attacker,
    ):
        warm_up(proxy, plane, attacker)
        with contextlib.suppress(ConnectionError):
            attacker.send(produce(350_000, client_id))
        assert attacker.rest() == b""
        assert "limits.max_request_rows = 10000" in line_of(proxy, attacker.name)["reason"]


def test_as_many_topics_as_allowed_do_not_stall_others(security: Security) -> None:
    """A real broker is busy with them for many seconds, and does not answer others meanwhile."""
    received: list[Asked] = []
    with (
        FakeBroker({"raw": lambda _, asked: received.append(asked)}) as broker,
        security.proxy(broker.address, config=LIMITS, arguments=JSON_LOG) as proxy,
    ):

        def attack() -> None:
            received.clear()
            assert all(is_closed_after(proxy, create_topics(9_900)) for _ in range(3))
            assert [asked.api_key for asked in received] == [CREATE_TOPICS] * 3

        assert_no_long_turn(proxy, attack)


@pytest.mark.exhaustive
def test_as_many_topics_as_allowed_of_many_clients_at_once_take_turns(security: Security) -> None:
    received: list[Asked] = []
    with (
        FakeBroker({"raw": lambda _, asked: received.append(asked)}) as broker,
        security.proxy(broker.address, config=LIMITS, arguments=JSON_LOG) as proxy,
    ):

        def attack() -> None:
            received.clear()
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(RawClient(proxy.port, client_id="raw")) for _ in range(12)]
                for client in clients:
                    client.send(create_topics(9_900))
                assert all(client.rest() == b"" for client in clients)
            assert [asked.api_key for asked in received] == [CREATE_TOPICS] * len(clients)

        assert_no_long_turn(proxy, attack)


@pytest.mark.exhaustive
def test_nobody_notices_small_requests_without_an_end(open_proxy: ProxyProcess) -> None:
    """Produce requests without acks are never in flight, so only their bytes bound them."""
    frame = messages.request(messages.PRODUCE, 7, 1, struct.pack(">hhii", -1, 0, 30_000, 0))
    produced = 'headrace_requests_total{api="Produce"}'

    def attack() -> None:
        before = series(open_proxy, produced)
        with (
            Bystander(open_proxy.port) as bystander,
            bystander.watching(),
            contextlib.ExitStack() as stack,
        ):
            for _ in range(3):
                attacker = stack.enter_context(RawClient(open_proxy.port, client_id=unique("attacker")))
                attacker.send(frame * SMALL_REQUESTS)
            eventually(lambda: series(open_proxy, produced) >= before + 3 * SMALL_REQUESTS, "all are read")

    assert_no_long_turn(open_proxy, attack)
