"""The objects that all connections share. Created by the server, used by the connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import trio

from headrace.proxy.connection.state.created_topics import CreatedTopics
from headrace.proxy.connection.state.login_threads import LoginThreads
from headrace.proxy.connection.state.thread_time import ThreadTimeSampler
from headrace.proxy.hooks.decisions import Decisions
from headrace.proxy.long_work import LongSteps
from headrace.proxy.network.sockets import READ_BUFFER_BYTES
from headrace.proxy.network.splicing import Pipes
from headrace.proxy.repeated_lines import RepeatedLines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from headrace.proxy.connection.state.token_owners import TokenOwners
    from headrace.proxy.counters import Counters
    from headrace.proxy.data_plane.native import NativeDataPlane
    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.hooks.enforcement_switch import Enforcement
    from headrace.proxy.network.admission import Admission
    from headrace.proxy.network.listener import Listener
    from headrace.proxy.network.poller import Poller
    from headrace.proxy.network.tls.contexts import TlsContext
    from headrace.proxy.network.tls.handshakes import Handshakes
    from headrace.quota_callbacks.requests import Connection
    from headrace.quota_callbacks.topic_names import TopicNames


class ClientQuotaAnswers(Protocol):
    """What answers the client quota APIs; implemented by `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis`."""

    async def answer(
        self,
        connection: Connection,
        api_key: int,
        version: int,
        body: memoryview,
        *,
        allowed: bool,
        paused: Callable[[], AbstractContextManager[None]],
    ) -> bytes:
        """See `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis.answer`."""

    def allows(self, connection: Connection, api_key: int, *, authenticated: bool) -> bool:
        """See `headrace.proxy.quotas.client_quota_apis.ClientQuotaApis.allows`."""

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
    max_connection_age_s: float = 0.0
    """0 is unlimited. Unlike the others, it applies to connections that are open when it changes."""


class SharedState:
    """The shared objects, by name."""

    __slots__ = (
        "admission",
        "authorizes",
        "buffer",
        "client_quotas",
        "clock",
        "collects",
        "counters",
        "created_topics",
        "data_plane",
        "decisions",
        "enforcement",
        "handshakes",
        "hooks",
        "limits",
        "listeners",
        "login_threads",
        "long_steps",
        "pipes",
        "poller",
        "repeated",
        "reported_tokens",
        "thread_time",
        "token_owners",
        "topic_names",
        "view",
    )

    def __init__(
        self,
        *,
        limits: Limits,
        listeners: tuple[Listener, ...],
        hooks: HookCalls,
        enforcement: Enforcement,
        topic_names: TopicNames,
        counters: Counters,
        poller: Poller,
        handshakes: Handshakes,
    ) -> None:
        self.limits = limits
        self.listeners = listeners
        """All listeners; the first one is ``[listen]``."""
        self.topic_names = topic_names
        self.authorizes = hooks.authorization.active
        """Whether a plugin decides what clients may do; it is looked up for each request."""
        if self.authorizes:
            topic_names.follow()
        self.handshakes = handshakes
        self.data_plane: NativeDataPlane | None = None
        """The native data plane; ``None`` if Python relays all connections."""
        self.admission: Admission | None = None
        """Counts the clients that load balancers name in PROXY headers; ``None`` if they are not counted."""
        self.hooks = hooks
        self.enforcement = enforcement
        self.counters = counters
        self.decisions = Decisions(counters)
        self.created_topics = CreatedTopics()
        self.client_quotas: ClientQuotaAnswers | None = None
        """Answers the client quota APIs; ``None`` leaves them to the broker."""
        self.token_owners: Mapping[str, TokenOwners] = {}
        """The owners of delegation tokens, by the setting of the brokers that accept them (``upstream``)."""
        self.reported_tokens: set[str] = set()
        """The missing ``owner_lookup`` tables for which it was logged that the owners of tokens are not known."""
        self.thread_time = ThreadTimeSampler()
        self.login_threads = LoginThreads()
        self.long_steps = LongSteps()
        self.pipes = Pipes()
        self.poller = poller
        self.repeated = RepeatedLines()
        """Limits the warnings about connections."""
        self.buffer = bytearray(READ_BUFFER_BYTES)
        """The read buffer of all connections. Its content is valid from a read to the next write, not across a wait."""
        self.view = memoryview(self.buffer)
        self.clock: Callable[[], float] = trio.current_time
        """Returns monotonic seconds. The server sets it to the running loop's own clock, which is cheaper to call."""

    def grant_credits(self) -> None:
        """Give the native data plane new credits in place of those that decisions of this moment have withdrawn.

        Call it before waiting for anything: until then, the threads put off what they would charge to these buckets.
        """
        if self.data_plane is not None:
            self.data_plane.meters.grant()

    async def deliver_completed(self) -> None:
        """Deliver the sums of all requests that were completed until now to the plugins that get sums."""
        if self.data_plane is not None and self.hooks.completed.has_sums:
            await self.data_plane.collect_completed()
        self.hooks.completed.deliver()

    def tls_contexts(self) -> list[TlsContext]:
        """Return the contexts of all listeners and upstreams with TLS, each once."""
        found = [each.tls.context for each in self.listeners if each.tls is not None]
        found += [each.upstream.tls for each in self.listeners if each.upstream.tls is not None]
        return list(dict.fromkeys(found))  # listeners without an upstream of their own share that of ``[upstream]``
