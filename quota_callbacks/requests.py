"""What a callback sees: a client's connection, a request on its way, and the reply to it.

These are the proxy's own live objects, mutable and slotted because one is made for every request. A callback reads
them; it writes only what is marked *callbacks may write*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.quota_callbacks.entities import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.quota_callbacks.verdicts import Reason


class Detail(Enum):
    """How much of a request a callback needs; less is faster."""

    HEAD = "head"
    """Header, size, and the few fields that are skimmed from Produce and Fetch."""
    BODY = "body"
    """The whole decoded body, in `Request.body`. For small requests: the frame is collected first."""
    MUTATIONS = "mutations"
    """What the request would change at the controller, in `Request.mutations`; for CreateTopics, DeleteTopics,
    CreatePartitions, and Metadata that may create topics. What the request itself does not tell is asked of the
    broker first, so this is done only for senders that `controller_mutation_rate` holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """A callback wants requests (and their replies) of one API."""

    api_key: int
    detail: Detail = Detail.HEAD
    end_only: bool = False
    """Whether only `request_completed` is to be called, which spares every request the other calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


RecordBatch: TypeAlias = tuple[str | bytes, int, int, int]
"""One record batch of a Produce: topic (its name, or from v13 the 16 bytes of its id), partition, bytes of its
records, producer id (-1 for none)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMutation:
    """What a request would do to one topic."""

    topic: str | bytes
    """Its name, or the 16 bytes of its id where DeleteTopics (from v6) names it so."""
    partitions: int
    """How many partitions it would create, delete or add (KIP-599); 0 when it would be refused anyway."""


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection, from accept to close."""

    connection_id: int
    """Unique while the process lives."""
    peer: Address
    node_id: int | None = None
    """The broker whose port the client connected to; ``None`` at the bootstrap port."""
    user: str = ANONYMOUS
    """The name in the principal; ``ANONYMOUS`` until the broker has accepted an authentication."""
    authenticating: bool = False
    """Whether SaslHandshake and SaslAuthenticate are part of an authentication, and so exempt from quotas: from the
    SaslHandshake until the broker has accepted or refused. An authenticated connection may authenticate again only
    where the broker told a session lifetime (KIP-368); elsewhere its SaslHandshakes are ordinary requests."""
    mechanism: str | None = None
    """The SASL mechanism that the broker agreed to last; ``None`` before."""
    upstream: Address | None = None
    """The broker's own address; ``None`` until the first byte came."""
    cache: dict[object, Any] = field(default_factory=dict)
    """For callbacks: what they resolved for this connection, by a key of their own. *Callbacks may write.*"""
    measure_thread_time: bool = False
    """Whether the proxy is to measure `thread_ns`, which costs it a microsecond a request. *Callbacks may write.*"""
    thread_ns: int = 0
    """Thread time that the proxy has spent on this connection and nobody has charged. *Callbacks may write*: whoever
    charges it takes it away."""


class Request:
    """A request from its first byte to the last byte of its reply. Times are seconds of the proxy's monotonic clock."""

    __slots__ = (
        "acks",
        "api_key",
        "api_version",
        "arrived",
        "authenticating",
        "batches",
        "batches_left_out",
        "body",
        "broker_throttle_ms",
        "charged_thread_ns",
        "client_id",
        "completed_s",
        "connection",
        "correlation_id",
        "error",
        "fetch_max_bytes",
        "forwarded_s",
        "hold_ms",
        "mutations",
        "new_producer_ids",
        "notes",
        "observed_ms",
        "read_batches",
        "reason",
        "received_s",
        "refused_code",
        "reply_s",
        "request_bytes",
        "response_bytes",
        "response_header_bytes",
        "throttle_ms",
        "throttled_s",
        "topic_errors",
        "validate_only",
    )

    def __init__(
        self,
        connection: Connection,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str,
        request_bytes: int,
        received_s: float,
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        """As the header has it; a null client id is "" (``RequestHeader``)."""
        self.request_bytes = request_bytes
        """Header and body, without the 4 bytes of the length before them."""
        self.received_s = received_s
        """When its first byte was read."""
        self.arrived = True
        """Whether its last byte was read. A large request is forwarded as it comes, so it can be false in
        `request_received`."""
        self.acks: int | None = None
        """Produce only. With 0 there will be no reply."""
        self.body: Mapping[str, Any] | None = None
        """Decoded, fields in snake_case; only where a callback asked for `Detail.BODY`, and ``None`` all the same for a
        version that is newer than the proxy knows."""
        self.fetch_max_bytes: int | None = None
        """Fetch and ShareFetch: cap the reply at this many bytes. *Callbacks may write.*"""
        self.read_batches = False
        """Produce: walk over its record batches as they pass and call `batches_received`. *Callbacks may write.*"""
        self.batches: Sequence[RecordBatch] = ()
        """Produce: its record batches, in `batches_received` and after it, where a callback asked for them."""
        self.batches_left_out = 0
        """How many more there were than the proxy keeps (4,096)."""
        self.mutations: tuple[TopicMutation, ...] | None = None
        """Where a callback asked for `Detail.MUTATIONS`: what it would change, in the order of the request."""
        self.new_producer_ids = 0
        """How many of its producer ids were new in the window, where ``producer_ids_rate`` holds the sender. *Callbacks
        may write.*"""
        self.validate_only = False
        """Whether it only asks what would happen; of the mutations."""
        self.topic_errors: Mapping[str | bytes, int] | None = None
        """The broker's error code for each topic in `mutations`, in `response_received`."""
        self.notes: dict[object, Any] | None = None
        """For callbacks: what they want to know again when the reply comes, by a key of their own. *Callbacks may
        write.*"""
        self.forwarded_s: float | None = None
        """When its head was handed on to the broker; ``None`` when the proxy answered alone."""
        self.reply_s: float | None = None
        """When the reply's first byte was read."""
        self.authenticating = False
        """Whether the connection was `Connection.authenticating` when the reply came."""
        self.charged_thread_ns: int | None = None
        """The thread time that ``request_percentage`` has charged with it, the proxy's own included; 0 where it is
        exempt, ``None`` where this quota does not hold the sender. *Callbacks may write.*"""
        self.completed_s: float | None = None
        """When the reply's last byte was handed to the client."""
        self.response_bytes = 0
        """The reply's header and body, without the 4 bytes of the length."""
        self.response_header_bytes = 0
        self.broker_throttle_ms = 0
        """The throttle time that the broker itself put into the reply."""
        self.throttle_ms = 0
        """The longest throttle that a callback asked for."""
        self.hold_ms = 0
        """How long a callback asked to hold the request itself before it is forwarded (paced enforcement)."""
        self.observed_ms = 0
        """The longest throttle that a quota in shadow mode would have asked for; 1 at least for what it would have
        refused."""
        self.throttled_s: float | None = None
        """When the mute for `throttle_ms` began."""
        self.reason: Reason | None = None
        """The quota that bound, of the longest throttle or the refusal; or, where none did, that would have bound."""
        self.refused_code = 0
        """The error code that the proxy answered with; 0 when it did not refuse."""
        self.error: str | None = None
        """Why the request got no reply, such as ``upstream closed``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker as the cluster's metadata has it."""

    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The cluster as far as the proxy has learned it (KIP-257's ``Cluster``)."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]
