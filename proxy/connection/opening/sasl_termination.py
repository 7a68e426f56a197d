"""Answering SaslHandshake and SaslAuthenticate in place of the broker (``listen.sasl.mode = "terminate"``).

Called by `headrace.proxy.connection.whole_requests` for each of these requests, and for the tokens without headers that
follow a SaslHandshake v0 (KIP-43). The mechanisms are those of plugins.

Source: ``SaslServerAuthenticator`` of Kafka 4.3, whose error codes and messages the replies have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.connection.enforcement import enforce_on_reply
from headrace.proxy.connection.opening.client_users import proved_user
from headrace.proxy.connection.opening.user_admission import admit_user
from headrace.proxy.connection.refusals import answer
from headrace.proxy.connection.state.refused_logins import note_refused_login
from headrace.proxy.errors import ClientFault
from headrace.proxy.hooks.calls.users import UserRefused
from headrace.proxy.wire.headerless_tokens import handshake_mechanism
from headrace.proxy.wire.heads import LENGTH_BYTES
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.proxy.wire.refusals import response_frame
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.entities import bounded_name
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS, UserSource
from headrace.quota_callbacks.sasl import SaslRefused, SaslStep

if TYPE_CHECKING:
    from headrace.proxy.connection.state.client_sasl import ClientSasl
    from headrace.proxy.connection.state.connection_state import ConnectionState
    from headrace.proxy.connection.state.in_flight import Exchange
    from headrace.proxy.connection.state.thread_time import Stopwatch
    from headrace.quota_callbacks.sasl import ServerExchange

REFUSAL_DELAY_S: Final = 0.1
"""How long the answer to a refused login waits, so that guesses take time: Kafka's default of
``connection.failed.authentication.delay.ms``."""
NOT_SERVED: Final = "Authentication failed: the credentials are valid, but their user is not served here"
"""The message for a client whose login is valid, but which a plugin refuses, or which has no identity at the
brokers."""


async def answer_sasl(state: ConnectionState, exchange: Exchange, body: memoryview, watch: Stopwatch) -> None:
    """Answer the request or token, and queue the reply among those in flight. ``watch`` does not measure while this
    waits.

    Raises `MalformedMessage` for an invalid body, and `ClientFault` for requests in an order that is not answered, and
    for users with too many connections.
    """
    sasl = state.sasl
    if sasl is None:
        raise AssertionError("the proxy does not authenticate the clients of this listener")
    if exchange.is_token:
        await _answer_token(state, sasl, exchange, bytes(body), watch)
    elif exchange.api_key == ApiKey.SASL_HANDSHAKE:
        _answer_handshake(state, sasl, exchange, body)
    else:
        token = decode("SaslAuthenticateRequest", exchange.api_version, body)["auth_bytes"]
        await _answer_token(state, sasl, exchange, token, watch)


def _answer_handshake(state: ConnectionState, sasl: ClientSasl, exchange: Exchange, body: memoryview) -> None:
    mechanism, now_s = handshake_mechanism(body), state.shared.clock()
    if sasl.exchange is not None:  # as a broker; otherwise one connection could try any number of tokens
        reason = "ILLEGAL_SASL_STATE: a SaslHandshake in the middle of an authentication"
        note_refused_login(state, sasl.mechanism, None, reason)
        _reply_to_handshake(state, exchange, ErrorCode.ILLEGAL_SASL_STATE, ())
        state.begin_drain()
        return
    if not sasl.may_begin(now_s):
        _reply_to_handshake(state, exchange, ErrorCode.ILLEGAL_SASL_STATE, ())
        return
    calls = state.shared.hooks.sasl
    found = calls.server_exchange(state.info, mechanism) if mechanism in sasl.mechanisms else None
    if found is None:
        offered = ", ".join(sasl.mechanisms)
        setting = f"{state.listener.setting}.sasl.mechanisms"
        reason = "no plugin has it" if mechanism in sasl.mechanisms else f"{setting} = {offered}"
        note_refused_login(state, bounded_name(mechanism), None, f"UNSUPPORTED_SASL_MECHANISM: {reason}")
        _reply_to_handshake(state, exchange, ErrorCode.UNSUPPORTED_SASL_MECHANISM, sasl.mechanisms)
        state.begin_drain()
        return
    sasl.begin(mechanism, *found, now_s, headerless=exchange.api_version == 0)
    state.note_login_began()
    state.info.mechanism = mechanism
    _reply_to_handshake(state, exchange, 0, sasl.mechanisms)


async def _answer_token(
    state: ConnectionState, sasl: ClientSasl, exchange: Exchange, token: bytes, watch: Stopwatch
) -> None:
    if sasl.exchange is None:
        if not sasl.complete:
            raise ClientFault("a SaslAuthenticate without a SaslHandshake before it")
        message = "SaslAuthenticate request received after successful authentication"
        _reply_to_token(state, exchange, ErrorCode.ILLEGAL_SASL_STATE, message)
        return
    exchange.authenticating = True
    if sasl.changes_mechanism:  # as `SaslServerAuthenticator.saslMechanismUnchanged`
        message = (
            f"SASL mechanism '{sasl.mechanism}' requested by client is not supported for re-authentication of"
            f" mechanism '{sasl.proved_by}'"
        )
        _refuse(state, sasl, exchange, state.info.user, message, message)
        return
    refusal: tuple[str | None, str, str | None]
    try:
        step = await _respond(state, sasl.plugin, sasl.exchange, token, watch)
        lifetime_s = _complete(state, sasl, step) if step.principal is not None else None
    except UserRefused as refused:
        refusal = (refused.user, str(refused), NOT_SERVED)
    except SaslRefused as refused:
        refusal = (refused.user, str(refused), None)
    except BaseException as error:  # noqa: ASYNC103, BLE001 -- code of a plugin
        state.shared.hooks.sasl.server_failed(sasl.plugin, error)
        refusal = (None, f"the plugin {sasl.plugin} failed", None)
    else:
        if step.principal is not None:
            admit_user(state)
        _reply_to_token(state, exchange, 0, None, step.answer, lifetime_s)
        return
    with watch.paused():
        await trio.sleep(REFUSAL_DELAY_S)
    _refuse(state, sasl, exchange, *refusal)


async def _respond(
    state: ConnectionState, plugin: str, server: ServerExchange, token: bytes, watch: Stopwatch
) -> SaslStep:
    if not server.blocks:
        return state.shared.hooks.sasl.server_step(plugin, server, token)
    with watch.paused():
        return await state.shared.login_threads.run(state.info.peer.host, server.respond, token)


def _complete(state: ConnectionState, sasl: ClientSasl, step: SaslStep) -> float | None:
    """Make the principal the user of the connection; return the lifetime of the session in seconds, if it has one."""
    principal = step.principal
    if not isinstance(principal, str) or not 0 < len(principal) <= MAX_PRINCIPAL_CHARACTERS:
        raise ValueError(f"a principal must be a string of 1 to {MAX_PRINCIPAL_CHARACTERS} characters")
    user = proved_user(state, principal, UserSource.PROXY)
    if sasl.complete and user != state.info.user:
        raise SaslRefused(f"Cannot change principals during re-authentication from {state.info.user}", user=user)
    lifetime_s = sasl.completed(state.shared.clock(), step.lifetime_s)
    state.info.user = user
    state.info.authenticating = False
    state.note_proved()
    return lifetime_s


def _refuse(
    state: ConnectionState,
    sasl: ClientSasl,
    exchange: Exchange,
    user: str | None,
    reason: str,
    message: str | None,
) -> None:
    """Refuse the login and close the connection once the client has the answer.

    Without a ``message``, the answer does not say why. A client that sends tokens without headers gets none.
    """
    sasl.failed()
    state.info.authenticating = False
    note_refused_login(state, sasl.mechanism, user, f"SASL_AUTHENTICATION_FAILED: {reason}")
    if not exchange.is_token:
        _reply_to_token(
            state, exchange, ErrorCode.SASL_AUTHENTICATION_FAILED, message or _invalid_credentials(sasl.mechanism)
        )
    state.begin_drain()


def _invalid_credentials(mechanism: str) -> str:
    """Return the message of a broker that does not say why."""
    if mechanism == "PLAIN":
        return "Authentication failed: Invalid username or password"
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"


def _reply_to_handshake(
    state: ConnectionState, exchange: Exchange, error_code: int, mechanisms: tuple[str, ...]
) -> None:
    body = encode(
        "SaslHandshakeResponse", exchange.api_version, {"error_code": error_code, "mechanisms": list(mechanisms)}
    )
    _reply(state, exchange, body)


def _reply_to_token(
    state: ConnectionState,
    exchange: Exchange,
    error_code: int,
    message: str | None,
    token: bytes = b"",
    lifetime_s: float | None = None,
) -> None:
    if exchange.is_token:
        now_s = state.shared.clock()
        exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
        frame = len(token).to_bytes(LENGTH_BYTES, "big") + token
        answer(state, exchange, lambda: frame)
        return
    fields: dict[str, object] = {"error_code": error_code, "error_message": message, "auth_bytes": token}
    if exchange.api_version > 0:
        fields["session_lifetime_ms"] = round((lifetime_s or 0.0) * 1000)
    _reply(state, exchange, encode("SaslAuthenticateResponse", exchange.api_version, fields))


def _reply(state: ConnectionState, exchange: Exchange, body: bytes) -> None:
    frame = response_frame(exchange.api_key, exchange.api_version, exchange.correlation_id, body)
    now_s = state.shared.clock()
    exchange.forwarded_s, exchange.reply_s = exchange.received_s, now_s
    enforce_on_reply(state, exchange, now_s)
    answer(state, exchange, lambda: frame)
