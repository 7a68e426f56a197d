"""Clients of one listener that try to have what only clients of another have, on a proxy with two of them."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

import pytest

from testbed.kafka.certificates import Authority, ClientTls
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
ASKED: Final = messages.request(messages.API_VERSIONS, 0, 1)


@pytest.fixture(scope="module")
def ports(authority: Authority) -> Iterator[tuple[int, int]]:
    """The port of a listener that asks for no certificates, and that of one that requires them."""
    certificate = authority.broker_certificate()
    strict = listen_tls(certificate, clients=authority.ca_file).replace("[listen.", "[listeners.strict.")
    with FakeBroker({}) as broker, reserve_ports(2) as block:
        address = f'[listeners.strict]\naddress = "127.0.0.1:{block.first}"\nnode_ids = "0"\n'
        with ProxyProcess(
            broker.address, config=listen_tls(certificate) + address + strict, arguments=JSON_LOG
        ) as proxy:
            yield proxy.port, block.first
            assert_no_traceback(proxy)


def ask(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[bytes, ssl.SSLSession | None, bool]:
    """Send a request. Return the beginning of its answer, nothing if there is none; the session; and whether it is that
    of an earlier connection."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        contextlib.suppress(ssl.SSLError, ConnectionResetError),
        context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
    ):
        tls.sendall(ASKED)
        return tls.recv(4), tls.session, bool(tls.session_reused)
    return b"", None, False


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_is_good_for_the_listener_that_began_it(
    ports: tuple[int, int], authority: Authority, version: str
) -> None:
    """Otherwise it would stand for a certificate that nobody has shown."""
    lenient, strict = ports
    context = ClientTls(authority=authority).ssl_context()
    context.maximum_version = context.minimum_version = VERSIONS[version]
    answer, session, _ = ask(lenient, context, None)
    assert answer
    assert session is not None
    assert ask(strict, context, session)[0] == b""
    answer, _, reused = ask(lenient, context, session)
    assert answer
    assert reused, "at its own listener it goes on"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_with_a_certificate_begins_no_session_elsewhere(
    ports: tuple[int, int], authority: Authority, version: str
) -> None:
    lenient, strict = ports
    own = ClientTls(authority=authority, certificate=authority.client_certificate("CN=alice")).ssl_context()
    own.maximum_version = own.minimum_version = VERSIONS[version]
    answer, session, _ = ask(strict, own, None)
    assert answer
    assert session is not None
    answer, _, reused = ask(lenient, own, session)
    assert answer
    assert not reused
    assert ask(strict, own, session)[2], "at its own listener it goes on"
