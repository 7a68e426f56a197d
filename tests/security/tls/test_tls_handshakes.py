"""Attacks with TLS handshakes on a real proxy: their number, their time, their processor time, and their memory."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from testbed.kafka.certificates import Authority, ClientTls
from testbed.processes.ports import reserve_ports
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.metrics import series
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.security.tls.handshakes import client_hello, is_closed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST: Final = 20
TIMEOUT_S: Final = 2
LIMITS: Final = (
    f"[limits]\nmax_tls_handshakes = {MOST}\nmax_connection_rate_per_ip = 0\n"
    "max_connections_per_ip = 0\nmax_connection_rate = 0\n"
)
CLIENTS: Final = 400
MEMORY: Final = 30 * 2**20
SLOWEST_S: Final = 2.5
"""The longest time for an answer during an attack. A busy machine needs less, unless it pauses."""
STALLS: Final = 2
"""The number of answers during an attack that may take longer, because the machine pauses."""

impatient = pytest.mark.parametrize(
    "proxy", [f'tls_handshake_timeout = "{TIMEOUT_S}s"\n'], ids=["impatient"], indirect=True
)
"""For tests that wait until handshakes are ended: others have the default, so that a stall ends no honest one."""


@pytest.fixture
def proxy(request: pytest.FixtureRequest, authority: Authority) -> Iterator[ProxyProcess]:
    config = listen_tls(authority.broker_certificate()) + LIMITS + getattr(request, "param", "")
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config) as process:
        yield process


@pytest.fixture
def context(authority: Authority) -> ssl.SSLContext:
    return ClientTls(authority=authority).ssl_context()


def shakes_hands(proxy: ProxyProcess, context: ssl.SSLContext) -> bool:
    """Return whether the proxy does a handshake in its time."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=5 * TIMEOUT_S) as sock,
        context.wrap_socket(sock, server_hostname="localhost"),
    ):
        return True
    return False


def probe_s(proxy: ProxyProcess) -> float:
    """Return the seconds that an answer of the admin server takes."""
    began_s = time.monotonic()
    assert proxy.get("/livez")[0] == 200
    return time.monotonic() - began_s


def storm(proxy: ProxyProcess, data: bytes) -> None:
    """Open many connections that send ``data``, and assert that the admin server answers meanwhile."""
    times_s = []
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            for _ in range(50):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=20))
                sock.sendall(data)
            times_s.append(probe_s(proxy))
    assert sorted(times_s)[-1 - STALLS] < SLOWEST_S


def open_many(proxy: ProxyProcess, stack: contextlib.ExitStack, data: bytes) -> list[socket.socket]:
    found = []
    for _ in range(CLIENTS):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), timeout=20))
        sock.sendall(data)
        found.append(sock)
    return found


@impatient
@pytest.mark.parametrize(
    "sent",
    [
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("nothing", "a byte")),
        "a part of the first record",
    ],
)
def test_clients_that_send_no_whole_record_take_no_place(
    proxy: ProxyProcess, context: ssl.SSLContext, sent: str
) -> None:
    """They cost nothing but their connection, and are closed when the time for a handshake is over."""
    data = {"nothing": b"", "a byte": b"\x16", "a part of the first record": client_hello(context)[:100]}[sent]
    before = psutil.Process(proxy.pid).memory_info().rss
    with contextlib.ExitStack() as stack:
        socks = open_many(proxy, stack, data)
        wait_until(lambda: shakes_hands(proxy, context), "20 after 20 of them would take 40 s", 5 * TIMEOUT_S)
        assert psutil.Process(proxy.pid).memory_info().rss - before < MEMORY
        wait_until(lambda: all(map(is_closed, socks)), "all are closed")
    assert proxy.metric("headrace_connections") == 0
    assert series(proxy, 'headrace_tls_handshakes_total{result="failed"}') >= CLIENTS


@impatient
def test_clients_that_go_silent_after_their_hello_make_room_for_others(
    proxy: ProxyProcess, context: ssl.SSLContext
) -> None:
    with contextlib.ExitStack() as stack:
        began_s = time.monotonic()
        socks = open_many(proxy, stack, client_hello(context))
        wait_until(lambda: sum(map(is_closed, socks)) >= CLIENTS - MOST, "all but the newest are closed")
        assert time.monotonic() - began_s < 10 * TIMEOUT_S
        wait_until(lambda: shakes_hands(proxy, context), "there is room")
        proxy.wait_for_log(f"limits.max_tls_handshakes = {MOST} is reached")
    wait_until(lambda: proxy.metric("headrace_connections") == 0, "nothing is left")


def test_a_client_with_an_ipv6_address(authority: Authority, context: ssl.SSLContext) -> None:
    tls = listen_tls(authority.broker_certificate()).replace("[listen.", "[listeners.six.")
    with reserve_ports(2) as block, FakeBroker({}) as broker:
        address = f'address = "[::1]:{block.first}"\nnode_ids = "0"\n'
        with (
            ProxyProcess(broker.address, config=f"[listeners.six]\n{address}{tls}") as proxy,
            socket.create_connection(("::1", block.first), timeout=20) as sock,
            context.wrap_socket(sock, server_hostname="localhost"),
        ):
            wait_until(lambda: series(proxy, 'headrace_tls_handshakes_total{result="full"}') == 1, "it is counted")


def test_a_storm_of_handshakes_leaves_time_for_others(proxy: ProxyProcess, context: ssl.SSLContext) -> None:
    """While handshakes are done one after the other, the admin server of the same event loop answers."""
    storm(proxy, client_hello(context))
    wait_until(lambda: shakes_hands(proxy, context), "there is room")


@pytest.mark.exhaustive
def test_a_storm_of_handshakes_with_brokers_leaves_time_for_others(authority: Authority) -> None:
    """Each client sends a small request before any login, and makes the proxy connect to a broker with TLS."""
    data = messages.request(messages.API_VERSIONS, 0, 1)
    upstream = f'[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\n'
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.broker_certificate().keystore_file)
    with FakeBroker({}, context=context) as broker, ProxyProcess(broker.address, config=upstream + LIMITS) as proxy:
        storm(proxy, data)
        with RawClient(proxy.port, source="127.0.0.2") as client:
            assert client.call(messages.API_VERSIONS, 0)


def test_invalid_host_names_fill_no_log(proxy: ProxyProcess, context: ssl.SSLContext) -> None:
    """Python would write a traceback for each, with the name."""
    data = client_hello(context).replace(b"localhost", b"local\xffost")
    with contextlib.ExitStack() as stack:
        socks = open_many(proxy, stack, data)
        wait_until(lambda: all(map(is_closed, socks)), "all are refused")
    proxy.wait_for_log("asked for a host name that this listener does not have")
    assert "Traceback" not in proxy.log
    assert len(proxy.log) < 10_000


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")


class OpenSsl:
    """OpenSSL's own client, which can do what Python's cannot."""

    def __init__(self, authority: Authority, proxy: ProxyProcess) -> None:
        address = f"127.0.0.1:{proxy.port}"
        self._command = ["openssl", "s_client", "-connect", address, "-CAfile", str(authority.ca_file)]

    def __call__(self, *arguments: str, stdin: bytes = b"", after: Callable[[], bool] = lambda: True) -> bytes:
        """Return what the client prints; ``stdin`` is written once ``after`` is true."""
        with subprocess.Popen(
            [*self._command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as client:
            wait_until(after, "the time to write")
            return client.communicate(stdin, timeout=60)[0]


@needs_openssl
def test_renegotiation_is_refused(authority: Authority, proxy: ProxyProcess) -> None:
    printed = OpenSsl(authority, proxy)("-tls1_2", stdin=b"R\n")
    assert b"Verify return code: 0" in printed
    assert b"RENEGOTIATING" in printed
    assert b"no renegotiation" in printed


@needs_openssl
def test_early_data_is_not_offered(authority: Authority, proxy: ProxyProcess) -> None:
    def has_ticket() -> bool:
        return series(proxy, 'headrace_tls_handshakes_total{result="full"}') == 1

    printed = OpenSsl(authority, proxy)("-tls1_3", stdin=b"Q\n", after=has_ticket)
    assert b"Max Early Data: 0" in printed


def with_early_data(session: Path) -> None:
    """Change a session of OpenSSL's client so that it sends up to 1 MiB of early data, which is not offered."""
    der = ssl.PEM_cert_to_DER_cert(session.read_text("ascii").replace("SSL SESSION PARAMETERS", "CERTIFICATE"))
    header, fields, last = der[:4], der[4:-5], der[-5:]
    assert header[:2] == b"\x30\x82", "a sequence with a length of two bytes"
    assert last[:1] == b"\xb3", "flags of the master secret, which follow the greatest size of early data"
    fields += b"\xaf\x05\x02\x03\x10\x00\x00" + last
    changed = b"\x30\x82" + len(fields).to_bytes(2) + fields
    text = ssl.DER_cert_to_PEM_cert(changed).replace("CERTIFICATE", "SSL SESSION PARAMETERS")
    session.write_text(text, "ascii")


TOO_MUCH = ("too much early data", "a record of the client was changed on its way")
"""What is logged for more early data than is passed over: by OpenSSL, and by rustls, which no longer passes it over."""


@needs_openssl
@pytest.mark.parametrize("size", [100, 100_000])
def test_early_data_is_refused(authority: Authority, tmp_path: Path, size: int) -> None:
    """A client sends it all the same. No byte of it is taken for a request, and too much of it ends the connection."""
    session, early = tmp_path / "session", tmp_path / "early"
    early.write_bytes(messages.request(messages.API_VERSIONS, 0, 7, bytes(size)))
    with (
        FakeBroker({}) as broker,
        ProxyProcess(broker.address, config=listen_tls(authority.broker_certificate())) as proxy,
    ):
        client = OpenSsl(authority, proxy)

        def handshakes(result: str) -> float:
            return series(proxy, f'headrace_tls_handshakes_total{{result="{result}"}}')

        client("-tls1_3", "-sess_out", str(session), stdin=b"Q\n", after=lambda: handshakes("full") == 1)
        with_early_data(session)
        result = "resumed" if size < 16_384 else "failed"
        printed = client(
            *("-tls1_3", "-sess_in", str(session), "-early_data", str(early)),
            stdin=b"Q\n",
            after=lambda: handshakes(result) == 1,
        )
        assert b"Early data was rejected" in printed
        assert any(f"client: TLS: {reason}" in proxy.log for reason in TOO_MUCH) == (result == "failed")
        wait_until(lambda: proxy.metric("headrace_connections") == 0, "the connection has ended")
        assert handshakes("full") + handshakes("resumed") + handshakes("failed") == 2
        assert proxy.metric("headrace_requests_total") == 0


@needs_openssl
def test_what_is_old_or_weak_is_refused(authority: Authority, proxy: ProxyProcess) -> None:
    client = OpenSsl(authority, proxy)
    for version in ("-tls1", "-tls1_1"):
        assert b"Cipher is (NONE)" in client(version, "-cipher", "ALL:@SECLEVEL=0")
    assert b"inappropriate fallback" in client("-tls1_2", "-fallback_scsv"), "the proxy has a newer version"
    assert b"Cipher is (NONE)" in client("-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0")
    assert b"Cipher is (NONE)" in client("-tls1_2", "-cipher", "AES128-GCM-SHA256"), "no forward secrecy"
    printed = client("-tls1_2")
    assert b"Compression: NONE" in printed
    assert b"Cipher is ECDHE-" in printed


@needs_openssl
def test_a_flood_of_requests_for_new_keys_leaves_time_for_others(authority: Authority, proxy: ProxyProcess) -> None:
    """The attacker answers nothing, and the proxy's answers fill its buffers."""
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{proxy.port}", "-CAfile", str(authority.ca_file), "-tls1_3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert client.stdin is not None
    try:
        times_s = []
        for _ in range(200):
            with contextlib.suppress(BrokenPipeError):  # once the proxy has closed the connection
                client.stdin.write(b"K\n")
                client.stdin.flush()
            times_s.append(probe_s(proxy))
        assert sorted(times_s)[-1 - STALLS] < SLOWEST_S
        proxy.wait_for_log("TLS: too many records without data, such as changes of keys")
    finally:
        client.kill()
        client.wait()
        with contextlib.suppress(BrokenPipeError):
            client.stdin.close()
