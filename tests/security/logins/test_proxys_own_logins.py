"""Attacks on a real proxy that authenticates its clients itself, and itself to brokers."""

from __future__ import annotations

import contextlib
import select
import struct
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import terminated_plain
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.fake_broker import Asked, Conversation

ILLEGAL_SASL_STATE: Final = 34
FLOOD: Final = 200
ITERATIONS: Final = "16384"
"""The most that a user may have: the logins of a flood then take so long that a pause of this process ends before."""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ProxyProcess]:
    """A proxy that authenticates clients, before brokers that serve anybody."""
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=terminated_plain(tmp_path)) as process:
        wait_until(lambda: "brokers changed" in process.log, "the proxy knows that brokers serve anybody")
        yield process


def handshake(client: RawClient) -> int:
    """Send a SaslHandshake, and return the error code of its answer."""
    answer = client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
    return int.from_bytes(answer[:2], "big")


def log_in(client: RawClient, user: str = "bob") -> None:
    assert handshake(client) == 0
    answer = client.call(ApiKey.SASL_AUTHENTICATE.value, 1, messages.plain_token(user, SECRETS[user]))
    assert answer[:2] == b"\0\0"


@pytest.mark.parametrize("api_key", [ApiKey.METADATA, ApiKey.HEARTBEAT])
def test_brokers_that_serve_anybody_do_not_spare_clients_the_login(proxy: ProxyProcess, api_key: ApiKey) -> None:
    with RawClient(proxy.port, timeout_s=20) as client, pytest.raises(ConnectionEndedError):
        client.call(api_key.value, 1, messages.NO_TOPICS if api_key is ApiKey.METADATA else messages.heartbeat_body())
    proxy.wait_for_log("a request before the authentication")
    with RawClient(proxy.port, timeout_s=20) as client:
        log_in(client)
        assert client.call(ApiKey.METADATA.value, 1, messages.NO_TOPICS)


def test_a_request_in_the_middle_of_the_login_is_not_served(proxy: ProxyProcess) -> None:
    with RawClient(proxy.port, timeout_s=20) as client:
        assert handshake(client) == 0
        with pytest.raises(ConnectionEndedError):
            client.call(ApiKey.METADATA.value, 1, messages.NO_TOPICS)


def test_a_flood_of_logins_from_one_address_does_not_delay_those_of_others(tmp_path: Path) -> None:
    """The key of each password is computed in one of two threads. Before the addresses took turns, the honest login
    came behind all others."""
    rates = "[limits]\nmax_connection_rate = 0\nmax_connection_rate_per_ip = 0\n"
    config = terminated_plain(tmp_path, "--iterations", ITERATIONS) + rates
    with FakeBroker({}) as broker, ProxyProcess(broker.address, config=config) as proxy:
        assert any(overtakes_a_flood(proxy) for _ in range(3))  # a long pause of this process may outlast a flood


def overtakes_a_flood(proxy: ProxyProcess) -> bool:
    """Return whether a login is answered while those of a flood that began before it still wait."""
    with RawClient(proxy.port, timeout_s=60) as honest, contextlib.ExitStack() as stack:
        assert handshake(honest) == 0
        attackers = [stack.enter_context(RawClient(proxy.port, source="127.0.1.1")) for _ in range(FLOOD)]
        for each in attackers:
            assert handshake(each) == 0
        for each in attackers:
            each.request(ApiKey.SASL_AUTHENTICATE.value, 1, messages.plain_token("bob", "guessed"))
        answer = honest.call(ApiKey.SASL_AUTHENTICATE.value, 1, messages.plain_token("bob", SECRETS["bob"]))
        answered, _, _ = select.select([each.sock for each in attackers], [], [], 0)
        assert answer[:2] == b"\0\0"
        return len(answered) < FLOOD


def proxys_login(folder: Path) -> str:
    """Return the configuration of a proxy that authenticates to brokers by PLAIN as carol."""
    password = folder / "password"
    password.write_text(SECRETS["carol"], encoding="ascii")
    return f'[upstream.sasl]\nmechanism = "PLAIN"\nuser = "carol"\npassword = {{ file = "{password}" }}\n'


def answer_with_garbage(conversation: Conversation, asked: Asked) -> None:
    conversation.reply(asked, b"\0\0\x7f\xff\xff\xff")


def agree_then_answer_with_garbage(conversation: Conversation, asked: Asked) -> None:
    conversation.reply(asked, struct.pack(">hi", 0, 0))
    conversation.reply(conversation.next(), b"\0\0\x7f")


@pytest.mark.parametrize("behaviour", [answer_with_garbage, agree_then_answer_with_garbage])
def test_a_login_that_a_broker_answers_with_garbage_is_the_brokers_fault(
    tmp_path: Path, behaviour: Callable[[Conversation, Asked], None]
) -> None:
    with (
        FakeBroker({"raw": behaviour}) as broker,
        ProxyProcess(broker.address, config=proxys_login(tmp_path)) as proxy,
        RawClient(proxy.port, timeout_s=20) as client,
    ):
        with pytest.raises(ConnectionEndedError):
            client.call(ApiKey.METADATA.value, 1, messages.NO_TOPICS)
        proxy.wait_for_log("upstream: the broker's answer to the proxy's login is not valid")
        assert "plugin failed" not in proxy.log
        assert SECRETS["carol"] not in proxy.log


def never_answer(conversation: Conversation, _asked: Asked) -> None:
    conversation.wait_for_end()


@pytest.mark.exhaustive
def test_only_who_waits_for_a_login_is_overdue(tmp_path: Path) -> None:
    """One client has authenticated and sends nothing; another one's request waits for a broker that hangs."""
    config = terminated_plain(tmp_path) + proxys_login(tmp_path) + '[limits]\nlogin_timeout = "10s"\n'
    with (
        FakeBroker({"raw": never_answer}) as broker,
        ProxyProcess(broker.address, config=config) as proxy,
        RawClient(proxy.port, timeout_s=20) as idle,
        RawClient(proxy.port, timeout_s=20) as waiting,
    ):
        log_in(idle)
        log_in(waiting)
        with pytest.raises(ConnectionEndedError):
            waiting.call(ApiKey.METADATA.value, 1, messages.NO_TOPICS)
        proxy.wait_for_log("upstream: the broker did not accept the client within limits.login_timeout = 10 s")
        assert proxy.metric("headrace_connections") == 1
        assert handshake(idle) in (0, ILLEGAL_SASL_STATE)
