"""Records that no client sends: what they cost the others, and what they make the proxy keep."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.errors import ClientFault, ClientGone
from headrace.proxy.long_work import collector_off
from headrace.proxy.network.held_bytes import held
from headrace.proxy.network.tls.tls_socket import BUFFER_BYTES, NoTurn
from testbed.kafka.certificates import Authority, ClientTls
from tests.proxy.network.tls.pairs import DEADLINE_S, kind, listening
from tests.security.tls.tls_records import ALERT, DATA, USER_CANCELED, RecordClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.proxy.network.tls.pairs import EitherSocket

of_clients = pytest.mark.parametrize("libraries", ["", "server"], ids=["openssl", "rustls"], indirect=True)

LONGEST_READ_S = 0.03
"""Processor time. A read takes some 3 ms of it; the same bytes without a bound on records took 60 to 100."""


@contextmanager
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # a burst arrives as a whole
        yield server


async def connect(server: socket.socket, folder: Path) -> tuple[RecordClient, EitherSocket]:
    """Return the two ends of a connection after the handshake."""
    authority = Authority(folder)
    context, found = ClientTls(authority=authority).ssl_context(), []
    port = server.getsockname()[1]
    settings = listening(authority.broker_certificate())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, lambda: found.append(RecordClient(port, context, folder)))
        accepted, _ = await trio.to_thread.run_sync(server.accept)
        sock = kind("server")(accepted, ClientGone)
        await sock.receive_hello("listen.tls")
        sock.start(settings, server_side=True)
        await sock.handshake(NoTurn)
    return found[0], sock


def key_updates(client: RecordClient) -> bytes:
    return b"".join(client.key_update() for _ in range(2000))


def key_updates_for_both(client: RecordClient) -> bytes:
    return b"".join(client.key_update(for_both=True) for _ in range(2000))


def key_updates_between_data(client: RecordClient) -> bytes:
    """As few data as the limit on bytes permits."""
    return b"".join(client.key_update() + client.record(DATA, bytes(18)) for _ in range(800))


def empty_records(client: RecordClient) -> bytes:
    return b"".join(client.record(DATA, b"") for _ in range(2000))


def alerts(client: RecordClient) -> bytes:
    return b"".join(client.record(ALERT, USER_CANCELED) for _ in range(2000))


def single_bytes(client: RecordClient) -> bytes:
    return b"".join(client.record(DATA, b"x") for _ in range(2000))


def padding(client: RecordClient) -> bytes:
    return b"".join(client.record(DATA, b"x", padding=16_000) for _ in range(4))


@of_clients
@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("burst", "reason"),
    [
        (key_updates, "too many records without data"),
        (key_updates_for_both, "too many records without data"),
        (key_updates_between_data, "too many records without data"),
        (single_bytes, "too many records without data"),
        (padding, "too many records without data"),
        (empty_records, "record too small"),  # OpenSSL permits 32
        (alerts, "too many (warn alerts|records without data)"),  # OpenSSL permits 4
    ],
)
async def test_a_burst_delays_others_by_little(
    tmp_path: Path, burst: Callable[[RecordClient], bytes], reason: str
) -> None:
    longest_s = await longest_read_s(tmp_path, burst, reason)
    if longest_s >= LONGEST_READ_S:  # it may include time for which a hypervisor took the processor
        longest_s = await longest_read_s(tmp_path, burst, reason)
    assert longest_s < LONGEST_READ_S


async def longest_read_s(folder: Path, burst: Callable[[RecordClient], bytes], reason: str) -> float:
    """Return the processor time of the longest read of a burst, until it is refused for that reason."""
    with listener() as server, trio.fail_after(DEADLINE_S):
        client, sock = await connect(server, folder)
        with client:
            await trio.to_thread.run_sync(client.send, burst(client))
            reads: list[float] = []
            # A collection of all objects that other tests have left would count as a part of the read.
            with collector_off(), pytest.raises(ClientFault, match=reason):
                await read_for_ever(sock, reads)
            sock.close()
            return max(reads)


async def read_for_ever(sock: EitherSocket, reads: list[float]) -> None:
    """Add the processor time of each read to ``reads``."""
    view = memoryview(bytearray(65536))
    while True:
        await sock.readable()
        began_s = time.thread_time()
        try:
            sock.receive_into(view)
        finally:
            reads.append(time.thread_time() - began_s)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("libraries", ["server"], ids=["rustls"], indirect=True)
async def test_a_burst_behind_requests_delays_a_reply_by_little(tmp_path: Path) -> None:
    """A read ends after 64 records with data; what is behind them is decrypted when the proxy next sends."""
    with listener() as server, trio.fail_after(DEADLINE_S):
        client, sock = await connect(server, tmp_path)
        with client:
            requests = b"".join(client.record(DATA, b"request") for _ in range(64))
            await trio.to_thread.run_sync(client.send, requests + key_updates(client))
            await sock.readable()
            sock.receive_into(memoryview(bytearray(65536)))
            assert sock.undecrypted_bytes > 10_000

            def reply() -> None:
                for _ in range(10):
                    sock.send_now([b"reply"])

            began_s = time.thread_time()
            with pytest.raises(ClientFault, match="too many records without data"):
                reply()
            assert time.thread_time() - began_s < LONGEST_READ_S
            sock.close()


@of_clients
@pytest.mark.usefixtures("libraries")
async def test_honest_changes_of_keys_are_no_burst(tmp_path: Path) -> None:
    """One for each MiB, which is some thousand times more than any client sends."""
    with listener() as server, trio.fail_after(DEADLINE_S):
        client, sock = await connect(server, tmp_path)
        megabyte = bytes(16_384)

        def write() -> None:
            for _ in range(20):
                client.send(client.key_update() + b"".join(client.record(DATA, megabyte) for _ in range(64)))

        found, view = 0, memoryview(bytearray(65536))
        with client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, write)
                while found < 20 * 2**20:
                    await sock.readable()
                    found += sock.receive_into(view) or 0
            sock.close()


async def test_many_short_requests_are_read_in_turns(tmp_path: Path) -> None:
    """All bytes arrive, although a read ends before it has decrypted everything; what waits is counted."""
    before = held.count
    with listener() as server, trio.fail_after(DEADLINE_S):
        client, sock = await connect(server, tmp_path)
        data = b"".join(bytes([number % 251]) * 30 for number in range(5000))
        with client:
            sender = b"".join(client.record(DATA, data[at : at + 30]) for at in range(0, len(data), 30))
            found, waited = bytearray(), 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, client.send, sender)
                view = memoryview(bytearray(65536))
                while len(found) < len(data):
                    await sock.readable()
                    count = sock.receive_into(view)
                    found += view[: count or 0]
                    waited = max(waited, sock.undecrypted_bytes)
                    assert held.count - before == sock.undecrypted_bytes
            assert bytes(found) == data
            assert waited > 0
            sock.close()
    assert held.count == before


async def test_a_part_of_a_record_counts_as_held(tmp_path: Path) -> None:
    before = held.count
    with listener() as server, trio.fail_after(DEADLINE_S):
        client, sock = await connect(server, tmp_path)
        with client:
            record = client.record(DATA, b"a request")
            view = memoryview(bytearray(100))
            for at in range(len(record) - 1):
                client.send(record[at : at + 1])
                await sock.readable()
                assert sock.receive_into(view) is None
                assert held.count - before == sock.undecrypted_bytes == BUFFER_BYTES
            client.send(record[-1:])
            await sock.readable()
            assert sock.receive_into(view) == 9
            assert held.count - before == sock.undecrypted_bytes == 0
            client.send(client.record(DATA, b"another one")[:7])
            await sock.readable()
            assert sock.receive_into(view) is None
            sock.close()
    assert held.count == before, "closing frees it"
