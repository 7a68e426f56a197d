"""Calling the quota callbacks for a request, its batches or its reply, and carrying out the combined verdict.

Called by the relays. `headrace.proxy.hooks.calls` chooses the callbacks and handles their exceptions; this module mutes
or holds the client, records the decision, and keeps the results with the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.proxy.hooks.combined_verdicts import merge_refusals
from headrace.proxy.hooks.decisions import Kind, entity_of, quota_of
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.hooks.combined_verdicts import CombinedVerdict
    from headrace.quota_callbacks.verdicts import Refuse


SHARE_FETCH_BYTES: Final = 4 * 1024 * 1024
"""The most bytes that a ShareFetch may request. Its reply must be collected, because the leader hints behind the
records are not in a tagged field that could be hidden. A consumer gets the rest with its next request."""


def enforce_on_request(state: ConnectionState, exchange: Exchange, now_s: float) -> Refuse | None:
    """Call the callbacks for a request before it is forwarded, and return the refusal, if any.

    A request of which only some topics are refused may also be held. Nothing is charged for a client that the broker
    has not accepted, since its user name is not verified.
    """
    shared = state.shared
    if not state.accepted or not shared.enforcement.applies(state.info.user, exchange.client_id):
        return None
    exchange.enforced = True
    calls = shared.hooks.request_callbacks(exchange.api_key)
    if not calls:
        return None
    combined = shared.hooks.request_received(calls, exchange, int(now_s * 1000))
    if combined is None:
        return None
    if combined.hold_ms and not refuses_all(combined.refusal):
        _hold(state, exchange, combined, now_s)
    _apply(state, exchange, combined, now_s, held=exchange.hold_ms > 0)
    return combined.refusal


def refuses_all(refusal: Refuse | None) -> bool:
    """Return whether a request is refused, and not only some of its topics."""
    return refusal is not None and refusal.topics is None


def enforce_after_hold(
    state: ConnectionState, exchange: Exchange, now_s: float, refusal: Refuse | None = None
) -> tuple[bool, Refuse | None]:
    """Call again the callbacks that have held ``exchange`` with ``ask_again``, now that the hold is over.

    ``refusal`` is that of single topics by callbacks that did not hold it. Return whether it is held again, and all
    that is refused. If it is not held again, the throttle that was imposed besides the hold is applied.
    """
    calls, exchange.ask_again = exchange.ask_again, ()
    combined: CombinedVerdict | None = None
    shared = state.shared
    if calls and shared.enforcement.enabled:
        combined = shared.hooks.request_received(calls, exchange, int(now_s * 1000))
    if combined is not None and combined.refusal is not None:
        refusal = combined.refusal if refusal is None else merge_refusals(refusal, combined.refusal)
    if combined is not None and combined.hold_ms and not refuses_all(refusal):
        held_ms = exchange.hold_ms
        _hold(state, exchange, combined, now_s, again=True)
        exchange.hold_ms += held_ms
        _apply(state, exchange, combined, now_s, held=True)
        return True, refusal
    if exchange.throttle_after_hold_s is not None:
        until_s, quota, entity = exchange.throttle_after_hold_s
        if shared.enforcement.enabled:
            state.mute.extend_to(until_s, quota, entity)
        exchange.throttle_after_hold_s = None
    if combined is not None:
        _apply(state, exchange, combined, now_s)
    return False, refusal


def enforce_on_arrival(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Call the callbacks once the last byte was read of a request that passed `enforce_on_request` by its head."""
    exchange.arrived = True
    shared = state.shared
    # This is `_enforce_with` inline: one more call for nearly every Produce would cost as much as a callback.
    if exchange.enforced and shared.enforcement.enabled:
        combined = shared.hooks.request_arrived(exchange, int(now_s * 1000))
        if combined is not None:
            _apply(state, exchange, combined, now_s)


def enforce_on_batches(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Call the callbacks once all batches of a Produce have been read."""
    _enforce_with(state.shared.hooks.batches_received, state, exchange, now_s)


def enforce_on_reply(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Call the callbacks for the reply, before any of it is sent to the client."""
    shared = state.shared
    if not exchange.enforced:
        return
    exchange.settled = True
    if not shared.enforcement.enabled:  # it was turned off in between: callbacks undo their reservations
        shared.hooks.request_abandoned(exchange, int(now_s * 1000))
        return
    calls = shared.hooks.response_callbacks(exchange.api_key)
    if calls:
        combined = shared.hooks.response_received(calls, exchange, int(now_s * 1000))
        if combined is not None:
            _apply(state, exchange, combined, now_s)


def enforce_on_fetched(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Call the callbacks once the whole reply to a Fetch has been read, whose bytes were summed by topic."""
    _enforce_with(state.shared.hooks.records_fetched, state, exchange, now_s)


def abandon(state: ConnectionState, exchange: Exchange) -> None:
    """Report that ``exchange`` gets no reply, so that callbacks undo what they reserved for it; do nothing if its reply
    or the proxy's own answer was reported before."""
    if exchange.enforced and not exchange.settled:
        state.shared.hooks.request_abandoned(exchange, int(state.shared.clock() * 1000))
        if exchange.api_key == ApiKey.DELETE_TOPICS and exchange.forwarded_s is not None:
            # The broker may have deleted the topics: who creates them again pays.
            state.shared.created_topics.forget(each.topic for each in exchange.mutations or ())


def enforce_on_own_answer(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Report that the proxy answers ``exchange`` in place of the broker, as `abandon`; throttle the client for the
    proxy's own work."""
    shared = state.shared
    if not exchange.enforced or exchange.settled:
        return
    exchange.settled = True
    combined = shared.hooks.request_abandoned(exchange, int(now_s * 1000))
    if combined is not None and shared.enforcement.enabled:
        _apply(state, exchange, combined, now_s)


def enforce_on_denial(state: ConnectionState, exchange: Exchange, now_s: float) -> None:
    """Report that ``exchange`` was not authorized, before anything was charged for it; throttle the client for the
    proxy's own work."""
    shared = state.shared
    if shared.enforcement.applies(state.info.user, exchange.client_id):
        combined = shared.hooks.request_denied(exchange, int(now_s * 1000))
        if combined is not None:
            _apply(state, exchange, combined, now_s)


def fetch_cap(exchange: Exchange) -> int | None:
    """Return the most bytes that a Fetch or ShareFetch may request; ``None`` if nothing limits it."""
    cap = exchange.fetch_max_bytes
    if exchange.api_key == ApiKey.SHARE_FETCH:
        return SHARE_FETCH_BYTES if cap is None else min(cap, SHARE_FETCH_BYTES)
    return cap


def _enforce_with(
    hook: Callable[[Exchange, int], CombinedVerdict | None], state: ConnectionState, exchange: Exchange, now_s: float
) -> None:
    """Call ``hook`` unless the request is exempt or enforcement was switched off, and carry out its verdict."""
    if exchange.enforced and state.shared.enforcement.enabled:
        combined = hook(exchange, int(now_s * 1000))
        if combined is not None:
            _apply(state, exchange, combined, now_s)


def _hold(
    state: ConnectionState, exchange: Exchange, combined: CombinedVerdict, now_s: float, *, again: bool = False
) -> None:
    """Hold the request itself; a throttle of another quota is applied after the hold."""
    exchange.hold_ms = combined.hold_ms
    exchange.ask_again = combined.ask_again
    reason = combined.hold_reason
    state.mute.extend(now_s, combined.hold_ms, quota_of(reason), entity_of(reason))
    if again:  # one decision is recorded for each request, however often it has to wait for others
        return
    exchange.throttled_s = now_s
    state.shared.decisions.record(exchange, Kind.HELD, combined.hold_ms, combined.hold_reason, now_s)
    if combined.throttle_ms == 0:
        exchange.throttle_ms, exchange.reason = combined.hold_ms, combined.hold_reason


def _apply(
    state: ConnectionState, exchange: Exchange, combined: CombinedVerdict, now_s: float, *, held: bool = False
) -> None:
    decisions = state.shared.decisions
    throttle_ms, reason = combined.throttle_ms, combined.throttle_reason
    if throttle_ms:
        quota, entity = quota_of(reason), entity_of(reason)
        if held:
            later = exchange.throttle_after_hold_s
            if later is None or later[0] < now_s + throttle_ms / 1000:
                exchange.throttle_after_hold_s = (now_s + throttle_ms / 1000, quota, entity)
        else:
            state.mute.extend(now_s, throttle_ms, quota, entity)
        exchange.throttled_s = now_s
        if throttle_ms > exchange.throttle_ms:
            exchange.throttle_ms, exchange.reason = throttle_ms, reason
        if combined.refusal is None:
            decisions.record(exchange, Kind.THROTTLED, throttle_ms, reason, now_s)
    if combined.observed_ms:
        exchange.observed_ms = max(exchange.observed_ms, combined.observed_ms)
        exchange.reason = exchange.reason or combined.observed_reason
        decisions.record(exchange, Kind.OBSERVED, combined.observed_ms, combined.observed_reason, now_s)
