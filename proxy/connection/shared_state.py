"""What all connections of a process share. Made by the server, read by the connections; it owns nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from headrace.proxy.connection.mutation_lookup import CreatedTopics
from headrace.proxy.connection.thread_time import ThreadTimeSampler
from headrace.proxy.hooks.decisions import Decisions
from headrace.proxy.network.sockets import READ_BUFFER_BYTES
from headrace.proxy.network.splicing import Pipes
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.counters import Counters
    from headrace.proxy.hooks.calls import HookCalls
    from headrace.proxy.hooks.enforcement_switch import Enforcement
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.sockets import Channel
    from headrace.proxy.network.topology import Topology
    from headrace.quota_callbacks.requests import Address


class Dialler(Protocol):
    """Reaches brokers; `headrace.proxy.network.upstream.Upstream` does."""

    bootstrap_servers: tuple[Address, ...]
    connect_timeout_s: float
    serves_anybody: bool
    reached: bool | None

    async def dial(self, node_id: int | None) -> tuple[Channel, Address]:
        """See `headrace.proxy.network.upstream.Upstream.dial`."""

    async def refresh(self) -> bool:
        """See `headrace.proxy.network.upstream.Upstream.refresh`."""

    async def wait_until_asked(self, timeout_s: float) -> None:
        """See `headrace.proxy.network.upstream.Upstream.wait_until_asked`."""

    async def answers(self) -> bool:
        """See `headrace.proxy.network.upstream.Upstream.answers`."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """The caps of one connection; replaced as a whole on reload, and read for each new connection."""

    max_frame_bytes: int
    max_collected_bytes: int
    max_in_flight_requests: int
    idle_timeout_s: float
    reply_timeout_s: float


class SharedState:
    """The shared parts of the proxy, by what they are for."""

    __slots__ = (
        "buffer",
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
        counters: Counters,
        poller: Poller,
    ) -> None:
        self.limits = limits
        self.topology = topology
        self.upstream = upstream
        self.hooks = hooks
        self.enforcement = enforcement
        self.counters = counters
        self.decisions = Decisions(counters)
        self.created_topics = CreatedTopics()
        self.thread_time = ThreadTimeSampler()
        self.pipes = Pipes()
        self.poller = poller
        self.repeated = RepeatedLines()
        """The warnings about connections that are logged once a minute for each cause."""
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """The read buffer of every connection. Used between a read and the write after it, never across a wait."""
        self.view = memoryview(self.buffer)
        self.clock: Callable[[], float] = trio.current_time
        """Seconds, monotonic. The server puts the running loop's own clock here, which is cheaper to ask."""
