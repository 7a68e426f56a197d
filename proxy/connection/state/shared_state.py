"""The objects that all connections of a process share. Created by the server, used by the connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import trio

from headrace.proxy.connection.state.created_topics import CreatedTopics
from headrace.proxy.connection.state.thread_time import ThreadTimeSampler
from headrace.proxy.hooks.decisions import Decisions
from headrace.proxy.network.sockets import READ_BUFFER_BYTES
from headrace.proxy.network.splicing import Pipes
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace.proxy.counters import Counters
    from headrace.proxy.hooks.calls import HookCalls
    from headrace.proxy.hooks.enforcement_switch import Enforcement
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.sockets import Socket
    from headrace.proxy.network.topology import Topology
    from headrace.quota_callbacks.requests import Address, Connection
    from headrace.quota_callbacks.topic_names import TopicNames


class Dialler(Protocol):
    """Connects to brokers; implemented by `headrace.proxy.network.upstream.Upstream`."""

    bootstrap_servers: tuple[Address, ...]
    connect_timeout_s: float
    serves_anybody: bool
    reached: bool | None

    async def dial(self, node_id: int | None) -> tuple[Socket, Address]:
        """See `headrace.proxy.network.upstream.Upstream.dial`."""

    async def refresh(self) -> bool:
        """See `headrace.proxy.network.upstream.Upstream.refresh`."""

    async def wait_for_refresh(self) -> None:
        """See `headrace.proxy.network.upstream.Upstream.wait_for_refresh`."""

    async def wait_until_asked(self, timeout_s: float) -> None:
        """See `headrace.proxy.network.upstream.Upstream.wait_until_asked`."""

    async def answers(self) -> bool:
        """See `headrace.proxy.network.upstream.Upstream.answers`."""


class ClientQuotaAnswers(Protocol):
    """Answers the client quota APIs; implemented by `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis`."""

    async def answer(
        self,
        connection: Connection,
        api_key: int,
        version: int,
        body: memoryview,
        *,
        authenticated: bool,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> bytes:
        """See `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis.answer`."""

    def may_alter(self, connection: Connection, *, authenticated: bool) -> bool:
        """See `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis.may_alter`."""

    async def audit(self, *, newest: int, before: int | None) -> dict[str, Any]:
        """See `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis.audit`."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """The limits of one connection. Replaced as a whole on reload; a connection keeps those of its start."""

    max_frame_bytes: int = 100 * 2**20
    max_handshake_bytes: int = 512 * 2**10
    max_whole_request_bytes: int = 2**20
    max_request_rows: int = 10_000
    max_collected_bytes: int = 64 * 2**20
    max_in_flight_requests: int = 1000
    idle_timeout_s: float = 600.0
    login_timeout_s: float = 60.0
    request_timeout_s: float = 30.0
    reply_timeout_s: float = 3600.0


class SharedState:
    """The shared objects, by name."""

    __slots__ = (
        "buffer",
        "client_quotas",
        "clock",
        "counters",
        "created_topics",
        "decisions",
        "enforcement",
        "hooks",
        "limits",
        "pipes",
        "poller",
        "repeated",
        "thread_time",
        "topic_names",
        "topology",
        "upstream",
        "view",
    )

    def __init__(
        self,
        *,
        limits: Limits,
        topology: Topology,
        upstream: Dialler,
        hooks: HookCalls,
        enforcement: Enforcement,
        topic_names: TopicNames,
        counters: Counters,
        poller: Poller,
    ) -> None:
        self.limits = limits
        self.topology = topology
        self.topic_names = topic_names
        self.upstream = upstream
        self.hooks = hooks
        self.enforcement = enforcement
        self.counters = counters
        self.decisions = Decisions(counters)
        self.created_topics = CreatedTopics()
        self.client_quotas: ClientQuotaAnswers | None = None
        """Answers the client quota APIs; ``None`` leaves them to the broker."""
        self.thread_time = ThreadTimeSampler()
        self.pipes = Pipes()
        self.poller = poller
        self.repeated = RepeatedLines()
        """Limits the warnings about connections."""
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """The read buffer of all connections. Its content is valid from a read to the next write, not across a wait."""
        self.view = memoryview(self.buffer)
        self.clock: Callable[[], float] = trio.current_time
        """Returns monotonic seconds. The server sets it to the running loop's own clock, which is cheaper to call."""
