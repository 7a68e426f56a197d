"""Protocol tests as readable scripts: a client, a broker and the proxy's connection between them, on a fake clock.

The sockets are in memory, with the methods of `headrace.proxy.network.sockets.PlainSocket`; everything else is the
proxy's own code. What needs the kernel (``splice``, ``TCP_INFO``) or a real broker is tested elsewhere.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from headrace.proxy.connection.client_connection import ClientConnection
from headrace.proxy.connection.state.shared_state import Limits, SharedState
from headrace.proxy.counters import Counters
from headrace.proxy.errors import UpstreamFault
from headrace.proxy.hooks.calls.hook_calls import HookCalls
from headrace.proxy.hooks.enforcement_switch import Enforcement
from headrace.proxy.hooks.loading import new_plugin_manager, register
from headrace.proxy.network.listener import Listener
from headrace.proxy.network.poller import Poller
from headrace.proxy.network.tls.handshakes import Handshakes
from headrace.proxy.network.topology import Topology
from headrace.proxy.wire.apis import APIS, request_header_version, response_header_version
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.quota_callbacks.buckets.client_quotas import ClientQuotas
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.builtin.byte_rate import ByteRate
from headrace.quota_callbacks.builtin.controller_mutation import ControllerMutation
from headrace.quota_callbacks.builtin.default_quotas import DefaultQuotaCallback
from headrace.quota_callbacks.builtin.producer_ids import ProducerIds
from headrace.quota_callbacks.builtin.request_percentage import RequestPercentage
from headrace.quota_callbacks.entities import QuotaEntity, QuotaKey
from headrace.quota_callbacks.hookspecs import PluginContext
from headrace.quota_callbacks.policies import Quota
from headrace.quota_callbacks.requests import Address, Connection
from headrace.quota_callbacks.topic_names import TopicNames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.network.listener import BrokerIdentities, ListenerSasl
    from headrace.quota_callbacks.sasl import UpstreamSasl

WAIT_S = 7200.0
"""Longer than any mute in these tests, in seconds of the fake clock."""


class MemorySocket:
    """One end of a connection in memory; the other end is `peer`."""

    can_splice = False

    def __init__(self) -> None:
        self.peer: MemorySocket
        self.bytes_received = 0
        self.bytes_sent = 0
        self.unsent_bytes = 0
        self.undecrypted_bytes = 0
        self.closed = False
        self._buffer = bytearray()
        self._ended = False
        self._news = trio.Event()
        self._again = False
        self._expected = 1

    @classmethod
    def pair(cls) -> tuple[MemorySocket, MemorySocket]:
        """Return the two ends of a new connection."""
        one, other = cls(), cls()
        one.peer, other.peer = other, one
        return one, other

    def expect(self, count: int) -> None:
        """As the system: a relay that expects too much waits forever."""
        self._expected = max(count, 1)

    def report_all(self) -> None:
        self._expected = 1
        self._news.set()

    async def readable(self) -> None:
        await trio.lowlevel.checkpoint()
        while len(self._buffer) < self._expected and not self._ended and not self._again:
            self._news = trio.Event()
            await self._news.wait()

    async def steps(self, step: Callable[[], bool]) -> None:
        self.report_all()
        while True:
            await self.readable()
            if not step():
                return

    @property
    def may_read(self) -> bool:
        return bool(self._buffer) or self._ended or self._again

    @may_read.setter
    def may_read(self, again: bool) -> None:
        self._again = again

    def receive_into(self, view: memoryview) -> int | None:
        self._again = False
        if not self._buffer:
            return 0 if self._ended else None
        count = min(len(view), len(self._buffer))
        view[:count] = self._buffer[:count]
        del self._buffer[:count]
        self.bytes_received += count
        return count

    def send_now(self, parts: Iterable[bytes | memoryview], *, more: bool = False) -> bool:
        for part in parts:
            self.peer._buffer += part
            self.bytes_sent += len(part)
        self.peer._news.set()
        return True

    async def send(self, parts: Iterable[bytes | memoryview] = ()) -> None:
        self.send_now(parts)
        await trio.lowlevel.checkpoint()

    def hung_up(self) -> bool:
        return self._ended

    def has_unread(self) -> bool:
        return bool(self._buffer)

    def shut_down_writing(self) -> None:
        self.peer._ended = True
        self.peer._news.set()

    def close(self) -> None:
        self.closed = True
        self.shut_down_writing()

    @property
    def waiting(self) -> int:
        """Return the number of bytes that arrived and were not read."""
        return len(self._buffer)


class Party:
    """The client or the broker of a script."""

    def __init__(self, socket: MemorySocket) -> None:
        self.socket = socket
        self._read = bytearray()

    async def sends(self, *frames: bytes) -> None:
        """Send frames in one write."""
        await self.socket.send(frames)

    async def receives(self) -> bytes:
        """Return the next complete frame."""
        chunk = bytearray(65536)
        with trio.fail_after(WAIT_S):
            while len(self._read) < 4 or len(self._read) < 4 + int.from_bytes(self._read[:4], "big"):
                await self.socket.readable()
                count = self.socket.receive_into(memoryview(chunk))
                assert count != 0, f"the connection ended; {len(self._read)} bytes of a frame had come"
                self._read += chunk[: count or 0]
        size = 4 + int.from_bytes(self._read[:4], "big")
        frame = bytes(self._read[:size])
        del self._read[:size]
        return frame

    async def receives_the_end(self) -> None:
        """Wait until the proxy closes this side, without sending anything before."""
        with trio.fail_after(WAIT_S):
            while True:
                await self.socket.readable()
                if self.socket.receive_into(memoryview(bytearray(100))) == 0:
                    return

    def receives_nothing(self) -> bool:
        """Return whether nothing has arrived."""
        return not self._read and not self.socket.waiting


class StubUpstream:
    """An upstream whose connections are in memory."""

    def __init__(self) -> None:
        self.dialled: list[int | None] = []
        self.waited: list[bool] = []
        """Whether the handshake of each waits for the turn of the client's address."""
        self.brokers: list[Party] = []
        self.fault: str | None = None
        self.serves_anonymous = True
        self.reached: bool | None = True
        self.tls = None
        self.sasl: UpstreamSasl | None = None
        self.setting, self.reply_timeout_s = "upstream", 3600.0
        self._news = trio.Event()

    async def wait_for_dial(self, number: int) -> None:
        """Wait until ``number`` connections were opened."""
        with trio.fail_after(WAIT_S):
            while len(self.brokers) < number:
                await self._news.wait()

    async def wait_for_refresh(self) -> None:
        await trio.lowlevel.checkpoint()

    async def dial(
        self, node_id: int | None, _client: Address | None = None, *, waits: bool = False
    ) -> tuple[MemorySocket, Address]:
        self.dialled.append(node_id)
        self.waited.append(waits)
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise UpstreamFault(self.fault)
        ours, theirs = MemorySocket.pair()
        self.brokers.append(Party(theirs))
        self._news.set()
        self._news = trio.Event()
        return ours, Address(host="kafka", port=9092)


class Book:
    """The parties of a script, and the proxy's connection between them."""

    def __init__(self, shared: SharedState, connection: ConnectionState, client: Party, upstream: StubUpstream) -> None:
        self.shared = shared
        self.listener = connection.listener
        self.connection = connection
        self.client = client
        self.upstream = upstream

    def forget_acceptance(self) -> None:
        """Put the connection back into the state before the broker has shown that it serves the client."""
        self.upstream.serves_anonymous = self.connection.accepted = False
        self.connection.asks_from_s = -math.inf

    @property
    def broker(self) -> Party:
        """Return the broker that was dialled last."""
        return self.upstream.brokers[-1]

    async def round_trip(self, request: bytes, reply: bytes) -> bytes:
        """Send a request, check that it reaches the broker unchanged, and return the reply that reaches the client."""
        await self.client.sends(request)
        await self.upstream.wait_for_dial(1)
        assert await self.broker.receives() == request
        await self.broker.sends(reply)
        return await self.client.receives()


def new_hooks(plugins: Mapping[str, Any], *, fail_closed: bool = False) -> HookCalls:
    """Return the hooks of the built-in callbacks and ``plugins``."""
    manager = new_plugin_manager()
    built_in = {
        "default_quotas": DefaultQuotaCallback(),
        "byte_rate": ByteRate(),
        "request_percentage": RequestPercentage(),
        "controller_mutation": ControllerMutation(),
        "producer_ids": ProducerIds(),
    }
    for name, plugin in {**built_in, **plugins}.items():
        register(manager, name, plugin)
    return HookCalls(manager, fail_closed=fail_closed)


@asynccontextmanager
async def open_book(
    *,
    plugins: Mapping[str, Any] | None = None,
    quotas: Iterable[tuple[str, QuotaEntity, float | Quota]] = (),
    windows: Mapping[QuotaKey, Window] | None = None,
    limits: Limits | None = None,
    enforcement: Enforcement | None = None,
    fail_closed: bool = False,
    node_ids: Iterable[int] = range(10),
    hooks: HookCalls | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    sasl: ListenerSasl | None = None,
    login: UpstreamSasl | None = None,
    identities: BrokerIdentities | None = None,
) -> AsyncIterator[Book]:
    """Open a connection of the proxy with the built-in callbacks and ``plugins``; it ends with the block.

    ``options`` are those of plugins, by name. ``sasl`` is that of the listener, ``login`` the proxy's own at brokers,
    and ``identities`` those of users. ``hooks`` can be those of an earlier book, with their quotas; opening a book is
    then ten times as fast.
    """
    known, hooks = hooks, hooks or new_hooks(plugins or {}, fail_closed=fail_closed)
    client_quotas = ClientQuotas(
        windows={**dict.fromkeys(QuotaKey, Window()), **(windows or {})},
        metric_tags=hooks.quota_metric_tags,
        quota_limit=hooks.quota_limit,
    )
    topic_names = TopicNames()
    hooks.configure(client_quotas, options or {}, PluginContext(options={}, quotas=client_quotas, topics=topic_names))
    if known is None:
        hooks.flatten()
    for key, entity, value in quotas:
        hooks.update_quota(key, entity, value if isinstance(value, Quota) else Quota(value=value))
    client_quotas.quotas_changed()
    upstream = StubUpstream()
    topology = Topology(advertised_host="proxy", advertised_port=9192, node_ids=node_ids)
    upstream.sasl, upstream.serves_anonymous = login, login is None
    listener = Listener(
        setting="listen",
        topology=topology,
        upstream=upstream,  # type: ignore[arg-type]
        sasl=sasl,
        identities=identities,
    )
    usual = Limits(max_frame_bytes=10**6, max_collected_bytes=10**6, max_in_flight_requests=1000)
    counters = Counters()
    shared = SharedState(
        limits=limits or usual,
        listeners=(listener,),
        hooks=hooks,
        enforcement=enforcement or Enforcement(),
        counters=counters,
        handshakes=Handshakes(counters, most=10, timeout_s=10),
        poller=Poller(),
        topic_names=topic_names,
    )
    ours, theirs = MemorySocket.pair()
    info = Connection(connection_id=1, peer=Address(host="198.51.100.7", port=5000))
    connection = ClientConnection(shared, listener, info, ours)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.serve)
        yield Book(shared, connection.state, Party(theirs), upstream)
        nursery.cancel_scope.cancel()


def request(
    api_key: int, version: int, correlation_id: int = 1, client_id: str = "c", padding: int = 0, **fields: Any
) -> bytes:
    """Return a complete request frame. ``padding`` is the size of the records in a Produce."""
    name = APIS[api_key].name
    if padding:
        fields["topic_data"] = [{"partition_data": [{"index": 0, "records": bytes(padding)}]}]
    header = encode(
        "RequestHeader",
        request_header_version(api_key, version),
        {
            "request_api_key": api_key,
            "request_api_version": version,
            "correlation_id": correlation_id,
            "client_id": client_id,
        },
    )
    return framed(header + encode(f"{name}Request", version, fields))


def reply(api_key: int, version: int, correlation_id: int = 1, **fields: Any) -> bytes:
    """Return a complete reply frame."""
    header = encode("ResponseHeader", response_header_version(api_key, version), {"correlation_id": correlation_id})
    return framed(header + encode(f"{APIS[api_key].name}Response", version, fields))


def read_reply(api_key: int, version: int, frame: bytes) -> dict[str, Any]:
    """Return the fields of a reply, including its correlation id."""
    header_bytes = 4 if response_header_version(api_key, version) == 0 else 5
    fields = decode(f"{APIS[api_key].name}Response", version, frame[4 + header_bytes :])
    return {"correlation_id": int.from_bytes(frame[4:8], "big"), **fields}


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
