"""Authentication of a new connection by SASL: PLAIN and SCRAM (KIP-12, KIP-84, KIP-152, KIP-368).

SaslHandshake v1 and SaslAuthenticate, which brokers have since Kafka 1.0, carry the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, assert_never

import trio

from headrace.proxy.kafka_client.connection.scram import ScramExchange
from headrace.proxy.kafka_client.error_codes import ErrorCode
from headrace.proxy.kafka_client.errors import AuthenticationError, broker_error
from headrace.proxy.kafka_client.settings import Credentials, Mechanism
from headrace.quota_callbacks.api_keys import ApiKey

if TYPE_CHECKING:
    from headrace.proxy.wire.messages.codec import Message

_MOST_MECHANISMS_SHOWN: Final = 10


class Ask(Protocol):
    """Sends one request on the connection, and returns the reply."""

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
    match mechanism:
        case Mechanism.PLAIN:
            last = await _send_token(ask, credentials, _plain_token(credentials))
        case Mechanism.SCRAM_SHA_256 | Mechanism.SCRAM_SHA_512:
            exchange = ScramExchange(credentials)
            challenge = await _send_token(ask, credentials, exchange.first())
            server_first: bytes = challenge["auth_bytes"]
            proof = await trio.to_thread.run_sync(exchange.final, server_first, abandon_on_cancel=True)
            last = await _send_token(ask, credentials, proof)
            exchange.check(last["auth_bytes"])
        case _:
            assert_never(mechanism)
    lifetime_ms: int = last.get("session_lifetime_ms", 0)
    return lifetime_ms


def _plain_token(credentials: Credentials) -> bytes:
    """Return the message of PLAIN, without an authorization id (RFC 4616)."""
    return f"\0{credentials.user}\0{credentials.password}".encode()


async def _send_token(ask: Ask, credentials: Credentials, token: bytes) -> dict[str, Any]:
    reply = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
    if reply["error_code"]:
        error = broker_error(reply["error_code"], reply["error_message"])
        raise AuthenticationError(f"user {credentials.user!r} by {credentials.mechanism}: {error}")
    return reply
