"""Many clients that send a thousand requests at once, to a real proxy in front of a real broker."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import pytest

from headrace.proxy.connection.request_relay import MAX_HANDSHAKES
from headrace.proxy.connection.state.in_flight import HANDSHAKES_IN_FLIGHT
from testbed.proxy_process import ProxyProcess
from tests.clients.fronts import eventually
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.fake_broker import API_VERSIONS_BODY, Asked, Conversation, FakeBroker
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback
from tests.faults.raw_client import RawClient
from tests.faults.waiting import wait_until
from tests.security.loop_turns import assert_no_long_turn
from tests.security.planes import NATIVE, NEEDS_ENGINE, warm_up
from tests.shared_cluster import LISTENER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.secured import Security
    from tests.shared_cluster import FirstBroker

CONFIG: Final = """
[limits]
max_connection_rate = 0
max_connection_rate_per_ip = 0
[[quotas]]
entity = { client-id = "<default>" }
producer_byte_rate = 1e9
request_percentage = 10000
"""
CLIENTS: Final = 40
REQUESTS: Final = 1000
BURST: Final = messages.request(messages.API_VERSIONS, 0, 1, b"", "attacker") * REQUESTS
ASKED: Final = 'headrace_requests_total{api="ApiVersions"}'
MIB: Final = 2**20


@pytest.fixture
def clients() -> Iterator[contextlib.ExitStack]:
    """Closes the clients of a test at its end."""
    with contextlib.ExitStack() as stack:
        yield stack


def burst(proxy: ProxyProcess, clients: contextlib.ExitStack) -> list[RawClient]:
    """Connect `CLIENTS` and let each send a burst, without reading the answers."""
    senders = [clients.enter_context(RawClient(proxy.port, client_id="attacker")) for _ in range(CLIENTS)]
    for each in senders:
        with contextlib.suppress(ConnectionError):  # it may be closed before it has sent all
            each.send(BURST)
    return senders


def test_few_requests_of_a_client_that_has_not_logged_in_are_forwarded(
    security: Security, kafka: FirstBroker, clients: contextlib.ExitStack
) -> None:
    """A broker ends the connection at the second ApiVersions; what is in flight by then is what costs the proxy."""
    with security.proxy(kafka.addresses(LISTENER), config=CONFIG, arguments=JSON_LOG) as proxy:
        start_bytes = proxy.resident_bytes

        def attack() -> None:
            before = series(proxy, ASKED)
            burst(proxy, clients)
            eventually(lambda: proxy.metric("headrace_connections") == 0, "all are closed")
            assert 0 < series(proxy, ASKED) - before <= CLIENTS * (HANDSHAKES_IN_FLIGHT + 1)

        assert_no_long_turn(proxy, attack)
        assert proxy.resident_bytes - start_bytes < 16 * MIB
        assert_no_traceback(proxy)


def answer_all(conversation: Conversation, asked: Asked) -> None:
    while True:
        conversation.reply(asked, API_VERSIONS_BODY)
        asked = conversation.next()


def test_a_client_that_does_not_log_in_gets_a_hundred_answers(
    security: Security, clients: contextlib.ExitStack
) -> None:
    """The broker answers all that it is asked, except what would show that it serves clients."""
    silent = {"attacker": answer_all, "headrace": lambda conversation, _: conversation.reset()}
    with FakeBroker(silent) as broker, security.proxy(broker.address, config=CONFIG, arguments=JSON_LOG) as proxy:
        burst(proxy, clients)
        eventually(lambda: proxy.metric("headrace_connections") == 0, "all are closed")
        assert series(proxy, ASKED) == CLIENTS * MAX_HANDSHAKES
        proxy.wait_for_log(f"at most {MAX_HANDSHAKES} may precede the end of its login")
        assert_no_traceback(proxy)


@pytest.mark.exhaustive
def test_bursts_of_accepted_clients_delay_others_by_little(
    security: Security, kafka: FirstBroker, clients: contextlib.ExitStack
) -> None:
    with (
        security.proxy(kafka.bootstrap_servers, config=CONFIG, arguments=JSON_LOG) as proxy,
        Bystander(proxy.port) as bystander,
    ):

        def attack() -> None:
            before = series(proxy, ASKED)
            with bystander.watching():
                burst(proxy, clients)
                bystander.wait_for_answers(20)
                wait_until(lambda: series(proxy, ASKED) >= before + CLIENTS * REQUESTS, "all requests are read", 120)

        assert_no_long_turn(proxy, attack)
        assert_no_traceback(proxy)


@pytest.mark.exhaustive
@NEEDS_ENGINE
def test_bursts_that_are_relayed_natively_delay_others_by_little(
    kafka: FirstBroker, clients: contextlib.ExitStack
) -> None:
    body, asked = messages.heartbeat_body(), 'headrace_requests_total{api="Heartbeat"}'
    frame = messages.request(messages.HEARTBEAT, messages.HEARTBEAT_VERSION, 1, body, "attacker")
    arguments = (*JSON_LOG, "--data-plane", NATIVE)
    with ProxyProcess(kafka.bootstrap_servers, config=CONFIG, arguments=arguments) as proxy:
        senders = [clients.enter_context(RawClient(proxy.port, client_id="attacker")) for _ in range(CLIENTS)]
        warm_up(proxy, NATIVE, *senders)

        def attack() -> None:
            before = series(proxy, asked)
            with Bystander(proxy.port) as bystander, bystander.watching():
                for each in senders:
                    each.send(frame * REQUESTS)
                bystander.wait_for_answers(20)
                wait_until(lambda: series(proxy, asked) >= before + CLIENTS * REQUESTS, "all requests are read", 120)

        assert_no_long_turn(proxy, attack)
        assert_no_traceback(proxy)
