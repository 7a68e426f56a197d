"""The objects that callbacks receive: connections, requests with their replies, and the cluster.

Created and updated by the proxy and passed to every hook that concerns a request. `Request` is mutable, since one is
created for every request and filled in as the request proceeds. A callback writes only the attributes that are marked
*Callbacks may write*.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.quota_callbacks.verdicts import Reason


PERCENT_PER_NS: Final = 100.0 / 1e9
"""Thread time of a nanosecond, in percent of one thread in a second
(``ClientRequestQuotaManager.NANOS_TO_PERCENTAGE_PER_SECOND``)."""

_SASL: Final = frozenset({ApiKey.SASL_HANDSHAKE.value, ApiKey.SASL_AUTHENTICATE.value})


class Detail(Enum):
    """The part of a request that a callback needs. Less detail costs less time."""

    HEAD = "head"
    """The header, the size, and the few fields that are parsed from Produce and Fetch."""
    BODY = "body"
    """The decoded body, in `Request.body`. For small requests, since the whole request is read into memory."""
    MUTATIONS = "mutations"
    """The changes that the request would make at the controller, in `Request.mutations`. For CreateTopics,
    DeleteTopics, CreatePartitions, and Metadata that may create topics. The proxy asks the broker for partition counts
    that the request does not contain, so this is done only for senders with a `mutation_budget`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """An API that a callback is called for, and the detail that it needs."""

    api_key: int
    detail: Detail = Detail.HEAD
    end_only: bool = False
    """Whether only `request_completed` and `requests_completed` are called for this API, which saves the time of the
    other calls."""
    each_completed: bool = False
    """Whether a plugin that has `requests_completed` or `request_sample_ratio` gets each request of this API by
    `request_completed` all the same, and none of them in a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


RecordBatch: TypeAlias = tuple[str | bytes, int, int, int]
"""A record batch of a Produce request: topic (the name, or from version 13 the 16 bytes of the topic id), partition,
size of the batch's records in bytes, producer id (-1 without one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMutation:
    """The change that a request would make to one topic."""

    topic: str | bytes
    """The name, or the 16 bytes of the topic id where DeleteTopics (from version 6) uses it."""
    partitions: int
    """Number of partitions to create, delete or add (KIP-599); 0 if the broker would refuse the change anyway."""
    at_most: int = 0
    """Number of partitions, or an upper bound, if the broker makes the change although `partitions` is 0: it does not
    show a new topic at once, and another client may have deleted one that was in the way. Charged with the reply."""


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection, from accept to close. The proxy updates it while it is open."""

    connection_id: int
    """Unique within the process."""
    peer: Address
    """The client's address."""
    node_id: int | None = None
    """Id of the broker whose port or host name the client connected to; ``None`` for the bootstrap address."""
    user: str = ANONYMOUS
    """The name of the client's principal; ``ANONYMOUS`` until the client has proved who it is, by SASL to the broker or
    the proxy, or by a certificate. A long one is shortened (`headrace.quota_callbacks.entities.bounded_name`)."""
    authenticating: bool = False
    """Whether an authentication is in progress: from the SaslHandshake until it is accepted or refused. SaslHandshake
    and SaslAuthenticate are exempt from quotas meanwhile. Where the brokers authenticate clients, a connection can
    authenticate again only if the broker returned a session lifetime (KIP-368); otherwise its further SaslHandshakes
    are ordinary requests."""
    mechanism: str | None = None
    """The SASL mechanism that was agreed upon last; ``TLS`` for a client whose certificate gives its user; ``None``
    before."""
    upstream: Address | None = None
    """Address of the broker that the proxy is connected to; ``None`` before the first request for a broker."""
    cache: dict[object, Any] = field(default_factory=dict)
    """Values that callbacks keep for this connection, each under a key of its own. *Callbacks may write.*"""
    measure_thread_time: bool = False
    """Whether the proxy measures `thread_ns`, which costs a microsecond per request. *Callbacks may write.*"""
    thread_ns: int = 0
    """Thread time, in nanoseconds, that the proxy has spent on this connection and that has not been charged yet.
    *Callbacks may write:* the callback that charges it sets it to 0."""


_NOTHING_LEFT_OUT: Final[Mapping[tuple[str | bytes, int], int]] = MappingProxyType({})


class Request:
    """A request and its reply. Attributes that end in ``_s`` are seconds of the proxy's monotonic clock."""

    __slots__ = (
        "acks",
        "alone",
        "api_key",
        "api_version",
        "arrived",
        "authenticating",
        "batches",
        "body",
        "broker_throttle_ms",
        "charged_thread_ns",
        "client_id",
        "completed_s",
        "connection",
        "correlation_id",
        "error",
        "fetch_max_bytes",
        "fetched_bytes",
        "forwarded_s",
        "hold_ms",
        "in_flight",
        "left_out_bytes",
        "left_out_ids",
        "missing_bytes",
        "mutations",
        "new_producer_ids",
        "notes",
        "observed_ms",
        "read_batches",
        "read_fetched",
        "read_refused",
        "reason",
        "received_s",
        "refused",
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

    fetched_bytes: Mapping[str | bytes, int]
    """Fetch and ShareFetch: size of the records in the reply by topic (the name, or in ShareFetch and from version 13
    of Fetch the 16 bytes of its id). Topics without records are missing. Exists from `records_fetched` on, if a
    callback set `read_fetched`."""

    refused: Mapping[tuple[str | bytes, int], int]
    """Produce: the error codes of the partitions to which the broker has appended nothing, by topic and partition.
    Exists from `response_received` on, if a callback set `read_refused`. The reply has one row for a partition that the
    request lists several times: then other parts of it may have been appended all the same."""

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
        """The connection that the request arrived on."""
        self.api_key = api_key
        """The API's number (`headrace.quota_callbacks.api_keys.ApiKey`)."""
        self.api_version = api_version
        """The version of the API, from the header."""
        self.correlation_id = correlation_id
        """The correlation id, from the header."""
        self.client_id = client_id
        """The client id, from the header; "" if it is null there (``RequestHeader``). A long one is shortened
        (`headrace.quota_callbacks.entities.bounded_name`)."""
        self.request_bytes = request_bytes
        """Size of header and body, without the 4 bytes of the length field."""
        self.received_s = received_s
        """Time at which the first byte was read."""
        self.arrived = True
        """Whether the last byte has been read. Can be false in `request_received`, since a large request is forwarded
        while it is being read."""
        self.in_flight = 0
        """Number of earlier requests of the connection that had no reply when this one was received."""
        self.missing_bytes = 0
        """Number of bytes of an abandoned request that were never read, because the client had closed."""
        self.acks: int | None = None
        """The field ``acks`` of Produce; ``None`` for other APIs. With 0 there is no reply."""
        self.body: Mapping[str, Any] | None = None
        """The decoded body with field names in snake_case, if a callback asked for `Detail.BODY`; ``None`` otherwise,
        for versions that the proxy does not know, and for SaslHandshake and SaslAuthenticate, whose tokens are
        secrets."""
        self.alone = False
        """Whether the connection's next request waits for the reply to this one, as at a broker, since the reply is
        charged and may mute the client. *Callbacks may write.*"""
        self.fetch_max_bytes: int | None = None
        """Fetch and ShareFetch: the maximum that the proxy caps ``max_bytes`` at. *Callbacks may write.*"""
        self.read_fetched = False
        """Fetch and ShareFetch: whether to sum the fetched bytes by topic and call `records_fetched`. *Callbacks may
        write.*"""
        self.read_batches = False
        """Produce: whether to read the record batches and call `batches_received`. *Callbacks may write.*"""
        self.batches: Sequence[RecordBatch] = ()
        """Produce: the record batches, from `batches_received` on, if a callback set `read_batches`."""
        self.left_out_bytes: Mapping[tuple[str | bytes, int], int] = _NOTHING_LEFT_OUT
        """Size of the records of the batches that are missing in `batches`, which has 4,096 at most; by topic and
        partition."""
        self.left_out_ids: Sequence[int] = ()
        """Producer ids of the batches that are missing in `batches`, each of the first batch of a partition."""
        self.read_refused = False
        """Produce: whether to read the broker's errors before `response_received` is called. Needs `read_batches`.
        *Callbacks may write.*"""
        self.mutations: tuple[TopicMutation, ...] | None = None
        """The changes in the order of the request, if a callback asked for `Detail.MUTATIONS`; ``None`` otherwise."""
        self.new_producer_ids = 0
        """Produce: number of producer ids that were new in the window, if ``producer_ids_rate`` applies to the sender.
        *Callbacks may write.*"""
        self.validate_only = False
        """The field ``validate_only`` of CreateTopics and CreatePartitions: whether the request changes nothing."""
        self.topic_errors: Mapping[str | bytes, int] | None = None
        """The error codes of topics in `mutations` that the broker or a callback has refused, from `response_received`
        on; others have 0 or are not there."""
        self.notes: dict[object, Any] | None = None
        """Values that callbacks keep until the reply arrives, each under a key of its own; ``None`` if there are none.
        *Callbacks may write.*"""
        self.forwarded_s: float | None = None
        """Time at which the head was forwarded to the broker; ``None`` before, and if the proxy answered itself."""
        self.reply_s: float | None = None
        """Time at which the first byte of the reply was read."""
        self.authenticating = False
        """The value of `Connection.authenticating` when the reply arrived."""
        self.charged_thread_ns: int | None = None
        """Thread time (ns) that ``request_percentage`` charged for this request, the proxy's own included; 0 if the
        request is exempt, ``None`` if the quota does not apply to the sender. *Callbacks may write.*"""
        self.completed_s: float | None = None
        """Time at which the last byte of the reply was sent to the client."""
        self.response_bytes = 0
        """Size of the reply's header and body, without the 4 bytes of the length field."""
        self.response_header_bytes = 0
        """Size of the reply's header."""
        self.broker_throttle_ms = 0
        """``throttle_time_ms`` of the broker's reply."""
        self.throttle_ms = 0
        """The longest throttle time among the verdicts of all callbacks."""
        self.hold_ms = 0
        """How long the request is held before it is forwarded (paced enforcement)."""
        self.observed_ms = 0
        """The longest throttle time that a quota in shadow mode would have caused; at least 1 if it would have refused
        the request."""
        self.throttled_s: float | None = None
        """Time at which the mute for `throttle_ms` began."""
        self.reason: Reason | None = None
        """The quota that caused the longest throttle or the refusal. Without such a quota: the quota in shadow mode
        that would have caused it."""
        self.refused_code = 0
        """The error code of a refused request; 0 if the proxy did not refuse it."""
        self.error: str | None = None
        """The reason why there was no reply, such as ``upstream closed``; ``None`` if there was one."""

    def make_notes(self) -> dict[object, Any]:
        """Return `notes`, which are created if there are none."""
        if self.notes is None:
            self.notes = {}
        return self.notes

    @property
    def is_ordinary(self) -> bool:
        """Whether it was completed without a throttle, a refusal or a failure, and without one that a quota in shadow
        mode would have caused."""
        return not (
            self.throttle_ms
            or self.error is not None
            or self.refused_code
            or self.broker_throttle_ms
            or self.reason is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A broker, from the cluster's metadata."""

    node_id: int
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """The part of the cluster's metadata that the proxy has learned (``Cluster`` in KIP-257)."""

    cluster_id: str | None
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]


def is_time_exempt(request: Request) -> bool:
    """Return whether the thread time of ``request`` is exempt from ``request_percentage`` (KIP-124): that of a Produce
    without a reply, and of the requests of an authentication."""
    api_key = request.api_key
    if api_key in _SASL:
        return request.authenticating or request.connection.authenticating
    return api_key == ApiKey.PRODUCE and request.acks == 0
