"""Editing collected replies: addresses of brokers, the list of supported APIs, the throttle time.

Called by the reply relay, and for replies that the proxy sends itself. The topology is updated from the brokers that
the replies list, and the names of topics, if a plugin has asked for them, from those of Metadata.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import ClientFault
from headrace.proxy.network.topology import learn
from headrace.proxy.wire.api_versions import throttled_api_versions
from headrace.proxy.wire.apis import must_rewrite
from headrace.proxy.wire.endpoints import COORDINATORS_FROM, rewrite_coordinators_in_steps, rewrite_endpoints
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.editing import edit, edit_in_steps
from headrace.proxy.wire.messages.row_limit import has_more_rows
from headrace.proxy.wire.messages.scalars import TooManyRows
from headrace.proxy.wire.messages.stepwise import ROWS_A_STEP, finish
from headrace.proxy.wire.topic_lookups import TOPIC_IDS_FROM, read_topic_names
from headrace.proxy.wire.walks.fetch import FIRST_VERSION_WITH_HINTS, FetchWalk
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.reply_actions import Merge
    from headrace.proxy.wire.messages.codec import Buffer
    from headrace.proxy.wire.messages.stepwise import Steps

_INT32 = Struct(">i")
_ANSWERED_BY_ROWS: Final = frozenset({ApiKey.FIND_COORDINATOR, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE})
"""The APIs whose replies have a row for each of the request, which was forwarded without counting its rows. In Metadata
only the brokers are edited."""

_NOT_LEARNED_FROM: Final = ApiKey.DESCRIBE_CLUSTER
"""The API whose replies do not update the topology: they may list controllers or fenced brokers."""


def edit_reply(state: ConnectionState, exchange: Exchange, frame: bytes) -> bytes:
    """Return the frame to send to the client in place of ``frame``.

    Raises `MalformedMessage` if the body does not match its schema.
    """
    body_at = LENGTH_BYTES + exchange.response_header_bytes
    body = memoryview(frame)[body_at:]
    edited = _edit_body(state, exchange, body, _throttle_of(state, exchange))
    return frame if edited is body else _with_body(frame, body_at, edited)


def edit_reply_in_steps(state: ConnectionState, exchange: Exchange, frame: bytes) -> Steps[bytes]:
    """Edit as `edit_reply`; yield every few rows of a reply of which many rows are edited, or skipped."""
    body_at = LENGTH_BYTES + exchange.response_header_bytes
    body, throttle = memoryview(frame)[body_at:], _throttle_of(state, exchange)
    if exchange.api_key == ApiKey.FIND_COORDINATOR:
        edited = yield from _edit_endpoints_in_steps(state, exchange, body, throttle)
    elif exchange.api_key == ApiKey.DESCRIBE_DELEGATION_TOKEN:  # its throttle time follows tokens with many renewers
        name = f"{API_NAMES[exchange.api_key]}Response"
        edited = yield from edit_in_steps(name, exchange.api_version, body, {"throttle_time_ms": throttle})
    else:
        return edit_reply(state, exchange, frame)
    return _with_body(frame, body_at, edited)


def merge_reply_in_steps(state: ConnectionState, exchange: Exchange, frame: bytes, merge: Merge) -> Steps[bytes]:
    """Edit as `edit_reply`, and have ``merge`` add the refused topics; yield every few of them."""
    body_at = LENGTH_BYTES + exchange.response_header_bytes
    throttle = _throttle_of(state, exchange)
    edited = _edit_body(state, exchange, memoryview(frame)[body_at:], throttle)
    merged = yield from merge(bytes(edited), throttle(0))
    return _with_body(frame, body_at, merged)


def too_many_rows(api_key: int, max_rows: int) -> ClientFault:
    """Return the error for a reply that has more rows than a request may have."""
    return ClientFault(
        f"{API_NAMES[api_key]} asked for so much that its reply has more than limits.max_request_rows = {max_rows} rows"
    )


def _throttle_of(state: ConnectionState, exchange: Exchange) -> Callable[[int], int]:
    """Return the function that gives the throttle time to send for that of the broker, both in milliseconds."""
    now_s = state.shared.clock()
    return lambda broker_ms: state.throttle_time_ms(exchange, broker_ms, now_s)


def _with_body(frame: bytes, body_at: int, body: bytes | memoryview) -> bytes:
    return _INT32.pack(body_at - LENGTH_BYTES + len(body)) + frame[LENGTH_BYTES:body_at] + body


def amended_in_steps(state: ConnectionState, exchange: Exchange, frame: bytes, body_at: int) -> Steps[bytes]:
    """Return the frame with the errors of what was denied of the request, and without what the client may not see.

    Returns it unchanged if neither applies. Raises `MalformedMessage` as `edit_reply`.
    """
    amend = state.in_flight.amendment(exchange)
    if amend is None:
        return frame
    body = yield from amend(memoryview(frame)[body_at:])
    return _with_body(frame, body_at, body)


def _edit_body(
    state: ConnectionState, exchange: Exchange, body: memoryview, throttle: Callable[[int], int]
) -> bytes | memoryview:
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.PRODUCE:
        return _edit_produce(state, version, body, throttle)
    if api_key == ApiKey.API_VERSIONS:
        known_only = state.shared.hooks.authorization.active
        return throttled_api_versions(version, body, throttle, known_only=known_only)
    if api_key == ApiKey.FETCH and version >= FIRST_VERSION_WITH_HINTS:
        body = _without_hints(body)
    if must_rewrite(api_key, version):
        return finish(_edit_endpoints_in_steps(state, exchange, body, throttle))
    return edit(f"{API_NAMES[api_key]}Response", version, body, {"throttle_time_ms": throttle})


def names_topics(state: ConnectionState, exchange: Exchange) -> bool:
    """Return whether the reply to ``exchange`` names topics, and a plugin has asked for their names."""
    is_metadata = exchange.api_key == ApiKey.METADATA and exchange.api_version >= TOPIC_IDS_FROM
    return is_metadata and state.shared.topic_names.followed


def learn_names_in_steps(state: ConnectionState, version: int, body: Buffer) -> Steps[None]:
    """Learn the names of the topics of a Metadata reply; yield every few topics. Raises `MalformedMessage`."""
    topics = yield from read_topic_names(version, body)
    for at in range(0, len(topics), ROWS_A_STEP):
        state.shared.topic_names.learn(topics[at : at + ROWS_A_STEP])
        yield


def _edit_produce(
    state: ConnectionState, version: int, body: memoryview, throttle: Callable[[int], int]
) -> bytes | memoryview:
    """Return the edited body. Usually nothing changes, or only the four bytes of the throttle time.

    Most requests are forwarded without counting their rows, so those of the reply are counted. Raises `ClientFault`.
    """
    max_rows = state.limits.max_request_rows
    try:
        throttle_at, hints_at = find_produce_tail(body, version, max_rows)
    except TooManyRows:
        raise too_many_rows(ApiKey.PRODUCE, max_rows) from None
    if throttle_at is None:
        throttle(0)
        return body
    broker_ms: int = _INT32.unpack_from(body, throttle_at)[0]
    throttle_ms = throttle(broker_ms)
    if hints_at is not None:
        topology = state.listener.topology
        found = rewrite_endpoints(ApiKey.PRODUCE, version, body, topology.advertised, throttle_ms)
        learn(topology, found, complete=False)
        return found.body
    if throttle_ms == broker_ms:
        return body
    patched = bytearray(body)
    _INT32.pack_into(patched, throttle_at, throttle_ms)
    return bytes(patched)


def _without_hints(body: memoryview) -> memoryview:
    """Return the body of a Fetch reply with its leader hints hidden."""
    changed = memoryview(bytearray(body))
    FetchWalk(len(changed)).walk_whole(changed)
    return changed


def _edit_endpoints_in_steps(
    state: ConnectionState, exchange: Exchange, body: memoryview, throttle: Callable[[int], int]
) -> Steps[bytes]:
    if exchange.api_key in _ANSWERED_BY_ROWS:
        max_rows = state.limits.max_request_rows
        if has_more_rows(f"{API_NAMES[exchange.api_key]}Response", exchange.api_version, body, max_rows):
            raise too_many_rows(exchange.api_key, max_rows)
    topology, at = state.listener.topology, exchange.layout.throttle_at
    throttle_ms = None
    if at is not None and len(body) >= at + 4:
        broker_ms: int = _INT32.unpack_from(body, at)[0]
        throttle_ms = throttle(broker_ms)
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.FIND_COORDINATOR and version >= COORDINATORS_FROM:
        found = yield from rewrite_coordinators_in_steps(version, body, topology.advertised, throttle_ms)
    else:
        found = rewrite_endpoints(api_key, version, body, topology.advertised, throttle_ms)
    if exchange.api_key != _NOT_LEARNED_FROM:
        learn(topology, found, complete=exchange.api_key == ApiKey.METADATA)
    return found.body
