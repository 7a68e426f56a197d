"""TLS and HTTP where Kafka's protocol is expected: the log names the protocol, the peer and the setting to change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from structlog.testing import capture_logs

from headrace.proxy.connection.client_connection import ClientConnection
from headrace.proxy.network.listener import ListenerTls
from headrace.proxy.repeated_lines import EVERY_S
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.requests import Connection
from tests.proxy.playbook import MemorySocket, Party, open_book, request

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from trio.testing import MockClock

    Lines = list[MutableMapping[str, Any]]

CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(64)
ALERT = bytes.fromhex("15030300020250")
GET = b"GET /metrics HTTP/1.1\r\n\r\n"
HEARTBEAT = ApiKey.HEARTBEAT.value
BOOTSTRAP = "the bootstrap listener (listen.address)"


def closed(lines: Lines) -> Lines:
    return [line for line in lines if line["event"] == "connection closed"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (CLIENT_HELLO, f"client: speaks TLS, but {BOOTSTRAP} accepts plaintext only; set listen.tls"),
        (
            GET,
            f"client: speaks HTTP, but {BOOTSTRAP} accepts Kafka's protocol only; the address of",
        ),
        (b"POST", f"client: speaks HTTP, but {BOOTSTRAP} accepts Kafka's protocol only"),
        (b"PROXY TCP4 192.0.2.1", f"client: {BOOTSTRAP} does not accept the PROXY protocol from this address"),
        (b"\r\n\r\n\0\r\nQUIT\n", f"client: {BOOTSTRAP} does not accept the PROXY protocol from this address"),
    ],
    ids=["TLS", "GET", "the first 4 bytes of POST", "PROXY 1", "PROXY 2"],
)
async def test_a_client(data: bytes, reason: str, autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book() as book:
            await book.client.sends(data)
            await book.client.receives_the_end()
            assert book.upstream.dialled == []
            assert book.shared.counters.errors == {"client": 1}
    [line] = closed(lines)
    assert line["log_level"] == "warning"
    assert line["reason"].startswith(reason)


async def test_a_client_of_a_brokers_listener(autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book() as book:
            book.connection.info.node_id = 3
            await book.client.sends(CLIENT_HELLO)
            await book.client.receives_the_end()
    assert "the listener of broker 3 (listen.address) accepts plaintext only" in closed(lines)[0]["reason"]


async def test_a_load_balancer_that_sends_no_header(autojump_clock: MockClock) -> None:
    """What is read without TLS at a listener with TLS is the place of the header."""
    with capture_logs() as lines:
        async with open_book() as book:
            book.listener.tls = ListenerTls(context=None, principals=None)  # type: ignore[arg-type]
            await book.client.sends(CLIENT_HELLO)
            await book.client.receives_the_end()
    [line] = closed(lines)
    assert line["reason"].startswith("client: speaks TLS without a header of the PROXY protocol before it")
    assert "listen.proxy_protocol_from" in line["reason"]


async def test_a_fault_at_each_listener_has_a_line(autojump_clock: MockClock) -> None:
    """The same mistake of the same host at another listener is another line, since another setting is named."""
    with capture_logs() as lines:
        async with open_book() as book, trio.open_nursery() as nursery:
            for setting in ("listen", "listeners.outside", "listeners.outside"):
                listener = replace(book.listener, setting=setting)
                ours, theirs = MemorySocket.pair()
                info = Connection(connection_id=2, peer=book.connection.info.peer)
                nursery.start_soon(ClientConnection(book.shared, listener, info, ours).serve)  # type: ignore[arg-type]
                client = Party(theirs)
                await client.sends(CLIENT_HELLO)
                await client.receives_the_end()
    levels = [(line["log_level"], line["reason"].partition("set ")[2].partition(".tls")[0]) for line in closed(lines)]
    assert levels[:2] == [("warning", "listen"), ("warning", "listeners.outside")]
    assert levels[2] == ("debug", "listeners.outside")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ALERT + bytes(1), "kafka:9092 speaks TLS, but the proxy connects in plaintext; set upstream.tls"),
        (CLIENT_HELLO, "kafka:9092 speaks TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "kafka:9092 speaks HTTP instead of Kafka's protocol; check upstream."),
        (ALERT, "kafka:9092 speaks TLS"),
    ],
    ids=["an alert and more", "a handshake", "HTTP", "an alert alone"],
)
async def test_a_broker(data: bytes, reason: str, autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book() as book:
            await book.client.sends(request(HEARTBEAT, 4))
            await book.upstream.wait_for_dial(1)
            await book.broker.receives()
            await book.broker.sends(data)
            await book.client.receives_the_end()
            assert book.shared.counters.errors == {"upstream": 1}
    [line] = closed(lines)
    assert line["reason"].startswith(f"upstream: {reason}")
    assert "upstream.bootstrap_servers" in line["reason"]


async def test_at_most_one_warning_a_minute_for_a_host(autojump_clock: MockClock) -> None:
    """A health check that uses TLS must not fill the log."""
    with capture_logs() as lines:
        async with open_book() as book:
            info = book.connection.info
            book.connection.shared.repeated.due("fault of client", "TLS", info.peer.host, "listen", info.node_id)
            await book.client.sends(CLIENT_HELLO)
            await book.client.receives_the_end()
    assert [line["log_level"] for line in closed(lines)] == ["debug"]
    assert trio.current_time() < EVERY_S


async def test_a_client_that_closes_causes_no_warning(autojump_clock: MockClock) -> None:
    with capture_logs() as lines:
        async with open_book() as book:
            await book.client.sends(request(HEARTBEAT, 4)[:-1])
            book.client.socket.shut_down_writing()
            await book.client.receives_the_end()
            assert book.shared.counters.errors == {"client": 1}
        async with open_book() as book:
            await book.client.sends(request(HEARTBEAT, 4))
            await book.upstream.wait_for_dial(1)
            await book.broker.receives()
            book.client.socket.shut_down_writing()
            await book.client.receives_the_end()
    assert [(line["log_level"], line["reason"].partition(";")[0]) for line in closed(lines)] == [
        ("debug", "client: the client closed in the middle of a request, 1 bytes missing"),
        ("debug", "the client closed its side"),
    ]
