"""What all connections of a process share. Made by the server, read by the connections; it owns nothing itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import trio

from proxy.decisions import Decisions
from proxy.mutation_lookup import CreatedTopics
from proxy.sockets import READ_BUFFER_BYTES
from proxy.splicing import Pipes
from proxy.thread_time import Spells

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.counters import Counters
    from proxy.enforcement import Enforcement
    from proxy.hook_calls import HookCalls
    from proxy.poller import Poller
    from proxy.sockets import Channel
    from proxy.topology import Topology
    from quota_callbacks.requests import Address


class Dialler(Protocol):
    """Reaches brokers; `proxy.upstream.Upstream` does."""

    bootstrap_servers: tuple[Address, ...]
    connect_timeout_s: float
    serves_anybody: bool

    async def dial(self, node_id: int | None) -> tuple[Channel, Address]:
        """See `proxy.upstream.Upstream.dial`."""

    async def refresh(self) -> bool:
        """See `proxy.upstream.Upstream.refresh`."""

    async def answers(self) -> bool:
        """See `proxy.upstream.Upstream.answers`."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """The caps of one connection; replaced as a whole on reload, and read for each new connection."""

    max_frame_bytes: int
    max_collected_bytes: int
    max_in_flight_requests: int
    idle_timeout_s: float
    reply_timeout_s: float


class House:
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
        "spells",
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
        self.spells = Spells()
        self.pipes = Pipes()
        self.poller = poller
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """The read buffer of every connection. Used between a read and the write after it, never across a wait."""
        self.view = memoryview(self.buffer)
        self.clock: Callable[[], float] = trio.current_time
        """Seconds, monotonic. The server puts the running loop's own clock here, which is cheaper to ask."""
