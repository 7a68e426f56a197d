"""TLS of the kernel with brokers. Where the kernel or OpenSSL lacks it, tests that need it are skipped with the reason;
the others show what happens then."""

from __future__ import annotations

import errno
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from structlog.testing import capture_logs

from headrace.config.tables.tls import TlsVersion, UpstreamTls
from headrace.proxy.errors import ClientGone, ConnectionFault, UpstreamFault
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.kernel import support
from headrace.proxy.network.tls.kernel.sockets import MOST_TICKETS, KernelTlsSocket
from headrace.proxy.network.tls.kernel.support import ENABLE_KTLS, TLS_1_3_IN_KERNEL, has_kernel_tls, kernel_tls_problem
from headrace.proxy.network.tls.tls_socket import NoTurn, TlsSocket
from headrace.proxy.network.topology import Topology
from headrace.proxy.network.upstream import Upstream
from headrace.quota_callbacks.requests import Address
from tests.proxy.network.tls.pairs import DEADLINE_S, connecting, listening, read, tcp_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.proxy.network.sockets import PlainSocket
    from headrace.proxy.network.tls.contexts import TlsContext
    from testbed.kafka.certificates import Authority, Certificate

PROBLEM = kernel_tls_problem(TlsVersion.TLS_1_2)

MESSAGE = bytes(range(256)) * 2048
"""512 KiB: some 33 records, and more than a read returns."""


@pytest.fixture(scope="module")
def problem(broker: Certificate) -> str | None:
    """Why there is no kernel TLS here, as Python's own sockets show it."""
    if PROBLEM is not None:
        return PROBLEM
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options |= ENABLE_KTLS
    ours, theirs = tcp_pair()
    server = partial(listening(broker).current.wrap_socket, theirs, server_side=True)
    with ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(server)
        with client.wrap_socket(ours) as tls, accepting.result():
            try:
                tls.getsockopt(282, 1, 4), tls.getsockopt(282, 2, 4)
            except OSError:
                return f"{ssl.OPENSSL_VERSION} does not give the kernel the keys, or the kernel lacks the cipher"
    return None


@pytest.fixture
def kernel_tls(problem: str | None) -> None:
    if problem is not None:
        pytest.skip(f"no kernel TLS: {problem}")


@asynccontextmanager
async def connected(authority: Authority, broker: Certificate, **settings: object) -> AsyncIterator[Any]:
    """A connection of the proxy by kernel TLS, and the broker's end of it."""
    poller = Poller()
    ours, theirs = tcp_pair()
    server = listening(broker)
    with trio.fail_after(DEADLINE_S), poller.attach():
        sock, peer = KernelTlsSocket(ours, UpstreamFault, poller), TlsSocket(theirs, ClientGone, poller)
        try:
            sock.start(connecting(authority, **settings), server_side=False, server_hostname="localhost")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, peer, server)
                await sock.handshake(NoTurn)
            yield sock, peer
        finally:
            sock.close()
            peer.close()


async def serve(peer: TlsSocket, server: TlsContext) -> None:
    await peer.receive_hello(server.setting)
    peer.start(server, server_side=True)
    await peer.handshake(NoTurn)


async def received(sock: PlainSocket) -> int:
    """Read until data, the end or a fault."""
    while True:
        await sock.readable()
        count = sock.receive_into(memoryview(bytearray(65536)))
        if count is not None:
            return count


# --- what is reported ---


def test_the_report_agrees_with_the_system() -> None:
    offered = "tls" in Path("/proc/sys/net/ipv4/tcp_available_ulp").read_text(encoding="ascii").split()
    assert offered == (PROBLEM is None)


@pytest.mark.parametrize(("enabled", "kernel", "found"), [(1, 1, None), (1, 1, "none"), (1, 0, None), (0, 1, None)])
def test_connections_that_have_it(
    monkeypatch: pytest.MonkeyPatch, *, enabled: bool, kernel: bool, found: str | None
) -> None:
    monkeypatch.setattr(support, "_problem_of_system", lambda: found)
    tls = UpstreamTls(enabled=bool(enabled), kernel=bool(kernel))
    assert has_kernel_tls(tls) == (enabled and kernel and found is None)


@pytest.mark.parametrize("supported", [False, True])
def test_tls_1_3_needs_a_newer_openssl(monkeypatch: pytest.MonkeyPatch, *, supported: bool) -> None:
    monkeypatch.setattr(support, "_problem_of_system", lambda: None)
    monkeypatch.setattr(support, "TLS_1_3_IN_KERNEL", supported)
    assert kernel_tls_problem(TlsVersion.TLS_1_2) is None
    assert kernel_tls_problem(TlsVersion.TLS_1_3) == (None if supported else "with TLS 1.3 it needs OpenSSL 3.2")


# --- without it ---


@pytest.mark.parametrize("lowest", ["1.2", "1.3"])
async def test_the_proxy_connects_again_without_it(
    authority: Authority, broker: Certificate, problem: str | None, lowest: str
) -> None:
    """The second connection has TLS in the process, and all TLS versions; later ones do not try the kernel."""
    poller = Poller()
    server = listening(broker, min_version=lowest)
    accepted = 0
    used: list[PlainSocket] = []
    with trio.fail_after(DEADLINE_S), poller.attach(), capture_logs() as logged:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        address = Address(host="127.0.0.1", port=port)

        async def answer(stream: trio.SocketStream) -> None:
            nonlocal accepted
            accepted += 1
            peer = TlsSocket(socket.socket(fileno=stream.socket.detach()), ClientGone, poller)
            try:
                await serve(peer, server)
                peer.send_now([b"hello"])
                await received(peer)
            except ConnectionFault:
                pass
            finally:
                peer.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, answer, [listener]))
            upstream = Upstream(
                bootstrap_servers=[address],
                topology=Topology(advertised_host="proxy", advertised_port=9192, node_ids=range(3)),
                connect_timeout_s=DEADLINE_S,
                poller=poller,
                tls=connecting(authority),
                kernel_tls=True,
            )
            for _ in range(2):
                sock, _ = await upstream.dial(None)
                used.append(sock)
                assert await received(sock) == 5
                sock.close()
            nursery.cancel_scope.cancel()
    in_kernel = problem is None and (lowest == "1.2" or TLS_1_3_IN_KERNEL)
    assert [type(each) for each in used] == [KernelTlsSocket if in_kernel else TlsSocket] * 2
    assert accepted == (2 if in_kernel else 3)
    assert [each["event"] for each in logged] == ([] if in_kernel else ["kernel TLS is not used"])
    if not in_kernel and (lowest == "1.2" or TLS_1_3_IN_KERNEL):
        assert logged[0]["reason"].startswith("the kernel has not got the keys of both directions, with TLSv1.")
    elif not in_kernel:
        assert logged[0]["reason"] == "TLS: the broker does not support the proxy's versions of TLS"


# --- records without data, as the kernel returns them ---


class NoData(socket.socket):
    """A socket whose next records have no data: this type and content."""

    record = (0, b"")

    def recv_into(self, *_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def recvmsg(self, *_: object) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        kind, content = self.record
        return content, [(282, 2, bytes([kind]))], 0, None


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        (22, b"\x04\x00\x00\x00", None),
        (21, b"\x01\x00", 0),
        (21, b"\x02\x28", "TLS: the broker sent the alert 40"),
        (22, b"\x18\x00\x00\x01\x01", "changes its keys.* set upstream.tls.kernel = false"),
        (22, b"\x00\x00\x00\x00", "wants to negotiate again"),
    ],
    ids=["ticket", "end", "alert", "KeyUpdate", "HelloRequest"],
)
def test_records_without_data(kind: int, content: bytes, expected: int | str | None) -> None:
    with NoData() as no_data:
        no_data.record = (kind, content)
        sock = KernelTlsSocket(no_data, UpstreamFault)
        sock._setting = "upstream.tls"
        view = memoryview(bytearray(16))
        if isinstance(expected, str):
            with pytest.raises(UpstreamFault, match=expected):
                sock.receive_into(view)
            return
        assert sock.receive_into(view) == expected
        assert sock.may_read
        if expected is None:
            for _ in range(MOST_TICKETS - 1):
                assert sock.receive_into(view) is None
            with pytest.raises(UpstreamFault, match="TLS"):
                sock.receive_into(view)
        else:
            assert sock.receive_into(view) == 0, "nothing follows the end"


# --- with it ---


@pytest.mark.usefixtures("kernel_tls")
@pytest.mark.parametrize("ciphers", ["ECDHE+AESGCM", "ECDHE+CHACHA20"])
async def test_data_and_the_end_in_both_directions(authority: Authority, broker: Certificate, ciphers: str) -> None:
    async with connected(authority, broker, ciphers=ciphers) as (sock, peer):
        for source, target in ((sock, peer), (peer, sock)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(source.send, [MESSAGE])
                assert await read(target, len(MESSAGE)) == MESSAGE
        peer.send_now([b"last"])
        peer.close()
        assert await read(sock, 4) == b"last"
        assert await received(sock) == 0


@pytest.mark.usefixtures("kernel_tls")
async def test_the_broker_gets_the_end_of_tls(authority: Authority, broker: Certificate) -> None:
    async with connected(authority, broker) as (sock, peer):
        sock.send_now([b"last"])
        sock.close()
        assert await read(peer, 4) == b"last"
        assert await received(peer) == 0
        assert peer.tls.session is not None


@pytest.mark.usefixtures("kernel_tls")
async def test_a_record_that_was_changed(authority: Authority, broker: Certificate) -> None:
    async with connected(authority, broker) as (sock, peer):
        peer._socket.send(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(UpstreamFault, match="a record of the broker was changed on its way"):
            await received(sock)


@pytest.mark.usefixtures("kernel_tls")
async def test_sessions_are_resumed(authority: Authority, broker: Certificate) -> None:
    """With TLS 1.2; tickets of TLS 1.3 arrive when OpenSSL does not read any more."""
    poller, client, server = Poller(), connecting(authority), listening(broker)
    server.current.maximum_version = ssl.TLSVersion.TLSv1_2
    kept: list[object] = []
    resumed = []
    with trio.fail_after(DEADLINE_S), poller.attach():
        for _ in range(2):
            ours, theirs = tcp_pair()
            sock, peer = KernelTlsSocket(ours, UpstreamFault, poller), TlsSocket(theirs, ClientGone, poller)
            session = kept[-1] if kept else None
            sock.start(client, server_side=False, server_hostname="localhost", session=session)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, peer, server)
                await sock.handshake(NoTurn)
            resumed.append(sock.is_resumed)
            sock.keep_session = kept.append
            sock.close()
            peer.close()
    assert resumed == [False, True]
