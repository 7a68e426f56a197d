"""A certificate without a subject gives no user: neither an empty one nor the one of anonymous clients."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest

from testbed.kafka.certificates import Authority, ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults.fake_broker import FakeBroker

if TYPE_CHECKING:
    from pathlib import Path


def test_a_certificate_that_gives_no_user_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = listen_tls(authority.broker_certificate(), clients=authority.ca_file)
    config += 'principal_mapping_rules = "RULE:^CN=nobody.*$//"\n'
    context = ClientTls(authority=authority, certificate=authority.client_certificate("CN=nobody")).ssl_context()
    with (
        FakeBroker({}) as broker,
        ProxyProcess(broker.address, config=config) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), timeout=20) as sock,
    ):
        with pytest.raises((ssl.SSLError, ConnectionError, EOFError)):
            ask(context, sock)
        proxy.wait_for_log("no user follows from the client's certificate")


def ask(context: ssl.SSLContext, sock: socket.socket) -> None:
    with context.wrap_socket(sock, server_hostname="localhost") as secured:
        if not secured.recv(1):
            raise EOFError
