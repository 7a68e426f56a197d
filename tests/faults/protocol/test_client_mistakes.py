"""What a client can do wrong: one log line, the end of that connection, and nothing else."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import SLOW_CALLS
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, line_of, lines_of
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.security.tls.handshakes import client_hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.shared_cluster import FirstBroker


MAX_FRAME_BYTES = 1 << 20
INT32_MAX = 2**31 - 1
CLIENT_ERRORS = 'headrace_errors_total{fault="client"}'
FETCHES = 'headrace_requests_total{api="Fetch"}'

CONFIG = f"""
[limits]
max_frame_bytes = {MAX_FRAME_BYTES}

[[quotas]]
entity = {{ client-id = "muted" }}
producer_byte_rate = 100
new_connections = "kafka"
"""


@pytest.fixture(scope="module")
def proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """Run with debug logs, which include clients that close or reset their connections."""
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=(*JSON_LOG, "--log-level", "debug")) as process:
        yield process
        assert_no_traceback(process)


@pytest.fixture(scope="module")
def bystander(proxy: ProxyProcess) -> Iterator[Bystander]:
    """One for all tests of the module: its connection outlives every mistake."""
    with Bystander(proxy.port) as watcher:
        yield watcher


def size(number: int) -> bytes:
    return struct.pack(">i", number)


def head(api_key: int, version: int, client_id: bytes = b"\x00\x03raw", rest: bytes = b"") -> bytes:
    return messages.frame(struct.pack(">hhi", api_key, version, 7) + client_id + rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """Bytes that no Kafka client sends."""

    data: bytes
    reason: str
    request: str | None = None
    """The request's description in the log, if the mistake is in an identifiable request."""


MISTAKES = {
    "garbage": Mistake(data=b"\xde\xad\xbe\xef" * 64, reason="a frame of -559038737 bytes is shorter"),
    "garbage behind a good size": Mistake(data=size(64) + b"\xa5" * 64, reason="api key -23131 is unknown"),
    "TLS": Mistake(
        data=client_hello(ssl.create_default_context()),
        reason="client: speaks TLS, but the bootstrap listener (listen.address) accepts plaintext only",
    ),
    "HTTP": Mistake(
        data=b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        reason="client: speaks HTTP, but the bootstrap listener (listen.address) accepts Kafka's protocol only",
    ),
    "size 0": Mistake(data=size(0), reason="a frame of 0 bytes is shorter"),
    "size -1": Mistake(data=size(-1), reason="a frame of -1 bytes is shorter"),
    "size 7": Mistake(data=size(7) + bytes(7), reason="a frame of 7 bytes is shorter"),
    "size max + 1": Mistake(
        data=size(MAX_FRAME_BYTES + 1),
        reason=f"a frame of {MAX_FRAME_BYTES + 1} bytes is longer than limits.max_frame_bytes = {MAX_FRAME_BYTES}",
    ),
    "size 2 GiB - 1": Mistake(data=size(INT32_MAX), reason="longer than limits.max_frame_bytes"),
    "unknown key": Mistake(data=head(9999, 0), reason="api key 9999 is unknown"),
    "negative key": Mistake(data=head(-5, 0), reason="api key -5 is unknown"),
    "negative version": Mistake(data=head(messages.METADATA, -1), reason="Metadata version -1 is negative"),
    "client id beyond the frame": Mistake(
        data=head(messages.METADATA, 1, b"\x7f\xffraw"), reason="the head reaches beyond its frame"
    ),
    "endless varint": Mistake(
        data=head(messages.METADATA, 9, rest=b"\xff" * 16), reason="a varint of more than 5 bytes"
    ),
    "Produce without acks": Mistake(data=head(messages.PRODUCE, 8), reason="the head reaches beyond its frame"),
    "Produce v99": Mistake(
        data=head(messages.PRODUCE, 99, rest=b"\x00\x00\xff\xff" + bytes(40)),
        reason="Produce version 99 was not offered",
        request="Produce v99 #7",
    ),
    "Metadata v99": Mistake(
        data=head(messages.METADATA, 99, rest=bytes(40)),
        reason="Metadata version 99 was not offered",
        request="Metadata v99 #7",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
@pytest.mark.parametrize("before", [0, 3], ids=["at once", "after three requests"])
def test_bytes_that_are_no_request_end_their_connection_alone(
    proxy: ProxyProcess, bystander: Bystander, mistake: Mistake, before: int
) -> None:
    with bystander.watching(), RawClient(proxy.port) as client:
        for _ in range(before):
            client.call(messages.API_VERSIONS, 0)
        client.send(mistake.data)
        assert client.rest() == b""
    line = line_of(proxy, client.name)
    assert line["event"] == "connection closed"
    assert line["reason"].startswith("client: ")
    assert mistake.reason in line["reason"]
    latest = f"ApiVersions v0 #{before}" if before else None
    assert line["request"] == (mistake.request or latest)


def test_a_mistake_is_counted_as_the_clients(proxy: ProxyProcess) -> None:
    before = series(proxy, CLIENT_ERRORS)
    with RawClient(proxy.port) as client:
        client.send(size(0))
        client.rest()
    assert series(proxy, CLIENT_ERRORS) == before + 1


def test_a_request_that_the_broker_cannot_read_ends_its_connection_alone(
    proxy: ProxyProcess, bystander: Bystander
) -> None:
    """The proxy does not read the bodies that it only hands on; the broker does, and closes."""
    with bystander.watching(), RawClient(proxy.port) as client:
        client.request(messages.HEARTBEAT, messages.HEARTBEAT_VERSION, b"\x7f\xff")
        assert client.rest() == b""
    line = line_of(proxy, client.name)
    assert line["reason"] == "upstream: the broker closed; requests in flight: 1"
    assert line["request"] == "Heartbeat v1 #1"


def test_a_newer_api_versions_is_answered_in_the_oldest_layout(proxy: ProxyProcess, bystander: Bystander) -> None:
    """KIP-511: the client learns what it may ask, over the connection that it has."""
    with bystander.watching(), RawClient(proxy.port) as client:
        client.send(head(messages.API_VERSIONS, 99, rest=b"\x00\x05kafka\x044.9\x00"))
        correlation_id, body = client.reply()
        assert correlation_id == 7
        error_code, rows, api_key, lowest, highest = struct.unpack(">hihhh", body)
        assert (error_code, rows, api_key, lowest) == (messages.UNSUPPORTED_VERSION, 1, messages.API_VERSIONS, 0)
        assert highest >= 4
        assert client.call(messages.API_VERSIONS, 0)[:2] == b"\x00\x00"
    assert lines_of(proxy, client.name) == []


def fin_in_a_head(client: RawClient) -> None:
    client.send(messages.request(messages.METADATA, 1, 1, messages.NO_TOPICS)[:10])
    client.half_close()


def fin_in_a_body(client: RawClient) -> None:
    client.send(messages.request(messages.HEARTBEAT, 1, 1, messages.heartbeat_body())[:-3])
    client.half_close()


def fin_in_a_large_request(client: RawClient) -> None:
    """Large enough to be moved by splice, which has to notice the end by itself."""
    client.send(messages.request(messages.PRODUCE, 8, 1, messages.produce_body("none", bytes(900_000)))[:-1000])
    client.half_close()


def fin_in_a_request_that_is_read_whole(client: RawClient) -> None:
    body = messages.string("PLAIN")
    client.send(messages.request(messages.SASL_HANDSHAKE, 0, 1, body)[:-2])
    client.half_close()


def rst_in_a_body(client: RawClient) -> None:
    client.send(messages.request(messages.HEARTBEAT, 1, 1, messages.heartbeat_body())[:-3])
    client.reset()


def rst_in_a_large_request(client: RawClient) -> None:
    client.send(messages.request(messages.PRODUCE, 8, 1, messages.produce_body("none", bytes(900_000)))[:-1000])
    client.reset()


def rst_between_requests(client: RawClient) -> None:
    client.call(messages.API_VERSIONS, 0)
    client.reset()


HANG_UPS: dict[Callable[[RawClient], None], str] = {
    fin_in_a_head: "client: the client closed in the middle of a request",
    fin_in_a_body: "client: the client closed in the middle of a request, 3 bytes missing",
    fin_in_a_large_request: "client: the client closed in the middle of a request, 1000 bytes missing",
    fin_in_a_request_that_is_read_whole: "client: the client closed in the middle of a request, 2 bytes missing",
    rst_in_a_body: "client: connection reset",
    rst_in_a_large_request: "client: connection reset",
    rst_between_requests: "client: connection reset",
}


@pytest.mark.parametrize(("hang_up", "reason"), HANG_UPS.items(), ids=[each.__name__ for each in HANG_UPS])
def test_a_client_that_breaks_off_ends_its_connection_alone(
    proxy: ProxyProcess, bystander: Bystander, hang_up: Callable[[RawClient], None], reason: str
) -> None:
    with bystander.watching(), RawClient(proxy.port) as client:
        hang_up(client)
        line = line_of(proxy, client.name)
        assert line["reason"] == reason
    assert len(lines_of(proxy, client.name)) == 1


@pytest.mark.parametrize("how", [RawClient.half_close, RawClient.close, RawClient.reset])
def test_a_client_that_leaves_with_a_request_in_flight_ends_its_connection_alone(
    proxy: ProxyProcess, bystander: Bystander, topic: str, how: Callable[[RawClient], None]
) -> None:
    before = series(proxy, FETCHES)
    with bystander.watching(), RawClient(proxy.port) as client:
        client.call(messages.API_VERSIONS, 0)
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body(topic, max_wait_ms=60_000))
        wait_until(lambda: series(proxy, FETCHES) == before + 1, "the fetch is in flight")
        how(client)
        line = line_of(proxy, client.name)
        assert line["request"] == f"Fetch v{messages.FETCH_VERSION} #2"
        expected = "client: connection reset" if how is RawClient.reset else "the client closed its side"
        assert expected in line["reason"]
    wait_until(lambda: proxy.metric("headrace_connections") == 1, "the bystander alone is left")
    assert len(lines_of(proxy, client.name)) == 1


def test_clients_that_leave_while_they_are_muted_are_let_go(
    proxy: ProxyProcess, bystander: Bystander, topic: str
) -> None:
    """A FIN behind unread bytes causes no event, so the proxy has to poll. The mute itself lasts seconds longer."""
    records = messages.produce_body(topic, messages.batch(bytes(100_000)))
    ways = itertools.product((RawClient.half_close, RawClient.close, RawClient.reset), (0, 50))
    with bystander.watching(), contextlib.ExitStack() as stack:
        clients = {way: stack.enter_context(RawClient(proxy.port, client_id="muted")) for way in ways}
        for (how, unread), client in clients.items():
            reply = messages.read_produce_reply(client.call(messages.PRODUCE, messages.PRODUCE_VERSION, records))
            assert reply.error_code == 0
            assert reply.throttle_ms > 60_000
            for _ in range(unread):
                client.request(messages.PRODUCE, messages.PRODUCE_VERSION, records[:100])
            how(client)
        for way, client in clients.items():
            line = line_of(proxy, client.name)
            assert line["reason"] == "the client hung up while it was muted", way
    for way, client in clients.items():
        assert len(lines_of(proxy, client.name)) == 1, way


def test_a_flood_of_resets_does_not_flood_the_log(text_proxy: ProxyProcess) -> None:
    """At the default level resets are not logged, but each is counted as a fault of the client."""
    text_proxy.wait_for_log("brokers changed")  # the last line of the proxy's start
    count, before = 300, len(text_proxy.log.splitlines())
    for number in range(count):
        with RawClient(text_proxy.port, distinct=False) as client:
            if number % 2:
                client.call(messages.API_VERSIONS, 0)
            rst_in_a_body(client)
    wait_until(lambda: series(text_proxy, CLIENT_ERRORS) == count, "all are counted")
    assert text_proxy.log.splitlines()[before:] == []


def test_an_orderly_end_is_not_logged(proxy: ProxyProcess, bystander: Bystander) -> None:
    with RawClient(proxy.port) as client:
        client.call(messages.API_VERSIONS, 0)
        client.half_close()
        assert client.rest() == b""
    with RawClient(proxy.port) as silent:
        silent.half_close()
        assert silent.rest() == b""
    bystander.wait_for_answers()
    assert lines_of(proxy, client.name) == []
    assert lines_of(proxy, silent.name) == []


def test_what_was_sent_before_an_orderly_end_is_handed_on(proxy: ProxyProcess, kafka: FirstBroker, topic: str) -> None:
    """A producer with acks=0 gets no replies, so it may leave as soon as it has sent."""
    count = 200
    records = messages.produce_body(topic, messages.batch(bytes(20_000)), acks=0)
    with RawClient(proxy.port) as client:
        for _ in range(count):
            client.request(messages.PRODUCE, messages.PRODUCE_VERSION, records)
        client.half_close()
        assert client.rest() == b""
    with RawClient(int(kafka.bootstrap_servers.rsplit(":", 1)[1])) as reader:
        wait_until(lambda: end_offset(reader, topic) == count, f"{count} records in the log")
    assert lines_of(proxy, client.name) == []


def end_offset(client: RawClient, topic: str) -> int:
    body = struct.pack(">ii", -1, 1) + messages.string(topic) + struct.pack(">iiq", 1, 0, -1)
    reply = client.call(messages.LIST_OFFSETS, 1, body)
    (offset,) = struct.unpack_from(">q", reply, len(reply) - 8)
    return int(offset)


def test_bytes_one_by_one_are_as_good_as_any(proxy: ProxyProcess, bystander: Bystander, topic: str) -> None:
    value = b"drop by drop"
    sent = messages.request(
        messages.PRODUCE, messages.PRODUCE_VERSION, 1, messages.produce_body(topic, messages.batch(value))
    )
    sent += messages.request(messages.FETCH, messages.FETCH_VERSION, 2, messages.fetch_body(topic))
    with bystander.watching(), RawClient(proxy.port) as client:
        for number, byte in enumerate(sent):
            client.send(bytes([byte]))
            if number % 16 == 0:
                bystander.wait_for_answers(1)  # the proxy has been round its loop: the byte was a read of its own
        assert messages.read_produce_reply(client.reply()[1]).error_code == 0
        correlation_id, fetched = client.reply()
        assert correlation_id == 2
        assert value in fetched
    assert lines_of(proxy, client.name) == []


def test_a_silent_connection_opens_no_upstream_connection(proxy: ProxyProcess, bystander: Bystander) -> None:
    """The broker is dialled when the first request came, so probes of a load balancer cost nothing."""
    bystander.wait_for_answers()
    wait_until(lambda: proxy.metric("headrace_connections") == 1, "the bystander alone is left")
    with RawClient(proxy.port) as client:
        client.send(size(100)[:2])
        wait_until(lambda: proxy.metric("headrace_connections") == 2, "the silent connection is open")
        bystander.wait_for_answers()  # the proxy has been round its loop, and has read the two bytes
        assert proxy.metric("headrace_upstream_connections") == 1


@pytest.fixture
def text_proxy(kafka: FirstBroker) -> Iterator[ProxyProcess]:
    """With the log for people, which is the default."""
    with ProxyProcess(kafka.bootstrap_servers, config=SLOW_CALLS) as process:
        yield process


@pytest.mark.parametrize("client_id", ["a\nheadrace is fine\r", "a\x1b[2Jb", "a\u2028b"])
def test_the_log_for_people_has_one_line_too_whatever_the_client_id(text_proxy: ProxyProcess, client_id: str) -> None:
    """A client id is the client's text: it must not look like lines of our own, or move the reader's cursor."""
    text_proxy.wait_for_log("brokers changed")  # the last line of the proxy's start
    before = text_proxy.log
    with RawClient(text_proxy.port, client_id=client_id) as client:
        client.call(messages.API_VERSIONS, 0)
        client.send(size(-1))
        client.rest()
    text_proxy.wait_for_log(client.name)
    [line] = text_proxy.log.removeprefix(before).splitlines()
    assert client.name in line
    assert "a frame of -1 bytes is shorter" in line
    assert "ApiVersions v0 #1" in line
    assert "client_id=" in line
    assert line.isprintable()
