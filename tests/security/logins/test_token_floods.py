"""Logins with invented delegation tokens, at a real broker: they cost no lookup, and keep no owner from its quota."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import cycle
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.sasl.scram import ScramMechanism
from headrace.proxy.sasl.scram_client import ScramClient
from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually
from tests.clients.users.test_tokens import (
    DEBUG_LOG,
    address_of,
    adopted,
    by_token,
    configuration,
    delete,
    logged_in,
    new_token,
)
from tests.clients.wire_connection import WireConnection
from tests.faults.metrics import series
from tests.secure_cluster import Port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.secure_cluster import SecureKafka

INVENTED: Final = 10
"""A broker delays each refusal by 0.1 s (``connection.failed.authentication.delay.ms``)."""
OWN_TOKENS: Final = 15
ANSWERED: Final = 'headrace_token_owner_requests_total{result="answered"}'
FAILED: Final = 'headrace_token_owner_requests_total{result="failed"}'
REFUSED: Final = 58
"""SASL_AUTHENTICATION_FAILED"""
ONE_ADDRESS: Final = ("127.0.0.1",)
MANY_ADDRESSES: Final = tuple(f"127.0.1.{number}" for number in range(1, INVENTED + 1))


@pytest.fixture
def proxy(secure_kafka: SecureKafka, tmp_path: Path) -> Iterator[ProxyProcess]:
    config = configuration(tmp_path, "bob", further='unknown_owner = "refuse"')
    with ProxyProcess(secure_kafka.address(Port.SASL), config=config, arguments=DEBUG_LOG) as process:
        yield process


def claim(connection: WireConnection, token_id: str) -> int:
    """Begin a login by a token; return the broker's error."""
    client = ScramClient(ScramMechanism.SHA_256, token_id, extensions={"tokenauth": "true"})
    assert connection.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})["error_code"] == 0
    error: int = connection.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": client.first()})["error_code"]
    return error


def ask_something(connection: WireConnection) -> None:
    """Send the first request, which is forwarded once the owner is known."""
    assert connection.ask(ApiKey.METADATA, 12, {"topics": []})["brokers"]


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(ONE_ADDRESS, id="one address"),
        pytest.param(MANY_ADDRESSES, id="many addresses", marks=pytest.mark.exhaustive),
    ],
)
def test_invented_tokens_are_asked_of_no_broker(
    secure_kafka: SecureKafka, proxy: ProxyProcess, addresses: tuple[str, ...]
) -> None:
    """Each connection names another token, and none has it; then its owner logs in by a real one."""
    broker, port = address_of(secure_kafka.address(Port.SASL)), ("127.0.0.1", proxy.port)
    for number, address in zip(range(INVENTED), cycle(addresses), strict=False):
        with WireConnection(port, source=address) as connection:
            assert claim(connection, f"invented-{number}") == REFUSED
    assert series(proxy, ANSWERED) == series(proxy, FAILED) == 0
    assert proxy.metric("headrace_token_owners") == proxy.metric("headrace_token_owners_unknown_total") == 0
    token = new_token(broker, "alice")
    with by_token(port, token) as connection:
        ask_something(connection)
    eventually(lambda: adopted(proxy) == ["alice"], "the owner is logged")
    assert series(proxy, ANSWERED) == 1
    delete(broker, "alice", token)


@pytest.mark.exhaustive
def test_many_tokens_of_one_user_are_asked_for_at_once(secure_kafka: SecureKafka, proxy: ProxyProcess) -> None:
    """However many tokens a user makes, the answer to the first login has the owners of all."""
    broker, port = address_of(secure_kafka.address(Port.SASL)), ("127.0.0.1", proxy.port)
    with logged_in(broker, "alice") as connection:
        before = len(connection.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})["tokens"])
    tokens = [new_token(broker, "alice") for _ in range(OWN_TOKENS)]
    with ExitStack() as stack:
        for token in reversed(tokens):  # once the broker knows the last one, it knows all
            ask_something(stack.enter_context(by_token(port, token)))
        assert series(proxy, ANSWERED) == 1
        assert series(proxy, FAILED) == 0
        assert proxy.metric("headrace_token_owners") <= before + OWN_TOKENS
        eventually(lambda: adopted(proxy) == ["alice"] * OWN_TOKENS, "the owner of each is logged")
    for token in tokens:
        delete(broker, "alice", token)
