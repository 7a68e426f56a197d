"""A broker that reads nothing more ends the connection after ``reply_timeout``, with or without TLS, and a client that
reads nothing more ends it after ``idle_timeout``, on both planes."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import HEARTBEAT_REPLY, FakeBroker
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from testbed.kafka.certificates import Authority
    from tests.faults.fake_broker import Asked, Conversation

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(not is_installed(), reason=f"{EXTENSION} is not built"),
]

ANSWERED = 10
"""Requests that the broker answers: enough for the connection to be relayed natively."""


def deaf(conversation: Conversation, asked: Asked) -> None:
    for number in range(ANSWERED):
        conversation.reply(asked, HEARTBEAT_REPLY)
        if number < ANSWERED - 1:
            asked = conversation.next()
    conversation.broker.stopping.wait(60)


@pytest.mark.parametrize("plane", ["native", "python"])
@pytest.mark.parametrize("broker_tls", [False, True], ids=["plaintext", "TLS"])
def test_a_broker_that_reads_nothing_ends_the_connection(authority: Authority, plane: str, *, broker_tls: bool) -> None:
    config, context = '[upstream]\nreply_timeout = "5s"\n', None
    if broker_tls:
        config += f'[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\n'
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.broker_certificate().keystore_file)
    with (
        FakeBroker({"deaf": deaf}, context=context) as broker,
        ProxyProcess(broker.address, config=config, arguments=(*JSON_LOG, "--data-plane", plane)) as proxy,
        RawClient(proxy.port, client_id="deaf") as client,
    ):
        for _ in range(ANSWERED):
            assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == HEARTBEAT_REPLY
        assert proxy.metric("headrace_native_connections") == (plane == "native")
        large = messages.heartbeat_body() + bytes(50 * 2**20)  # more than the systems' buffers take
        with pytest.raises(ConnectionError):
            client.request(messages.HEARTBEAT, 1, large)
        proxy.wait_for_log("the broker did not answer within upstream.reply_timeout = 5 s")
        assert_no_traceback(proxy)


def with_a_large_reply(conversation: Conversation, asked: Asked) -> None:
    for _ in range(ANSWERED):
        conversation.reply(asked, HEARTBEAT_REPLY)
        asked = conversation.next()
    with suppress(OSError):
        conversation.reply(asked, HEARTBEAT_REPLY + bytes(50 * 2**20))  # more than the systems' buffers take


@pytest.mark.parametrize("plane", ["native", "python"])
def test_a_client_that_reads_nothing_ends_the_connection(plane: str) -> None:
    config = '[limits]\nidle_timeout = "1s"\n'
    with (
        FakeBroker({"deaf": with_a_large_reply}) as broker,
        ProxyProcess(broker.address, config=config, arguments=(*JSON_LOG, "--data-plane", plane)) as proxy,
        RawClient(proxy.port, client_id="deaf") as client,
    ):
        for _ in range(ANSWERED):
            assert client.call(messages.HEARTBEAT, 1, messages.heartbeat_body()) == HEARTBEAT_REPLY
        assert proxy.metric("headrace_native_connections") == (plane == "native")
        client.request(messages.HEARTBEAT, 1, messages.heartbeat_body())
        proxy.wait_for_log("a reply has begun, and no byte of it was sent for limits.idle_timeout = 1 s")
        wait_until(lambda: proxy.metric("headrace_connections") == 0, "its connection is closed")
        assert_no_traceback(proxy)
