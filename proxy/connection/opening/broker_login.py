"""Authenticating a connection to a broker as the proxy: SaslHandshake and SaslAuthenticate.

Called by `headrace.proxy.connection.broker_questions` for the connections of clients, and for the proxy's own by the
server, for `headrace.proxy.network.upstream`. The exchange is that of a plugin.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.proxy.errors import UpstreamFault
from headrace.proxy.wire.errors import PeerFault
from headrace.proxy.wire.messages.codec import decode, encode
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode
from headrace.quota_callbacks.sasl import SaslRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.proxy.hooks.calls.hook_calls import HookCalls
    from headrace.proxy.network.upstream import Ask
    from headrace.quota_callbacks.requests import Connection
    from headrace.quota_callbacks.sasl import UpstreamSasl

VERSION: Final = 1
"""The version of SaslHandshake and of SaslAuthenticate. In version 1, SaslHandshake is not followed by tokens without a
header (Kafka 1.0), and SaslAuthenticate returns the lifetime of the session (2.2)."""

MAX_STEPS: Final = 10
"""Tokens of one authentication; SCRAM has two."""


async def log_in(
    ask: Ask, hooks: HookCalls, connection: Connection | None, settings: UpstreamSasl, setting: str
) -> float | None:
    """Authenticate, and return the seconds until the session ends, or ``None`` if it has no end (KIP-368).

    ``connection`` is the client's, if it is one, and ``setting`` the table of the configuration that describes the
    brokers. Raises `UpstreamFault` with the broker's reason, without secrets.
    """
    try:
        return await _log_in(ask, hooks, connection, settings, f"{setting}.sasl")
    except PeerFault as fault:  # raised by decoding, in the task of the client's requests
        raise UpstreamFault(f"the broker's answer to the proxy's login is not valid: {fault}") from fault


async def _log_in(
    ask: Ask, hooks: HookCalls, connection: Connection | None, settings: UpstreamSasl, table: str
) -> float | None:
    mechanism = settings.mechanism
    found = hooks.sasl.client_exchange(connection, settings)
    if found is None:
        raise UpstreamFault(f"no plugin can authenticate to brokers by {table}.mechanism = {mechanism}")
    plugin, exchange = found
    body = encode("SaslHandshakeRequest", VERSION, {"mechanism": mechanism})
    shaken = decode("SaslHandshakeResponse", VERSION, memoryview(await ask(ApiKey.SASL_HANDSHAKE, VERSION, body)))
    if shaken["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(shaken["mechanisms"]) or "none"
        raise UpstreamFault(f"the broker does not accept {table}.mechanism = {mechanism}; it accepts {offered}")
    if shaken["error_code"]:
        raise UpstreamFault(f"the broker answered SaslHandshake with error {shaken['error_code']}")
    try:
        respond = partial(hooks.sasl.client_token, plugin, exchange)
        return await _exchange_tokens(ask, respond, f"the proxy's login by {mechanism} as {settings.user}", table)
    except (UpstreamFault, PeerFault):
        raise
    except BaseException as error:  # noqa: ASYNC103 -- code of a plugin
        hooks.sasl.client_failed(plugin, error)
        raise UpstreamFault(f"the proxy's login by {mechanism}: the plugin {plugin} failed") from error  # noqa: ASYNC104


async def _exchange_tokens(
    ask: Ask, respond: Callable[[bytes | None], Awaitable[bytes | None]], login: str, table: str
) -> float | None:
    challenge: bytes | None = None
    lifetime_ms = 0
    for _ in range(MAX_STEPS):
        try:
            token = await respond(challenge)
        except SaslRefused as refused:
            raise UpstreamFault(f"{login}: {refused}; see {table}") from refused
        if token is None:
            return lifetime_ms / 1000 if lifetime_ms > 0 else None
        body = encode("SaslAuthenticateRequest", VERSION, {"auth_bytes": token})
        answer = memoryview(await ask(ApiKey.SASL_AUTHENTICATE, VERSION, body))
        reply = decode("SaslAuthenticateResponse", VERSION, answer)
        if reply["error_code"]:
            reason = reply["error_message"] or f"error {reply['error_code']}"
            raise UpstreamFault(f"{login} was refused by the broker: {reason}")
        challenge = reply["auth_bytes"]
        lifetime_ms = reply["session_lifetime_ms"]
    raise UpstreamFault(f"{login} did not end after {MAX_STEPS} tokens")
