"""Replies that were collected: charging them by their content, and editing them, in steps.

Called by the reply relay, which sends what is returned. A large reply takes long, so the functions yield now and then,
and the relay's task continues them when it is the connection's turn.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.enforcement import enforce_on_fetched, enforce_on_reply
from headrace.proxy.connection.reply_edits import (
    amended_in_steps,
    edit_reply_in_steps,
    learn_names_in_steps,
    merge_reply_in_steps,
    names_topics,
    too_many_rows,
)
from headrace.proxy.connection.state.reply_actions import Settle
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.scalars import TooManyRows
from headrace.proxy.wire.mutations import MUTATIONS, read_topic_errors_in_steps
from headrace.proxy.wire.topic_lookups import UNCERTAIN
from headrace.proxy.wire.walks.fetched_topics import FetchedTopicsWalk, read_share_fetched
from headrace.proxy.wire.walks.produce_reply import read_refused
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.reply_actions import Rewrite
    from headrace.proxy.wire.messages.stepwise import Steps

_INT32 = Struct(">i")
WALKED_A_STEP: Final = 1024
"""Bytes of a Fetch reply, without records, that are read between two yields: some 30 partitions, which take 100 µs."""


def body_of(exchange: Exchange, frame: bytes) -> memoryview:
    """Return the body of a reply, which follows its header."""
    return memoryview(frame)[LENGTH_BYTES + exchange.response_header_bytes :]


def set_throttle(
    state: ConnectionState, buffer: bytearray | memoryview, exchange: Exchange, field_at: int, now_s: float
) -> None:
    """Write the throttle time that the client is to see over the broker's, at ``field_at`` of ``buffer``."""
    broker_ms: int = _INT32.unpack_from(buffer, field_at)[0]
    throttle_ms = state.throttle_time_ms(exchange, broker_ms, now_s)
    if throttle_ms != broker_ms:
        _INT32.pack_into(buffer, field_at, throttle_ms)


def settled_fetch_in_steps(state: ConnectionState, exchange: Exchange, frame: bytes) -> Steps[memoryview]:
    """Charge a Fetch by topic, and return its reply with the throttle time; yield every few partitions."""
    changed = bytearray(frame)
    body_at = LENGTH_BYTES + exchange.response_header_bytes
    body = memoryview(changed)[body_at:]
    walk = FetchedTopicsWalk(exchange.api_version, len(body))
    at = end = 0
    while not walk.done:
        end = min(max(end, at + walk.skip_left) + WALKED_A_STEP, len(body))
        at = walk.walk(body, at, end)
        yield
    state.shared.counters.hints_hidden += walk.hints
    exchange.fetched_bytes = walk.by_topic
    now_s = state.shared.clock()
    enforce_on_fetched(state, exchange, now_s)
    if (throttle_at := exchange.layout.throttle_at) is not None:
        set_throttle(state, changed, exchange, body_at + throttle_at, now_s)
    return memoryview(changed)


def edited_in_steps(state: ConnectionState, exchange: Exchange, action: Settle | Rewrite, frame: bytes) -> Steps[bytes]:
    """Return the reply to send, and call the callbacks that wait for its content; yield every few topics of it."""
    if isinstance(action, Settle):
        body = body_of(exchange, frame)
        if exchange.api_key in MUTATIONS:
            errors = yield from read_topic_errors_in_steps(exchange.api_key, exchange.api_version, body)
            exchange.topic_errors = {**(exchange.topic_errors or {}), **errors}
            if exchange.api_key == ApiKey.DELETE_TOPICS:
                state.shared.created_topics.forget(topic for topic, code in errors.items() if not code)
            elif exchange.api_key == ApiKey.CREATE_TOPICS:
                refused = (topic for topic, code in errors.items() if code and code not in UNCERTAIN)
                state.shared.created_topics.refused(refused, exchange.received_s)
        else:
            _read_outcome(exchange, body, state.limits.max_request_rows)
        now_s = state.shared.clock()  # a large reply has waited for its turn
        enforce_on_reply(state, exchange, now_s)
        if exchange.read_fetched:
            enforce_on_fetched(state, exchange, now_s)
        yield
    if names_topics(state, exchange):
        yield from learn_names_in_steps(state, exchange.api_version, body_of(exchange, frame))
    if action.merge is None:
        edited = yield from edit_reply_in_steps(state, exchange, frame)
    else:
        edited = yield from merge_reply_in_steps(state, exchange, frame, action.merge)
    if not state.in_flight.amendments:
        return edited
    yield
    return (yield from amended_in_steps(state, exchange, edited, LENGTH_BYTES + exchange.response_header_bytes))


def _read_outcome(exchange: Exchange, body: memoryview, max_rows: int) -> None:
    """Read from a reply what quota callbacks need to know of it. Raises `ClientFault` for more than ``max_rows``."""
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.PRODUCE:
        try:
            exchange.refused = read_refused(body, version, max_rows)
        except TooManyRows:
            raise too_many_rows(api_key, max_rows) from None
    elif api_key == ApiKey.FETCH:
        walk = FetchedTopicsWalk(version, len(body))
        walk.walk_whole(memoryview(bytearray(body)))
        exchange.fetched_bytes = walk.by_topic
    elif api_key == ApiKey.SHARE_FETCH:
        exchange.fetched_bytes = read_share_fetched(version, body)
