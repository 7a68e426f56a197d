"""Authentication of a new connection by SASL: PLAIN and SCRAM (KIP-12, KIP-84, KIP-152, KIP-368).

SaslHandshake v1 and SaslAuthenticate, which brokers have since Kafka 1.0, carry the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

import trio

from headrace.proxy.kafka_client.errors import AuthenticationError, broker_error
from headrace.proxy.kafka_client.settings import Credentials, Mechanism
from headrace.proxy.sasl.errors import ExchangeError
from headrace.proxy.sasl.plain import plain_message
from headrace.proxy.sasl.scram import ScramMechanism, scram_keys
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.error_codes import ErrorCode

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message

_MOST_MECHANISMS_SHOWN: Final = 10


class Ask(Protocol):
    """What sends one request on the connection, and returns the reply."""

    async def __call__(self, api_key: ApiKey, message: Message) -> Message:
        """Raise what `headrace.proxy.kafka_client.connection.broker_connection.BrokerConnection.request` raises."""


async def authenticate(ask: Ask, credentials: Credentials) -> int:
    """Authenticate the connection, and return how long the session lasts in milliseconds; 0 if it has no end.

    Raises `AuthenticationError` with the broker's message. The password is in no error.
    """
    mechanism = credentials.mechanism
    shaken = await ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism.value})
    if shaken["error_code"] == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(shaken["mechanisms"][:_MOST_MECHANISMS_SHOWN]) or "no mechanism"
        raise AuthenticationError(f"the broker does not accept sasl.mechanism = {mechanism}; it accepts {enabled}")
    if shaken["error_code"]:
        raise AuthenticationError(str(broker_error(shaken["error_code"], None)))
    try:
        match mechanism:
            case Mechanism.PLAIN:
                last = await _send_token(ask, credentials, plain_message(credentials.user, credentials.password))
            case Mechanism.SCRAM_SHA_256 | Mechanism.SCRAM_SHA_512:
                last = await _scram(ask, credentials)
            case _:
                assert_never(mechanism)
    except ExchangeError as error:
        raise AuthenticationError(str(error)) from error
    lifetime_ms: int = last.get("session_lifetime_ms", 0)
    return lifetime_ms


async def _scram(ask: Ask, credentials: Credentials) -> dict[str, Any]:
    """Return the broker's last reply, whose signature has been checked."""
    mechanism = ScramMechanism(credentials.mechanism.value)
    client = ScramClient(mechanism, credentials.user)
    reply = await _send_token(ask, credentials, client.first())
    challenge = client.read_challenge(reply["auth_bytes"])
    keys = await trio.to_thread.run_sync(
        scram_keys, mechanism, credentials.password, challenge.salt, challenge.iterations, abandon_on_cancel=True
    )
    last = await _send_token(ask, credentials, client.final(keys))
    client.check(last["auth_bytes"])
    return last


async def _send_token(ask: Ask, credentials: Credentials, token: bytes) -> dict[str, Any]:
    reply = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
    if reply["error_code"]:
        error = broker_error(reply["error_code"], reply["error_message"])
        raise AuthenticationError(f"user {credentials.user!r} by {credentials.mechanism}: {error}")
    return reply
