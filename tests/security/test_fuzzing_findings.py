"""Attacks that fuzzing has found, on a real proxy."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.raw_client import RawClient
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from tests.shared_cluster import FirstBroker


def test_a_malformed_head_request_does_not_end_the_proxy() -> None:
    request = b"HEAD /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"
    with FakeBroker({}) as broker, ProxyProcess(broker.address) as proxy:
        host, port = proxy.admin.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(request)
            answer = client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200"), "the body is not read, since the page needs none"
            assert client.recv(1000) == b"", "and the connection is closed"
        assert proxy.get("/livez")[0] == 200
        assert "Traceback" not in proxy.log


def test_a_client_id_of_replaced_characters_is_no_mistake_of_the_proxy(kafka: FirstBroker) -> None:
    """The proxy asks the broker with the client's id, which is longer than a string may be once it is UTF-8."""
    client_id = b"\xff" * 20_000
    header = struct.pack(">hhih", messages.METADATA, messages.METADATA_VERSION, 1, len(client_id)) + client_id
    with ProxyProcess(kafka.addresses(LISTENER)) as proxy:
        with RawClient(proxy.port) as client:
            client.call(messages.API_VERSIONS, 0)
            client.send(messages.frame(header + messages.NO_TOPICS))
            client.rest()
        assert proxy.get("/livez")[0] == 200
        assert "Traceback" not in proxy.log
        assert "internal error" not in proxy.log
