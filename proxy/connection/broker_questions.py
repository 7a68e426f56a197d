"""The proxy's own requests on the connection of a client: whether the broker serves the client, and what a request
of the client would change.

They are sent in order with the client's requests, with its client id and its rights. Called by `request_relay` and
`whole_requests`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.connection.opening.broker_login import log_in
from headrace.proxy.connection.opening.client_users import broker_login_of
from headrace.proxy.connection.opening.token_logins import learn_owner
from headrace.proxy.connection.state.client_sasl import MAX_LIFETIME_S, SESSION_HAS_ENDED
from headrace.proxy.connection.state.in_flight import Exchange
from headrace.proxy.connection.state.reply_actions import KeepForProxy, reply_layout
from headrace.proxy.connection.state.thread_time import Stopwatch
from headrace.proxy.errors import ClientFault, UpstreamFault
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.heads import LENGTH_BYTES, request_frame
from headrace.proxy.wire.messages.stepwise import finish
from headrace.proxy.wire.topic_lookups import ask_for_topics, names_brokers
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.wire.heads import RequestHead
    from headrace.quota_callbacks.sasl import UpstreamSasl

SESSION_SHARE: Final = 0.85
"""The proxy authenticates to a broker again when this part of its session has passed. Java does after 85 to 95 %."""


async def become_accepted(state: ConnectionState, head: RequestHead) -> None:
    """Wait until the request may be forwarded: the client has authenticated, the broker serves it, its user is known.

    Called for the first request that is not part of a handshake, and again when the session of the client, or of the
    proxy with the broker, is over. Raises `ClientFault` if the client is not served, and `UpstreamFault` if the broker
    cannot be reached or refuses the proxy.
    """
    sasl, upstream = state.sasl, state.listener.upstream
    if sasl is not None:
        if sasl.is_missing:
            raise ClientFault(
                "a request before the authentication; this listener requires SASL"
                f" ({state.listener.setting}.sasl.mode), so set the client's security.protocol to"
                f" {state.listener.sasl_protocol}"
            )
        if state.shared.clock() >= sasl.session_end_s:
            raise ClientFault(SESSION_HAS_ENDED)
    if upstream.sasl is not None:
        await _log_in_to_broker(state, head, upstream.sasl)
    elif state.token_login is None and not state.proved:
        await _ask_for_acceptance(state, head)
    if state.token_login is not None:  # perhaps set just now, if the broker has accepted a token without a header
        await learn_owner(state, state.token_login)


async def renew_broker_login(state: ConnectionState, head: RequestHead) -> None:
    """Authenticate to the broker again if that is due, before a request is forwarded that was held.

    The session of the client is not checked: it had not ended when the request came, and the hold is the proxy's own.
    Raises as `become_accepted`.
    """
    settings = state.listener.upstream.sasl
    if settings is not None and state.broker_login_is_due(state.shared.clock()):
        await _log_in_to_broker(state, head, settings)


async def _log_in_to_broker(state: ConnectionState, head: RequestHead, own: UpstreamSasl) -> None:
    settings = broker_login_of(state, own)
    watch = Stopwatch(state.shared.thread_time)
    ask = partial(ask_broker, state, head.correlation_id, head.client_id, watch)
    began_s = state.shared.clock()
    state.note_authenticating()
    state.note_broker_login_began(began_s)
    lifetime_s = await log_in(ask, state.shared.hooks, state.info, settings, state.listener.upstream.setting)
    if lifetime_s is None or lifetime_s > MAX_LIFETIME_S:
        lifetime_s = math.inf
    state.note_broker_login(began_s + SESSION_SHARE * lifetime_s)


async def _ask_for_acceptance(state: ConnectionState, head: RequestHead) -> None:
    """Find out whether the broker serves this client, before the first request that would be charged.

    The proxy's own refresh, if it is under way, may show that the brokers serve clients that do not authenticate.
    Otherwise a Metadata request without topics is sent on the client's connection: a broker names itself only to a
    client that it serves, and closes the connection otherwise. Raises `ClientFault` if the client is not served, and
    `UpstreamFault` if the broker cannot be reached.
    """
    if not state.authenticates:
        await state.listener.upstream.wait_for_refresh()
        if state.update_accepted():
            return
    version, body = finish(ask_for_topics(()))
    watch = Stopwatch(state.shared.thread_time)
    reply = await ask_broker(state, head.correlation_id, head.client_id, watch, ApiKey.METADATA, version, body)
    try:
        served = names_brokers(version, reply)
    except PeerFault as fault:
        raise UpstreamFault(str(fault)) from fault
    if not served:
        raise ClientFault("a request before the authentication has succeeded: the broker does not serve this client")
    if state.authentication is not None:
        state.authentication.answered(ApiKey.METADATA)
    state.note_accepted()


async def ask_broker(
    state: ConnectionState,
    correlation_id: int,
    client_id: str,
    watch: Stopwatch,
    api_key: int,
    version: int,
    body: bytes,
) -> bytes:
    """Send a request of the proxy's own, in order with the client's and with its client id; return the reply's body.

    ``watch`` does not measure while this waits. Raises `UpstreamFault` if the broker cannot be reached. Does not return
    if the connection ends first.
    """
    watch.pause()
    upstream = state.upstream or await state.dial()
    replied = trio.Event()
    found: list[bytes] = []

    def take(reply: bytes) -> None:
        found.append(reply)
        replied.set()

    now_s = state.shared.clock()
    frame = request_frame(api_key, version, correlation_id, client_id, body)
    layout = reply_layout(api_key, version)
    size = len(frame) - LENGTH_BYTES
    lookup = Exchange(state.info, api_key, version, correlation_id, client_id, size, now_s, layout)
    lookup.reply = KeepForProxy(take)
    lookup.forwarded_s = now_s
    state.in_flight.add(lookup)
    state.shared.counters.lookups += 1
    await upstream.send([frame])
    await replied.wait()
    watch.resume()
    return found[0]
