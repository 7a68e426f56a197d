"""The limits on the rate of new connections: Kafka's semantics, and tables that addresses cannot fill."""

from __future__ import annotations

import socket
from ipaddress import ip_network
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from headrace.proxy.counters import Counters
from headrace.proxy.network import admission, connection_rates
from headrace.proxy.network.admission import Admission, AdmissionLimits
from headrace.proxy.network.connection_rates import ConnectionRates
from headrace.proxy.network.listening_sockets import (
    ACCEPTS_A_TURN,
    ListeningSocket,
    Ports,
    accept_loop,
    close_sockets,
    open_sockets,
)
from headrace.proxy.network.overload import Overload
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.requests import Address

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

WINDOW = Window()
BURST_S = WINDOW.samples - 1
"""A rate is measured over at least ten seconds."""
UNLIMITED = AdmissionLimits(
    max_connections=2**31 - 1,
    max_connections_per_ip=0,
    max_connection_rate=0,
    max_connection_rate_per_ip=0,
    per_ip_exempt=(),
)


def test_an_address_over_its_rate_waits_until_one_more_fits() -> None:
    rates = ConnectionRates(WINDOW)
    assert [rates.add_from("a", 2, 0) for _ in range(2 * BURST_S)] == [0] * 2 * BURST_S
    assert rates.add_from("a", 2, 0) == 0.5, "one connection is half a second of the limit"
    assert rates.add_from("a", 2, 0) == 0.5, "what is refused is not counted"
    assert rates.add_from("b", 2, 0) == 0
    assert rates.add_from("a", 2, 12_000) == 0


def test_over_the_rate_of_the_proxy_connections_come_at_that_rate() -> None:
    rates = ConnectionRates(WINDOW)
    assert [rates.add(4, 0) for _ in range(4 * BURST_S + 3)] == [0.0] * 4 * BURST_S + [0.25] * 3
    now_ms, count = 0, 0
    while now_ms < 60_000:
        now_ms += int(rates.add(4, now_ms) * 1000)
        count += 1
    assert 240 <= count <= 240 + 4, "neither more nor less than the limit, also when the burst has left the window"


def test_no_limit_counts_nothing() -> None:
    rates = ConnectionRates(WINDOW)
    assert all(rates.add(0, 0) == rates.add_from("a", 0, 0) == 0 for _ in range(10_000))
    assert len(rates) == 0


def test_in_any_window_no_more_are_admitted_than_the_limit_and_its_burst(rng: Random) -> None:
    rates, limit, admitted, now_ms = ConnectionRates(WINDOW), 5, [], 0
    for _ in range(20_000):
        now_ms += rng.choice((0, 0, 0, 1, 10, 300))
        if not rates.add_from("a", limit, now_ms):
            admitted.append(now_ms)
    window_ms = BURST_S * 1000
    first = 0
    for count, at_ms in enumerate(admitted, 1):
        while admitted[first] <= at_ms - window_ms:
            first += 1
        assert count - first <= 2 * limit * WINDOW.samples, f"at {at_ms} ms"
    assert len(admitted) <= limit * (now_ms / 1000 + WINDOW.samples)


@pytest.mark.parametrize("addresses", [100_000, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
def test_many_addresses_take_a_bounded_table(monkeypatch: pytest.MonkeyPatch, addresses: int) -> None:
    monkeypatch.setattr(connection_rates, "MAX_ADDRESSES", 100)
    rates = ConnectionRates(WINDOW)
    for _ in range(BURST_S):
        rates.add_from("attacker", 1, 0)
    for number in range(addresses):
        rates.add_from(f"2001:db8:0:{number:x}::/64", 1, 0)
        if number % 50 == 0:
            assert rates.add_from("attacker", 1, 0), "an address that goes on is not forgotten"
    assert len(rates) == 100


@pytest.mark.parametrize("host", ["10.1.2.3", "::ffff:10.1.2.3", "2001:db8::5"])
def test_exempt_networks(host: str) -> None:
    limits = AdmissionLimits(
        max_connections=1,
        max_connections_per_ip=1,
        max_connection_rate=1,
        max_connection_rate_per_ip=1,
        per_ip_exempt=(ip_network("10.1.0.0/16"), ip_network("2001:db8::/48")),
    )
    assert limits.exempts(host)
    assert not limits.exempts("10.2.0.1")
    assert not limits.exempts("2001:db8:1::5")
    assert not UNLIMITED.exempts(host)


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """Sockets to refuse, of which those that are still open at the end of the test are closed."""
    made = [socket.socket() for _ in range(2 * (2 * BURST_S + admission.MAX_DELAYED + 3))]
    yield made
    for sock in made:
        sock.close()


def peer(host: str) -> Address:
    return Address(host=host, port=1)


def test_what_an_address_is_refused_delays_nobody_else(sockets: list[socket.socket]) -> None:
    """Else one address could use up the rate of the whole proxy."""
    counters = Counters()
    limits = AdmissionLimits(
        max_connections=1000,
        max_connections_per_ip=5,
        max_connection_rate=1,
        max_connection_rate_per_ip=2,
        per_ip_exempt=(),
    )
    admitting = Admission(limits, counters, WINDOW)
    answers = [admitting.admit(sock, peer("192.0.2.1"), 0.0) for sock in sockets[:100]]
    assert answers == [(True, 0.0)] * 5 + [(False, 0.0)] * 95
    assert counters.connections_refused == {"max_connections_per_ip": 15, "max_connection_rate_per_ip": 80}
    assert [admitting.admit(sock, peer("192.0.2.2"), 0.0) for sock in sockets[100:105]] == [(True, 0.0)] * 5
    assert admitting.admit(sockets[105], peer("192.0.2.3"), 0.0) == (True, 1.0)
    assert counters.accept_delayed_s == 1.0


@pytest.mark.parametrize(
    ("configured", "host"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("::FFFF:c000:201", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::102:304", "::1.2.3.4"),
        ("fe80::1", "fe80::1%lo"),
    ],
)
def test_the_quota_of_an_address_applies_in_every_form(
    configured: str, host: str, sockets: list[socket.socket]
) -> None:
    limits = AdmissionLimits(
        max_connections=1000,
        max_connections_per_ip=0,
        max_connection_rate=0,
        max_connection_rate_per_ip=0,
        per_ip_exempt=(),
    )
    admitting = Admission(limits, Counters(), WINDOW)
    admitting.set_rate(configured, 1.0)
    admitted = [admitting.admit(sock, peer(host), 0.0)[0] for sock in sockets[: 2 * BURST_S]]
    assert admitted == [True] * BURST_S + [False] * BURST_S
    admitting.set_rate(host.partition("%")[0], None)
    assert admitting.admit(sockets[-1], peer(host), 0.0) == (True, 0.0)


async def test_refused_connections_are_closed_after_their_delay(
    autojump_clock: trio.testing.MockClock,
    sockets: list[socket.socket],
) -> None:
    counters = Counters()
    limits = AdmissionLimits(
        max_connections=1000,
        max_connections_per_ip=0,
        max_connection_rate=0,
        max_connection_rate_per_ip=2,
        per_ip_exempt=(),
    )
    admitting = Admission(limits, counters, WINDOW)
    burst, half = 2 * BURST_S, len(sockets) // 2
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admitting.close_delayed)
        for begin in (0, half):
            some = sockets[begin : begin + half]
            for sock in some:
                admitting.admit(sock, peer("192.0.2.1"), trio.current_time())
            assert all(sock.fileno() < 0 for sock in some[-3:]), "no more are kept than the most"
            await trio.sleep(0.4)
            assert all(sock.fileno() >= 0 for sock in some[:-3])
            if begin == 0:
                await trio.sleep(0.2)
                assert all(sock.fileno() < 0 for sock in some[burst:-3])
                assert all(sock.fileno() >= 0 for sock in some[:burst])
                await trio.sleep(100.0)
        nursery.cancel_scope.cancel()
    assert all(sock.fileno() < 0 for sock in sockets[half + burst :]), "all are closed when the proxy stops"


async def test_accepting_on_many_ports_takes_one_turn_at_a_time() -> None:
    ports, waiting, steps = 4, 40, [0]
    turn = trio.Lock()
    accepted: list[socket.socket] = []
    bootstrap = Ports(setting="listen", host="127.0.0.1", port=0, backlog=waiting)
    listeners = open_sockets([bootstrap] * ports)

    def count(sock: socket.socket, _peer: Address, _listening: ListeningSocket) -> float:
        accepted.append(sock)
        return 0.0

    clients = [socket.create_connection(each.sock.getsockname()) for each in listeners for _ in range(waiting)]
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(accept_loop, listener, count, turn, Overload(Counters()))
            while len(accepted) < ports * waiting:
                await trio.lowlevel.checkpoint()
                steps.append(len(accepted))
            close_sockets(listeners)
    for sock in (*clients, *accepted):
        sock.close()
    assert max(after - before for before, after in pairwise(steps)) <= 2 * ACCEPTS_A_TURN, (
        "one turn before, and one after this task has run"
    )
