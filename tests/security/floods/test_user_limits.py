"""Users with too many connections, or that open them too fast: others are served, and nobody can use up their share."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import pytest

from headrace.quota_callbacks.api_keys import ApiKey
from testbed.kafka.certificates import Authority, ClientTls
from testbed.proxy_process import ProxyProcess
from tests.clients.tls.proxies import listen_tls, terminated_plain
from tests.faults import messages
from tests.faults.fake_broker import FakeBroker
from tests.faults.limits.test_limits import is_served
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until
from tests.shared_cluster import SECRETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBER: Final = 'headrace_connections_refused_total{limit="max_connections_per_user"}'
RATE: Final = 'headrace_connections_refused_total{limit="max_connection_rate_per_user"}'
BURST_S: Final = 10
"""A rate is measured over at least ten seconds."""


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with FakeBroker({}) as fake:
        yield fake


@pytest.fixture(scope="module")
def terminating(tmp_path_factory: pytest.TempPathFactory) -> str:
    return terminated_plain(tmp_path_factory.mktemp("users"))


@contextlib.contextmanager
def proxy_with(broker: FakeBroker, config: str, limits: str, *, head: str = "") -> Iterator[ProxyProcess]:
    whole = f"{head}\n{config}\n[limits]\n{limits}\n"
    with ProxyProcess(broker.address, config=whole, arguments=JSON_LOG) as proxy:
        wait_until(lambda: "brokers changed" in proxy.log, "the proxy knows that brokers serve anybody")
        yield proxy
        assert_no_traceback(proxy)


def logs_in(client: RawClient, user: str, password: str | None = None) -> bool:
    """Whether the login is answered with success; ``False`` if the connection is closed instead."""
    client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
    token = messages.plain_token(user, password or SECRETS[user])
    try:
        answer = client.call(ApiKey.SASL_AUTHENTICATE.value, 1, token)
    except ConnectionEndedError:
        return False
    return answer[:2] == b"\0\0"


def connect(stack: contextlib.ExitStack, proxy: ProxyProcess, count: int) -> list[RawClient]:
    return [stack.enter_context(RawClient(proxy.port)) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_user_with_too_many_connections_takes_nothing_from_others(
    broker: FakeBroker, terminating: str, threads: int
) -> None:
    head = f"data_plane_threads = {threads}"
    with (
        proxy_with(broker, terminating, "max_connections_per_user = 3", head=head) as proxy,
        contextlib.ExitStack() as stack,
    ):
        alices = connect(stack, proxy, 10)
        served = [client for client in alices if logs_in(client, "alice")]
        assert len(served) == 3
        assert series(proxy, NUMBER) == 7
        assert all(logs_in(client, "bob") for client in connect(stack, proxy, 3))
        assert all(map(is_served, served))
        proxy.wait_for_log("client: user alice: limits.max_connections_per_user = 3 is reached")
        served[0].close()
        wait_until(lambda: proxy.metric("headrace_connections") == 5, "the proxy has noticed that one left")
        [next_one] = connect(stack, proxy, 1)
        assert logs_in(next_one, "alice")


def test_a_user_that_connects_too_fast_is_closed_after_a_delay(broker: FakeBroker, terminating: str) -> None:
    with (
        proxy_with(broker, terminating, "max_connection_rate_per_user = 1") as proxy,
        contextlib.ExitStack() as stack,
    ):
        begin_s = time.monotonic()
        assert all(logs_in(client, "alice") for client in connect(stack, proxy, BURST_S))
        [refused] = connect(stack, proxy, 1)
        assert not logs_in(refused, "alice")
        assert time.monotonic() - begin_s >= 0.9, "when there would have been room for one more connection"
        assert series(proxy, RATE) == 1
        assert all(logs_in(client, "bob") for client in connect(stack, proxy, BURST_S))


def test_nobody_can_use_up_the_share_of_another_user(broker: FakeBroker, terminating: str) -> None:
    """Neither by wrong passwords nor by logins that are begun and not finished."""
    limits = "max_connections_per_user = 2\nmax_connection_rate_per_user = 1"
    with proxy_with(broker, terminating, limits) as proxy, contextlib.ExitStack() as stack:
        for client in connect(stack, proxy, 2 * BURST_S):
            assert not logs_in(client, "alice", "wrong")
        for client in connect(stack, proxy, 2 * BURST_S):
            client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
        assert all(logs_in(client, "alice") for client in connect(stack, proxy, 2))
        assert series(proxy, NUMBER) == series(proxy, RATE) == 0


def test_authenticating_again_does_not_count_again(broker: FakeBroker, terminating: str) -> None:
    limits = "max_connections_per_user = 1"
    with proxy_with(broker, terminating, limits) as proxy, RawClient(proxy.port) as client:
        assert logs_in(client, "alice")

        def again() -> bool:  # not within a second of the last
            answer = client.call(messages.SASL_HANDSHAKE, 1, messages.string("PLAIN"))
            return answer[:2] == b"\0\0"

        wait_until(again, "the client may authenticate again")
        token = messages.plain_token("alice", SECRETS["alice"])
        answer = client.call(ApiKey.SASL_AUTHENTICATE.value, 1, token)
        assert answer[:2] == b"\0\0"
        assert is_served(client)
        assert series(proxy, NUMBER) == 0


def test_exempt_users_and_a_reload(broker: FakeBroker, terminating: str) -> None:
    limits = "max_connections_per_user = 1\n"
    exempt = 'per_user_exempt = ["alice"]\n'
    with proxy_with(broker, terminating, limits + exempt) as proxy, contextlib.ExitStack() as stack:
        assert all(logs_in(client, "alice") for client in connect(stack, proxy, 3))
        assert [logs_in(client, "bob") for client in connect(stack, proxy, 2)] == [True, False]
        proxy.reload(f"{terminating}[limits]\n{limits}")
        proxy.wait_for_log("per_user_exempt")
        assert not any(logs_in(client, "alice") for client in connect(stack, proxy, 1))


def test_connections_of_a_certificates_subject_count(broker: FakeBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, others = (
        ClientTls(authority=authority, certificate=authority.client_certificate(f"CN={name}")).ssl_context()
        for name in ("alice", "bob")
    )
    config = listen_tls(authority.broker_certificate(), clients=authority.ca_file)
    with proxy_with(broker, config, "max_connections_per_user = 2") as proxy, contextlib.ExitStack() as stack:
        served = []
        for context in (own, own, own, others):
            client = stack.enter_context(RawClient(proxy.port))
            client.sock = context.wrap_socket(client.sock, server_hostname="127.0.0.1")
            served.append(is_served(client))
        assert served == [True, True, False, True]
        proxy.wait_for_log("user CN=alice: limits.max_connections_per_user = 2 is reached")


def test_clients_without_a_login_are_not_counted(broker: FakeBroker) -> None:
    with proxy_with(broker, "", "max_connections_per_user = 1") as proxy, contextlib.ExitStack() as stack:
        assert all(map(is_served, connect(stack, proxy, 5)))
