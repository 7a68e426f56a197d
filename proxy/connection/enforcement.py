"""Asking the quota callbacks about a request, its batches or its reply, and muting the client for what they say.

Called by the relays. Whom to ask and what a plugin may do wrong is `headrace.proxy.hooks.calls`'; here is what follows
from the judgement: the mute, the hold, the decision that is told, and what stays with the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.proxy.hooks.decisions import Kind, entity_of, quota_of

if TYPE_CHECKING:
    from headrace.proxy.connection.in_flight import Exchange
    from headrace.proxy.connection.state import ConnectionState
    from headrace.proxy.hooks.combined_verdicts import Judgement
    from headrace.quota_callbacks.verdicts import Refuse


def judge_request(state: ConnectionState, exchange: Exchange, now_s: float) -> Refuse | None:
    """A request is about to be forwarded. Returns a refusal, if there is one.

    Of a client that the broker has not accepted nothing is charged, since its name is a mere claim.
    """
    shared = state.shared
    if not state.accepted or not shared.enforcement.applies(state.info.user, exchange.client_id):
        return None
    exchange.enforced = True
    calls = shared.hooks.wants_request(exchange.api_key)
    if not calls:
        return None
    judgement = shared.hooks.request_received(calls, exchange, int(now_s * 1000))
    if judgement is None:
        return None
    if judgement.hold_ms and judgement.refusal is None:
        _hold(state, exchange, judgement, now_s)
    _act(state, exchange, judgement, now_s)
    return judgement.refusal


def judge_arrival(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """The last byte of a request was read whose head was judged before."""
    exchange.arrived = True
    shared = state.shared
    if exchange.enforced and shared.enforcement.enabled:
        judgement = shared.hooks.request_arrived(exchange, int(now_s * 1000))
        if judgement is not None:
            _act(state, exchange, judgement, now_s)


def judge_batches(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """All batches of a Produce have passed."""
    shared = state.shared
    if exchange.enforced and shared.enforcement.enabled:
        judgement = shared.hooks.batches_received(exchange, int(now_s * 1000))
        if judgement is not None:
            _act(state, exchange, judgement, now_s)


def judge_reply(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """The reply has come."""
    shared = state.shared
    if not exchange.enforced:
        return
    if not shared.enforcement.enabled:  # switched off in between: what was reserved is given back
        shared.hooks.request_abandoned(exchange, int(now_s * 1000))
        return
    calls = shared.hooks.wants_response(exchange.api_key)
    if calls:
        judgement = shared.hooks.response_received(calls, exchange, int(now_s * 1000))
        if judgement is not None:
            _act(state, exchange, judgement, now_s)


def give_up(state: ConnectionState, exchange: Exchange) -> None:
    """``exchange`` will have no reply of the broker's: callbacks take back what they took for it."""
    if exchange.enforced:
        state.shared.hooks.request_abandoned(exchange, int(state.shared.clock() * 1000))


def end_hold(state: ConnectionState, exchange: Exchange) -> None:
    """A request that was held goes on; a throttle that was asked for beside the hold begins to be felt."""
    if exchange.throttle_after_hold_s is not None:
        until_s, quota, entity = exchange.throttle_after_hold_s
        state.mute.extend_to(until_s, quota, entity)
        exchange.throttle_after_hold_s = None


def _hold(state: ConnectionState, exchange: Exchange, judgement: Judgement, now_s: float) -> None:
    """Paced: the request itself waits, so a throttle of another quota counts from behind it."""
    exchange.hold_ms = judgement.hold_ms
    reason = judgement.hold_reason
    state.mute.extend(now_s, judgement.hold_ms, quota_of(reason), entity_of(reason))
    exchange.throttled_s = now_s
    state.shared.decisions.decided(exchange, Kind.HELD, judgement.hold_ms, judgement.hold_reason, now_s)
    if judgement.throttle_ms == 0:
        exchange.throttle_ms, exchange.reason = judgement.hold_ms, judgement.hold_reason


def _act(state: ConnectionState, exchange: Exchange, judgement: Judgement, now_s: float) -> None:
    decisions = state.shared.decisions
    throttle_ms, reason = judgement.throttle_ms, judgement.throttle_reason
    if throttle_ms:
        quota, entity = quota_of(reason), entity_of(reason)
        if exchange.hold_ms and exchange.forwarded_s is None:
            exchange.throttle_after_hold_s = (now_s + throttle_ms / 1000, quota, entity)
        else:
            state.mute.extend(now_s, throttle_ms, quota, entity)
        exchange.throttled_s = now_s
        if throttle_ms > exchange.throttle_ms:
            exchange.throttle_ms, exchange.reason = throttle_ms, reason
        if judgement.refusal is None:
            decisions.decided(exchange, Kind.THROTTLED, throttle_ms, reason, now_s)
    if judgement.observed_ms:
        exchange.observed_ms = max(exchange.observed_ms, judgement.observed_ms)
        exchange.reason = exchange.reason or judgement.observed_reason
        decisions.decided(exchange, Kind.OBSERVED, judgement.observed_ms, judgement.observed_reason, now_s)
