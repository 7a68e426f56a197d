"""Editing collected replies: addresses of brokers, the list of supported APIs, the throttle time.

Called by the reply relay, and for replies that the proxy sends itself. The topology is updated from the brokers that
the replies list.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.network.topology import learn
from headrace.proxy.wire.api_versions import throttled_api_versions
from headrace.proxy.wire.apis import must_rewrite
from headrace.proxy.wire.endpoints import rewrite_endpoints
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.editing import edit
from headrace.proxy.wire.topic_lookups import TOPIC_IDS_FROM, read_topic_names
from headrace.proxy.wire.walks.produce_reply import find_produce_tail
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.reply_actions import Merge

_INT32 = Struct(">i")
_NOT_LEARNED_FROM: Final = ApiKey.DESCRIBE_CLUSTER
"""The API whose replies do not update the topology: they may list controllers or fenced brokers."""


def edit_reply(state: ConnectionState, exchange: Exchange, frame: bytes, merge: Merge | None) -> bytes:
    """Return the frame to send to the client in place of ``frame``.

    ``merge`` adds refused topics to the body. Raises `MalformedMessage` if the body does not match its schema.
    """
    body_at = LENGTH_BYTES + exchange.response_header_bytes
    body = memoryview(frame)[body_at:]
    now_s = state.shared.clock()

    def throttle(broker_ms: int) -> int:
        return state.throttle_time_ms(exchange, broker_ms, now_s)

    edited = _edit_body(state, exchange, body, throttle)
    if merge is not None:
        edited = merge(bytes(edited), throttle(0))
    if edited is body:
        return frame
    return _INT32.pack(body_at - LENGTH_BYTES + len(edited)) + frame[LENGTH_BYTES:body_at] + edited


def _edit_body(
    state: ConnectionState, exchange: Exchange, body: memoryview, throttle: Callable[[int], int]
) -> bytes | memoryview:
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.PRODUCE:
        return _edit_produce(state, version, body, throttle)
    if api_key == ApiKey.API_VERSIONS:
        return throttled_api_versions(version, body, throttle)
    if must_rewrite(api_key, version):
        return _edit_endpoints(state, exchange, body, throttle)
    return edit(f"{API_NAMES[api_key]}Response", version, body, {"throttle_time_ms": throttle})


def _edit_produce(
    state: ConnectionState, version: int, body: memoryview, throttle: Callable[[int], int]
) -> bytes | memoryview:
    """Return the edited body. Usually nothing changes, or only the four bytes of the throttle time."""
    throttle_at, hints_at = find_produce_tail(body, version)
    if throttle_at is None:
        throttle(0)
        return body
    broker_ms: int = _INT32.unpack_from(body, throttle_at)[0]
    throttle_ms = throttle(broker_ms)
    if hints_at is not None:
        topology = state.shared.topology
        found = rewrite_endpoints(ApiKey.PRODUCE, version, body, topology.advertised, throttle_ms)
        learn(topology, found, complete=False)
        return found.body
    if throttle_ms == broker_ms:
        return body
    patched = bytearray(body)
    _INT32.pack_into(patched, throttle_at, throttle_ms)
    return bytes(patched)


def _edit_endpoints(
    state: ConnectionState, exchange: Exchange, body: memoryview, throttle: Callable[[int], int]
) -> bytes:
    topology, at = state.shared.topology, exchange.layout.throttle_at
    throttle_ms = None
    if at is not None and len(body) >= at + 4:
        broker_ms: int = _INT32.unpack_from(body, at)[0]
        throttle_ms = throttle(broker_ms)
    names = state.shared.topic_names
    if names.followed and exchange.api_key == ApiKey.METADATA and exchange.api_version >= TOPIC_IDS_FROM:
        names.learn(read_topic_names(exchange.api_version, body))
    found = rewrite_endpoints(exchange.api_key, exchange.api_version, body, topology.advertised, throttle_ms)
    if exchange.api_key != _NOT_LEARNED_FROM:
        learn(topology, found, complete=exchange.api_key == ApiKey.METADATA)
    return found.body
