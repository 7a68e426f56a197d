"""The share of the event loop's time that the admin server takes, with one request at a time.

The loop also serves Kafka's clients, and any client that reaches the admin port can send requests without a token. So
requests are parsed at their turn, in the order in which they came, and each address has a rate. Probes have turns and
rates of their own, so that no other request delays them. Each other page has its own turns, so that a page that takes
long to make delays only requests for the same page. TLS handshakes have turns, too, which go round the addresses, since
it is not known yet which of them is a probe's. Called by `headrace.proxy.admin.connections`,
`headrace.proxy.admin.http` and `headrace.proxy.admin.server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from headrace.proxy.network.connection_rates import ConnectionRates
from headrace.proxy.network.tls.handshake_turns import TurnsByAddress, end_of_pause
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.client_addresses import counted_address

if TYPE_CHECKING:
    from types import TracebackType

REQUESTS_PER_S: Final = 50
"""Rate of requests, and also of probes, of an address. More requests wait. Ten times as many may come at once."""
CONNECTIONS_PER_S: Final = 100
"""Rate of connections of an address. Further ones are closed without an answer."""
PAUSE_FACTOR: Final = 9
"""A pause is this many times as long as the work before it, so that a tenth of the time is for work."""
HANDSHAKE_PAUSE_FACTOR: Final = 3
"""Factor for the computations of TLS handshakes: a quarter of the time is for them. With ``admin.max_connections``
handshakes from as many addresses, that of a probe may be the last, and must still be done within a second."""
_WINDOW: Final = Window()


class Turns:
    """Turns of one kind of work. Use it as an async context manager around the work."""

    __slots__ = ("_began_s", "_lock", "_next_s")

    def __init__(self) -> None:
        self._lock = trio.Lock()  # fair: in the order of the calls
        self._began_s = 0.0
        self._next_s = float("-inf")
        """Time at which the pause ends."""

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        try:
            await trio.sleep_until(self._next_s)
        except BaseException:  # cancelled while it waits: the caller's error, which is raised again
            self._lock.release()
            raise
        self._began_s = trio.current_time()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._next_s = end_of_pause(self._began_s, PAUSE_FACTOR)
        self._lock.release()


class RatedTurns(Turns):
    """Turns of requests, which have a rate for each address."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        super().__init__()
        self._rates = ConnectionRates(_WINDOW)

    async def wait_for_rate(self, client: str) -> None:
        """Wait until the rate of the client's address allows one more request."""
        address = counted_address(client)
        while delay_s := self._rates.add_from(address, REQUESTS_PER_S, _now_ms()):  # noqa: ASYNC110
            await trio.sleep(delay_s)


class AdminTurns:
    """The turns of all requests to one admin server, and the rates of its connections."""

    __slots__ = ("_connections", "handshakes", "probes", "requests")

    def __init__(self) -> None:
        self._connections = ConnectionRates(_WINDOW)
        self.handshakes = TurnsByAddress(HANDSHAKE_PAUSE_FACTOR)
        self.probes = RatedTurns()
        self.requests = RatedTurns()

    def admits(self, client: str) -> bool:
        """Count a new connection, and return whether the rate of its address allows it."""
        return not self._connections.add_from(counted_address(client), CONNECTIONS_PER_S, _now_ms())


def _now_ms() -> int:
    return int(trio.current_time() * 1000)
