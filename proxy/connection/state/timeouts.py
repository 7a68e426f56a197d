"""Ending connections whose time is over: idle ones, slow requests, brokers that do not answer, and old connections.

The server calls `end_if_overdue` for every connection every few seconds. An old connection
(``limits.max_connection_age``) ends at a moment at which the client loses nothing:

1. A check finds that nothing is in flight, and nothing has been for `QUIET_S`.
2. From `BUSY_S` later on, the relays look for such a moment after each reply (``ends_when_quiet``), for clients that
   send the next request at once.
3. From `PIPELINED_S` later on, a client that always has several requests in flight, or always the beginning of the
   next one on its way, is drained: no further request is read, and the connection ends with the last reply. The client
   sends the others again, as when a broker closes.

A muted client is not ended before the end of its mute, which it could otherwise leave by connecting to another proxy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.shared_state import Limits

log = structlog.get_logger("headrace.connection")

PROGRESS_BYTES: Final = 64 * 1024
"""The part of a long request that has to arrive within ``limits.request_timeout``: about 2 KiB/s by default."""

AGE_JITTER: Final = 0.2
"""The part of ``limits.max_connection_age`` by which the ages of connections differ, so that clients that connected
together do not reconnect together. gRPC varies ``MAX_CONNECTION_AGE`` by 10 % in both directions."""

QUIET_S: Final = 0.1
"""Time without a byte after which the client has surely read the last reply. kafka-python drops a reply that it reads
together with the end of the connection."""

BUSY_S: Final = 1.0
"""Time for which an old connection waits for a quiet moment of `QUIET_S`."""

PIPELINED_S: Final = 5.0
"""Time for which an old connection waits for a moment with nothing in flight."""

UNACKNOWLEDGED_S: Final = 60.0
"""As `PIPELINED_S`, for a client whose last request was a Produce with acks=0: what the broker has not read would be
lost, since the client does not send it again."""

SHORTEST_INTERVAL_S: Final = 0.1

BLOCKED_S: Final = 5.0
"""Time for which a broker may accept nothing of the requests of a client that has hung up."""


def check_interval_s(limits: Limits) -> float:
    """Return the longest time between two checks, in seconds, with which each timeout is exact enough."""
    interval_s = min(limits.request_timeout_s, limits.login_timeout_s) / 2
    if limits.max_connection_age_s:
        interval_s = min(interval_s, max(limits.max_connection_age_s / 10, SHORTEST_INTERVAL_S))
    return interval_s


def end_if_overdue(state: ConnectionState, now_s: float) -> None:
    """End the connection if one of its timeouts is over, or begin to end it if it is old."""
    limits = state.limits
    if state.native is not None and state.native.is_active:
        state.native.check(now_s)
    elif is_idle(state, now_s):
        state.end("idle", None)
    elif is_abandoned(state, now_s, is_blocked=state.requesting):
        end_abandoned(state)
    elif reply_is_overdue(state, now_s):
        end_unanswered(state)
    elif reply_is_stuck(state, now_s):
        end_stuck(state, "client" if state.replying else "upstream")
    elif is_slow(state, now_s):
        reason = f"a request arrives too slowly: limits.request_timeout = {limits.request_timeout_s:g} s"
        state.end_for_fault("client", reason, "slow")
    elif not state.update_accepted() and now_s - _unaccepted_since_s(state, now_s) > limits.login_timeout_s:
        what = "the broker did not accept the client"
        if state.token_login is not None:
            what = "the client sent no request, and the owner of its token was not found,"
        reason = f"{what} within limits.login_timeout = {limits.login_timeout_s:g} s"
        state.end_for_fault("upstream" if state.proved or _waits_for_broker(state) else "client", reason, "no login")
    elif _waits_for_login(state, now_s):
        reason = f"the proxy's login took longer than limits.login_timeout = {limits.login_timeout_s:g} s"
        state.end_for_fault("upstream", reason, "no renewed login")
    elif _leaves_login_unfinished(state, now_s):
        reason = f"it did not authenticate again within limits.login_timeout = {limits.login_timeout_s:g} s"
        state.end_for_fault("client", reason, "unfinished login")
    else:
        end_if_old(state, now_s)


def is_idle(state: ConnectionState, now_s: float) -> bool:
    """Return whether nothing is in flight and no byte was received for ``limits.idle_timeout``, without mutes."""
    since_s = max(state.last_active_s, state.mute.until_s)
    return not len(state.in_flight) and now_s - since_s > state.limits.idle_timeout_s


def is_slow(state: ConnectionState, now_s: float) -> bool:
    """Return whether a request that has begun to arrive did not make progress for ``limits.request_timeout``.

    A part of a TLS record counts as the beginning of a request. Progress is the last byte of the request, or
    `PROGRESS_BYTES` more of it; single bytes are no progress. Time in which the proxy does not read does not count: it
    reads a request to its end, also if no further one is read.
    """
    requests = state.holders[0]
    has_begun = requests.awaits_bytes or (state.client.undecrypted_bytes > 0 and not requests.held)
    reads_no_more = (state.must_hold or state.mute.until_s > now_s) and not requests.left
    if not has_begun or state.requesting or reads_no_more:
        state.arrival = None
        return False
    state.client.report_all()  # what has arrived is read by the next check
    received, arrival = state.client.bytes_received, state.arrival
    if arrival is None or arrival[0] is not state.current or received - arrival[1] >= PROGRESS_BYTES:
        state.arrival = (state.current, received, now_s)
        return False
    return now_s - arrival[2] > state.limits.request_timeout_s


def is_abandoned(state: ConnectionState, now_s: float, *, is_blocked: bool) -> bool:
    """Return whether the client has closed its connection although the proxy has not read the end of what it sent. The
    proxy does not read while no further request may be in flight, or while the broker accepts nothing (``is_blocked``).
    """
    is_blocked = is_blocked and now_s - state.last_active_s > BLOCKED_S
    return (state.in_flight.stops_reading or is_blocked) and state.client.hung_up()


def end_abandoned(state: ConnectionState) -> None:
    """End the connection of a client that has hung up."""
    state.end("the client hung up while its requests were in flight", None)


def end_unanswered(state: ConnectionState) -> None:
    """End the connection because of a broker that does not answer."""
    upstream = state.listener.upstream
    reason = f"the broker did not answer within {upstream.setting}.reply_timeout = {upstream.reply_timeout_s:g} s"
    state.end_for_fault("upstream", reason, "no answer")


def _waits_for_broker(state: ConnectionState) -> bool:
    """Return whether the broker is being connected to, or has not begun to answer, or the proxy authenticates to it,
    or the owner of the client's delegation token is not known yet."""
    first = state.in_flight.first
    return (
        state.dialling
        or state.login_began_s is not None
        or state.token_login is not None
        or (first is not None and first.forwarded_s is not None and first.reply_s is None)
    )


def _waits_for_login(state: ConnectionState, now_s: float) -> bool:
    """Return whether the proxy has not authenticated to the broker again within ``limits.login_timeout``."""
    began_s = state.login_began_s
    return state.accepted and began_s is not None and now_s - began_s > state.limits.login_timeout_s


def _leaves_login_unfinished(state: ConnectionState, now_s: float) -> bool:
    """Return whether the client has begun to authenticate to the proxy again, and did not go on.

    Otherwise it could keep the connection beyond ``limits.max_connection_age``, which interrupts no login.
    """
    sasl = state.sasl
    return sasl is not None and sasl.exchange is not None and now_s - sasl.began_s > state.limits.login_timeout_s


def _unaccepted_since_s(state: ConnectionState, now_s: float) -> float:
    """Return since when the client waits for its acceptance, or the broker for its login.

    A client that has proved to the proxy who it is need not send a request yet. Only with the first one does the
    proxy authenticate to the broker, which may not answer.
    """
    if not state.proved:
        return state.opened_s
    first = state.in_flight.first
    return now_s if first is None or first.forwarded_s is None else first.forwarded_s


def reply_is_overdue(state: ConnectionState, now_s: float) -> bool:
    """Return whether the broker has not begun to answer the oldest request within ``upstream.reply_timeout``.

    The time begins with the last byte before the check that first finds this request to be the oldest, so that the
    client cannot extend it by sending more.
    """
    first = state.in_flight.first
    if first is None or first.reply_s is not None or first.forwarded_s is None:
        state.oldest = None
        return False
    if state.oldest is None or state.oldest[0] is not first:
        state.oldest = first, max(first.forwarded_s, state.last_active_s)
    return now_s - state.oldest[1] > state.listener.upstream.reply_timeout_s


def reply_is_stuck(state: ConnectionState, now_s: float) -> bool:
    """Return whether a reply that has begun has not moved for ``limits.idle_timeout``: the broker sends no more of it,
    or the client accepts no more."""
    first, upstream = state.in_flight.first, state.upstream
    if not state.replying and (first is None or first.reply_s is None):
        state.moved = None
        return False
    moved = state.client.bytes_sent, 0 if upstream is None else upstream.bytes_received
    if state.moved is None or state.moved[0] != moved:
        state.moved = moved, now_s
    return now_s - state.moved[1] > state.limits.idle_timeout_s


def end_stuck(state: ConnectionState, side: str) -> None:
    """End a connection whose reply does not move, because of the client or the ``upstream``."""
    rule = f"for limits.idle_timeout = {state.limits.idle_timeout_s:g} s"
    state.end_for_fault(side, f"a reply has begun, and no byte of it was sent {rule}", "stuck")


# --- old connections ---


def age_of_end_s(state: ConnectionState) -> float:
    """Return the age in seconds after which the connection is old."""
    return state.shared.limits.max_connection_age_s * (1 - AGE_JITTER * state.jitter)


def is_old(state: ConnectionState, now_s: float) -> bool:
    """Return whether the connection is to be ended at a moment at which the client loses nothing."""
    return state.shared.limits.max_connection_age_s > 0 and now_s - state.opened_s >= age_of_end_s(state)


def end_if_old(state: ConnectionState, now_s: float) -> None:
    """End the connection if it is older than ``limits.max_connection_age`` and the client loses nothing by that."""
    old_s = now_s - state.opened_s - age_of_end_s(state)
    begun = state.accepted and state.current is not None  # neither the TLS handshake nor the login is interrupted
    if not state.shared.limits.max_connection_age_s or old_s < 0 or not begun or state.ended:
        state.note_age(is_old=False)  # the limit may have been raised
        return
    if state.draining or state.mute.until_s > now_s:
        state.note_age(is_old=True)  # the end of the mute is noticed by it
        return
    if now_s - state.last_active_s >= QUIET_S:
        end_if_quiet(state, now_s)
    if state.draining or old_s < BUSY_S:
        return
    state.note_age(is_old=True)
    # A client with at most one request in flight and nothing behind it soon has none, and `end_if_done` ends it then.
    sends_ahead = len(state.in_flight) > 1 or state.held_bytes or state.mid_request
    if sends_ahead and old_s >= (UNACKNOWLEDGED_S if state.unacknowledged else PIPELINED_S):
        _drain(state)


def end_if_done(state: ConnectionState) -> None:
    """End a draining connection, or an old one, if it is time. The relays call it where ``ends_when_quiet`` is set."""
    if state.draining:
        state.end_if_drained()
    else:
        end_if_quiet(state, state.shared.clock())


def end_if_quiet(state: ConnectionState, now_s: float) -> None:
    """End an old connection if nothing is in flight or on its way from the client, and the client is not muted."""
    if (
        not state.is_busy
        and not state.held_bytes
        and state.mute.until_s <= now_s
        and not state.info.authenticating
        and not state.client.unsent_bytes
        and not state.client.has_unread()
    ):
        _drain(state)


def _drain(state: ConnectionState) -> None:
    state.shared.counters.connections_aged += 1
    log.debug("connection ends", peer=str(state.info.peer), user=state.info.user, reason="limits.max_connection_age")
    state.begin_drain()
