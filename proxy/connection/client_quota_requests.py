"""Answering DescribeClientQuotas and AlterClientQuotas in place of the broker.

Called by `whole_requests` with a request that was read in full and admitted. Nothing more is read from the client until
the answer is known (`headrace.proxy.quotas.client_quota_apis`), as for a request that the broker has to be asked about.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.enforcement import enforce_on_reply
from headrace.proxy.connection.refusals import answer
from headrace.proxy.connection.state.client_sasl import SESSION_HAS_ENDED
from headrace.proxy.errors import ClientFault
from headrace.proxy.wire.apis import CLIENT_QUOTA_APIS, response_header_bytes
from headrace.proxy.wire.refusals import response_frame

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.thread_time import Stopwatch

MAX_ALTER_BYTES: Final = 8 * 2**20
"""Bound for an AlterClientQuotas request in place of ``limits.max_whole_request_bytes``: 10,000 changes, which are the
most that Kafka makes for one request, of entities with names of some hundred bytes. Its rows have a bound, too
(`headrace.proxy.quotas.client_quota_apis.MAX_ALTER_ROWS`)."""

_THROTTLE: Final = Struct(">i")
"""throttle_time_ms, the first field of both responses in every version."""


def is_answered_here(state: ConnectionState, exchange: Exchange) -> bool:
    """Return whether the proxy answers the request itself."""
    return exchange.api_key in CLIENT_QUOTA_APIS and state.shared.client_quotas is not None


def is_allowed(state: ConnectionState, exchange: Exchange) -> bool:
    """Return whether the client may describe or change quotas, as the request would. Called once for each request.

    One that may change quotas may send a larger request than any other.
    """
    client_quotas = state.shared.client_quotas
    if client_quotas is None:
        return False
    return client_quotas.allows(state.info, exchange.api_key, authenticated=state.authenticates or state.proved)


async def answer_client_quotas(
    state: ConnectionState, exchange: Exchange, body: memoryview, watch: Stopwatch, *, allowed: bool
) -> None:
    """Answer the request, and queue the reply among those in flight. ``allowed`` is what `is_allowed` has returned.

    Raises `MalformedMessage` for an invalid body, and `ClientFault` if the client's session has expired: a broker then
    closes the connection at any request.

    ``watch`` measures the work, without what other tasks do while this one waits.
    """
    client_quotas, authentication = state.shared.client_quotas, state.authentication
    if client_quotas is None:
        raise AssertionError("the proxy does not answer client quota requests")
    if authentication is not None and state.shared.clock() > authentication.session_end_s:
        raise ClientFault(SESSION_HAS_ENDED)
    api_key, version, number = exchange.api_key, exchange.api_version, exchange.correlation_id
    reply = await client_quotas.answer(state.info, api_key, version, body, allowed=allowed, paused=watch.paused)
    now_s = state.shared.clock()
    exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
    exchange.response_header_bytes = response_header_bytes(api_key, version)
    enforce_on_reply(state, exchange, now_s)

    def make_reply() -> bytes:
        throttle = _THROTTLE.pack(state.throttle_left_ms)
        return response_frame(api_key, version, number, throttle + reply[_THROTTLE.size :])

    state.in_flight.hold(exchange, len(reply))
    state.in_flight.count_held()
    answer(state, exchange, make_reply)
