"""Attacks with many connections on a real proxy in front of a real broker: none may keep others from being served."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import TYPE_CHECKING, Final

from testbed.proxy_process import ProxyProcess
from tests.faults import messages
from tests.faults.bystander import Bystander
from tests.faults.metrics import series
from tests.faults.proxy_log import JSON_LOG, assert_no_traceback, events
from tests.faults.raw_client import ConnectionEndedError, RawClient
from tests.faults.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shared_cluster import FirstBroker

ATTACKER: Final = "127.0.0.3"
OTHERS: Final = ("127.0.0.4", "127.0.0.5", "127.0.0.6")
RATE: Final = 'headrace_connections_refused_total{limit="max_connection_rate_per_ip"}'
DELAY: Final = "headrace_accept_delay_seconds_total"
BURST_S: Final = 10
"""A rate is measured over at least ten seconds, by default, and over less than `LONGEST_S`."""
LONGEST_S: Final = 11


@contextlib.contextmanager
def proxy_with(kafka: FirstBroker, limits: str = "", *, head: str = "") -> Iterator[ProxyProcess]:
    config = f"{head}\n[limits]\n{limits}\n"
    with ProxyProcess(kafka.bootstrap_servers, config=config, arguments=JSON_LOG) as proxy:
        yield proxy
        assert_no_traceback(proxy)


def is_served(client: RawClient) -> bool:
    """Whether the broker answers the client."""
    try:
        client.call(messages.METADATA, messages.METADATA_VERSION, messages.NO_TOPICS)
    except (ConnectionEndedError, BrokenPipeError, ConnectionResetError):
        return False
    return True


def connect(stack: contextlib.ExitStack, port: int, source: str, count: int) -> list[RawClient]:
    return [stack.enter_context(RawClient(port, source=source, distinct=False)) for _ in range(count)]


def served_of(clients: list[RawClient]) -> int:
    return sum(map(is_served, clients))


def refusals(proxy: ProxyProcess) -> list[str]:
    return [event["reason"] for event in events(proxy) if event["event"] == "connection refused"]


def test_silent_connections_of_one_address_leave_room_for_others(kafka: FirstBroker) -> None:
    with proxy_with(kafka, "max_connections = 20") as proxy, contextlib.ExitStack() as stack:
        connect(stack, proxy.port, ATTACKER, 40)
        wait_until(lambda: proxy.metric("headrace_connections_refused_total") >= 20, "the flood has arrived")
        assert served_of(connect(stack, proxy.port, OTHERS[0], 10)) == 10
        assert refusals(proxy) == ["limits.max_connections_per_ip = 10 is reached"]


def test_silent_connections_of_several_addresses_give_way(kafka: FirstBroker) -> None:
    """At the limit, each new connection closes the oldest of those that have asked for nothing."""
    with proxy_with(kafka, "max_connections = 20") as proxy, contextlib.ExitStack() as stack:
        for source in (ATTACKER, OTHERS[0]):
            connect(stack, proxy.port, source, 10)
        wait_until(lambda: proxy.metric("headrace_connections") == 20, "all places are taken")

        def served() -> bool:
            with contextlib.ExitStack() as one:
                return served_of(connect(one, proxy.port, OTHERS[1], 1)) == 1

        wait_until(served, "a client that tries again is served")
        assert any("it has asked for nothing" in event.get("reason", "") for event in events(proxy))


def test_a_flood_from_one_address_is_held_to_its_rate(kafka: FirstBroker) -> None:
    """With the settings of a proxy whose operator has set none."""
    with proxy_with(kafka) as proxy, Bystander(proxy.port) as bystander, bystander.watching():
        accepted = proxy.metric("headrace_connections_accepted_total")
        begin_s = time.monotonic()

        def over() -> bool:
            for _ in range(400):
                with socket.create_connection(("127.0.0.1", proxy.port), 20, (ATTACKER, 0)) as sock:
                    sock.sendall(b"\0")
            return series(proxy, RATE) >= 100

        wait_until(over, "connections are refused")
        accepted = proxy.metric("headrace_connections_accepted_total") - accepted
        assert accepted <= 100 * (LONGEST_S + time.monotonic() - begin_s)
        assert refusals(proxy) == ["limits.max_connection_rate_per_ip = 100 is exceeded"]
        with RawClient(proxy.port, source=OTHERS[0]) as other:
            assert is_served(other)
        assert proxy.metric(DELAY) == 0, "connections that an address is refused delay no client"


def test_over_its_rate_an_address_is_disconnected_after_a_delay(kafka: FirstBroker) -> None:
    """The delay is the shorter, the more time the first ten have taken: eleven may come in eleven seconds."""
    with proxy_with(kafka, "max_connection_rate_per_ip = 1") as proxy, contextlib.ExitStack() as stack:
        begin_s = time.monotonic()
        assert served_of(connect(stack, proxy.port, ATTACKER, BURST_S)) == BURST_S
        [refused] = connect(stack, proxy.port, ATTACKER, 1)
        assert refused.rest() == b""
        assert 0.9 <= time.monotonic() - begin_s < 15
        assert series(proxy, RATE) == 1


def test_over_the_rate_of_the_proxy_connections_wait_and_all_are_served(kafka: FirstBroker) -> None:
    rate = 20
    with proxy_with(kafka, f"max_connection_rate = {rate}") as proxy, contextlib.ExitStack() as stack:
        begin_s = time.monotonic()
        groups = [connect(stack, proxy.port, source, 77) for source in OTHERS]
        assert sum(map(served_of, groups)) == 231
        assert time.monotonic() - begin_s >= (231 - rate * LONGEST_S) / rate
        assert proxy.metric(DELAY) >= (231 - rate * LONGEST_S) / rate
        assert proxy.metric("headrace_connections_refused_total") == 0
        [line] = [event for event in events(proxy) if event["event"] == "accepting is delayed"]
        assert line["reason"] == f"limits.max_connection_rate = {rate} is exceeded"


def test_a_proxy_that_delays_accepting_stops_at_once(kafka: FirstBroker) -> None:
    head = "[quota.window]\nsize.seconds = 100"
    with proxy_with(kafka, "max_connection_rate = 1", head=head) as proxy, contextlib.ExitStack() as stack:
        connect(stack, proxy.port, ATTACKER, 3)
        wait_until(lambda: proxy.metric("headrace_connections") == 3, "all are accepted")
        proxy.reload("[limits]\nmax_connection_rate_per_ip = 0\n")
        stack.close()
        begin_s = time.monotonic()
        assert proxy.stop() == 0
        assert time.monotonic() - begin_s < 15


def test_exempt_networks_and_a_reload(kafka: FirstBroker) -> None:
    limits = "max_connection_rate_per_ip = 1\nmax_connections_per_ip = 15\nmax_connection_rate = 0\n"
    exempt = f'per_ip_exempt = ["{ATTACKER}/32"]\n'
    with proxy_with(kafka, limits + exempt) as proxy, contextlib.ExitStack() as stack:
        assert served_of(connect(stack, proxy.port, ATTACKER, 30)) == 30
        assert served_of(connect(stack, proxy.port, OTHERS[0], 20)) == BURST_S
        proxy.reload(f"[limits]\n{limits}")
        proxy.wait_for_log("per_ip_exempt")
        assert served_of(connect(stack, proxy.port, ATTACKER, 1)) == 0
        proxy.reload("[limits]\nmax_connection_rate_per_ip = 0\nmax_connections_per_ip = 0\n")
        wait_until(lambda: served_of(connect(stack, proxy.port, OTHERS[0], 1)) == 1, "no limit per address")
