"""Replacing the brokers' addresses in responses with the proxy's; everything else is copied byte for byte.

`rewrite_endpoints` takes the collected body of a response for which `headrace.proxy.wire.apis.must_rewrite` is true
(except ApiVersions), and returns the new body together with what the response contains about the cluster. Fetch is not
collected: `headrace.proxy.wire.walks.fetch` hides its leader hints. A test reads every schema to check that no
other response contains an address.

Called by `headrace.proxy.connection`, which provides the advertised addresses as an `Advertise`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.proxy.wire.errors import MalformedFrame, UnknownMessage
from headrace.proxy.wire.messages.codec import decode
from headrace.proxy.wire.messages.editing import DROP, edit, edit_in_steps
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.wire.messages.codec import Buffer, Message
    from headrace.proxy.wire.messages.editing import Drop, Edit
    from headrace.proxy.wire.messages.stepwise import Steps

COORDINATORS_FROM: Final = 4
"""The version of FindCoordinator from which a request has several keys."""

COORDINATOR_NOT_AVAILABLE: Final = 15
"""Kafka's error code ``Errors.COORDINATOR_NOT_AVAILABLE``, after which clients send the request again."""

MOST_BROKERS: Final = 2_000
"""Most brokers of a cluster in one response, ten times as many as large clusters have. They are read in one step, which
takes 30 µs each."""

_INT32: Final = Struct(">i")


class Advertise(Protocol):
    """A function that returns the address at which clients reach a broker through the proxy."""

    def __call__(self, node_id: int, /) -> tuple[str, int] | None:
        """Return host and port, or ``None`` for an id outside the configured range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """A broker as the response names it, before rewriting."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A response's new body, and what the old body contains about the cluster."""

    body: bytes
    brokers: tuple[BrokerAddress, ...] = ()
    """All brokers in the response, including those that were left out."""
    left_out: tuple[int, ...] = ()
    """Ids of brokers that the proxy does not advertise: the caller logs them, with the setting to change."""
    cluster_id: str | None = None
    controller_id: int | None = None
    """The value of the field, -1 for no controller; ``None`` if the response has no such field."""


def rewrite_endpoints(
    api_key: int, version: int, body: Buffer, advertise: Advertise, throttle_time_ms: int | None = None
) -> Rewritten:
    """Replace the addresses in a response's body with the proxy's, and set ``throttle_time_ms`` if it is given.

    A broker that is not advertised is left out of Metadata, DescribeCluster and the node endpoints of KIP-951; if a
    coordinator is not advertised, its row gets the error COORDINATOR_NOT_AVAILABLE. Raises `UnknownMessage` for an API
    without addresses or a version without a schema, and `MalformedMessage` for a body that violates it.
    """
    rewrite = _REWRITES.get(api_key)
    if rewrite is None:
        raise UnknownMessage(f"api key {api_key}: no addresses to rewrite in its response")
    return rewrite(version, body, _Learning(advertise), throttle_time_ms)


def rewrite_coordinators_in_steps(
    version: int, body: Buffer, advertise: Advertise, throttle_time_ms: int | None
) -> Steps[Rewritten]:
    """Rewrite a response to FindCoordinator from `COORDINATORS_FROM` on as `rewrite_endpoints` does, in steps.

    A client may ask for thousands of coordinators in one request, and a row takes some 40 µs.
    """
    return _rewrite_coordinators(version, body, _Learning(advertise), throttle_time_ms)


@dataclass(slots=True)
class _Learning:
    """The ids and addresses of brokers in one response, and its cluster, collected while it is rewritten."""

    advertise: Advertise
    brokers: list[BrokerAddress] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    cluster_id: str | None = None
    controller_id: int | None = None

    def place(self, node_id: int, row: Message) -> tuple[str, int] | None:
        """Record a broker, and return its advertised address."""
        self.brokers.append(BrokerAddress(node_id=node_id, host=row["host"], port=row["port"], rack=row.get("rack")))
        place = self.advertise(node_id)
        if place is None:
            self.left_out.append(node_id)
        return place

    def note_cluster_id(self, cluster_id: str | None) -> str | None:
        self.cluster_id = cluster_id
        return cluster_id

    def note_controller_id(self, controller_id: int) -> int:
        self.controller_id = controller_id
        return controller_id

    def broker(self, row: Message) -> Message | Drop:
        """Edit a row of Metadata or of node endpoints."""
        return self._broker(row, row["node_id"])

    def described_broker(self, row: Message) -> Message | Drop:
        """Edit a row of DescribeCluster, which uses another field name for the id."""
        return self._broker(row, row["broker_id"])

    def _broker(self, row: Message, node_id: int) -> Message | Drop:
        if len(self.brokers) >= MOST_BROKERS:
            raise MalformedFrame(f"a response has more than {MOST_BROKERS:,} brokers")
        place = self.place(node_id, row)
        return DROP if place is None else {**row, "host": place[0], "port": place[1]}

    def coordinator(self, row: Message) -> Message:
        """Edit a coordinator. A row with an error has no address (its node id is -1), and stays unchanged."""
        node_id: int = row["node_id"]
        if node_id < 0:
            return row
        place = self.place(node_id, row)
        if place is not None:
            return {**row, "host": place[0], "port": place[1]}
        reason = f"broker {node_id} is outside the range of ids that the proxy is configured for"
        error = {
            "error_code": COORDINATOR_NOT_AVAILABLE,
            "error_message": reason,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
        return {**row, **error}

    def result(self, body: bytes) -> Rewritten:
        return Rewritten(
            body=body,
            brokers=tuple(self.brokers),
            left_out=tuple(self.left_out),
            cluster_id=self.cluster_id,
            controller_id=self.controller_id,
        )


def _throttle(throttle_time_ms: int | None) -> dict[str, Edit]:
    return {} if throttle_time_ms is None else {"throttle_time_ms": lambda _old: throttle_time_ms}


def _rewrite_metadata(version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None) -> Rewritten:
    edits: dict[str, Edit] = {
        "brokers": learn.broker,
        "cluster_id": learn.note_cluster_id,
        "controller_id": learn.note_controller_id,
        **_throttle(throttle_time_ms),
    }
    return learn.result(edit("MetadataResponse", version, body, edits))


def _rewrite_describe_cluster(version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None) -> Rewritten:
    edits: dict[str, Edit] = {
        "brokers": learn.described_broker,
        "cluster_id": learn.note_cluster_id,
        "controller_id": learn.note_controller_id,
        **_throttle(throttle_time_ms),
    }
    return learn.result(edit("DescribeClusterResponse", version, body, edits))


def _rewrite_find_coordinator(version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None) -> Rewritten:
    if version >= COORDINATORS_FROM:
        return finish(_rewrite_coordinators(version, body, learn, throttle_time_ms))
    name = "FindCoordinatorResponse"
    edits = _throttle(throttle_time_ms)
    row = decode(name, version, body)
    for key, value in learn.coordinator(row).items():
        if key in row and value != row[key]:
            edits[key] = _constant(value)
    return learn.result(edit(name, version, body, edits))


def _rewrite_coordinators(
    version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None
) -> Steps[Rewritten]:
    edits: dict[str, Edit] = {"coordinators": learn.coordinator, **_throttle(throttle_time_ms)}
    return learn.result((yield from edit_in_steps("FindCoordinatorResponse", version, body, edits)))


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _old: value


def _rewrite_share(name: str) -> _Rewrite:
    def rewrite(version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None) -> Rewritten:
        edits: dict[str, Edit] = {"node_endpoints": learn.broker, **_throttle(throttle_time_ms)}
        return learn.result(edit(name, version, body, edits))

    return rewrite


def _rewrite_produce(version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None) -> Rewritten:
    """Rewrite a Produce response. This is on the hot path: usually there is no hint, and at most 4 bytes change."""
    throttle_at, hints_at = find_produce_tail(body, version)
    if hints_at is not None:
        edits: dict[str, Edit] = {"node_endpoints": learn.broker, **_throttle(throttle_time_ms)}
        return learn.result(edit("ProduceResponse", version, body, edits))
    if throttle_time_ms is None or throttle_at is None:
        return Rewritten(body=bytes(body))
    patched = bytearray(body)
    _INT32.pack_into(patched, throttle_at, throttle_time_ms)
    return Rewritten(body=bytes(patched))


class _Rewrite(Protocol):
    def __call__(self, version: int, body: Buffer, learn: _Learning, throttle_time_ms: int | None, /) -> Rewritten: ...


_REWRITES: Final[dict[int, _Rewrite]] = {
    ApiKey.PRODUCE: _rewrite_produce,
    ApiKey.METADATA: _rewrite_metadata,
    ApiKey.FIND_COORDINATOR: _rewrite_find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: _rewrite_describe_cluster,
    ApiKey.SHARE_FETCH: _rewrite_share("ShareFetchResponse"),
    ApiKey.SHARE_ACKNOWLEDGE: _rewrite_share("ShareAcknowledgeResponse"),
}
