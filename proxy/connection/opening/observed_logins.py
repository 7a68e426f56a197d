"""Requests by which a client authenticates at the broker, in a login that the proxy observes.

Called with the whole request, before it is forwarded. The broker's answer decides whether the login succeeds, and which
user the client then is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.proxy.connection.enforcement import enforce_on_request
from headrace.proxy.connection.opening.token_logins import token_accepted
from headrace.proxy.connection.opening.user_admission import admit_user
from headrace.proxy.connection.state.authentication import Authentication
from headrace.proxy.connection.state.refused_logins import note_refused_login
from headrace.proxy.connection.state.reply_actions import Observe, PassToken
from headrace.proxy.wire.headerless_tokens import handshake_mechanism
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.quota_callbacks.verdicts import Refuse


def enforce_on_login(state: ConnectionState, exchange: Exchange, body: memoryview, now_s: float) -> Refuse | None:
    """Call the callbacks for a SaslHandshake or SaslAuthenticate, and observe it and its reply.

    Return the refusal, if any. Raises `MalformedFrame`.
    """
    version = exchange.api_version
    authentication = _authentication_of(state)
    if exchange.api_key == ApiKey.SASL_AUTHENTICATE:
        refusal = enforce_on_request(state, exchange, now_s)
        if refusal is None and (watch := authentication.authenticate(body, version)) is not None:
            exchange.reply = Observe(watch)
            state.in_flight.hold(exchange, len(body))
        return refusal
    # A client with a certificate counts as accepted without an answer of the brokers. So its SaslHandshake is an
    # ordinary request only if the brokers are known to serve clients without SASL.
    known = not state.proved or state.listener.upstream.serves_anonymous
    anonymous = state.accepted and not authentication.accepted and known
    watch = authentication.handshake(handshake_mechanism(body), version, now_s, serves_anonymous=anonymous)
    exchange.reply = Observe(watch)
    refusal = enforce_on_request(state, exchange, now_s)
    if refusal is not None:
        authentication.withdraw()
    return refusal


def observe_token(state: ConnectionState, token: Exchange, content: bytes) -> None:
    """Observe a token without a header, ``content`` without its length, and the broker's answer to it."""
    if state.authentication is not None:
        token.reply = PassToken(state.authentication.token(content))
        state.in_flight.hold(token, len(content))


def _authentication_of(state: ConnectionState) -> Authentication:
    if state.authentication is None:
        state.authentication = Authentication(
            state.info,
            state.shared.hooks,
            state.note_sasl,
            partial(note_refused_login, state),
            partial(admit_user, state),
            partial(token_accepted, state),
            state.limits.max_handshake_bytes,
            state.shared.clock,
        )
    return state.authentication
