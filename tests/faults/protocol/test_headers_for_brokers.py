"""The header of the PROXY protocol that states a client's address to the brokers' load balancer.

It is read by hand here, from what a broker receives: before TLS, if that is spoken.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.wire.proxy_protocol import Endpoint, write_header
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from testbed.kafka.certificates import Authority

    Header = tuple[str, int, str, int] | None

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL: Final = 0x20
PROXY: Final = 0x21
ADDRESS_BYTES: Final = {0x11: 4, 0x21: 16}
"""By the byte that stands for TCP over IPv4 and over IPv6."""
PORT: Final = 4711
STATED: Final = {"203.0.113.7": "127.0.0.1", "2001:db8::7": str(ipaddress.ip_address("::ffff:7f00:1"))}
"""Addresses of clients, and how that of the broker is written beside them: both are of one family. Python 3.13 writes
::ffff:127.0.0.1 for the last one."""


class HeaderBroker(FakeBroker):
    """Reads a header at the beginning of each connection."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__({}, context=context)
        self.headers: list[Header] = []

    def _secured(self, sock: socket.socket) -> socket.socket:
        self.headers.append(read_header(sock))
        return super()._secured(sock)


def read_header(sock: socket.socket) -> Header:
    """Return address and port of the client and of the broker, or None for a connection of the proxy's own."""
    start = sock.recv(16, socket.MSG_WAITALL)
    signature, command, family, size = struct.unpack(">12sBBH", start)
    assert signature == SIGNATURE
    body = sock.recv(size, socket.MSG_WAITALL) if size else b""
    if command == LOCAL:
        return None
    assert command == PROXY
    length = ADDRESS_BYTES[family]
    source, destination, port, brokers_port = struct.unpack(f">{length}s{length}sHH", body)
    return str(ipaddress.ip_address(source)), port, str(ipaddress.ip_address(destination)), brokers_port


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
def test_brokers_get_the_address_of_the_client(authority: Authority, *, tls: bool) -> None:
    """That of the connection, or that of the header with which the connection begins."""
    context, config = None, "[upstream]\nproxy_protocol = true\n"
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.broker_certificate().keystore_file)
        config += f'[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\n'
    with reserve_ports(2) as block, HeaderBroker(context) as broker:
        config += (
            f'[listeners.balanced]\naddress = "127.0.0.1:{block.first}"\nnode_ids = "0"\n'
            'proxy_protocol_from = ["127.0.0.1"]\n'
        )
        with ProxyProcess(broker.address, config=config) as proxy:
            wait_until(lambda: None in broker.headers, "the proxy asks for the cluster's brokers by itself")
            with RawClient(proxy.port) as client:
                assert client.call(messages.API_VERSIONS, 0)
                assert (*client.sock.getsockname(), "127.0.0.1", broker.port) in broker.headers
            with RawClient(block.first) as client:
                client.send(write_header(None, None))
                assert client.call(messages.API_VERSIONS, 0)
                assert (*client.sock.getsockname(), "127.0.0.1", broker.port) in broker.headers
            for source, destination in STATED.items():
                endpoint = Endpoint(address=ipaddress.ip_address(source), port=PORT)
                with RawClient(block.first) as client:
                    client.send(write_header(endpoint, endpoint))
                    assert client.call(messages.API_VERSIONS, 0)
                assert (source, PORT, destination, broker.port) in broker.headers
