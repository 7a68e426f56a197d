"""Large requests and replies through small buffers of sockets, with TLS on either side, on both, and on none."""

from __future__ import annotations

import ssl
import struct
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.data_plane.native import EXTENSION, is_installed
from testbed.kafka.certificates import Authority, ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.raw_client import RawClient, speaking_tls
from tests.faults.waiting import wait_until, wait_until_steady

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.faults.fake_broker import Asked, Conversation

SMALL_BYTES: Final = 4 * 1024
"""Size of the buffers of the client's and the broker's sockets: less than a record of TLS."""
LARGER_BYTES: Final = 64 * 1024
"""The size of several records."""
SIZES: Final = (64 * 1024, 300_000, 1024 * 1024)
MIB: Final = 2**20
MANY: Final = 20
MAX_HELD_BYTES: Final = 256 * 1024
"""One read for each direction, the rest of a record, and what TLS adds."""
MAX_GROWTH_BYTES: Final = 6 * MIB
BLOCKED_S: Final = 1.0
MAX_CPU_S: Final = 0.2
"""Processor time while nothing can be moved for `BLOCKED_S`."""


class Broker:
    """Keeps what it receives, and answers with random bytes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.sizes: list[int] = []
        """The sizes of the next replies."""
        self.received: list[bytes] = []
        self.replied: list[bytes] = []
        self.sent = 0
        """Number of bytes of replies that the socket has accepted."""
        self.may_read = threading.Event()
        self.may_read.set()

    def converse(self, conversation: Conversation, asked: Asked) -> None:
        while True:
            self.received.append(asked.body)
            self._send(conversation, asked)
            self.may_read.wait()
            asked = conversation.next()

    def _send(self, conversation: Conversation, asked: Asked) -> None:
        body = struct.pack(">ii", 0, 0)  # of a Produce: no topics, no throttle time
        if asked.api_key == messages.FETCH:
            body = struct.pack(">i", 0) + self._rng.randbytes(self.sizes.pop(0))
        self.replied.append(body)
        data = messages.frame(struct.pack(">i", asked.correlation_id) + body)
        for at in range(0, len(data), 16_384):
            conversation.send(data[at : at + 16_384])
            self.sent += len(data[at : at + 16_384])


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A client, the proxy and a broker, whose sockets have small buffers."""

    client: RawClient
    proxy: ProxyProcess
    broker: Broker


@contextmanager
def path(
    authority: Authority, rng: random.Random, *, buffer_bytes: int, client_tls: bool, broker_tls: bool, native: bool
) -> Iterator[Path]:
    certificate = authority.broker_certificate()
    config, context = "", None
    if client_tls:
        config += listen_tls(certificate)
    if broker_tls:
        config += f'[upstream.tls]\nenabled = true\nca_file = "{authority.ca_file}"\n'
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.keystore_file)
    broker = Broker(rng)
    with ExitStack() as stack:
        fake = stack.enter_context(FakeBroker({"raw": broker.converse}, buffer_bytes=buffer_bytes, context=context))
        arguments = ("--data-plane", "native") if native else ()
        proxy = stack.enter_context(ProxyProcess(fake.address, config=config, arguments=arguments))
        wait_until(lambda: "brokers changed" in proxy.log, "the proxy knows that brokers serve anybody")
        if client_tls:
            stack.enter_context(speaking_tls(proxy.port, ClientTls(authority=authority).ssl_context()))
        client = stack.enter_context(RawClient(proxy.port, timeout_s=60, buffer_bytes=buffer_bytes))
        yield Path(client=client, proxy=proxy, broker=broker)
        broker.may_read.set()


def produce(rng: random.Random, size: int) -> bytes:
    return messages.produce_body("topic", messages.batch(rng.randbytes(size)))


def read_slowly(client: RawClient, rng: random.Random) -> bytes:
    """Read a reply in small pieces; return its body."""
    left = int.from_bytes(client.receive(4), "big")
    found = bytearray()
    while left:
        piece = client.receive(min(left, rng.randrange(1, 50_000)))
        found += piece
        left -= len(piece)
    return bytes(found[4:])


def assert_backpressure(found: Path, before_bytes: int) -> None:
    """While neither side can go on, the proxy takes a bounded memory and no processor time."""
    assert found.proxy.metric("headrace_held_bytes") <= MAX_HELD_BYTES
    assert found.proxy.resident_bytes - before_bytes < MAX_GROWTH_BYTES

    def rests() -> bool:
        cpu_s = found.proxy.cpu_s
        time.sleep(BLOCKED_S)
        return found.proxy.cpu_s - cpu_s < MAX_CPU_S

    wait_until(rests, "the proxy takes no processor time once all buffers are full")


PROTOCOLS: Final = ("plaintext", "TLS")
PLANES: Final = ("python", "native")
CASES: Final = [
    pytest.param(
        buffer_bytes,
        client_tls,
        broker_tls,
        native,
        marks=[
            pytest.mark.skipif(native and not is_installed(), reason=f"{EXTENSION} is not built"),
        ],
        id=f"{buffer_bytes} bytes, clients {PROTOCOLS[client_tls]}, brokers {PROTOCOLS[broker_tls]}, {PLANES[native]}",
    )
    for buffer_bytes in (SMALL_BYTES, LARGER_BYTES)
    for client_tls in (False, True)
    for broker_tls in (False, True)
    for native in (False, True)
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("buffer_bytes", "client_tls", "broker_tls", "native"), CASES)
def test_small_buffers(
    authority: Authority, rng: random.Random, *, buffer_bytes: int, client_tls: bool, broker_tls: bool, native: bool
) -> None:
    sides = {"client_tls": client_tls, "broker_tls": broker_tls}
    with path(authority, rng, buffer_bytes=buffer_bytes, native=native, **sides) as found:
        client, broker = found.client, found.broker
        for size in SIZES:
            body = produce(rng, size)
            client.request(messages.PRODUCE, messages.PRODUCE_VERSION, body)
            assert read_slowly(client, rng) == broker.replied[-1]
            assert broker.received[-1] == body
            broker.sizes.append(size)
            client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body("topic"))
            assert read_slowly(client, rng) == broker.replied[-1]
            assert len(broker.replied[-1]) == size + 4
        if native:
            assert found.proxy.metric("headrace_native_connections") == 1
        replies_wait(found, rng)
        requests_wait(found, rng)
        wait_until(lambda: found.proxy.metric("headrace_held_bytes") == 0, "nothing is held")


def replies_wait(found: Path, rng: random.Random) -> None:
    """The client does not read replies of 20 MiB, of which the kernel may keep all (net.ipv4.tcp_rmem)."""
    client, broker, before_bytes = found.client, found.broker, found.proxy.resident_bytes
    first = len(broker.replied)
    broker.sizes = [MIB] * MANY
    for _ in range(MANY):
        client.request(messages.FETCH, messages.FETCH_VERSION, messages.fetch_body("topic"))
    wait_until_steady(lambda: broker.sent, "nothing more is accepted", steady_s=1.0, timeout_s=60)
    assert_backpressure(found, before_bytes)
    for number in range(MANY):
        assert read_slowly(client, rng) == broker.replied[first + number]


def requests_wait(found: Path, rng: random.Random) -> None:
    """The broker does not read requests of 20 MiB."""
    client, broker, before_bytes = found.client, found.broker, found.proxy.resident_bytes
    first, body = len(broker.received), produce(rng, MIB)
    broker.may_read.clear()

    def send() -> None:
        for _ in range(MANY):
            client.request(messages.PRODUCE, messages.PRODUCE_VERSION, body)

    sending = threading.Thread(target=send)
    sending.start()
    wait_until_steady(lambda: client.bytes_sent, "nothing more is accepted", steady_s=1.0, timeout_s=60)
    assert_backpressure(found, before_bytes)
    broker.may_read.set()
    sending.join()  # one thread at a time may use a TLS socket of Python
    for _ in range(MANY):
        read_slowly(client, rng)
    assert broker.received[first:] == [body] * MANY
