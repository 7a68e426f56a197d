"""Attacks with a second login on a connection (KIP-368), on a real proxy in front of a real broker."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.wire.messages.codec import encode
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.shared_cluster import SECRETS, SESSION_MS, SHORT_SESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.shared_cluster import FirstBroker

SAME_ID: Final = 7
REPEATED_AFTER_S: Final = 1.1
"""A broker refuses a second login within a second of the first."""
ALTERATION: Final = encode(
    "AlterClientQuotasRequest",
    0,
    {
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "bob"}],
                "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
            }
        ],
        "validate_only": False,
    },
)


@pytest.fixture
def proxy(kafka: FirstBroker, tmp_path: Path) -> Iterator[ProxyProcess]:
    config = f'[client_quotas]\nfile = "{tmp_path / "quotas.sqlite"}"\nadministrators = ["alice"]\n'
    with ProxyProcess(kafka.addresses(SHORT_SESSIONS), config=config, arguments=("--log-level", "debug")) as process:
        yield process


def login(user: str, version: int = 1) -> bytes:
    """Return a SaslHandshake and a SaslAuthenticate, with the same correlation id; for v0 with a token alone."""
    body = messages.plain_token(user, SECRETS[user])
    if version == 0:
        return messages.request(messages.SASL_HANDSHAKE, 0, SAME_ID, messages.string("PLAIN")) + body
    return messages.request(messages.SASL_HANDSHAKE, 1, SAME_ID, messages.string("PLAIN")) + messages.request(
        ApiKey.SASL_AUTHENTICATE.value, 1, SAME_ID, body
    )


def replies(client: RawClient) -> list[bytes]:
    """All replies until the connection ends."""
    found = []
    try:
        while True:
            found.append(client.reply()[1])
    except ConnectionEndedError:
        return found


@pytest.mark.parametrize("version", [0, 1])
def test_what_follows_the_login_of_another_user_is_not_taken_for_its_answer(
    kafka: FirstBroker, proxy: ProxyProcess, version: int
) -> None:
    """A broker delays its refusal to change the user of a connection, and answers the requests behind it first. To a
    token without a header, which follows a SaslHandshake v0, it sends no refusal at all."""
    port_of_broker = struct.pack(">i", int(kafka.addresses(SHORT_SESSIONS).rpartition(":")[2]))
    metadata = messages.request(ApiKey.METADATA.value, 4, SAME_ID, struct.pack(">i?", 0, False))
    alteration = messages.request(ApiKey.ALTER_CLIENT_QUOTAS.value, 0, SAME_ID, ALTERATION)
    with RawClient(proxy.port, timeout_s=20) as client:
        client.send(login("bob"))
        assert [client.reply()[0] for _ in range(2)] == [SAME_ID, SAME_ID]
        time.sleep(REPEATED_AFTER_S)
        client.send(login("alice", version) + metadata + metadata + alteration)
        found = replies(client)
    assert all(port_of_broker not in each for each in found), "no reply has the address of a broker"
    with RawClient(proxy.port) as client:
        client.send(login("alice"))
        assert [client.reply()[0] for _ in range(2)] == [SAME_ID, SAME_ID]
        described = client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS.value, 0, struct.pack(">i?", 0, False))
        assert b"bob" not in described
    proxy.stop()
    adopted = [line for line in proxy.log.splitlines() if "user adopted" in line]
    assert ["user=alice" in line for line in adopted] == [False, True], "alice is the user of her own connection alone"


@pytest.mark.exhaustive
def test_an_administrator_whose_session_has_expired_changes_nothing(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, timeout_s=20) as client:
        client.send(login("alice"))
        assert [client.reply()[0] for _ in range(2)] == [SAME_ID, SAME_ID]
        time.sleep(SESSION_MS / 1000 + 0.2)
        client.request(ApiKey.ALTER_CLIENT_QUOTAS.value, 0, ALTERATION)
        assert replies(client) == []
    proxy.wait_for_log("its session has expired")
