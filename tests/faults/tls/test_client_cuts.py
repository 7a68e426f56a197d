"""Faults of a client in its TLS handshake, and in its first and last request, at every byte that it sends.

The first request is relayed by the event loop, and the last one by the native data plane, where it is installed.

The proxy ends the connection in time, forwards no part of a request, and answers no request of another connection;
nothing is left over, and the next connection works.
"""

from __future__ import annotations

import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from headrace.proxy.connection.native.relay import FIRST_AFTER
from headrace.proxy.data_plane.native import is_installed
from testbed.kafka.certificates import Authority, ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import FakeBroker
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events
from tests.faults.raw_client import speaking_tls
from tests.faults.tls.faulty_connection import Fault, FaultDone, FaultyConnection, Kind, every
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from tests.faults.fake_broker import Asked, Conversation

CLIENT_ID: Final = "cut"
TIMEOUT_S: Final = 30
CONFIG: Final = """
[limits]
tls_handshake_timeout = "5s"
request_timeout = "2s"
idle_timeout = "6s"
max_connection_rate = 0
max_connection_rate_per_ip = 0
max_connections_per_ip = 0
[log]
level = "debug"
"""
REQUESTS: Final = FIRST_AFTER + 2
"""Number of requests of a client, each after the reply to the one before: the last one is relayed natively."""
AT_A_TIME: Final = 40
QUICK: Final = 4
"""Offsets of each kind in the quick form."""
VERSIONS: Final = (pytest.param(ssl.TLSVersion.TLSv1_2, marks=pytest.mark.exhaustive), ssl.TLSVersion.TLSv1_3)


class Broker:
    """Notes the correlation id and the body of each request of the clients with faults, and answers it."""

    def __init__(self) -> None:
        self.received: list[tuple[int, bytes]] = []

    def converse(self, conversation: Conversation, asked: Asked) -> None:
        while True:
            self.received.append((asked.correlation_id, asked.body))
            conversation.reply(asked, reply_of(asked.correlation_id))
            asked = conversation.next()


class Client(FaultyConnection):
    """Sends `REQUESTS`, of which it knows the replies: each number is a correlation id and the content."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, fault: Fault | None, numbers: range) -> None:
        super().__init__(sock, fault)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self._numbers = numbers
        self.ends: list[int] = []
        """The number of bytes sent until the end of each request."""

    def answered(self) -> range:
        """Return the numbers whose replies have come; if not all, the proxy must have ended the connection."""
        count = 0
        try:
            self.shake_hands()
            for number in self._numbers:
                self.send(messages.request(messages.HEARTBEAT, 1, number, body_of(number), CLIENT_ID))
                self.ends.append(self.sent)
                reply = self.receive_frame()
                assert reply == struct.pack(">i", number) + reply_of(number), "the reply of another request"
                count += 1
        except TimeoutError:
            raise
        except (FaultDone, EOFError, OSError):  # which errors of TLS are, too
            pass
        return self._numbers[:count]


def body_of(number: int) -> bytes:
    """Return the body of a Heartbeat: the number is that of the generation."""
    return messages.string("group") + struct.pack(">i", number) + messages.string("member")


def reply_of(number: int) -> bytes:
    """Return the body of the reply: no throttle time, and the number."""
    return struct.pack(">ii", 0, number)


class Scene:
    """A proxy with TLS in front of a broker, and clients with faults."""

    def __init__(self, proxy: ProxyProcess, broker: Broker, authority: Authority, *, is_native: bool) -> None:
        self.proxy = proxy
        self._is_native = is_native
        self._broker = broker
        self._authority = authority
        self._numbers = 0

    def context(self, version: ssl.TLSVersion) -> ssl.SSLContext:
        context = ClientTls(authority=self._authority).ssl_context()
        context.minimum_version = context.maximum_version = version
        return context

    def offsets(self, context: ssl.SSLContext) -> list[int]:
        """Return the offsets of the handshake and of the first and the last request in what a client sends."""
        with self._connected() as sock:
            client = Client(sock, context, None, self._new_numbers())
            assert len(client.answered()) == REQUESTS
            wait_until(lambda: self.proxy.metric("headrace_native_connections") == self._is_native, "it is native")
            return [*range(client.ends[0]), *range(client.ends[-2], client.ends[-1])]

    def _new_numbers(self) -> range:
        self._numbers += REQUESTS
        return range(self._numbers, self._numbers + REQUESTS)

    def _connected(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.proxy.port), timeout=TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _outcome(self, context: ssl.SSLContext, fault: Fault, numbers: range) -> range:
        with self._connected() as sock:
            return Client(sock, context, fault, numbers).answered()

    def run(self, context: ssl.SSLContext, faults: Sequence[Fault]) -> None:
        """Open a connection for each fault, and check that each ends, and that nothing is left over."""
        process, before = psutil.Process(self.proxy.pid), len(self._broker.received)
        idle = self._reasons().count("idle")
        numbers = [self._new_numbers() for _ in faults]
        with Bystander(self.proxy.port) as bystander, bystander.watching():
            descriptors = process.num_fds()
            with ThreadPoolExecutor(AT_A_TIME) as threads:
                answered = list(threads.map(partial(self._outcome, context), faults, numbers))
            wait_until(lambda: self.proxy.metric("headrace_connections") == 1, "only the bystander is left")
            wait_until(lambda: process.num_fds() <= descriptors, "no descriptor is left")
            assert self.proxy.metric("headrace_held_bytes") == 0
        complete = [fault for fault, each in zip(faults, answered, strict=True) if len(each) == REQUESTS]
        assert {fault.kind for fault in complete} <= {Kind.CHANGE}, "a request that was not complete was answered"
        received = self._broker.received[before:]
        expected = sorted(number for each in answered for number in each)
        assert sorted(number for number, _ in received) == expected, "the broker got what was not complete"
        assert all(body == body_of(number) for number, body in received), "what was changed was forwarded"
        stalls = [fault for fault in faults if fault.kind is Kind.STALL]
        assert self._reasons().count("idle") - idle <= min(len(stalls), 2), "only before the first and the last request"
        assert_no_traceback(self.proxy)
        others = {reason for reason in self._reasons() if not reason.startswith("client: ")}
        assert others <= {"idle"}

    def _reasons(self) -> list[str]:
        """Return why connections were closed, of those for which the log has a reason."""
        closed = [event["reason"] for event in events(self.proxy) if event["event"] == "connection closed"]
        return [reason for reason in closed if reason]


@pytest.fixture(scope="module", params=["auto", pytest.param("python", marks=pytest.mark.exhaustive)])
def scene(authority: Authority, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """With rustls, where the native data plane is installed, or with OpenSSL."""
    broker = Broker()
    config = f'data_plane = "{request.param}"\n' + listen_tls(authority.broker_certificate()) + CONFIG
    with (
        FakeBroker({CLIENT_ID: broker.converse}) as fake,
        ProxyProcess(fake.address, config=config, arguments=JSON_LOG) as proxy,
        speaking_tls(proxy.port, ClientTls(authority=authority).ssl_context()),
    ):
        wait_until(lambda: "brokers changed" in proxy.log, "the proxy knows that brokers serve anybody")
        yield Scene(proxy, broker, authority, is_native=request.param == "auto" and is_installed())


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_faults_at_some_bytes(scene: Scene, version: ssl.TLSVersion, rng: random.Random) -> None:
    context = scene.context(version)
    first, *others, last = scene.offsets(context)
    faults = [fault for kind in Kind for fault in every([kind], [first, last, *rng.sample(others, QUICK)])]
    rng.shuffle(faults)
    scene.run(context, faults)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_resets_at_every_byte_and_other_faults_at_every_other(
    scene: Scene, version: ssl.TLSVersion, rng: random.Random
) -> None:
    context = scene.context(version)
    offsets = scene.offsets(context)
    for kind in Kind:
        step = 1 if kind is Kind.RESET else 2
        scene.run(context, every([kind], offsets[rng.randrange(step) :: step]))
