"""The handshakes of honest clients beside a flood of others, on a simulated clock."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
import trio

from headrace.proxy.counters import Counters
from headrace.proxy.errors import ClientFault
from headrace.proxy.network.tls.handshakes import SILENT_S, Handshakes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from trio.testing import MockClock

MOST: Final = 64
COMPUTATION_S: Final = 0.001
ROUND_TRIP_S: Final = 0.02
FLOOD_PER_S: Final = 1000
HONEST_PER_S: Final = 20
DURATION_S: Final = 1.0


class SimulatedSocket:
    """A connection whose client answers after a round trip, or not at all."""

    is_resumed = False

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers

    async def receive_hello(self, setting: str) -> None:
        await trio.lowlevel.checkpoint()

    def start(self, context: object, *, server_side: bool) -> None:
        pass

    async def handshake(self, turn: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        async with turn():
            await trio.sleep(COMPUTATION_S)
        await trio.sleep(ROUND_TRIP_S if self._answers else float("inf"))
        async with turn():
            await trio.sleep(COMPUTATION_S)


class Clients:
    """Clients of one `Handshakes`; ``served`` has the addresses of those whose handshake succeeded."""

    def __init__(self) -> None:
        self.handshakes = Handshakes(Counters(), most=MOST, timeout_s=10.0)
        self.served: list[str] = []
        self.refused: list[str] = []

    async def connect(self, address: str, *, answers: bool = True) -> None:
        sock: Any = SimulatedSocket(answers=answers)
        context: Any = type("Context", (), {"setting": "listen.tls"})
        try:
            await self.handshakes.serve(sock, context, address)
        except ClientFault:
            self.refused.append(address)
        else:
            self.served.append(address)


@pytest.mark.parametrize("addresses", [1, 10])
async def test_honest_clients_are_served_beside_a_flood(autojump_clock: MockClock, addresses: int) -> None:
    clients = Clients()
    async with trio.open_nursery() as nursery:
        for number in range(int(DURATION_S * FLOOD_PER_S)):
            flooding = f"192.0.2.{number % addresses}"
            nursery.start_soon(partial(clients.connect, flooding, answers=False))
            if number % (FLOOD_PER_S // HONEST_PER_S) == 0:
                nursery.start_soon(clients.connect, f"198.51.100.{number % 3}")
            await trio.sleep(1 / FLOOD_PER_S)
        await trio.sleep(2.0)
        nursery.cancel_scope.cancel()
    assert len(clients.served) == DURATION_S * HONEST_PER_S
    assert not [address for address in clients.refused if address.startswith("198.51.100.")]


async def test_silent_clients_are_ended_before_an_address_with_many_handshakes(autojump_clock: MockClock) -> None:
    """Clients with one silent connection each do not end those of an address with several honest clients."""
    clients = Clients()
    async with trio.open_nursery() as nursery:
        for number in range(MOST):
            nursery.start_soon(partial(clients.connect, f"192.0.2.{number}", answers=False))
        await trio.sleep(2 * SILENT_S)
        for _ in range(10):
            nursery.start_soon(clients.connect, "198.51.100.1")
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert clients.served == ["198.51.100.1"] * 10
    assert len(clients.refused) == 10


@pytest.mark.parametrize("address", ["2001:db8::1", "fe80::1%eth0", "::ffff:192.0.2.1"])
async def test_clients_with_ipv6_addresses_are_served(autojump_clock: MockClock, address: str) -> None:
    clients = Clients()
    await clients.connect(address)
    assert clients.served == [address]
