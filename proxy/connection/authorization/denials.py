"""Answering requests that a client may not make, and changing the replies to requests of which a part was denied.

Called by `headrace.proxy.connection.authorization.requests`. What is kept until the reply is sent counts as memory of
the request in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.enforcement import enforce_on_denial
from headrace.proxy.connection.refusals import answer_later
from headrace.proxy.errors import ClientFault
from headrace.proxy.wire.authorization.denied_rows import DeniedRows
from headrace.proxy.wire.authorization.visible_rows import Viewer, filter_of_in_steps, filter_reply_in_steps
from headrace.proxy.wire.errors import RefusalImpossible
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages import row_limit
from headrace.proxy.wire.messages.codec import encode
from headrace.proxy.wire.refusals import OwnReply, refusal_in_steps
from headrace.quota_callbacks.api_keys import API_NAMES, ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.wire.authorization.requirement_types import RowKey
    from headrace.proxy.wire.authorization.visible_rows import Change
    from headrace.proxy.wire.heads import RequestHead
    from headrace.proxy.wire.messages.stepwise import Steps
    from headrace.quota_callbacks.requests import Connection

AMENDED_FETCH_BYTES: Final = 4 * 1024 * 1024
"""The most bytes that a Fetch with denied topics may request, since its reply is collected. A consumer gets the rest
with its next request."""

AMENDMENT_BYTES: Final = 1024
"""Memory of the functions that change one reply, without the names and rows that they contain."""

_FILTERS_WITH_NAMES: Final = frozenset({ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS})
"""The APIs for which the names of groups are kept until the reply."""
_NAMES_FACTOR: Final = 30
"""Memory of a set of names for each byte of the request, if the names are as short as possible: three bytes each in a
request."""

_LOG_DIRS_ERROR_FROM: Final = 3
"""The first version of DescribeLogDirs whose response contains an error code. Kafka answers older ones with nothing."""


def check_rows_in_steps(
    state: ConnectionState, exchange: Exchange, body: bytes, *, numbers: bool = False
) -> Steps[None]:
    """Check the number of rows. With ``numbers``, partition numbers count, too: a denial has a row for each of them."""
    name, most = f"{API_NAMES[exchange.api_key]}Request", state.limits.max_request_rows
    yield from row_limit.check_rows_in_steps(name, exchange.api_version, body, most, numbers=numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """The answer to a request of which nothing is forwarded."""

    error_code: int
    reply: OwnReply


def deny_in_steps(state: ConnectionState, exchange: Exchange, error_code: int, body: bytes) -> Steps[Denial]:
    """Return the answer to a request that is denied as a whole.

    Raises `ClientFault` if the protocol has no reply that can express it.
    """
    yield from check_rows_in_steps(state, exchange, body, numbers=True)
    api_key, version = exchange.api_key, exchange.api_version
    if api_key == ApiKey.DESCRIBE_LOG_DIRS and version < _LOG_DIRS_ERROR_FROM:
        reply = OwnReply(encode("DescribeLogDirsResponse", version, {}), 0 if version else None)
    else:
        try:
            reply = yield from refusal_in_steps(api_key, version, body, error_code, None)
        except RefusalImpossible as error:
            raise ClientFault(f"denied with error {error_code}, but {error}") from error
    return Denial(error_code=error_code, reply=reply)


def answer_denial(state: ConnectionState, exchange: Exchange, denial: Denial) -> None:
    """Send the answer when its turn comes. Nothing but the proxy's own work is charged."""
    exchange.refused_code = denial.error_code
    enforce_on_denial(state, exchange, state.shared.clock())
    answer_later(state, exchange, denial.reply)


def without_rows_in_steps(
    state: ConnectionState, exchange: Exchange, head: RequestHead, frame: bytes, rows: Mapping[RowKey, int]
) -> Steps[bytes | Denial]:
    """Remove the denied rows from the request, and have their errors added to the reply.

    Return the frame to forward, or the answer if nothing is left. ``rows`` are the error codes of the denied rows.
    """
    api_key, version = exchange.api_key, exchange.api_version
    body = frame[head.body_at :]
    hidden = yield from filter_of_in_steps(api_key, version, body)
    if not rows:
        if hidden is not None:
            _amend(state, exchange, None, hidden, body)
        return frame
    if api_key == ApiKey.PRODUCE and exchange.acks == 0:
        raise ClientFault("topics of a Produce are denied, but with acks=0 it has no reply")
    yield from check_rows_in_steps(state, exchange, body, numbers=True)
    denied = yield from DeniedRows.split_in_steps(api_key, version, body, rows)
    left, denied.left = denied.left, None
    if left is None:
        reply = yield from denied.reply_in_steps()
        return Denial(error_code=next(iter(rows.values())), reply=reply)
    _amend(state, exchange, denied, hidden, body)
    if api_key == ApiKey.FETCH:
        exchange.fetch_max_bytes = AMENDED_FETCH_BYTES
    yield
    return framed(frame[LENGTH_BYTES : head.body_at] + left)


def _amend(
    state: ConnectionState,
    exchange: Exchange,
    denied: DeniedRows | None,
    hidden: Mapping[str, Change] | None,
    body: bytes,
) -> None:
    """Have the reply filtered and completed."""
    api_key, version = exchange.api_key, exchange.api_version

    def amend(reply: memoryview | bytes) -> Steps[bytes]:
        changed = bytes(reply)
        if hidden is not None:
            changed = yield from filter_reply_in_steps(api_key, version, changed, hidden, _viewer(state))
        if denied is not None:
            changed = yield from denied.add_to_in_steps(changed)
        return changed

    count = AMENDMENT_BYTES
    if denied is not None:
        count += denied.memory_bytes
    if hidden is not None and api_key in _FILTERS_WITH_NAMES:
        count += _NAMES_FACTOR * len(body)
    state.in_flight.amend(exchange, amend, count)
    state.in_flight.count_held()


def framed(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def _viewer(state: ConnectionState) -> Viewer:
    info: Connection = state.info
    authorization = state.shared.hooks.authorization
    return Viewer(info.user, lambda actions: authorization.authorize(info, actions), state.shared.topic_names.name)
