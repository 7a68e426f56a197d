"""Requests of the native data plane as plugins see them: those that it has completed, and those that return in flight.

Called by `headrace.proxy.connection.native.relay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.connection.state.in_flight import Exchange
from headrace.proxy.connection.state.reply_actions import reply_layout
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace._engine import Collected, ExchangeRow, ReplyRow
    from headrace.proxy.connection.state.connection_state import ConnectionState

NS: Final = 1e9


def exchange_of(state: ConnectionState, row: ExchangeRow, *, enforced: bool) -> Exchange:
    """Return a request that was forwarded natively. ``enforced`` is whether quotas apply to it."""
    api_key, version, correlation_id, acks, size, received_ns, forwarded_ns, arrived, alone = row
    client_id = "" if state.current is None else state.current.client_id
    layout = reply_layout(api_key, version)
    exchange = Exchange(state.info, api_key, version, correlation_id, client_id, size, received_ns / NS, layout)
    exchange.forwarded_s = forwarded_ns / NS
    exchange.enforced = enforced
    exchange.observed = api_key in state.shared.hooks.completions
    exchange.arrived = arrived
    exchange.alone = alone
    exchange.acks = acks if api_key == ApiKey.PRODUCE else None
    return exchange


def begin_reply(exchange: Exchange, row: ReplyRow) -> None:
    """Note the head of the reply, and the thread time, which was charged with it."""
    reply_ns, exchange.response_bytes, exchange.response_header_bytes, exchange.charged_thread_ns = row
    exchange.reply_s = reply_ns / NS


def note_completed(state: ConnectionState, completed: Collected, *, enforced: bool, charges_time: bool) -> None:
    """Report what was completed natively. ``charges_time`` is whether thread time was charged."""
    sums, samples = completed
    calls = state.shared.hooks.completed
    client_id = "" if state.current is None else state.current.client_id
    calls.add_native(state.info, client_id, sums)
    for draw, row, reply, completed_ns in samples:
        exchange = exchange_of(state, row, enforced=enforced)
        begin_reply(exchange, reply)
        if not charges_time:
            exchange.charged_thread_ns = None
        exchange.completed_s = completed_ns / NS
        calls.report_sampled(exchange, draw)
