"""The plugin authenticates to real brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from headrace.plugins.sasl_client import SaslClient
from headrace.proxy.kafka_client.connection.broker_connection import connect
from headrace.proxy.kafka_client.properties import settings_of
from headrace.quota_callbacks.api_keys import ApiKey
from headrace.quota_callbacks.sasl import UpstreamSasl
from headrace.quota_callbacks.secret_sources import SecretSource
from tests.clients.fronts import DEADLINE_S
from tests.shared_cluster import LISTENER, SECRETS

if TYPE_CHECKING:
    from headrace.proxy.kafka_client.connection.broker_connection import BrokerConnection
    from headrace.proxy.wire.messages.codec import Message
    from tests.shared_cluster import FirstBroker

SASL_AUTHENTICATION_FAILED = 58


async def logged_in(connection: BrokerConnection, mechanism: str, user: str) -> tuple[Message, bool]:
    """Authenticate by the variable PASSWORD; return the broker's last reply, and whether the plugin has accepted it."""
    settings = UpstreamSasl(mechanism=mechanism, user=user, password=SecretSource(env="PASSWORD"))
    exchange = SaslClient().sasl_client_exchange(settings)
    assert exchange is not None
    await connection.request(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism}, timeout_s=DEADLINE_S)
    token = await exchange.respond(None)
    while True:
        reply = await connection.request(
            ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": token or b""}, timeout_s=DEADLINE_S
        )
        if reply["error_code"]:
            return reply, False
        token = await exchange.respond(reply["auth_bytes"])
        if token is None:
            return reply, True


@pytest.mark.parametrize(
    ("mechanism", "user"), [("PLAIN", "alice"), ("SCRAM-SHA-256", "bob"), ("SCRAM-SHA-512", "bob")]
)
@pytest.mark.parametrize("right", [True, False])
async def test_a_broker_accepts_the_right_password_alone(
    mechanism: str, user: str, *, right: bool, kafka: FirstBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", SECRETS[user] if right else "wrong-word")
    settings = settings_of({}, bootstrap_servers=kafka.addresses(LISTENER))
    with trio.fail_after(DEADLINE_S):
        connection = await connect(settings.bootstrap_servers[0], settings)
        try:
            reply, accepted = await logged_in(connection, mechanism, user)
        finally:
            await connection.aclose()
    assert accepted is right
    assert reply["error_code"] == (0 if right else SASL_AUTHENTICATION_FAILED)
