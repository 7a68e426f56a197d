"""A start without brokers, in front of TLS, and in front of SASL: the content of the log and of the ready line."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.proxy.server.server import FIRST_ANSWER_S
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker, FullBacklog
from tests.faults.proxy_log import JSON_LOG, events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.fake_broker import Asked, Conversation

UNREACHED = "(the cluster has not been reached yet)"
WARNING = "the cluster cannot be reached"
INFO = "the list of brokers was not received"
CONNECT_TIMEOUT = "[upstream]\nconnect_timeout = 5\n"


PATIENT = '[plugins]\nload = ["tests.faults.running.patient_plugin"]\n'


def line_of(proxy: ProxyProcess, event: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(proxy.wait_for_log(event))
    return found


def test_brokers_that_refuse_connections() -> None:
    with reserve_ports(2) as block:
        addresses = [f"127.0.0.1:{block.first}", f"127.0.0.1:{block.first + 1}"]
        with ProxyProcess(",".join(addresses), arguments=JSON_LOG) as proxy:
            line = line_of(proxy, WARNING)
            assert line["level"] == "warning"
            for address in addresses:
                assert f"cannot connect to {address}: connection refused" in line["reason"]
            assert f" upstream {', '.join(addresses)} {UNREACHED}, " in proxy.output
            assert not [event for event in events(proxy) if event["event"].startswith(INFO)]


def test_a_broker_that_answers() -> None:
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=PATIENT) as proxy:
        assert "headrace ready" in proxy.output
        assert UNREACHED not in proxy.output
        assert WARNING not in proxy.log


def test_the_line_names_the_listeners_whose_brokers_do_not_answer() -> None:
    with reserve_ports(3) as block, FakeBroker({}) as broker:
        other = f"""
[listeners.other]
address = "127.0.0.1:{block.first}"
node_ids = "0"
[listeners.other.upstream]
bootstrap_servers = ["127.0.0.1:{block.first + 2}"]
"""
        with ProxyProcess(broker.address, config=PATIENT + other) as proxy:
            assert "(the cluster has not been reached yet for listeners.other.upstream)" in proxy.output


@pytest.mark.exhaustive
def test_a_broker_that_hangs_does_not_hold_up_readiness() -> None:
    with FullBacklog() as hanging:
        began_s = time.monotonic()
        with ProxyProcess(f"127.0.0.1:{hanging.port}", config=CONNECT_TIMEOUT, arguments=JSON_LOG) as proxy:
            assert UNREACHED in proxy.output
            assert WARNING not in proxy.log
            line = line_of(proxy, WARNING)
            assert "no answer within upstream.connect_timeout = 5 s" in line["reason"]
            assert time.monotonic() - began_s > FIRST_ANSWER_S


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """Run a server that reads once, sends ``data`` and closes; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                with sock:
                    sock.recv(1 << 16)
                    sock.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            bytes.fromhex("15030300020250"),
            "speaks TLS, but the proxy connects in plaintext; set upstream.tls.ena",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP instead of Kafka's protocol; check upstream.bootstrap_"),
        (b"", "closed the connection without an answer"),
    ],
    ids=["TLS", "HTTP", "closes"],
)
def test_what_is_no_plaintext_broker(data: bytes, reason: str) -> None:
    with answering(data) as address, ProxyProcess(address, arguments=JSON_LOG) as proxy:
        line = line_of(proxy, WARNING)
        assert line["level"] == "warning"
        assert line["reason"].startswith(f"{address} {reason}")
        assert UNREACHED in proxy.output


def closes_at_metadata(conversation: Conversation, asked: Asked) -> None:
    """Answer ApiVersions only, as a listener that requires SASL does."""
    while asked.api_key == messages.API_VERSIONS:
        conversation.reply(asked, conversation.broker.usual_reply(asked))
        asked = conversation.next()


def test_brokers_that_require_sasl() -> None:
    with (
        FakeBroker({"headrace": closes_at_metadata}) as broker,
        ProxyProcess(broker.address, config=PATIENT, arguments=JSON_LOG) as proxy,
    ):
        line = line_of(proxy, INFO)
        assert line["level"] == "info"
        assert line["reason"] == (
            f"{broker.address} closed the connection without an answer, as listeners that require SASL do;"
            " upstream.sasl is not set"
        )
        assert UNREACHED not in proxy.output
        assert WARNING not in proxy.log
